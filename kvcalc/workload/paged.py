"""A paged pool block by block, exactly: block tables, references, copies on write, cached prefixes, preemption.

PagedAttention, arXiv 2309.06180, sections 4.2 to 4.5. Every block remembers what was written into it, so that what a
sequence reads back can be held against what it wrote. For traffic of any size `Layout` counts the same units.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec

from kvcalc.sizing.blocks import Layout


class Block:
    """Some units of the pool: the entries in them, how many sequences read it, and the prefix that it ends."""

    __slots__ = ("entries", "group", "key", "references")

    def __init__(self, group: int, entries: dict[int, int]) -> None:
        self.group, self.entries = group, entries
        self.references = 1
        self.key: tuple[int, int] | None = None
        """Its group and its prefix, while it is the block by which that prefix is found."""


class Table:
    """One sequence: its tokens, and for each group its blocks by their place in the sequence."""

    __slots__ = ("blocks", "prefixes", "tokens")

    def __init__(self, groups: int) -> None:
        self.tokens: list[int] = []
        self.blocks: list[dict[int, Block]] = [{} for _ in range(groups)]
        self.prefixes = [0] * groups
        """For each group a name of all tokens up to its last full block."""

    def all_blocks(self) -> Iterator[Block]:
        """Its blocks, of every group the last one first: the order in which they are given back."""
        for held in self.blocks:
            yield from (held[place] for place in sorted(held, reverse=True))


class Swapped(msgspec.Struct, frozen=True):
    """A sequence in host memory: what its blocks held, for each group by place."""

    tokens: list[int]
    entries: list[dict[int, dict[int, int]]]
    prefixes: list[int]
    units: int


class PagedPool:
    """`units` of a pool that sequences share by `layout`; those of full blocks that nobody uses keep their prefixes.

    A prefix is found by all its tokens, and whole blocks of it only; never the last token of a request, which has to
    be computed. A model that keeps states, sinks or chunks written over finds none: they are not what they were.
    """

    def __init__(self, layout: Layout, units: int, *, reuses_prefixes: bool = True) -> None:
        self.layout, self.units = layout, units
        self.free_units = units
        self.used_units = 0
        """Of blocks that a sequence reads, and of states."""
        self.cached_units = 0
        """Of blocks that no sequence reads, which still hold a prefix."""
        self.reuses_prefixes = (
            reuses_prefixes and not layout.slot_units and all(group.keeps_prefixes for group in layout.groups)
        )
        self._names: dict[tuple[int, tuple[int, ...]], int] = {}
        self._found: dict[tuple[int, int], Block] = {}
        self._idle: OrderedDict[tuple[int, int], Block] = OrderedDict()

    def add(self, tokens: Sequence[int]) -> Table | None:
        """A sequence of `tokens`, on top of what is cached of them; None where there is no room."""
        table = Table(len(self.layout.groups))
        if not self._take_slot():
            return None
        self._share_prefix(table, tokens)
        for token in tokens[len(table.tokens) :]:
            if not self.append(table, token):
                self.free(table)
                return None
        return table

    def append(self, table: Table, token: int) -> bool:
        """Write one more token; False, and nothing happens, where a block is needed and there is no room."""
        count = len(table.tokens) + 1
        dropped = [self._behind(table, place, count) for place in range(len(self.layout.groups))]
        writes = [group.slot(count) for group in self.layout.groups]
        gained = sum(
            self.layout.groups[block.group].units
            for held in dropped
            for block in held.values()
            if block.references == 1
        )
        if self._needed(table, writes) > self.free_units + self.cached_units + gained:
            return False
        for place, held in enumerate(dropped):
            for at, block in held.items():
                del table.blocks[place][at]
                self._let_go(block)
        table.tokens.append(token)
        for place, slot in enumerate(writes):
            if slot is not None:
                self._write(table, place, slot, token)
            self._name_full_block(table, place)
        return True

    def fork(self, table: Table) -> Table | None:
        """A sequence that goes on from the same tokens in the same blocks; None where its state finds no room."""
        if not self._take_slot():
            return None
        twin = Table(len(self.layout.groups))
        twin.tokens, twin.prefixes = list(table.tokens), list(table.prefixes)
        twin.blocks = [dict(held) for held in table.blocks]
        for block in twin.all_blocks():
            block.references += 1
        return twin

    def free(self, table: Table) -> None:
        """Give back what a sequence holds; to recompute it later, `add` its tokens again."""
        for block in table.all_blocks():
            self._let_go(block)
        self._give(self.layout.slot_units)
        table.blocks = [{} for _ in table.blocks]

    def swap_out(self, table: Table) -> Swapped:
        """Copy a sequence to host memory and give its blocks back; what it shared it no longer does."""
        entries = [{at: dict(block.entries) for at, block in held.items()} for held in table.blocks]
        away = Swapped(table.tokens, entries, table.prefixes, self.held_units(table))
        self.free(table)
        return away

    def swap_in(self, away: Swapped) -> Table | None:
        """The sequence in blocks of the pool again; None where there is no room."""
        if away.units > self.free_units + self.cached_units:
            return None
        table = Table(len(self.layout.groups))
        self._take(self.layout.slot_units)
        table.tokens, table.prefixes = away.tokens, away.prefixes
        for place, held in enumerate(away.entries):
            table.blocks[place] = {at: self._new(place, entries) for at, entries in held.items()}
        return table

    def held_units(self, table: Table) -> int:
        """Units that a sequence can read, those that it shares with them."""
        return self.layout.slot_units + sum(self.layout.groups[block.group].units for block in table.all_blocks())

    def read(self, table: Table, group: int) -> list[int]:
        """The entries of one group in order, each as the token that completed it."""
        size = self.layout.groups[group].block_entries
        held = table.blocks[group]
        return [held[at].entries[slot] for at in sorted(held) for slot in range(size) if slot in held[at].entries]

    def _behind(self, table: Table, place: int, count: int) -> dict[int, Block]:
        """Blocks of a group that the last of `count` tokens no longer needs."""
        first = self.layout.groups[place].dropped_blocks(count)
        return {at: block for at, block in table.blocks[place].items() if at < first} if first else {}

    def _needed(self, table: Table, writes: Sequence[int | None]) -> int:
        """Units of the blocks that these writes ask for: new ones, and copies of those that others read too."""
        needed = 0
        for group, held, slot in zip(self.layout.groups, table.blocks, writes, strict=True):
            if slot is not None:
                block = held.get(slot // group.block_entries)
                needed += group.units if block is None or block.references > 1 else 0
        return needed

    def _write(self, table: Table, place: int, slot: int, token: int) -> None:
        at, inside = divmod(slot, self.layout.groups[place].block_entries)
        block = table.blocks[place].get(at)
        if block is None:
            block = self._new(place, {})
        elif block.references > 1:
            block.references -= 1
            block = self._new(place, block.entries)
        table.blocks[place][at] = block
        block.entries[inside] = token

    def _name_full_block(self, table: Table, place: int) -> None:
        """Once a block is full its prefix has a name, by which it is found unless another block has it already."""
        count, size = len(table.tokens), self.layout.groups[place].block_tokens
        if count % size or not self.reuses_prefixes:
            return
        key = place, self._name(table.prefixes[place], table.tokens[count - size :])
        table.prefixes[place] = key[1]
        block = table.blocks[place][count // size - 1]
        if key not in self._found:
            self._found[key], block.key = block, key

    def _name(self, before: int, tokens: Sequence[int]) -> int:
        return self._names.setdefault((before, tuple(tokens)), len(self._names) + 1)

    def _share_prefix(self, table: Table, tokens: Sequence[int]) -> None:
        """Begin with the longest prefix of whole blocks whose blocks are there in every group."""
        if not self.reuses_prefixes or not self.layout.groups:
            return
        chains = [self._chain(tokens, group.block_tokens) for group in self.layout.groups]
        step = max(group.block_tokens for group in self.layout.groups)
        for count in range((len(tokens) - 1) // step * step, 0, -step):
            found = [self._blocks_of(place, count, chain) for place, chain in enumerate(chains)]
            if all(held is not None for held in found):
                table.tokens = list(tokens[:count])
                table.blocks = [held or {} for held in found]
                groups = self.layout.groups
                table.prefixes = [
                    chain[count // group.block_tokens - 1] for chain, group in zip(chains, groups, strict=True)
                ]
                for block in table.all_blocks():
                    self._use_again(block)
                return

    def _chain(self, tokens: Sequence[int], size: int) -> list[int]:
        """A name for each prefix of whole blocks."""
        names, before = [], 0
        for end in range(size, len(tokens) + 1, size):
            names.append(before := self._name(before, tokens[end - size : end]))
        return names

    def _blocks_of(self, place: int, count: int, chain: Sequence[int]) -> dict[int, Block] | None:
        """The blocks of a group that a sequence of `count` tokens reads, None where one is missing or not full."""
        group = self.layout.groups[place]
        if count % group.block_tokens:
            return None
        first = group.dropped_blocks(count)
        found = {at: self._found.get((place, chain[at])) for at in range(first, count // group.block_tokens)}
        held = {at: block for at, block in found.items() if block is not None}
        return held if len(held) == len(found) else None

    def _use_again(self, block: Block) -> None:
        if not block.references and block.key is not None:
            del self._idle[block.key]
            self.cached_units -= self.layout.groups[block.group].units
            self.used_units += self.layout.groups[block.group].units
        block.references += 1

    def _new(self, place: int, entries: dict[int, int]) -> Block:
        self._take(self.layout.groups[place].units)
        return Block(place, dict(entries))

    def _take_slot(self) -> bool:
        """Room for the state of a sequence."""
        if self.layout.slot_units > self.free_units + self.cached_units:
            return False
        self._take(self.layout.slot_units)
        return True

    def _take(self, units: int) -> None:
        """Take free units, forgetting the prefixes that were used least recently."""
        while self.free_units < units:
            key, block = self._idle.popitem(last=False)
            del self._found[key]
            self.cached_units -= self.layout.groups[block.group].units
            self.free_units += self.layout.groups[block.group].units
        self.free_units -= units
        self.used_units += units

    def _give(self, units: int) -> None:
        self.free_units += units
        self.used_units -= units

    def _let_go(self, block: Block) -> None:
        """One reader less; a block that nobody reads stays as long as its prefix is found by it."""
        block.references -= 1
        units = self.layout.groups[block.group].units
        if block.references:
            return
        if block.key is None:
            self._give(units)
        else:
            self.used_units -= units
            self.cached_units += units
            self._idle[block.key] = block
