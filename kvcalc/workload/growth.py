"""What one sequence holds and fills of a pool at every length: tables that a scheduler looks up."""

from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.sizing.blocks import Layout

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
    Units = np.ndarray[tuple[int], np.dtype[np.int64]]
else:
    Floats = Units = Any


class Curve(NamedTuple):
    """`values` at 0, 1, 2, ... tokens, and what those below each length add up to."""

    values: Floats
    sums: Floats

    def sum(self, tokens: int, steps: int) -> float:
        """Of the values from `tokens` tokens on, so many."""
        return float(self.sums.item(tokens + steps) - self.sums.item(tokens))


class Growth(NamedTuple):
    """Pool units by tokens: `units` are held, `held` as a curve, and of them `filled` hold what was computed.

    Units never fall: a window that gave a block back is counted with it, at most a block a group more than it holds.
    """

    units: Units
    held: Curve
    filled: Curve


def growth_of(layout: Layout, most_tokens: int) -> Growth:
    """The tables of `layout` up to so many tokens."""
    import numpy as np

    tokens = np.arange(most_tokens + 1)
    units = np.maximum.accumulate(np.asarray(layout.units(tokens), dtype=np.int64))
    # Where a pool has no bytes, for states that stand elsewhere, nothing fills it.
    filled = np.asarray(layout.written_bytes(tokens)) / max(1, layout.bytes_per_unit)
    return Growth(units, _curve(units), _curve(np.minimum(filled, units)))


def _curve(values: Any) -> Curve:
    import numpy as np

    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return Curve(values.astype(np.float64), sums)
