"""Synthetic traces: lengths, arrivals and shared prefixes drawn from distributions by a seed."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.errors import KvcalcError, printable
from kvcalc.workload.arrivals import Arrivals, retimed
from kvcalc.workload.distributions import Distribution
from kvcalc.workload.prefixes import SharedPrefix
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    import numpy as np

    Rng = np.random.Generator
else:
    Rng = Any

DEFAULT_SEED = 20230916
"""Used where none is given, so that two runs of one command agree."""

CAPPED_PROMPTS = "prompt capped at its max"
CAPPED_ANSWERS = "answer capped at its max"
_MOST_REQUESTS = 10**8
"""All are held at once, with what becomes of them some 100 bytes each."""


def generate(
    *,
    requests: int,
    isl: Distribution,
    osl: Distribution,
    arrivals: Arrivals | None = None,
    prefix: SharedPrefix | None = None,
    seed: int = DEFAULT_SEED,
) -> Trace:
    """`requests` requests; the trace's name spells out what they were drawn from, seed included.

    Without `arrivals` only the order is known. A shared prefix stands before a prompt of `isl` tokens and adds to it.
    Equal arguments give equal bits, and each part is drawn by itself: other arrivals leave the lengths as they are.
    """

    if not 1 <= requests <= _MOST_REQUESTS:
        said = f"{requests:,} requests cannot be drawn: all of them are held in memory"
        raise KvcalcError(said, f"from 1 to {_MOST_REQUESTS:,}; percentiles settle long before")
    of_prompts, of_answers, of_arrivals, of_prefixes = streams(seed, 4)
    prompts, capped_prompts = isl.draw(of_prompts, requests)
    answers, capped_answers = osl.draw(of_answers, requests)
    trace = Trace(
        name=_name(isl, osl, arrivals, prefix, seed),
        prompt_tokens=prompts,
        output_tokens=answers,
        counted=dict(+Counter({CAPPED_PROMPTS: capped_prompts, CAPPED_ANSWERS: capped_answers})),
    )
    if prefix is not None:
        ids, ends = prefix.ids(of_prefixes, requests)
        trace = msgspec.structs.replace(
            trace, prompt_tokens=prompts + prefix.tokens, prefix_ids=ids, prefix_ends=ends, prefix_tokens=prefix.block
        )
    return trace if arrivals is None else retimed(trace, arrivals, of_arrivals)


def streams(seed: int, count: int) -> "list[Rng]":
    """Independent generators of one seed."""
    import numpy as np

    if seed < 0:
        raise KvcalcError(f"a seed of {seed}", "a whole number from 0")
    return [np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(count)]


def _name(
    isl: Distribution, osl: Distribution, arrivals: Arrivals | None, prefix: SharedPrefix | None, seed: int
) -> str:
    parts = {
        "isl": isl.spelling,
        "osl": osl.spelling,
        "arrivals": arrivals.spelling if arrivals else "",
        "prefix": prefix.spelling if prefix else "",
        "seed": str(seed),
    }
    return printable(" ".join(f"{key}={value}" for key, value in parts.items() if value))
