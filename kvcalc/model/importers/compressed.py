"""DeepSeek-V4 and V4.1: a window in every layer, and beside it one latent for several tokens.

Layouts as in https://arxiv.org/abs/2606.19348 and https://arxiv.org/abs/2609.19969: K and V are one vector of
head_dim values, the last qk_rope_head_dim of them rotary.
"""

from typing import Any

from kvcalc.errors import SpecError
from kvcalc.model.importers.attention import Component, index, query_heads, top_k
from kvcalc.model.importers.fields import Fields
from kvcalc.model.importers.layer_words import HEAVILY_COMPRESSED, SPARSE_COMPRESSED, window

_V4 = {"format": "fp8_ds_v4", "formats": {"fp8": "fp8_ds_v4", "fp8_ds_mla": "fp8_ds_v4"}}
_V4_KEYS = {"format": "mxfp4", "formats": {"fp8": "fp8_f32x128", "fp8_ds_mla": "fp8_f32x128"}}
_V41_WINDOW = {
    "format": "mxfp8",
    "formats": {"fp8": "mxfp8", "fp8_ds_mla": "fp8_ds_v4", "nvfp4_ds_mla": "mxfp8"},
}
_V41 = {"format": "nvfp4", "formats": {"fp8": "mxfp8", "fp8_ds_mla": "fp8_ds_v4", "nvfp4_ds_mla": "nvfp4"}}
_V41_KEYS = {"format": "mxfp4", "formats": {"fp8": "mxfp8", "fp8_ds_mla": "fp8_f32x128", "nvfp4_ds_mla": "mxfp4"}}
_NAMES = {SPARSE_COMPRESSED: "csa", HEAVILY_COMPRESSED: "hca"}


def is_compressed(fields: Fields) -> bool:
    """Whether attention keeps one vector for K and V, and latents of several tokens."""
    return fields.raw("compress_ratios", "compress_rates") is not None


def latent_window(fields: Fields) -> Component:
    """What a layer keeps of its last tokens."""
    width = window(fields)
    if width is None:
        raise SpecError(f"{fields.where}: compressed attention, and no sliding_window", "state sliding_window")
    layout = _V41_WINDOW if _sources(fields) else _V4
    return {"kind": "latent", "q_heads": query_heads(fields), **_widths(fields), "window": width, **layout}


def compressed(fields: Fields, word: str) -> list[Component]:
    """The components of a layer with a compressed cache beside its window."""
    if _sources(fields):
        return [latent_window(fields), *_shared_compressed(fields)]
    ratio = _ratio(fields, word)
    is_sparse = word == SPARSE_COMPRESSED
    overlap = {"overlap": True} if is_sparse else {}
    cache = {"kind": "latent", "id": _NAMES[word], **_widths(fields), "ratio": ratio, **overlap}
    if not is_sparse:
        return [latent_window(fields), {**cache, **_V4}]
    keys = {**_keys(fields), "ratio": ratio, **overlap, **_V4_KEYS}
    return [latent_window(fields), {**cache, **top_k(fields), **_V4}, keys]


def _shared_compressed(fields: Fields) -> list[Component]:
    """V4.1: a source keeps the cache and its keys; others read them, and some of these select anew."""
    at = fields.layer or 0
    ratio = _ratio(fields, SPARSE_COMPRESSED)
    if at in (_sources(fields) or []):
        span: Component = {"ratio": ratio} if ratio > 1 else {}
        cache = {"kind": "latent", "id": "global", **_widths(fields), **span, **top_k(fields), **_V41}
        return [cache, {**_keys(fields), "id": "keys", **span, **_V41_KEYS}]
    reuse: Component = {"kind": "shared", "source": "global"}
    if at not in (fields.counts("index_source_layer_ids") or []):
        return [reuse]
    blocks, size = fields.count("candidate_topk_blocks"), fields.count("candidate_block_size")
    most = {"top_k": blocks * size} if blocks and size else {}
    return [reuse, {"kind": "shared", "source": "keys", **most}]


def _sources(fields: Fields) -> list[int] | None:
    return fields.counts("kv_source_layer_ids")


def _widths(fields: Fields) -> dict[str, Any]:
    width, rope = fields.need("head_dim"), fields.count("qk_rope_head_dim")
    factor = fields.raw("partial_rotary_factor")
    if rope is None:
        rope = int(width * factor) if isinstance(factor, float) and 0 < factor < 1 else width // 8
    if rope >= width:
        raise SpecError(
            f"{fields.where}: qk_rope_head_dim {rope} is not less than head_dim {width}", "check the config"
        )
    fields.means_nothing("num_key_value_heads", "kv_lora_rank")
    return {"latent_dim": width - rope, "rope_dim": rope}


def _ratio(fields: Fields, word: str) -> int:
    """Tokens for one entry of this layer."""
    ratios = fields.counts("compress_ratios")
    if ratios is not None and fields.layer is not None and fields.layer < len(ratios) and ratios[fields.layer]:
        return ratios[fields.layer]
    rates = fields.part("compress_rates")
    return (rates.count(word) if rates else None) or {SPARSE_COMPRESSED: 4, HEAVILY_COMPRESSED: 128}[word]


def _keys(fields: Fields) -> Component:
    keys = {**index(fields), "q_heads": fields.need("index_n_heads")}
    return {key: value for key, value in keys.items() if key not in ("q_rank", "formats")}
