"""Codecs: how the vectors of a cache entry are packed into the bytes that a cache really holds.

Each number format is one line in the table at the foot of this module. The bytes follow from what is
packed here; nothing asks the predictor, so that the two can be held against each other.

Sizes are an engine's to the byte; three layouts are not its layout in every bit:

- int4_per_token_head is symmetric and unrotated. vLLM rotates a head first, and hides a zero point in the
  scale's mantissa.
- fp8_ds_v4 keeps an entry's scales right behind its codes. vLLM keeps them behind all entries of a page.
- the MX formats and nvfp4 keep a vector's codes together and its scales behind them. OCP leaves this open.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from kvcalc.errors import FormatError, KvcalcError
from kvcalc.reference.codecs_blocks import Bare, Bf16, Packing, Scaled
from kvcalc.reference.codecs_ggml import Q8, Iq4Nl, Ranged, Signed
from kvcalc.reference.codecs_numbers import (
    E8M0,
    FP4,
    FP6,
    FP8,
    INT4,
    INT8,
    Float32,
    Numbers,
    ScaleE4M3,
    in_blocks,
)
from kvcalc.reference.numbers import PLAIN

if TYPE_CHECKING:
    import torch
    from torch import Tensor


LATENT_VECTOR = "latent"
"""The only vector that a format of whole latent rows takes."""


class VectorShape(msgspec.Struct, frozen=True):
    """One vector of a cache entry: `heads` runs of `width` numbers, the last `rope` of them rotary."""

    name: str
    heads: int
    width: int
    rope: int = 0


class Buffer(NamedTuple):
    """What is kept of a vector: a tensor (batch, heads, capacity, width) of `dtype`; tokens are axis 2."""

    heads: int
    width: int
    dtype: "torch.dtype"


class Codec:
    """Packs vectors (batch, heads, tokens, width) and unpacks them.

    `is_plain` says that the buffer `entries` holds the values themselves, so that unpacking may be a view.
    """

    is_plain: ClassVar[bool] = False

    def __init__(self, shape: VectorShape) -> None:
        self.shape = shape

    def buffers(self) -> dict[str, Buffer]:
        """What is kept: always `entries`, and `scales` where a format holds its scales outside the entries."""
        raise NotImplementedError

    def pack(self, values: "Tensor") -> "dict[str, Tensor]":
        """One tensor (batch, heads, tokens, width) for each buffer."""
        raise NotImplementedError

    def unpack(self, packed: "Mapping[str, Tensor]", dtype: "torch.dtype") -> "Tensor":
        """The vectors (batch, heads, tokens, width) in `dtype`, of any number of tokens."""
        raise NotImplementedError


class PlainCodec(Codec):
    """The values themselves, in a float type of torch."""

    is_plain = True

    def __init__(self, shape: VectorShape, dtype: "torch.dtype") -> None:
        super().__init__(shape)
        self.dtype = dtype

    def buffers(self) -> dict[str, Buffer]:
        return {"entries": Buffer(self.shape.heads, self.shape.width, self.dtype)}

    def pack(self, values: "Tensor") -> "dict[str, Tensor]":
        return {"entries": values.to(self.dtype)}

    def unpack(self, packed: "Mapping[str, Tensor]", dtype: "torch.dtype") -> "Tensor":
        return packed["entries"].to(dtype)


class HeadCodec(Codec):
    """Bytes along each head."""

    def __init__(self, shape: VectorShape, packing: Packing) -> None:
        super().__init__(shape)
        self.packing = packing

    def buffers(self) -> dict[str, Buffer]:
        return {"entries": _byte_buffer(self.shape.heads, self.packing.size(self.shape.width))}

    def pack(self, values: "Tensor") -> "dict[str, Tensor]":
        return {"entries": self.packing.pack(values.float())}

    def unpack(self, packed: "Mapping[str, Tensor]", dtype: "torch.dtype") -> "Tensor":
        return self.packing.unpack(packed["entries"]).to(dtype)


class RowCodec(HeadCodec):
    """Bytes along a token's whole row, head after head, as ggml packs."""

    def buffers(self) -> dict[str, Buffer]:
        return {"entries": _byte_buffer(1, self.packing.size(self.shape.heads * self.shape.width))}

    def pack(self, values: "Tensor") -> "dict[str, Tensor]":
        return super().pack(values.transpose(1, 2).flatten(2).unsqueeze(1))

    def unpack(self, packed: "Mapping[str, Tensor]", dtype: "torch.dtype") -> "Tensor":
        rows = super().unpack(packed, dtype).squeeze(1)
        return in_blocks(rows, self.shape.width).transpose(1, 2)


class OutsideScaleCodec(Codec):
    """Codes along each head, and one fp32 scale a head vector in a buffer of its own."""

    def __init__(self, shape: VectorShape, numbers: Numbers) -> None:
        super().__init__(shape)
        self.packing = Scaled(numbers, Float32(4))

    def buffers(self) -> dict[str, Buffer]:
        import torch

        heads = self.shape.heads
        codes = self.packing.size(self.shape.width) - self.packing.scale.size
        return {"entries": _byte_buffer(heads, codes), "scales": Buffer(heads, 1, torch.float32)}

    def pack(self, values: "Tensor") -> "dict[str, Tensor]":
        codes, scales = self.packing.quantise(values.float())
        return {"entries": codes, "scales": self.packing.scale.read(scales)}

    def unpack(self, packed: "Mapping[str, Tensor]", dtype: "torch.dtype") -> "Tensor":
        return self.packing.dequantise(packed["entries"], packed["scales"]).to(dtype)


class LatentCodec(Codec):
    """A latent and its rotary part in two packings, one behind the other, padded to `multiple` bytes."""

    def __init__(self, shape: VectorShape, latent: Packing, rope: Packing, multiple: int = 1) -> None:
        super().__init__(shape)
        self.packings = (latent, rope)
        self.widths = (shape.width - shape.rope, shape.rope)
        sizes = latent.size(self.widths[0]), rope.size(self.widths[1])
        self.sizes = (*sizes, -sum(sizes) % multiple)

    def buffers(self) -> dict[str, Buffer]:
        return {"entries": _byte_buffer(self.shape.heads, sum(self.sizes))}

    def pack(self, values: "Tensor") -> "dict[str, Tensor]":
        import torch

        parts = zip(self.packings, torch.split_with_sizes(values.float(), self.widths, -1), strict=True)
        packed = torch.cat([packing.pack(part) for packing, part in parts], -1)
        return {"entries": torch.nn.functional.pad(packed, (0, self.sizes[-1]))}

    def unpack(self, packed: "Mapping[str, Tensor]", dtype: "torch.dtype") -> "Tensor":
        import torch

        latent, rope, _ = torch.split_with_sizes(packed["entries"], self.sizes, -1)
        parts = zip(self.packings, (latent, rope), strict=True)
        return torch.cat([packing.unpack(part).to(dtype) for packing, part in parts], -1)


def make_codec(format_name: str, shape: VectorShape, exact: "torch.dtype | None" = None) -> Codec:
    """The codec of a number format for one vector.

    `exact` replaces the type of plain formats (fp32, bf16, fp16) and nothing else. KvcalcError where the
    format has no packing here, FormatError where its blocks cannot hold the vector.
    """
    import torch

    if format_name in PLAIN:
        return PlainCodec(shape, exact or getattr(torch, PLAIN[format_name]))
    if format_name not in _PACKED:
        raise KvcalcError(f"{format_name}: no packing of this format is written here", _HINT)
    return _PACKED[format_name](shape, f"{format_name} for `{shape.name}`")


def packed_formats() -> list[str]:
    """The formats that have a codec, in the order of the format table."""
    return [*PLAIN, *_PACKED]


def _byte_buffer(heads: int, width: int) -> Buffer:
    import torch

    return Buffer(heads, width, torch.uint8)


_Maker = Callable[[VectorShape, str], Codec]


def _along_heads(packing: Packing) -> _Maker:
    def make(shape: VectorShape, what: str) -> Codec:
        packing.check(shape.width, what)
        return HeadCodec(shape, packing)

    return make


def _over_rows(packing: Packing) -> _Maker:
    def make(shape: VectorShape, what: str) -> Codec:
        packing.check(shape.heads * shape.width, what)
        return RowCodec(shape, packing)

    return make


def _outside_scale(numbers: Numbers) -> _Maker:
    def make(shape: VectorShape, what: str) -> Codec:
        Bare(numbers).check(shape.width, what)
        return OutsideScaleCodec(shape, numbers)

    return make


def _latent_row(latent: Packing, rope: Packing, multiple: int = 1) -> _Maker:
    def make(shape: VectorShape, what: str) -> Codec:
        if shape.name != LATENT_VECTOR or shape.heads != 1:
            raise FormatError(
                f"{what}: this format packs one latent and its rotary part, and this is {shape.heads} x `{shape.name}`",
                "name another format for it, as in --kv-dtype COMPONENT=bf16",
            )
        latent.check(shape.width - shape.rope, what)
        rope.check(shape.rope, what)
        return LatentCodec(shape, latent, rope, multiple)

    return make


_NVFP4 = Scaled(FP4, ScaleE4M3(1), 16)
_FP8_F32X128 = Scaled(FP8, Float32(4), 128)

_PACKED: dict[str, _Maker] = {
    "fp8": _along_heads(Bare(FP8)),
    "int8": _outside_scale(INT8),
    "int4": _outside_scale(INT4),
    "mxfp8": _along_heads(Scaled(FP8, E8M0(1), 32)),
    "mxfp6": _along_heads(Scaled(FP6, E8M0(1), 32)),
    "mxfp4": _along_heads(Scaled(FP4, E8M0(1), 32)),
    "nvfp4": _along_heads(_NVFP4),
    "fp8_f32x128": _along_heads(_FP8_F32X128),
    "fp8_ds_mla": _latent_row(_FP8_F32X128, Bf16()),
    "fp8_ds_v4": _latent_row(Scaled(FP8, E8M0(1, round_up=True), 64), Bf16(), multiple=8),
    "nvfp4_ds_mla": _latent_row(_NVFP4, Bare(FP8)),
    "int8_per_token_head": _along_heads(Scaled(INT8, Float32(4))),
    "int4_per_token_head": _along_heads(Scaled(INT4, Float32(4))),
    "q8_0": _over_rows(Q8(8)),
    "q5_1": _over_rows(Ranged(5, 2)),
    "q5_0": _over_rows(Signed(5)),
    "q4_1": _over_rows(Ranged(4, 2)),
    "q4_0": _over_rows(Signed(4)),
    "iq4_nl": _over_rows(Iq4Nl(4)),
}

_HINT = f"these have one: {', '.join(packed_formats())}"
