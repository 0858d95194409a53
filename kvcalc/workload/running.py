"""The sequences that decode, as arrays that one question answers for all of them."""

from heapq import heappop, heappush
from typing import Any

from kvcalc.workload.growth import Growth


class Running:
    """Decoding sequences by their base: a sequence has `base + step` tokens in a step, so that none of them moves."""

    def __init__(self, growth: Growth) -> None:
        import numpy as np

        self._units = growth.units
        self._add = np.add.reduce
        self._bases = np.empty(64, dtype=np.int64)
        self._requests: list[int] = []
        self._places: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []
        self._last: dict[int, int] = {}
        self._base_sum = 0
        self.count = 0
        """How many they are."""

    def join(self, request: int, base: int, last_step: int) -> None:
        """Let a request decode up to its last step."""
        import numpy as np

        count = self.count
        if count == len(self._bases):
            self._bases = np.concatenate([self._bases, self._bases])
        self._bases[count] = base
        self._requests.append(request)
        self._places[request] = count
        self._base_sum += base
        self.count += 1
        self._last[request] = last_step
        heappush(self._ends, (last_step, request))

    def leave(self, request: int) -> int:
        """Take a request out; its base."""
        self.count -= 1
        place, last = self._places.pop(request), self.count
        base = int(self._bases.item(place))
        moved = self._requests.pop()
        if place != last:
            self._requests[place] = moved
            self._places[moved] = place
            self._bases[place] = self._bases[last]
        self._base_sum -= base
        del self._last[request]
        return base

    def requests(self) -> list[int]:
        """Who they are, in no order."""
        return list(self._requests)

    def bases(self) -> list[int]:
        """What each has more than the number of the step."""
        found: list[int] = self._bases[: self.count].tolist()
        return found

    def context(self, step: int) -> int:
        """Tokens of all of them together in a step."""
        return self._base_sum + self.count * step

    def units(self, step: int) -> int:
        """Pool units that all of them have by their tokens in a step."""
        return int(self._add(self._units.take(self._bases[: self.count] + step)))

    def units_each(self, first: int, steps: int) -> Any:
        """The same for each of so many steps."""
        import numpy as np

        bases = self._bases[: self.count]
        return self._units.take(bases[None, :] + np.arange(first, first + steps)[:, None]).sum(axis=1)

    def last_step(self) -> int:
        """The step in which the next of them ends."""
        while self._last.get(self._ends[0][1]) != self._ends[0][0]:
            heappop(self._ends)
        return self._ends[0][0]

    def ended(self, step: int) -> list[int]:
        """Those whose last step this is."""
        found = []
        while self._ends and self._ends[0][0] <= step:
            last, request = heappop(self._ends)
            if self._last.get(request) == last:
                found.append(request)
        return found
