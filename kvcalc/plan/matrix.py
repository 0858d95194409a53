"""A matrix of settings as single cases: counted before anything is made."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from kvcalc.errors import KvcalcError
from kvcalc.plan.settings import Given

MOST_CASES = 10_000
"""More than that is a sweep."""

Axes = Mapping[str, Sequence[Given]]
"""The values of each setting that varies."""


def count(axes: Axes) -> int:
    """How many cases they make."""
    return prod(len(values) for values in axes.values())


def refuse_many(counts: Sequence[int]) -> None:
    """KvcalcError where cases of such counts are too many together."""
    total = sum(counts)
    if total > MOST_CASES:
        message = f"the plan expands to {total:,} cases, and {MOST_CASES:,} are the most"
        raise KvcalcError(message, "shorten a matrix; kvcalc sweep is made for grids")


def expanded(name: str, axes: Axes) -> Iterator[tuple[str, dict[str, Given]]]:
    """Every case: its name, as in `chat [kv_dtype=fp8 tp=2]`, and what it sets."""
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        words = " ".join(f"{axis}={_word(given)}" for axis, given in chosen.items())
        yield (f"{name} [{words}]" if words else name), chosen


def _word(given: Given) -> str:
    return str(given.value).lower() if isinstance(given.value, bool) else str(given.value)
