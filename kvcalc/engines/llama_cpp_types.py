"""The types of llama.cpp's cache, one for K and one for V of all layers, and the one window that a model has."""

from kvcalc.cache.component import Component
from kvcalc.cache.formats import AUTO, Format, find_format
from kvcalc.cache.layout import Part
from kvcalc.cache.sharding import WHOLE
from kvcalc.errors import FormatError, KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import components_of

NAME = "llama.cpp"
NEED = "leave --engine out for the need alone"

PAD = 256
"""Cells come in multiples of it: llama_context::llama_context, and llama_kv_cache_iswa for windows."""

IGNORES_WINDOW = {"mistral", "mixtral", "qwen2", "phi3", "starcoder2"}
"""Types of a config.json whose architecture there (llama, qwen2, phi3, starcoder2) has no window cache."""

FROM_GGUF = "general.architecture"
"""Stands in the source of a spec that was read from a GGUF."""

DEFAULT_TYPE = "fp16"
PLAIN = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
TYPES = PLAIN | {name: name for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")}
"""What -ctk and -ctv take, as we and as it call them: kv_cache_types of common/arg.cpp."""


def padded(cells: int) -> int:
    """Cells as they are made."""
    return -(-cells // PAD) * PAD


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


def v_width(component: Component) -> int:
    """Values of V in one cell."""
    return sum(part.heads * part.width for part in row_of(component, "v"))


def kept_as(component: Component, mla: bool) -> Component:
    """The component, or without `mla` K and V of its heads: llama_kv_cache of a model without n_embd_head_k_mla."""
    kept = component if mla else component.in_heads
    if kept is None:
        message = f"the spec does not say the heads of `{component.name}`: its K and V are not known"
        raise KvcalcError(message, "state q_heads, nope_head_dim and v_head_dim")
    return kept


def sliding_window(spec: ModelSpec, components: list[Component]) -> int:
    """Tokens of the one window or chunk that a model has; 0 where llama.cpp lets none slide.

    create_memory of llama-model.cpp makes a window cache where an architecture sets a pattern
    (set_swa_pattern). A GGUF is read with that in mind; elsewhere a window of every layer is one
    that it ignores (llama, phi3, starcoder2), since no architecture of its own has only such layers.
    """
    attended = [one for one in components if one.keeps_entries and not (one.selects or one.is_encoder_fed)]
    caps = {one.span.cap for one in attended}
    is_ignored = spec.model_type in IGNORES_WINDOW or None not in caps
    if is_ignored and not is_from_gguf(spec):
        return 0
    windows = sorted(cap for cap in caps if cap is not None)
    if len(windows) > 1:
        listed = ", ".join(f"{cap:,}" for cap in windows)
        raise KvcalcError(f"{NAME} has one window a model, not {listed}", NEED)
    return windows[0] if windows else 0


def is_from_gguf(spec: ModelSpec) -> bool:
    """Whether it was read from a GGUF, which says what llama.cpp makes of it."""
    return FROM_GGUF in (spec.source or "")
