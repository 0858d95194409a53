"""The types of llama.cpp's cache: one for K and one for V of all layers, and the rows that they refuse."""

from kvcalc.cache.component import Component
from kvcalc.cache.formats import AUTO, Format, find_format
from kvcalc.cache.layout import Part
from kvcalc.cache.sharding import WHOLE
from kvcalc.errors import FormatError, KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, components_of

NAME = "llama.cpp"

DEFAULT_TYPE = "fp16"
PLAIN = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
TYPES = PLAIN | {name: name for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")}
"""What -ctk and -ctv take, as we and as it call them: kv_cache_types of common/arg.cpp."""


def kv_dtype_of(spec: ModelSpec, type_k: str, type_v: str) -> str:
    """-ctk and -ctv as one --kv-dtype; KvcalcError where they differ and there is no V (llama_init_from_model)."""
    k, v = find_format(type_k, "-ctk").name, find_format(type_v, "-ctv").name
    if k == v:
        return k
    kept = [one for one in components_of(spec.layers) if one.keeps_entries and not one.selects]
    if not kept:
        # Nothing takes either, and V's alone is looked at.
        return v
    if not any(row_of(one, "v") for one in kept):
        k, v = TYPES.get(k, k), TYPES.get(v, v)
        raise KvcalcError(
            f"{NAME} refuses -ctk {k} beside -ctv {v}: {spec.name} keeps a latent and no V",
            f"give both the same: -ctk {k} -ctv {k}",
        )
    return f"{k},v={v}"


class Types:
    """The one type of K and the one of V that all layers have."""

    def __init__(self, size: CacheSize, flash_attn: bool) -> None:
        self.k, self.v = (self._asked(size, side) for side in ("k", "v"))
        self.flash_attn = flash_attn
        if not flash_attn and self.v.name not in PLAIN:
            raise KvcalcError(f"{NAME} refuses -ctv {self.v.name} without flash attention", "use -fa on, or -ctv f16")

    def _asked(self, size: CacheSize, side: str) -> Format:
        request = size.packer.request
        others = sorted(set(request.by_name) - {"k", "v"})
        if others:
            raise KvcalcError(f"{NAME} has a type for K and one for V, none for `{others[0]}`", "use -ctk and -ctv")
        asked = request.by_name.get(side) or request.everywhere or AUTO
        name = DEFAULT_TYPE if asked == AUTO else asked
        if name not in TYPES:
            raise KvcalcError(f"{NAME} keeps no cache in {name}", f"-ctk and -ctv take {', '.join(TYPES.values())}")
        return find_format(name)

    def row_bytes(self, component: Component, side: str, form: Format) -> int:
        """Bytes of one cell's K or V; a head that its blocks do not divide is refused as llama.cpp does."""
        parts = row_of(component, side)
        if not parts:
            return 0
        heads = [part._replace(heads=1) for part in parts]
        try:
            # llama_init_from_model looks at each head where flash attention is on, and ggml at the row always.
            form.entry_bytes(heads if self.flash_attn else parts, component.name)
            return form.entry_bytes(parts, component.name)
        except FormatError as error:
            width = sum(part.width for part in parts)
            raise KvcalcError(
                f"{NAME} refuses -ct{side} {form.name}: its blocks do not divide the {width} of `{component.name}`",
                "use f16 or bf16",
            ) from error


def row_of(component: Component, side: str) -> list[Part]:
    """The vectors of one cell that lie in the K tensor, or those in the V tensor."""
    return [part for part in component.parts(WHOLE) if (part.name == "v") == (side == "v")]
