"""What the codes of a packed block stand for, and the scales that blocks are held at.

Everything here works on the last axis of a tensor. Codes are turned back into values by a table of
words: on a CPU and on a GPU alike, one look-up of a byte is faster than taking its bits apart.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Numbers(msgspec.Struct, frozen=True):
    """Codes of `bits` bits for values up to `largest`, whose power of two is `exponent` (OCP's emax)."""

    bits: int
    largest: float
    exponent: int

    def encode(self, values: "Tensor") -> "Tensor":
        """The nearest code of each fp32 value, one a byte: ties to even, too large ones to the largest."""
        raise NotImplementedError

    def values_of(self, codes: "Tensor") -> "Tensor":
        """The fp32 value of each code; only tables are built with it."""
        raise NotImplementedError

    @property
    def group(self) -> int:
        """How many values fill a whole number of bytes."""
        return {8: 1, 6: 4, 4: 2}[self.bits]

    def pack(self, values: "Tensor") -> "Tensor":
        """Bytes (..., values x bits / 8) of fp32 values, the first in the lowest bits."""
        return _JOIN[self.bits](self.encode(values))

    def unpack(self, packed: "Tensor") -> "Tensor":
        """The fp32 values of packed bytes."""
        import torch

        words = _WORDS[self.bits](packed)
        found = _table(self, packed.device).index_select(0, words.flatten()).view(torch.float32)
        return found.view(*words.shape[:-1], packed.shape[-1] * 8 // self.bits)


class E4M3(Numbers, frozen=True):
    """OCP FP8 E4M3: saturates at 448, keeps NaN, has no infinity."""

    def encode(self, values: "Tensor") -> "Tensor":
        import torch

        return values.clamp(-self.largest, self.largest).to(torch.float8_e4m3fn).view(torch.uint8)

    def values_of(self, codes: "Tensor") -> "Tensor":
        import torch

        return codes.view(torch.float8_e4m3fn).float()


class E2(Numbers, frozen=True):
    """OCP E2M1 and E2M3: a sign, two exponent bits of bias 1, then mantissa; no NaN, so scales must carry it."""

    @property
    def mantissa_bits(self) -> int:
        """The bits behind sign and exponent."""
        return self.bits - 3

    def encode(self, values: "Tensor") -> "Tensor":
        import torch

        size = values.abs().nan_to_num_(0.0).clamp_(max=self.largest)
        exponent = _exponent_field(size).sub_(127).clamp_(min=0)
        steps = size.mul_(_power_of_two(self.mantissa_bits - exponent)).round_().int()
        # A mantissa rounded up to the next power of two carries into the exponent by itself.
        code = exponent.bitwise_left_shift_(self.mantissa_bits).add_(steps).to(torch.uint8)
        sign = values.view(torch.int32) >> 32 - self.bits
        return code | sign.to(torch.uint8) & 1 << self.bits - 1

    def values_of(self, codes: "Tensor") -> "Tensor":
        sign = 1 - 2 * (codes >> self.bits - 1).float()
        code = codes.int() & (1 << self.bits - 1) - 1
        exponent = ((code >> self.mantissa_bits) - 1).clamp(min=0)
        steps = code - (exponent << self.mantissa_bits)
        return sign * steps * _power_of_two(exponent - self.mantissa_bits)


class Integer(Numbers, frozen=True):
    """Two's complement without its lowest value, so that it is symmetric; no NaN, so scales must carry it."""

    def encode(self, values: "Tensor") -> "Tensor":
        import torch

        whole = values.nan_to_num(0.0).clamp_(-self.largest, self.largest).round_()
        return whole.to(torch.int8).view(torch.uint8) & (1 << self.bits) - 1

    def values_of(self, codes: "Tensor") -> "Tensor":
        return codes.float() - (codes > self.largest).float() * (1 << self.bits)


class Scale(msgspec.Struct, frozen=True):
    """The scale of a block, `size` bytes of its own."""

    size: int

    def choose(self, amax: "Tensor", numbers: Numbers) -> "Tensor":
        """Bytes (..., blocks x size) of the scales of blocks whose largest magnitudes are `amax` (..., blocks)."""
        raise NotImplementedError

    def read(self, stored: "Tensor") -> "Tensor":
        """The fp32 scales (..., blocks) that the bytes stand for."""
        raise NotImplementedError


class Float32(Scale, frozen=True):
    """The scale that puts a block's largest value on the largest code, in fp32."""

    def choose(self, amax: "Tensor", numbers: Numbers) -> "Tensor":
        import torch

        return read_as(amax / numbers.largest, torch.uint8)

    def read(self, stored: "Tensor") -> "Tensor":
        import torch

        return read_as(stored, torch.float32)


class ScaleE4M3(Scale, frozen=True):
    """NVFP4's: amax / 6 rounded to E4M3 between 2^-9 and 448, with no second scale above it.

    Source: sglang dsv41_kv_quant_reference.py.
    """

    def choose(self, amax: "Tensor", numbers: Numbers) -> "Tensor":
        return FP8.encode((amax / numbers.largest).clamp(min=2.0**-9))

    def read(self, stored: "Tensor") -> "Tensor":
        return FP8.unpack(stored)


class E8M0(Scale, frozen=True):
    """A power of two in one byte, 255 for NaN.

    As OCP MX v1.0, section 6.3 has it: the power of two in amax less the one in the largest code. With
    `round_up`, as DeepSeek's kernels have it: the least power of two that amax / largest does not exceed.
    """

    round_up: bool = False

    def choose(self, amax: "Tensor", numbers: Numbers) -> "Tensor":
        import torch

        if self.round_up:
            wanted = amax / numbers.largest
            power = _exponent_field(wanted) + (wanted.view(torch.int32) & 0x7FFFFF != 0)
        else:
            power = _exponent_field(amax) - numbers.exponent
        return power.clamp(0, 254).masked_fill(amax.isnan(), 255).to(torch.uint8)

    def read(self, stored: "Tensor") -> "Tensor":
        return _powers(stored.device).index_select(0, stored.int().flatten()).view(stored.shape)


FP8 = E4M3(8, 448.0, 8)
FP6 = E2(6, 7.5, 2)
FP4 = E2(4, 6.0, 2)
INT8 = Integer(8, 127.0, 6)
INT4 = Integer(4, 7.0, 2)


def in_blocks(values: "Tensor", size: int) -> "Tensor":
    """The last axis cut into blocks: (..., width) as (..., width / size, size)."""
    import torch

    return torch.unflatten(values, -1, (values.shape[-1] // size, size))


def read_as(stored: "Tensor", dtype: "torch.dtype") -> "Tensor":
    """The last axis read as `dtype`, byte for byte.

    It is copied first: in a row it may lie at an address that `dtype` cannot, or with strides of its own.
    torch reads no axis without numbers as another type.
    """
    import torch

    if stored.shape[-1] == 0:
        return stored.to(dtype)
    return stored.clone(memory_format=torch.contiguous_format).view(dtype)


def _exponent_field(values: "Tensor") -> "Tensor":
    """The exponent of fp32 values that are not negative, as stored: 127 for 1.0, 255 for infinity and NaN."""
    import torch

    return values.view(torch.int32) >> 23


def _power_of_two(exponent: "Tensor") -> "Tensor":
    """Exactly two to a small whole exponent, in fp32; pow is not exact on every device."""
    import torch

    return (exponent + 127 << 23).view(torch.float32)


def _join_sixes(codes: "Tensor") -> "Tensor":
    import torch

    words = read_as(codes, torch.int32)
    joined = words & 0x3F | words >> 2 & 0xFC0 | words >> 4 & 0x3F000 | words >> 6 & 0xFC0000
    return in_blocks(joined.view(torch.uint8), 4)[..., :3].flatten(-2)


def _join_fours(codes: "Tensor") -> "Tensor":
    import torch

    words = read_as(codes, torch.int16)
    return (words | words >> 4).to(torch.uint8)


def _pairs_of_sixes(packed: "Tensor") -> "Tensor":
    import torch

    first, second, third = in_blocks(packed.int(), 3).unbind(-1)
    return torch.stack((first | (second & 15) << 8, second >> 4 | third << 4), -1).flatten(-2)


_JOIN: dict[int, "Callable[[Tensor], Tensor]"] = {
    8: lambda codes: codes,
    6: _join_sixes,
    4: _join_fours,
}
# Words are what tables are read by: one code of 8 bits, or two that lie side by side.
_WORDS: dict[int, "Callable[[Tensor], Tensor]"] = {
    8: lambda packed: packed.int(),
    6: _pairs_of_sixes,
    4: lambda packed: packed.int(),
}


@functools.cache
def _table(numbers: Numbers, device: "torch.device") -> "Tensor":
    """What each word stands for; a pair of fp32 values counts as one 8-byte number, which is read fastest."""
    import torch

    if numbers.bits == 8:
        return numbers.values_of(torch.arange(256, dtype=torch.uint8, device=device))
    codes = numbers.values_of(torch.arange(1 << numbers.bits, dtype=torch.uint8, device=device))
    high, low = torch.meshgrid(codes, codes, indexing="ij")
    return torch.stack((low.flatten(), high.flatten()), -1).view(torch.int64).flatten()


@functools.cache
def _powers(device: "torch.device") -> "Tensor":
    """What each E8M0 byte stands for."""
    import torch

    exponents = torch.arange(255, dtype=torch.float64, device=device) - 127
    return torch.cat((exponents.exp2(), exponents.new_full((1,), torch.nan))).float()
