"""A server watched over time: a bounded number of looks, evenly apart."""

from typing import TYPE_CHECKING, Any

from kvcalc.workload.trace import Seconds

if TYPE_CHECKING:
    from kvcalc.workload.scheduler import Scheduler

COLUMNS = ("seconds", "running", "waiting", "held_units", "cached_units", "filled_units")


class Timeline:
    """At most `most` looks between steps: each second one is forgotten, and fewer are taken, where they become more.

    They are for pictures; what is averaged is summed over every step elsewhere.
    """

    def __init__(self, most: int) -> None:
        self._most = max(2, most)
        self._rows: list[tuple[float, ...]] = []
        self._apart = 0.0
        self.due = 0.0
        """When it is time to look again."""

    def look(self, server: "Scheduler") -> None:
        """Look at the server."""
        now = server.clock.now
        held = server.held_units()
        waiting = server.waiting.count(now)
        self._rows.append((now, server.running_count, waiting, held, server.policy.cached, server.filled_units()))
        if len(self._rows) > self._most:
            del self._rows[::2]
            self._apart = max(2 * self._apart, (now - self._rows[0][0]) / len(self._rows))
        self.due = now + self._apart

    def columns(self) -> dict[str, Seconds]:
        """What was seen, by the names of COLUMNS."""
        import numpy as np

        table: Any = np.array(self._rows, dtype=float).reshape(-1, len(COLUMNS))
        return dict(zip(COLUMNS, table.T, strict=True))
