"""ggml's blocks of 32 values, byte for byte as in ggml-common.h and the reference quantisers of ggml-quants.c.

A block is an fp16 scale, an fp16 minimum where there is one, the fifth bits of all codes where they have
five, and then the codes: byte j holds value j in its low four bits and value j + 16 in its high ones.
A NaN makes its block NaN, since the scale is then NaN. Scales beyond fp16 become infinite, as in ggml.
"""

import functools
from typing import TYPE_CHECKING

from kvcalc.reference.codecs_blocks import Packing
from kvcalc.reference.codecs_numbers import in_blocks, read_as

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BLOCK = 32
_IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class GgmlBlocks(Packing, frozen=True):
    """Rows of whole blocks, each `fields` fp16 numbers and 32 codes of `bits` bits."""

    bits: int
    fields: int = 1

    @property
    def unit(self) -> int:
        return _BLOCK

    def size(self, width: int) -> int:
        return width // _BLOCK * self._block_bytes

    def pack(self, values: "Tensor") -> "Tensor":
        import torch

        fields, codes = self.quantise(in_blocks(values, _BLOCK))
        return torch.cat((read_as(fields.half(), torch.uint8), _JOIN[self.bits](codes)), -1).flatten(-2)

    def unpack(self, packed: "Tensor") -> "Tensor":
        import torch

        blocks = in_blocks(packed, self._block_bytes)
        fields = read_as(blocks[..., : 2 * self.fields], torch.float16).float()
        return self.dequantise(fields, _SPLIT[self.bits](blocks[..., 2 * self.fields :])).flatten(-2)

    def quantise(self, blocks: "Tensor") -> "tuple[Tensor, Tensor]":
        """The fp32 fields (..., blocks, fields) and the codes (..., blocks, 32), one a byte, of fp32 blocks."""
        raise NotImplementedError

    def dequantise(self, fields: "Tensor", codes: "Tensor") -> "Tensor":
        """The fp32 blocks of fields and codes."""
        raise NotImplementedError

    @property
    def _block_bytes(self) -> int:
        return 2 * self.fields + _BLOCK * self.bits // 8


class Q8(GgmlBlocks, frozen=True):
    """q8_0: signed bytes, scale amax / 127, halves rounded away from zero."""

    def quantise(self, blocks: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        scale = blocks.abs().amax(-1, keepdim=True) / 127
        steps = (blocks * _inverse(scale)).nan_to_num(0.0)
        whole = steps.trunc()
        rounded = whole + (2 * (steps - whole)).trunc()
        return scale, rounded.to(torch.int8).view(torch.uint8)

    def dequantise(self, fields: "Tensor", codes: "Tensor") -> "Tensor":
        import torch

        return codes.view(torch.int8).float().mul_(fields)


class Signed(GgmlBlocks, frozen=True):
    """q4_0 and q5_0: the value of the largest magnitude, whatever its sign, gets the lowest code exactly."""

    @property
    def middle(self) -> int:
        """The code that stands for zero."""
        return 1 << self.bits - 1

    def quantise(self, blocks: "Tensor") -> "tuple[Tensor, Tensor]":
        scale = _of_largest_magnitude(blocks) / -self.middle
        return scale, _whole(blocks * _inverse(scale) + (self.middle + 0.5), 2 * self.middle - 1)

    def dequantise(self, fields: "Tensor", codes: "Tensor") -> "Tensor":
        return codes.float().sub_(self.middle).mul_(fields)


class Ranged(GgmlBlocks, frozen=True):
    """q4_1 and q5_1: codes count steps from the block's minimum."""

    def quantise(self, blocks: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        steps = (1 << self.bits) - 1
        least, most = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
        scale = (most - least) / steps
        return torch.cat((scale, least), -1), _whole((blocks - least) * _inverse(scale) + 0.5, steps)

    def dequantise(self, fields: "Tensor", codes: "Tensor") -> "Tensor":
        return codes.float().mul_(fields[..., :1]).add_(fields[..., 1:])


class Iq4Nl(GgmlBlocks, frozen=True):
    """iq4_nl: four-bit codes of sixteen uneven values.

    The scale puts the value of the largest magnitude on -127. ggml then fits it once more to the whole block
    by least squares; this does not, so ggml reads these blocks, and writes slightly better ones.
    """

    def quantise(self, blocks: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        scale = _of_largest_magnitude(blocks) / _IQ4_NL_VALUES[0]
        values = _iq4_nl_values(blocks.device)
        halfway = (values[1:] + values[:-1]) / 2
        codes = torch.bucketize((blocks * _inverse(scale)).contiguous(), halfway, out_int32=True, right=True)
        return scale, codes.to(torch.uint8)

    def dequantise(self, fields: "Tensor", codes: "Tensor") -> "Tensor":
        return _iq4_nl_values(codes.device).index_select(0, codes.int().flatten()).view(codes.shape).mul_(fields)


def _inverse(scale: "Tensor") -> "Tensor":
    """1 / scale, and zero for a scale of zero, so that a block of zeros stays zero."""
    return scale.reciprocal().masked_fill(scale == 0, 0.0)


def _of_largest_magnitude(blocks: "Tensor") -> "Tensor":
    """The first value (..., 1) of each block that has the block's largest magnitude."""
    return blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))


def _whole(steps: "Tensor", most: int) -> "Tensor":
    """Codes: the whole part of `steps`, at most `most`."""
    import torch

    return steps.nan_to_num(0.0).clamp(0, most).to(torch.uint8)


def _join_nibbles(codes: "Tensor") -> "Tensor":
    return codes[..., :16] & 15 | codes[..., 16:] << 4


def _split_nibbles(packed: "Tensor") -> "Tensor":
    import torch

    return torch.cat((packed & 15, packed >> 4), -1)


def _join_fives(codes: "Tensor") -> "Tensor":
    import torch

    fifth = in_blocks(codes >> 4, 8) << _bits_of_byte(codes.device)
    return torch.cat((fifth.sum(-1, dtype=torch.uint8), _join_nibbles(codes)), -1)


def _split_fives(packed: "Tensor") -> "Tensor":
    fifth = packed[..., :4].unsqueeze(-1) >> _bits_of_byte(packed.device) & 1
    return _split_nibbles(packed[..., 4:]) | fifth.flatten(-2) << 4


_JOIN = {8: lambda codes: codes, 5: _join_fives, 4: _join_nibbles}
_SPLIT = {8: lambda packed: packed, 5: _split_fives, 4: _split_nibbles}


@functools.cache
def _bits_of_byte(device: "torch.device") -> "Tensor":
    import torch

    return torch.arange(8, dtype=torch.uint8, device=device)


@functools.cache
def _iq4_nl_values(device: "torch.device") -> "Tensor":
    import torch

    return torch.tensor(_IQ4_NL_VALUES, dtype=torch.float32, device=device)
