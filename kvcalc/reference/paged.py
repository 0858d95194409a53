"""A paged store: blocks of entries from one pool, found through a block table a sequence.

Kwon et al., arXiv 2309.06180, section 4: blocks are filled in order, a prefix can be shared by pointing to
the same blocks, and a shared block is copied before somebody writes into it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvcalc.errors import KvcalcError
from kvcalc.reference.store import Held, Store

if TYPE_CHECKING:
    from torch import Tensor

NO_BLOCK = -1


class PagedStore(Store):
    """Entries in blocks of `room.page`: pool (blocks, heads, page, width), table (batch, blocks of a sequence)."""

    def _allocate(self) -> "dict[str, Tensor]":
        import torch

        room = self.room
        self.page = room.page or 1
        per_sequence = -(-room.entries // self.page)
        blocks = room.batch * per_sequence
        # Twice: the device looks entries up, and the host decides who owns a block without asking the device.
        self.table = torch.full((room.batch, per_sequence), NO_BLOCK, dtype=torch.long, device=room.device)
        self.owned = [[NO_BLOCK] * per_sequence for _ in range(room.batch)]
        self.references = [0] * blocks
        self.free = list(range(blocks - 1, -1, -1))
        return {
            name: torch.zeros(blocks, buffer.heads, self.page, buffer.width, dtype=buffer.dtype, device=room.device)
            for name, buffer in self.codec.buffers().items()
        }

    @property
    def is_view(self) -> bool:
        return False

    def write(self, slots: slice, values: "Tensor") -> None:
        import torch

        self._own(range(slots.start // self.page, -(-slots.stop // self.page)))
        self._put(torch.arange(slots.start, slots.stop, device=values.device), values)

    def scatter(self, slots: "Tensor", values: "Tensor") -> None:
        self._own(sorted({int(slot) // self.page for slot in slots.tolist()}))
        self._put(slots, values)

    def _put(self, slots: "Tensor", values: "Tensor") -> None:
        blocks, offsets = self.table[:, slots // self.page], slots % self.page
        for name, packed in self.codec.pack(values).items():
            # Advanced indices on both sides of a slice come first: (batch, tokens, heads, width).
            self.buffers[name][blocks, :, offsets] = packed.transpose(1, 2)

    def read(self, slots: slice) -> "Tensor":
        first, last = slots.start // self.page, -(-slots.stop // self.page)
        shift = first * self.page
        taken = {}
        for name, buffer in self.buffers.items():
            pages = buffer[self.table[:, first:last]].transpose(1, 2).flatten(2, 3)
            taken[name] = pages[:, :, slots.start - shift : slots.stop - shift]
        return self._unpacked(taken)

    def gather(self, index: "Tensor") -> "Tensor":
        blocks = self.table.gather(1, index // self.page)
        offsets = index % self.page
        return self._unpacked(
            {name: buffer[blocks, :, offsets].transpose(1, 2) for name, buffer in self.buffers.items()}
        )

    def share(self, source: int, reader: int, entries: int) -> None:
        """Let sequence `reader` begin with the first `entries` entries of sequence `source`, in the same blocks."""
        if any(block != NO_BLOCK for block in self.owned[reader]):
            raise KvcalcError(f"sequence {reader} holds entries already", "release it first")
        shared = self.owned[source][: -(-entries // self.page)]
        if NO_BLOCK in shared or entries > self.room.entries:
            raise KvcalcError(f"sequence {source} does not hold {entries} entries", "share what was written only")
        for column, block in enumerate(shared):
            self._point(reader, column, block)
            self.references[block] += 1

    def release(self, row: int) -> None:
        """Give back the blocks of sequence `row`, which has ended; those that others point to stay in use."""
        for column, block in enumerate(self.owned[row]):
            if block == NO_BLOCK:
                continue
            self._point(row, column, NO_BLOCK)
            self.references[block] -= 1
            if self.references[block] == 0:
                self.free.append(block)

    def _point(self, row: int, column: int, block: int) -> None:
        self.owned[row][column] = block
        self.table[row, column] = block

    def _own(self, columns: Iterable[int]) -> None:
        """Give every sequence blocks of its own in `columns`, copying those that are shared."""
        import torch

        is_changed = False
        for owned in self.owned:
            for column in columns:
                block = owned[column]
                if block == NO_BLOCK:
                    owned[column], is_changed = self._take(), True
                elif self.references[block] > 1:
                    self.references[block] -= 1
                    owned[column], is_changed = self._copy(block), True
        if is_changed:
            self.table.copy_(torch.tensor(self.owned))

    def _take(self) -> int:
        block = self.free.pop()
        self.references[block] = 1
        return block

    def _copy(self, block: int) -> int:
        fresh = self._take()
        for buffer in self.buffers.values():
            buffer[fresh] = buffer[block]
        return fresh

    @property
    def blocks_in_use(self) -> int:
        """Blocks that some sequence points to."""
        return len(self.references) - len(self.free)

    def held(self) -> list[Held]:
        unused = self.room.batch * (-(-self.room.entries // self.page) * self.page - self.room.entries)
        held = [Held("block table", self.table, 0)]
        for name, buffer in self.buffers.items():
            slot_bytes = buffer.shape[1] * buffer.shape[3] * buffer.element_size()
            held.append(Held(name, buffer, buffer.untyped_storage().nbytes() - unused * slot_bytes))
        return held
