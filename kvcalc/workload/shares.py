"""Where the memory of a pool is at one moment, as PagedAttention has it (arXiv 2309.06180, section 3.1)."""

from typing import NamedTuple

from kvcalc.sizing.blocks import Layout
from kvcalc.workload.trace import Integers


class Shares(NamedTuple):
    """Shares of a pool, which add up to 1.

    `tokens`: what requests have written and still need. `reserved`: slots that they will write, and nobody else may
    meanwhile. `internal`: slots in what they hold that they never write. `external`: all that no request holds, with
    what an allocator rounds a request up to.
    """

    tokens: float
    reserved: float
    internal: float
    external: float


def contiguous_shares(slots: int, written: Integers, final: Integers, reserved: Integers) -> Shares:
    """Of a pool of token slots where request i asked for `reserved[i]`, has `written[i]` and will have `final[i]`."""
    tokens, ends, asked = (int(counts.sum()) for counts in (written, final, reserved))
    return Shares(tokens / slots, (ends - tokens) / slots, (asked - ends) / slots, (slots - asked) / slots)


def paged_shares(layout: Layout, units: int, tokens: Integers, final: Integers) -> Shares:
    """Of a pool of units where sequence i holds the blocks of `tokens[i]` tokens and will have `final[i]`.

    Of the rest of a last block what is still to be written is reserved; padding, and what lies behind a window in a
    block that is not given back yet, is internal. Sequences share nothing here.
    """
    import numpy as np

    pool = units * layout.bytes_per_unit
    held, written = layout.held_bytes(tokens), layout.written_bytes(tokens)
    to_come = np.minimum(held - written, np.maximum(layout.written_bytes(final) - written, 0))
    tokens_share, reserved, internal = (int(part.sum()) / pool for part in (written, to_come, held - written - to_come))
    return Shares(tokens_share, reserved, internal, 1 - int(held.sum()) / pool)


def long_run_shares(prompt: float, output: float, reserved: float, requests: float, slots: int) -> Shares:
    """The average over time where so many requests run at once, each with `reserved` slots.

    A moment finds a request with the chance of how long it runs, so that `output` is E[o^2] / E[o] tokens and `prompt`
    is weighed by outputs: longer than the mean of requests. On average half of an output is written.
    """
    each = requests / slots
    ahead = output / 2
    internal = reserved - prompt - output
    return Shares(each * (prompt + ahead), each * ahead, each * internal, 1 - each * reserved)
