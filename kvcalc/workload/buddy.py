"""Contiguous reservation: a buddy allocator over token slots, and what each variant of Orca reserves.

Systems before paged attention gave a request one contiguous range for its longest possible sequence. The variants are
those that the PagedAttention paper built to compare with (arXiv 2309.06180, section 6.1); Knuth, TAOCP 1, 2.5, has the
allocator.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from kvcalc.errors import KvcalcError


class Place(NamedTuple):
    """A range of `slots` token slots, a power of two, from `start`, a multiple of it."""

    start: int
    slots: int


class Buddy:
    """A pool of token slots that is halved down to what a request needs, and joined again as halves come free.

    A pool that is no power of two is cut into the powers that add up to it, the largest first: 15,728 slots are 8,192 +
    4,096 + 2,048 + 1,024 + 256 + 64 + 32 + 16, which hold 2,048 slots seven times. Nothing is joined across them.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise KvcalcError(f"a pool of {slots} token slots holds nothing", "give it more memory")
        self.slots = slots
        self.taken = 0
        """Slots of all places that are out, rounding with them."""
        self._free: dict[int, set[int]] = {1 << order: set() for order in range(slots.bit_length())}
        self._starts: dict[int, list[int]] = {size: [] for size in self._free}
        start = 0
        for size in reversed(self._free):
            if slots & size:
                self._put(start, size)
                start += size

    def take(self, slots: int) -> Place | None:
        """The lowest of the smallest free ranges that hold `slots`, halved as far as they allow; None for none."""
        size = next_power(slots)
        found = next((have for have in self._free if have >= size and self._free[have]), None)
        if found is None:
            return None
        start = self._lowest(found)
        while found > size:
            found //= 2
            self._put(start + found, found)
        self.taken += size
        return Place(start, size)

    def free(self, place: Place) -> None:
        """Take `place` back, and join it with its other half for as long as that is free."""
        start, size = place
        self.taken -= size
        while start ^ size in self._free.get(size, ()):
            self._free[size].remove(start ^ size)
            start &= ~size
            size *= 2
        self._put(start, size)

    def free_places(self) -> list[Place]:
        """What is free, in order."""
        return sorted(Place(start, size) for size, starts in self._free.items() for start in starts)

    def _put(self, start: int, size: int) -> None:
        self._free[size].add(start)
        heappush(self._starts[size], start)

    def _lowest(self, size: int) -> int:
        """The first free start of a size; those that were joined since are still in the heap, and passed over."""
        while (start := heappop(self._starts[size])) not in self._free[size]:
            pass
        self._free[size].remove(start)
        return start


def next_power(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()


def _longest(prompt: int, output: int, max_tokens: int) -> int:
    """Orca (Max): as long as the model can take."""
    return max_tokens


def _next_power_of_output(prompt: int, output: int, max_tokens: int) -> int:
    """Orca (Pow2): the prompt and at most twice the output, 32 slots for 25 tokens."""
    return min(prompt + next_power(output), max_tokens)


def _true_length(prompt: int, output: int, max_tokens: int) -> int:
    """Orca (Oracle): what the request will turn out to need."""
    return min(prompt + output, max_tokens)


RESERVATIONS: dict[str, Callable[[int, int, int], int]] = {
    "max": _longest,
    "pow2": _next_power_of_output,
    "oracle": _true_length,
}
"""Token slots that a request of (prompt, output) tokens reserves where a sequence may have so many at most."""
