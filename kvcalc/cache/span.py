"""How many entries tokens leave behind, how many of them are read, and what does not grow."""

import math
from typing import Any, NamedTuple


class Span(NamedTuple):
    """How many entries `n` tokens leave behind: one per `ratio` tokens, at most `cap`.

    At the cap a window `slides`, and drops what stands behind it but the first `pinned` entries; a chunk begins anew.
    """

    ratio: int = 1
    cap: int | None = None
    slides: bool = False
    pinned: int = 0

    def entries(self, tokens: Any) -> Any:
        """Entries kept after `tokens` tokens; an integer, or an array where `tokens` is one."""
        return at_most(tokens // self.ratio, self.cap)

    def pairs(self, tokens: Any, limit: int | None = None) -> Any:
        """Pairs of a query and an entry, at most `limit` a query, where each of `tokens` tokens reads those before it.

        The sum of min(i // ratio, limit) over i = 1 ... tokens: a triangle until the limit is met, then a band.
        """
        bounds = [bound for bound in (self.cap, limit) if bound is not None]
        full = min(bounds) if bounds else None
        rising = at_most(tokens, None if full is None else full * self.ratio)
        steps = rising // self.ratio
        triangle = self.ratio * steps * (steps - 1) // 2 + steps * (rising - self.ratio * steps + 1)
        return triangle if full is None else triangle + (tokens - rising) * full


class State(NamedTuple):
    """One state that does not grow. `format` is a pin, `model` for the model's own, or None for the state format."""

    name: str
    shape: tuple[int, ...]
    format: str | None
    is_convolution: bool = False
    """Whether it is the last columns of a convolution, its width first and kernel - 1 last in the shape."""

    @property
    def width(self) -> int:
        """Numbers in one column of a convolution."""
        return math.prod(self.shape[:-1])

    @property
    def values(self) -> int:
        """How many numbers the state holds."""
        return math.prod(self.shape)


def at_most(count: Any, limit: int | None) -> Any:
    """min(count, limit) for an integer and for a whole array of them; no limit where it is None."""
    if limit is None:
        return count
    # Written with abs() because min() cannot compare arrays and numpy must not be imported for one number.
    return (count + limit - abs(count - limit)) // 2
