"""What engines hold for the points of a grid: their own rules, asked for whole rows of batches."""

from collections.abc import Sequence
from typing import Any

from kvcalc.engines.engine import find_engine
from kvcalc.engines.held import largest
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import MOST_BYTES, CacheSize
from kvcalc.speed.sweep.asked import Asked, Deployment

REFUSED = -1
"""What stands for the bytes of a point that an engine refuses."""


class Held:
    """Bytes that an engine would allocate on the fullest rank. `reasons` are its sentences where it refuses."""

    def __init__(self, deployment: Deployment, engine: str, asked: Asked) -> None:
        self.size, self.engine = deployment.model.size, find_engine(engine)
        self.reasons: dict[str, None] = {}
        # What it refuses for the smallest point it refuses everywhere.
        self._row(self.size.at(asked.contexts[0], asked.batches[0]), asked.batches[:1])

    def allocated_bytes(self, contexts: Sequence[int], batches: Sequence[int]) -> Any:
        """An integer array, contexts down and batches across; `REFUSED` where the engine takes no such batch."""
        import numpy as np

        return np.array([self._known(self.size.at(context, batches[0]), batches) for context in contexts])

    def _known(self, size: CacheSize, batches: Sequence[int]) -> list[int]:
        try:
            return [*self._row(size, batches)]
        except KvcalcError as error:
            # One sentence is enough: they differ in the count that they name.
            self.reasons = self.reasons or {error.message: None}
        # What is refused for some sequences is refused for more.
        taken = largest(lambda count: self._takes(size, batches[count - 1]), len(batches))
        return [*(self._row(size, batches[:taken]) if taken else []), *[REFUSED] * (len(batches) - taken)]

    def _takes(self, size: CacheSize, batch: int) -> bool:
        try:
            self._row(size, [batch])
        except KvcalcError:
            return False
        return True

    def _row(self, size: CacheSize, batches: Sequence[int]) -> list[int]:
        found = self.engine.allocated_bytes(size, batches)
        if max(found) > MOST_BYTES:
            raise KvcalcError(f"{self.engine.name} would pass 8 EiB", "lower the largest context or batch")
        return found


def make_held(deployment: Deployment, asked: Asked) -> Held | None:
    """What the engine of a deployment holds where only memory is asked about; None without an engine."""
    return None if deployment.engine is None or deployment.gpu else Held(deployment, deployment.engine, asked)
