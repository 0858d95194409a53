"""Requests that wait for a server, in the order in which it takes them."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence


class Waiting:
    """Those that were preempted, the oldest first, then the others as they arrive: all at once without `arrivals`."""

    def __init__(self, requests: Sequence[int], arrivals: list[float] | None) -> None:
        self._requests, self._arrivals = requests, arrivals
        self._preempted: deque[int] = deque()
        self._next = 0
        self.next_arrival = self._arrival()
        """Seconds at which the next request comes, infinity after the last one."""

    def _arrival(self) -> float:
        if self._next >= len(self._requests):
            return float("inf")
        return 0.0 if self._arrivals is None else self._arrivals[self._requests[self._next]]

    def head(self, now: float) -> int | None:
        """Who is next, None where nobody waits."""
        if self._preempted:
            return self._preempted[0]
        return self._requests[self._next] if self.next_arrival <= now else None

    def pop(self) -> None:
        """The head has been admitted."""
        if self._preempted:
            self._preempted.popleft()
        else:
            self._next += 1
            self.next_arrival = self._arrival()

    def push(self, request: int) -> None:
        """A preempted request waits before all others."""
        self._preempted.appendleft(request)

    def count(self, now: float) -> int:
        """How many wait."""
        arrived = len(self._requests)
        if self._arrivals is not None:
            arrived = bisect_right(self._requests, now, self._next, key=self._arrivals.__getitem__)
        return arrived - self._next + len(self._preempted)
