"""Attention of a config as components of the spec language: heads, latents, windows, index keys."""

from typing import Any

from kvcalc.errors import SpecError
from kvcalc.model.importers.fields import Fields
from kvcalc.model.importers.layer_words import window

Component = dict[str, Any]

HIDDEN = ("hidden_size", "n_embd", "d_model", "embedding_dim", "n_embed", "dim_model", "model_dim")
DECODER_HEADS = ("decoder_attention_heads", "num_decoder_attention_heads", "decoder_num_attention_heads")
HEADS = (
    *DECODER_HEADS,
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "attention_heads",
    "num_query_heads",
    "encoder_attention_heads",
)
KV_HEADS = (
    "num_key_value_heads_per_layer",
    "decoder_num_key_value_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "num_query_groups",
    "n_kv_heads",
    "num_multi_query_heads",
)
KV_HEADS_MORE = ("num_attention_groups", "kv_n_heads")
HEAD_DIM = (
    "head_dim",
    "attention_head_dim",
    "d_kv",
    "kv_channels",
    "hidden_size_per_head",
    "dim_head",
    "size_per_head",
)
LATENT_RANK = ("kv_lora_rank", "attention_kv_lora_dim")
ROPE_DIM = ("qk_rope_head_dim", "attention_qk_rope_dim")
# A cache is no wider for these: the widths of a query, what the latent is expanded to, how scores are made.
_OF_QUERIES = ("qk_head_dim", "qk_nope_head_dim", "v_head_dim", "q_lora_rank", "attention_qk_dim", "attention_v_dim")


def query_heads(fields: Fields) -> int:
    """Query heads of the decoder."""
    heads = fields.count(*HEADS)
    return fields.need("num_attention_heads") if heads is None else heads


def kv_heads(fields: Fields) -> int:
    """KV heads: stated under one of many names, 1 for multi-query, else as many as query heads."""
    heads = query_heads(fields)
    fields.means_nothing("num_key_value_groups", "num_gqa_groups")  # query heads a KV head: follow from the counts
    if fields.word("attention_head_type") == "multiquery":
        return 1
    if fields.states("multi_query_attention"):
        groups = fields.count("multi_query_group_num")
        return groups or 1 if fields.flag("multi_query_attention") else heads
    many = fields.flag("new_decoder_architecture")
    if fields.flag("multi_query") and not many:
        fields.means_nothing(*KV_HEADS)
        return 1
    in_group = fields.count("n_heads_in_group", "n_shared_head")
    if in_group is not None:
        return max(1, heads // in_group)
    nested = fields.part("attn_config")
    stated = fields.count(*KV_HEADS, *KV_HEADS_MORE) or (nested.count("kv_n_heads") if nested else None)
    return stated or heads


def head_dim(fields: Fields) -> int:
    """Width of a head: stated, or the hidden size over the heads."""
    stated = fields.count(*HEAD_DIM, least=0)
    hidden, heads = fields.need(*HIDDEN), query_heads(fields)
    if stated:
        return stated
    if hidden < heads:
        raise SpecError(f"{fields.where}: hidden size {hidden} is less than {heads} heads", "state head_dim")
    return hidden // heads


def latent_rank(fields: Fields) -> int | None:
    """Width of an MLA latent, None where attention keeps heads."""
    return None if fields.raw("use_mla") is False else fields.count(*LATENT_RANK, least=0) or None


def full(fields: Fields) -> Component:
    """One layer of plain attention over everything: a latent where there is one, else K and V by heads."""
    return latent(fields) if latent_rank(fields) else {**heads(fields), **_of_global_layers(fields)}


def heads(fields: Fields) -> Component:
    """K and V by heads."""
    width, v_width = head_dim(fields), fields.count("v_head_dim", least=0)
    component: Component = {
        "kind": "kv",
        "q_heads": fields.count("num_attention_heads_per_layer") or query_heads(fields),
        "kv_heads": kv_heads(fields),
        "head_dim": width,
    }
    return component if v_width in (None, 0, width) else {**component, "v_head_dim": v_width}


def _of_global_layers(fields: Fields) -> Component:
    """Gemma 4: global layers have wider heads, and heads of another count where K is V too."""
    width, count = fields.count("global_head_dim"), fields.count("num_global_key_value_heads")
    counts = {"kv_heads": count} if count and fields.raw("attention_k_eq_v") is not False else {}
    return {**({"head_dim": width} if width else {}), **counts}


def latent(fields: Fields) -> Component:
    """An MLA latent with its rotary part; the head width that a config may state is not the cache's."""
    fields.means_nothing(*KV_HEADS, *HEAD_DIM, *_OF_QUERIES)
    rope = fields.count(*ROPE_DIM, least=0)
    if rope is None:
        raise SpecError(f"{fields.where}: kv_lora_rank without qk_rope_head_dim", "state it, 0 where there is none")
    component: Component = {
        "kind": "latent",
        "q_heads": query_heads(fields),
        "latent_dim": fields.need(*LATENT_RANK),
        "rope_dim": rope,
        "nope_head_dim": fields.count("qk_nope_head_dim", "attention_qk_dim", least=0) or None,
        "v_head_dim": fields.count("v_head_dim", "attention_v_dim", least=0) or None,
        "q_rank": fields.count("q_lora_rank", "attention_q_lora_dim", least=0) or None,
    }
    return {key: value for key, value in component.items() if value is not None}


def sliding(fields: Fields) -> Component:
    """A layer that keeps a window; local layers may have heads and widths of their own."""
    width = window(fields)
    if width is None:
        raise SpecError(f"{fields.where}: layers slide, and no sliding_window says how far", "state sliding_window")
    return {**local(fields), "window": width}


def local(fields: Fields) -> Component:
    """The attention of local layers, where a config gives them another shape."""
    component = latent(fields) if latent_rank(fields) else heads(fields)
    other = fields.part("attention_other_setting")
    own = {
        "q_heads": fields.count("swa_num_attention_heads", "num_sliding_attention_heads"),
        "kv_heads": fields.count("swa_num_key_value_heads"),
        "head_dim": fields.count("swa_head_dim"),
        "v_head_dim": fields.count("swa_v_head_dim"),
    }
    for ours, theirs in _OTHER_SETTING.items():
        own[ours] = own[ours] or _of(other, theirs)
    if other is not None:
        other.means_nothing("attention_type", "true_head_dim")
    unlike = {"kv_heads", "head_dim"} if component["kind"] == "latent" else set()
    return {**component, **{key: value for key, value in own.items() if value and key not in unlike}}


_OTHER_SETTING = {"q_heads": "num_attention_heads", "kv_heads": "num_attention_groups", "head_dim": "head_dim"}


def chunked(fields: Fields) -> Component:
    """A layer that attends within a chunk."""
    return {**full(fields), "chunk": fields.need("attention_chunk_size")}


def cross(fields: Fields) -> Component:
    """K and V of the encoder's tokens in a decoder layer; how many these are, only some configs fix."""
    own = {
        "q_heads": fields.count("cross_num_attention_heads"),
        "kv_heads": fields.count("cross_num_key_value_heads"),
        "head_dim": fields.count("cross_head_dim"),
    }
    component = {**heads(fields), "kind": "cross", **{key: value for key, value in own.items() if value}}
    tokens = fields.count("~encoder_tokens")
    return component if tokens is None else {**component, "encoder_tokens": tokens}


def indexed(fields: Fields) -> list[Component]:
    """Sparse attention: the cache, and the keys of an indexer where the layer has one of its own."""
    cache = {**full(fields), **top_k(fields)}
    if cache.get("rope_dim"):
        cache["formats"] = {"fp8": "fp8_ds_mla"}
    return [cache, index(fields)] if keeps_index(fields) else [cache]


def keeps_index(fields: Fields) -> bool:
    """Whether a layer's indexer is its own, not an earlier layer's whose choice it reads."""
    at = fields.layer or 0
    types = fields.items("indexer_types")
    pattern = fields.raw("index_topk_pattern")
    if types is None and isinstance(pattern, str | list):
        types = list(pattern)
    frequency, offset = fields.count("index_topk_freq", least=0) or 1, fields.count("index_skip_topk_offset", least=0)
    if types is None:
        return max(at - (2 if offset is None else offset) + 1, 0) % frequency == 0
    if at >= len(types):
        raise SpecError(f"{fields.where}: {len(types)} indexer types, and a layer {at}", "one is needed for each layer")
    if types[at] not in ("full", "shared", "F", "S"):
        raise SpecError(f"{fields.where}: an indexer type is {types[at]!r:.40}", "known: full, shared")
    return types[at] in ("full", "F")


INDEX_FORMATS = {"fp8": "fp8_f32x128", "fp8_ds_mla": "fp8_f32x128", "nvfp4_ds_mla": "fp8_f32x128"}


def index(fields: Fields) -> Component:
    """The key of a sparse-attention indexer; of a whole block of tokens where keys are pooled."""
    nested = fields.part("sparse_attention_config")
    if nested is not None:
        nested.means_nothing("sparse_disable_index_value", "sparse_local_block", "sparse_init_block")
    component: Component = {
        "kind": "index",
        "head_dim": _of(nested, "sparse_index_dim") or fields.need("index_head_dim", "indexer_head_dim"),
        "q_heads": _of(nested, "sparse_num_index_heads") or fields.count("index_n_heads", "indexer_n_heads"),
        "q_rank": fields.count("q_lora_rank", least=0) or None,
        "ratio": fields.count("index_kpool", "indexer_compress_ratio"),
    }
    if latent_rank(fields) and component["head_dim"] % 128 == 0:
        component["formats"] = INDEX_FORMATS
    return {key: value for key, value in component.items() if value is not None}


def top_k(fields: Fields) -> Component:
    """The most entries that sparse attention reads, as a key of the attended cache."""
    nested = fields.part("sparse_attention_config")
    most = fields.count("index_topk", "indexer_budget")
    blocks = _of(nested, "sparse_topk_blocks") or fields.count("index_topk_blocks")
    size = _of(nested, "sparse_block_size") or fields.count("index_block_size")
    most = most or (blocks * size if blocks and size else None)
    return {} if most is None else {"top_k": most}


def _of(nested: Fields | None, name: str) -> int | None:
    return nested.count(name) if nested else None
