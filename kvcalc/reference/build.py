"""What reference layers are built with: widths, formats, random weights and the share of one rank."""

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.sizing.packing import Packer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Heads(msgspec.Struct, frozen=True):
    """The heads that one rank holds: `count` of them from `first` on."""

    first: int
    count: int

    def rows(self, width: int) -> slice:
        """Where these heads, each `width` wide, lie in a row of all heads."""
        return slice(self.first * width, (self.first + self.count) * width)


class Rank(msgspec.Struct, frozen=True):
    """One tensor-parallel rank of `size`; `reduce` sums a tensor over all ranks in place."""

    index: int = 0
    size: int = 1
    reduce: "Callable[[Tensor], None] | None" = None

    def heads(self, heads: int, what: str) -> Heads:
        """This rank's share of `heads`; one head is held by several ranks where there are fewer heads than ranks."""
        if heads % self.size == 0:
            share = heads // self.size
            return Heads(self.index * share, share)
        if self.size % heads == 0:
            return Heads(self.index // (self.size // heads), 1)
        raise KvcalcError(
            f"--tp {self.size}: {heads} {what} do not divide over {self.size} ranks",
            f"use a divisor or a multiple of {heads}",
        )

    def split(self, heads: int, what: str) -> Heads:
        """This rank's share of heads that are never held twice: queries, and what a sum over ranks adds up."""
        if heads % self.size:
            raise KvcalcError(
                f"--tp {self.size}: {heads} {what} do not divide over {self.size} ranks", f"use a divisor of {heads}"
            )
        return self.heads(heads, what)


class Build(msgspec.Struct, frozen=True):
    """How layers are made. `label` names the layer, so that every rank draws the same weights for it.

    `exact` stores what the formats would keep as plain numbers in that type instead, and computes in it:
    what correctness tests use.
    """

    hidden: int
    packer: Packer
    dtype: "torch.dtype"
    device: str = "cpu"
    rank: Rank = Rank()
    label: str = ""
    seed: int = 0
    exact: "torch.dtype | None" = None
    memory_width: int | None = None
    """How wide the memory is, on this rank, that the latest state-space layer leaves for gated memory units."""

    def named(self, label: str) -> "Build":
        """The same for a part called `label`."""
        return msgspec.structs.replace(self, label=f"{self.label}/{label}")

    def weight(self, name: str, outputs: int, inputs: int, rows: slice | None = None) -> "Tensor":
        """A random matrix (outputs, inputs) that keeps the variance of what passes; this rank's `rows` of it."""
        bound = (3 / inputs) ** 0.5
        whole = self._uniform(name, (outputs, inputs), (-bound, bound), self.dtype)
        # A copy, so that a rank does not hold the whole matrix behind its share.
        return whole if rows is None or self.rank.size == 1 else whole[rows].clone()

    def vector(self, name: str, width: int, low: float, high: float) -> "Tensor":
        """A random vector of `width` numbers between `low` and `high`, in fp32 or better."""
        return self._uniform(name, (width,), (low, high), self.state_math_dtype)

    def _uniform(
        self, name: str, shape: tuple[int, ...], between: tuple[float, float], dtype: "torch.dtype"
    ) -> "Tensor":
        import torch

        made = torch.empty(shape, dtype=dtype, device=self.device)
        if made.is_meta:
            return made
        seed = zlib.crc32(f"{self.seed}{self.label}/{name}".encode())
        return made.uniform_(*between, generator=torch.Generator(device=self.device).manual_seed(seed))

    @property
    def state_math_dtype(self) -> "torch.dtype":
        """What recurrences and softmax statistics are computed in: fp32, or better where the build is exact."""
        import torch

        return self.exact or torch.float32
