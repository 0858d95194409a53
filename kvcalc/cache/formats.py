"""Number formats: how many bytes the parts of a cache entry take, exactly.

A format is one line in the table at the foot of this module: a name, a layout, its source, and the
names that engines use for it. Layouts live in `layout.py`.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kvcalc.cache.layout import Blocks, HeadSlot, LatentRow, Layout, Part, ScaledHead
from kvcalc.errors import KvcalcError, UnknownNameError

AUTO = "auto"


class Format(msgspec.Struct, frozen=True):
    """A number format with an exact layout; `source` says where that layout is written down."""

    name: str
    layout: Layout
    source: str
    aliases: tuple[str, ...] = ()
    note: str = ""
    outside_scale_bytes: int = 0
    """Bytes that somebody keeps beside the cache for each head vector, where its scales are held outside."""

    def entry_bytes(self, parts: Sequence[Part], component: str) -> int:
        """Bytes of one cache entry made of `parts`; FormatError where this format cannot hold them."""
        return self.layout.entry_bytes(parts, f"{self.name} for `{component}`")

    def formula(self, parts: Sequence[Part]) -> str:
        """The arithmetic behind `entry_bytes`, with numbers put in."""
        return self.layout.formula(parts)

    def name_for(self, part: str) -> str:
        """The name of the format that `part` is in."""
        return self.name

    def scale_bytes_for(self, part: str) -> int:
        """Bytes of scales that are kept beside the cache for a head vector of `part`."""
        return self.outside_scale_bytes

    def value_bytes(self) -> str:
        """Bytes of one value as printed: `2 B`, `9/16 B`; empty for a layout of whole entries."""
        return self.layout.value_bytes()

    def bulk_bytes(self, values: int, what: str) -> int:
        """Bytes of `values` values that form no entry (a state, weights), the last block counted whole."""
        return self.layout.bulk_bytes(values, f"{self.name} for {what}")


class SplitFormat:
    """K in one format and V in another, as llama.cpp's -ctk and -ctv allow."""

    def __init__(self, by_part: Mapping[str, Format]) -> None:
        self.by_part = dict(by_part)
        self.name = ",".join(f"{part}={form.name}" for part, form in self.by_part.items())

    def entry_bytes(self, parts: Sequence[Part], component: str) -> int:
        """Bytes of one cache entry: each part in its own format."""
        return sum(self.by_part[part.name].entry_bytes([part], component) for part in parts)

    def name_for(self, part: str) -> str:
        """The name of the format that `part` is in."""
        return self.by_part[part].name

    def scale_bytes_for(self, part: str) -> int:
        """Bytes of scales that are kept beside the cache for a head vector of `part`."""
        return self.by_part[part].outside_scale_bytes

    def formula(self, parts: Sequence[Part]) -> str:
        """The arithmetic behind `entry_bytes`, part by part."""
        return "(" + " + ".join(self.by_part[part.name].formula([part]) for part in parts) + ")"


EntryFormat = Format | SplitFormat


def find_format(name: str, flag: str = "--kv-dtype") -> Format:
    """The format called `name` by kvcalc or by an engine; UnknownNameError with near names otherwise."""
    found = _BY_NAME.get(name.strip().lower())
    if found is None:
        if name.strip().lower() in _AMBIGUOUS:
            raise KvcalcError(f"{flag} {name} has more than one layout", _AMBIGUOUS[name.strip().lower()])
        raise UnknownNameError("number format", name, _BY_NAME, f"{flag} takes, among others, bf16, fp8, q8_0, nvfp4")
    return found


def all_formats() -> Iterator[Format]:
    """Every format of the table, in its order."""
    return iter(_FORMATS)


_AMBIGUOUS = {
    "fp4": "nvfp4 is 4.5 bits a value (a scale per 16), mxfp4 is 4.25 (a scale per 32)",
    "q4": "q4_0 is 4.5 bits a value, q4_1 is 5, int4 is 4 without scales",
    "q8": "q8_0 is 8.5 bits a value, int8 is 8 without scales",
}

_OCP = "OCP Microscaling Formats (MX) v1.0, section 5"
_GGML = "ggml-common.h, block structs"
_VLLM_HEAD = "vllm v1/attention/backends/triton_attn.py"
_TURBO = "vllm turboquant config: K and V of a head in one slot, rounded up to even"
_TURBO_NOTE = "vLLM leaves the first and last two layers of a dense model unquantised; the need here does not"
_BF16 = Blocks(1, 2)

_FORMATS = (
    Format("fp32", Blocks(1, 4), "IEEE 754 binary32: 32 bits a value", ("f32", "float32", "float")),
    Format("bf16", _BF16, "bfloat16: 16 bits a value", ("bfloat16",)),
    Format("fp16", _BF16, "IEEE 754 binary16: 16 bits a value", ("f16", "float16", "half")),
    Format(
        "fp8",
        Blocks(1, 1),
        "OCP FP8; one scale a tensor, held outside the cache",
        ("fp8_e4m3", "fp8_e5m2", "fp8_inc", "float8_e4m3fn", "float8_e5m2"),
    ),
    Format("int8", Blocks(1, 1), "8-bit integers, scales held outside the cache", outside_scale_bytes=4),
    Format("6bit", Blocks(4, 3), "6 plain bits a value: DeepSeek-V2, arXiv 2405.04434, section 3.2.3"),
    Format("int4", Blocks(2, 1), "4-bit integers, scales held outside the cache", outside_scale_bytes=4),
    Format("mxfp8", Blocks(32, 33), _OCP, ("mxint8",)),
    Format("mxfp6", Blocks(32, 25), _OCP),
    Format("mxfp4", Blocks(32, 17), _OCP),
    Format(
        "nvfp4",
        Blocks(16, 9),
        "vllm utils/torch_utils.py nvfp4_kv_cache_full_dim: d/2 + d/16",
        ("fp4_mx_block16",),
    ),
    Format("fp8_f32x128", Blocks(128, 132), "DeepSeek-V3.2 index key: 128 FP8 values and one fp32 scale"),
    Format(
        "fp8_ds_mla",
        LatentRow(Blocks(128, 132), _BF16),
        "vllm flashmla_sparse.py: 512 FP8 + 4 fp32 scales + 64 bf16 = 656 B",
    ),
    Format(
        "fp8_ds_v4",
        LatentRow(Blocks(64, 65), _BF16, multiple=8),
        "vllm deepseek_v4: 448 FP8 + 7 UE8M0 scales + 64 bf16 + 1 pad = 584 B",
    ),
    Format(
        "nvfp4_ds_mla",
        LatentRow(Blocks(16, 9), Blocks(1, 1)),
        "vllm 0.33 nvfp4_ds_mla on V3.2: 256 + 32 scales + 64 FP8 rotary = 352 B",
    ),
    Format("int8_per_token_head", ScaledHead(Blocks(1, 1), 4), _VLLM_HEAD, ("fp8_per_token_head",)),
    Format("int4_per_token_head", ScaledHead(Blocks(2, 1), 4), _VLLM_HEAD),
    Format("turboquant_k8v4", HeadSlot(8, 4, 0, 4), _TURBO, note=_TURBO_NOTE),
    Format("turboquant_4bit_nc", HeadSlot(4, 4, 2, 4), _TURBO, note=_TURBO_NOTE),
    Format("turboquant_k3v4_nc", HeadSlot(3, 4, 2, 4), _TURBO, note=_TURBO_NOTE),
    Format("turboquant_3bit_nc", HeadSlot(3, 3, 2, 4), _TURBO, note=_TURBO_NOTE),
    Format("ultraquant_4bit", HeadSlot(4, 4, 4, 4, head_dim=128), "vllm ultraquant: 136 B a head of 128 (K and V)"),
    Format("q8_0", Blocks(32, 34, over_row=True), _GGML),
    Format("q5_1", Blocks(32, 24, over_row=True), _GGML),
    Format("q5_0", Blocks(32, 22, over_row=True), _GGML),
    Format("q4_1", Blocks(32, 20, over_row=True), _GGML),
    Format("q4_0", Blocks(32, 18, over_row=True), _GGML),
    Format("iq4_nl", Blocks(32, 18, over_row=True), _GGML),
)

_BY_NAME = {name: form for form in _FORMATS for name in (form.name, *form.aliases)}
