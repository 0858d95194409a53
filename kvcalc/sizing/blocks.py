"""A cache in blocks: how many units of a shared pool one sequence holds as it grows, whatever its layers keep.

Layers whose entries come and go alike share a block table: a group. Blocks of groups differ in bytes, so that a pool is
counted in units of which every block is a whole number.
"""

from collections import Counter
from collections.abc import Iterator
from math import gcd
from typing import Any

import msgspec

from kvcalc.cache.span import Span, at_most
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share a block table: one entry for every `ratio` tokens, in blocks of `block_tokens` tokens.

    Tokens and entries are ints or int64 arrays. Without a cap nothing is dropped; at a cap entries are written over.
    """

    name: str
    block_tokens: int
    """Tokens of a sequence that one block holds, a multiple of the ratio."""
    units: int
    """Pool units of one block."""
    ratio: int = 1
    cap: int | None = None
    """The most entries that are kept."""

    @property
    def block_entries(self) -> int:
        """Entries of one block."""
        return self.block_tokens // self.ratio

    def kept(self, tokens: Any) -> Any:
        """Entries that the last of `tokens` tokens may read."""
        return at_most(tokens // self.ratio, self.cap)

    def blocks(self, tokens: Any, step: int = 1) -> Any:
        """Blocks held once the last `step` of `tokens` tokens found their place."""
        return -(-self.kept(tokens) // self.block_entries)

    def dropped_blocks(self, tokens: Any, step: int = 1) -> Any:
        """Blocks at the front of the sequence that were given back by then."""
        return tokens * 0

    def most_blocks(self, tokens: int) -> int:
        """The most blocks that one sequence holds on its way to `tokens` tokens."""
        return int(self.blocks(tokens))

    def slot(self, tokens: int) -> int | None:
        """Where the last of `tokens` tokens writes an entry, counted through all blocks; None where it writes none."""
        if tokens % self.ratio:
            return None
        entry = tokens // self.ratio - 1
        return entry if self.cap is None else entry % self.cap

    @property
    def keeps_prefixes(self) -> bool:
        """Whether its full blocks stay what they are, so that another request may share them."""
        return self.cap is None


class Pinned(Group, frozen=True, kw_only=True):
    """The first `cap` entries, which stay."""

    def slot(self, tokens: int) -> int | None:
        return tokens - 1 if tokens <= (self.cap or 0) else None


class Window(Group, frozen=True, kw_only=True):
    """The last `cap` entries; a block that lies behind them as a whole is given back.

    vLLM's rule, v1/core/single_type_kv_cache_manager.py, SlidingWindowManager.get_num_skipped_tokens: before a step all
    but the W - 1 computed tokens are skipped. W entries touch a block more than they fill where they begin inside one.
    """

    first: int = 0
    """Entries at the front that no window drops, and another group keeps."""

    def kept(self, tokens: Any) -> Any:
        return at_most(_above_zero(tokens - self.first), self.cap)

    def blocks(self, tokens: Any, step: int = 1) -> Any:
        return -(-_above_zero(tokens - self.first) // self.block_entries) - self.dropped_blocks(tokens, step)

    def dropped_blocks(self, tokens: Any, step: int = 1) -> Any:
        return _above_zero(tokens - self.first - step + 1 - (self.cap or 0)) // self.block_entries

    def most_blocks(self, tokens: int) -> int:
        touched = -(-((self.cap or 1) - 1) // self.block_entries) + 1
        return min(-(-max(0, tokens - self.first) // self.block_entries), touched)

    def slot(self, tokens: int) -> int | None:
        return tokens - self.first - 1 if tokens > self.first else None

    @property
    def keeps_prefixes(self) -> bool:
        return not self.first


def _above_zero(count: Any) -> Any:
    return (count + abs(count)) // 2


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What one paged sequence holds of a rank's pool; every question takes ints and int64 arrays of tokens.

    `slot_units` are held from its first token to its last: states, the encoder's tokens.
    """

    groups: tuple[Group, ...]
    slot_units: int
    bytes_per_unit: int

    def units(self, tokens: Any, step: int = 1) -> Any:
        """Pool units held once the last `step` of `tokens` tokens found their place: one when decoding."""
        return sum((group.units * group.blocks(tokens, step) for group in self.groups), tokens * 0 + self.slot_units)

    def most_units(self, tokens: int) -> int:
        """The most pool units that one sequence holds on its way to `tokens` tokens."""
        return self.slot_units + sum(group.units * group.most_blocks(tokens) for group in self.groups)

    def held_bytes(self, tokens: Any) -> Any:
        """Bytes of those units."""
        return self.units(tokens) * self.bytes_per_unit

    def written_bytes(self, tokens: Any) -> Any:
        """Bytes of what its tokens left in them and it still needs, without the rest of blocks that are not full.

        Where blocks weigh what their entries do that is the need; decode-context ranks share it evenly.
        """
        unit = self.bytes_per_unit
        parts = (group.kept(tokens) * (group.units * unit) // group.block_entries for group in self.groups)
        return sum(parts, tokens * 0 + self.slot_units * unit)

    def pool_units(self, pool_bytes: int) -> int:
        """Units of a pool of so many bytes."""
        return pool_bytes // self.bytes_per_unit


def layout_of(size: CacheSize, block_tokens: int) -> Layout:
    """The need of `size` in blocks of `block_tokens` tokens, on a rank of the stage that holds the most.

    Blocks weigh exactly what their entries do: nothing is padded. A block takes whole entries and at least one, so that
    it holds more tokens than were asked where one entry stands for more. A chunk keeps its blocks and begins anew in
    them, as the need counts it: the most that it comes to.
    """
    if block_tokens < 1:
        raise KvcalcError(f"--block-size {block_tokens}: at least 1 token is needed", "use --block-size 16")
    growth: Counter[tuple[Span, int]] = Counter()
    fixed = 0
    for component in size.fullest_stage:
        fixed += size.packer.state_bytes(component, size.sharding)
        entry_bytes = size.packer.entry_bytes(component, size.sharding)
        if component.is_encoder_fed:
            fixed += component.entries(1) * entry_bytes
        elif entry_bytes:
            growth[component.span, size.sharding.dcp if component.grows else 1] += entry_bytes
    groups = [one for (span, ranks), weight in growth.items() for one in _groups(span, ranks, weight, block_tokens)]
    unit = gcd(fixed, *(group.units for group in groups)) or 1
    return Layout(
        groups=tuple(msgspec.structs.replace(group, units=group.units // unit) for group in groups),
        slot_units=fixed // unit,
        bytes_per_unit=unit,
    )


def _groups(span: Span, ranks: int, entry_bytes: int, block_tokens: int) -> Iterator[Group]:
    """Entries of one span as groups whose units are bytes; those that a window never drops have blocks of their own."""
    entries = -(-block_tokens // span.ratio)
    weighs = {"block_tokens": entries * span.ratio * ranks, "units": entries * entry_bytes, "ratio": span.ratio}
    if not span.slides:
        name = "tokens" if span.cap is None else f"chunk {span.cap}"
        yield Group(name=name if span.ratio == 1 else f"1 of {span.ratio} tokens", cap=span.cap, **weighs)
        return
    if span.pinned:
        yield Pinned(name=f"first {span.pinned}", cap=span.pinned, **weighs)
    window = (span.cap or 0) - span.pinned
    yield Window(name=f"window {window}", cap=window, first=span.pinned, **weighs)
