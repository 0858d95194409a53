"""The need by itself as an engine: nothing is rounded, set aside or shared."""

from typing import ClassVar

from kvcalc.engines.engine import Allocation, BlockPool, Capacity, Card, Engine
from kvcalc.engines.held import held_capacity
from kvcalc.sizing.blocks import layout_of
from kvcalc.sizing.need import CacheSize


class Plain(Engine, frozen=True, kw_only=True):
    """What stands where no engine was named."""

    name: ClassVar[str] = "need"
    versions: ClassVar[tuple[str, ...]] = ("exact",)
    batch_moves_capacity: ClassVar[bool] = False
    is_plain: ClassVar[bool] = True

    def allocate(self, size: CacheSize) -> Allocation:
        """The need on the fullest rank, in bytes."""
        return Allocation(self.name, self.version, size.bytes_per_rank, ())

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """How often the need goes into the memory."""
        one = size.at(size.workload.context_tokens, size.sharding.dp).bytes_per_rank
        return held_capacity(self.held_bytes, size, pool_bytes, linear_bytes=one)

    def blocks(self, size: CacheSize, pool_bytes: int) -> BlockPool:
        """The need token by token, in all of the pool."""
        layout = layout_of(size, 1)
        return BlockPool(layout=layout, units=layout.pool_units(pool_bytes))

    @property
    def keeps_prefixes(self) -> bool:
        """Unless somebody asks for less."""
        return True

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """All that is left, in bytes."""
        return card.left_bytes
