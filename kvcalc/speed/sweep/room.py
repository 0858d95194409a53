"""Which batches fit at which contexts: a staircase, found with as few questions to the engine as it has steps."""

from bisect import bisect_right
from collections.abc import Sequence

from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.speed.fitting import moves_with_batch, sequences_that_fit
from kvcalc.speed.kernels import Setting
from kvcalc.speed.setting import Use


class Room:
    """What a setting's cards hold. More tokens or more sequences never make room.

    `sizes` are shared with the other cards that the same model is put on.
    `reasons` are the sentences of an engine that refused; it holds nothing then.
    """

    def __init__(
        self, setting: Setting, use: Use, engine: str | None, sizes: dict[tuple[int, int], CacheSize] | None = None
    ) -> None:
        self.setting, self.use, self.engine = setting, use, engine
        self._sizes = {} if sizes is None else sizes
        self._batch_counts = moves_with_batch(engine)
        self.reasons: dict[str, None] = {}
        self._most: dict[tuple[int, int], int] = {}
        self._last = (1, 1)

    def most(self, context: int, batch: int) -> int:
        """Sequences of `context` tokens that run at once where `batch` are asked for."""
        key = context, batch if self._batch_counts else 1
        if key not in self._most:
            self._most[key] = self._asked(*key)
        return self._most[key]

    def most_at_once(self, context: int) -> int:
        """The largest batch that fits at `context` tokens, 0 for none."""
        most = self.most(context, 1)
        # What an engine sets aside may grow with the batch: then fewer fit than it says to one.
        low, high = 0, most
        while low < high:
            middle = high if high == most else (low + high + 1) // 2
            low, high = (middle, high) if self.most(context, middle) >= middle else (low, middle - 1)
        return low

    def fitting(self, contexts: Sequence[int], batches: Sequence[int]) -> list[int]:
        """For each context how many of `batches` fit, from the smallest; both rise."""
        counts = [0] * len(contexts)

        def fill(low: int, high: int) -> None:
            """Between two contexts that are known."""
            if high - low < 2 or counts[low] == counts[high]:
                counts[low + 1 : high] = [counts[high]] * max(0, high - low - 1)
                return
            middle = (low + high) // 2
            counts[middle] = self._count(contexts[middle], batches, counts[high], counts[low])
            fill(low, middle)
            fill(middle, high)

        counts[0] = self._count(contexts[0], batches, 0, len(batches))
        counts[-1] = self._count(contexts[-1], batches, 0, counts[0])
        fill(0, len(contexts) - 1)
        return counts

    def _count(self, context: int, batches: Sequence[int], low: int, high: int) -> int:
        """How many of `batches` fit, at least `low` and at most `high`."""
        tokens, most = self._last
        guess = bisect_right(batches, most * tokens // context)
        while low < high:
            place = guess if low < guess <= high else high
            batch = batches[place - 1]
            most = self.most(context, batch)
            self._last = context, most
            guess = bisect_right(batches, most)
            if most >= batch:
                # Larger batches get no more room than this one.
                low, high = place, min(high, guess)
            else:
                high = place - 1
        return low

    def ask(self, context: int, batch: int) -> int:
        """The same, and KvcalcError where the engine refuses."""
        key = context, batch
        if key not in self._sizes:
            self._sizes[key] = self.setting.model.size.at(context, batch)
        return sequences_that_fit(self.setting, self.use, self._sizes[key], self.engine, 0).sequences

    def _asked(self, context: int, batch: int) -> int:
        try:
            return self.ask(context, batch)
        except KvcalcError as error:
            self.reasons[error.message] = None
            return 0
