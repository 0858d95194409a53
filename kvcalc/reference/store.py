"""Where the entries of one vector lie: preallocated tensors that are written in place and read as views or blocks."""

from typing import TYPE_CHECKING, NamedTuple

from kvcalc.reference.codecs import Codec, VectorShape, make_codec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

UNPACKED_AT_ONCE = 1024
"""Entries of a packed cache that are unpacked together: never the whole cache."""


class Room(NamedTuple):
    """How much is allocated, for how many sequences, where, and how: contiguous, or in pages of `page` entries."""

    batch: int
    entries: int
    device: str
    page: int | None = None


class Held(NamedTuple):
    """One allocated tensor: `role` is what it is for, `used_bytes` how much of it holds entries of the component."""

    role: str
    tensor: "Tensor"
    used_bytes: int

    @property
    def is_component(self) -> bool:
        """Whether it holds what the component keeps, as opposed to what serves it."""
        return self.role in {"entries", "states"}

    def beside(self) -> dict[str, int]:
        """Bytes that are no component's, by what they are for."""
        total = self.tensor.untyped_storage().nbytes()
        if not self.is_component:
            return {self.role: total}
        return {"page padding": total - self.used_bytes} if total > self.used_bytes else {}


class Store:
    """Entries of one vector for a batch of sequences, contiguous: (batch, heads, entries, width) under a codec."""

    def __init__(self, codec: Codec, room: Room, dtype: "torch.dtype") -> None:
        self.codec, self.room, self.dtype = codec, room, dtype
        self.read_bytes = 0
        self.buffers = self._allocate()

    def _allocate(self) -> "dict[str, Tensor]":
        import torch

        return {
            name: torch.zeros(
                self.room.batch,
                buffer.heads,
                self.room.entries,
                buffer.width,
                dtype=buffer.dtype,
                device=self.room.device,
            )
            for name, buffer in self.codec.buffers().items()
        }

    @property
    def is_view(self) -> bool:
        """Whether all entries can be read at once without a copy."""
        return self.codec.is_plain and self.buffers["entries"].dtype == self.dtype

    def write(self, slots: slice, values: "Tensor") -> None:
        """Put `values` (batch, heads, tokens, width) into `slots`."""
        for name, packed in self.codec.pack(values).items():
            self.buffers[name][:, :, slots] = packed

    def scatter(self, slots: "Tensor", values: "Tensor") -> None:
        """Put `values` into single `slots` (tokens,), wherever they are."""
        for name, packed in self.codec.pack(values).items():
            self.buffers[name].index_copy_(2, slots, packed)

    def read(self, slots: slice) -> "Tensor":
        """The entries in `slots` as values (batch, heads, entries, width): a view where they are plain."""
        return self._unpacked({name: buffer[:, :, slots] for name, buffer in self.buffers.items()})

    def gather(self, index: "Tensor") -> "Tensor":
        """The entries of each sequence at `index` (batch, chosen), as values."""
        where = index[:, None, :, None]
        return self._unpacked(
            {
                name: buffer.gather(2, where.expand(-1, buffer.shape[1], -1, buffer.shape[3]))
                for name, buffer in self.buffers.items()
            }
        )

    def _unpacked(self, packed: "dict[str, Tensor]") -> "Tensor":
        self.read_bytes += packed["entries"].numel() * packed["entries"].element_size()
        return self.codec.unpack(packed, self.dtype)

    def fill(self, entries: int) -> None:
        """Put noise into the first `entries` slots, a block at a time."""
        import torch

        shape, batch = self.codec.shape, self.room.batch
        noise = torch.randn(batch, shape.heads, UNPACKED_AT_ONCE, shape.width, device=self.room.device).to(self.dtype)
        for start in range(0, entries, UNPACKED_AT_ONCE):
            stop = min(start + UNPACKED_AT_ONCE, entries)
            self.write(slice(start, stop), noise[:, :, : stop - start])

    def round_trip(self, values: "Tensor") -> "Tensor":
        """`values` as they would be read back."""
        return self.codec.unpack(self.codec.pack(values), self.dtype)

    def held(self) -> list[Held]:
        """Every tensor that was allocated."""
        return [Held(name, buffer, buffer.untyped_storage().nbytes()) for name, buffer in self.buffers.items()]


def make_store(
    format_name: str, shape: VectorShape, room: Room, dtype: "torch.dtype", exact: "torch.dtype | None"
) -> Store:
    """The store of one vector in the format called `format_name`, paged where `room` has a page."""
    from kvcalc.reference.paged import PagedStore

    codec = make_codec(format_name, shape, exact)
    return Store(codec, room, dtype) if room.page is None else PagedStore(codec, room, dtype)
