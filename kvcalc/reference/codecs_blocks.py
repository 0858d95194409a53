"""Packings: vectors turned into bytes along the last axis, and back.

Where a packing has scales, the codes of a whole vector come first and its scales behind them, as vLLM
lays out fp8_ds_mla and nvfp4: codes can then be read without a copy.
"""

from typing import TYPE_CHECKING

import msgspec

from kvcalc.errors import FormatError
from kvcalc.reference.codecs_numbers import Numbers, Scale, in_blocks, read_as

if TYPE_CHECKING:
    from torch import Tensor


class Packing(msgspec.Struct, frozen=True):
    """Turns fp32 vectors (..., width) into bytes (..., size of width) and back."""

    @property
    def unit(self) -> int:
        """How many values are packed together: widths are multiples of it."""
        return 1

    def size(self, width: int) -> int:
        """Bytes of a vector of `width` values."""
        raise NotImplementedError

    def pack(self, values: "Tensor") -> "Tensor":
        """Bytes of fp32 vectors."""
        raise NotImplementedError

    def unpack(self, packed: "Tensor") -> "Tensor":
        """The fp32 vectors that the bytes stand for."""
        raise NotImplementedError

    def check(self, width: int, what: str) -> None:
        """FormatError where `width` is no whole number of units; `what` names format and vector."""
        if width % self.unit:
            raise FormatError(
                f"{what}: a width of {width} is no whole number of {self.unit}-value blocks",
                f"choose a format whose block divides {width}, such as bf16 or fp8",
            )


class Bare(Packing, frozen=True):
    """Codes without scales."""

    numbers: Numbers

    @property
    def unit(self) -> int:
        return self.numbers.group

    def size(self, width: int) -> int:
        return width * self.numbers.bits // 8

    def pack(self, values: "Tensor") -> "Tensor":
        return self.numbers.pack(values)

    def unpack(self, packed: "Tensor") -> "Tensor":
        return self.numbers.unpack(packed)


class Bf16(Packing, frozen=True):
    """bfloat16 as bytes of a row that holds other numbers too."""

    def size(self, width: int) -> int:
        return width * 2

    def pack(self, values: "Tensor") -> "Tensor":
        import torch

        return read_as(values.bfloat16(), torch.uint8)

    def unpack(self, packed: "Tensor") -> "Tensor":
        import torch

        return read_as(packed, torch.bfloat16).float()


class Scaled(Packing, frozen=True):
    """Codes with a scale for every `block` values, or for the whole vector.

    A block with NaN comes back as NaN throughout, since its scale is NaN. An infinity makes fp32 scales
    infinite and so its block NaN; other scales stay finite.
    """

    numbers: Numbers
    scale: Scale
    block: int | None = None

    @property
    def unit(self) -> int:
        return self.block or self.numbers.group

    def size(self, width: int) -> int:
        blocks = width // self.block if self.block else 1
        return width * self.numbers.bits // 8 + blocks * self.scale.size

    def pack(self, values: "Tensor") -> "Tensor":
        import torch

        return torch.cat(self.quantise(values), -1)

    def unpack(self, packed: "Tensor") -> "Tensor":
        codes = self._code_bytes(packed.shape[-1])
        return self.dequantise(packed[..., :codes], self.scale.read(packed[..., codes:]))

    def quantise(self, values: "Tensor") -> "tuple[Tensor, Tensor]":
        """Bytes of the codes and bytes of the scales of fp32 vectors."""
        blocked = in_blocks(values, self.block or values.shape[-1])
        stored = self.scale.choose(blocked.abs().amax(-1), self.numbers)
        scales = self.scale.read(stored)
        # A block of zeros may have a scale of zero: any other divisor leaves it zero.
        divisors = scales.masked_fill(scales == 0, 1.0)
        return self.numbers.pack((blocked / divisors.unsqueeze(-1)).flatten(-2)), stored

    def dequantise(self, codes: "Tensor", scales: "Tensor") -> "Tensor":
        """The fp32 vectors of code bytes and fp32 scales (..., blocks)."""
        values = self.numbers.unpack(codes)
        blocked = in_blocks(values, self.block or values.shape[-1])
        return blocked.mul_(scales.unsqueeze(-1)).flatten(-2)

    def _code_bytes(self, size: int) -> int:
        """How many of a vector's `size` bytes are codes."""
        blocks = size // self.size(self.block) if self.block else 1
        return size - blocks * self.scale.size
