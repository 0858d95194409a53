"""The need by itself as an engine: nothing is rounded, set aside or shared."""

from typing import ClassVar

from kvcalc.engines.engine import Allocation, Capacity, Card, Engine
from kvcalc.engines.held import MOST_SEQUENCES, held_capacity
from kvcalc.sizing.need import MOST_BYTES, CacheSize


class Plain(Engine, frozen=True, kw_only=True):
    """What stands where no engine was named."""

    name: ClassVar[str] = "need"
    versions: ClassVar[tuple[str, ...]] = ("exact",)
    is_plain: ClassVar[bool] = True

    def allocate(self, size: CacheSize) -> Allocation:
        """The need on the fullest rank, in bytes."""
        return Allocation(self.name, self.version, size.bytes_per_rank, ())

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """How often the need goes into the memory: a batch takes as much as its sequences."""
        dp, tokens = size.sharding.dp, size.workload.context_tokens
        one = max(1, size.bytes_per_rank // -(-size.workload.batch // dp))
        sequences = min(pool_bytes // one, MOST_SEQUENCES, MOST_BYTES // (one * dp))
        if not sequences:
            return held_capacity(self.allocate, size, pool_bytes)
        return Capacity(
            pool_bytes=pool_bytes,
            tokens=None,
            sequences=sequences,
            max_concurrency=pool_bytes / one,
            limited_by="memory" if sequences < MOST_SEQUENCES else "slots",
            longest_request=tokens,
            max_model_len=tokens,
        )

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """All that is left, in bytes."""
        return card.left_bytes
