"""Feed-forward parts of a config: which layers hold experts, how many, how wide."""

from typing import Any

from kvcalc.model.importers.attention import HIDDEN, Component
from kvcalc.model.importers.fields import Fields

EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_moe_experts")
ACTIVE = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_k",
    "moe_top_k",
    "top_k_experts",
    "experts_per_token",
)
WIDTH = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "dim_ff", "feed_forward_size", "dff")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size")
_SPARSE_WORDS = {"sparse", "moe", "hash_moe", "E"}
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "share_expert_dim",
    "shared_experts_intermediate_size",
)


def experts(fields: Fields) -> int | None:
    """Routed experts of a layer that has them; None for a dense model."""
    nested = fields.part("ffn_config")
    count = fields.count(*EXPERTS, least=0) or (nested.count("moe_num_experts") if nested else None)
    return count if count and count > 1 and fields.raw("is_moe") is not False else None


def expert_layers(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether its feed-forward part is made of experts."""
    if experts(fields) is None or fields.raw("enable_moe_block") is False:
        return [False] * layers
    words = _words(fields)
    if words is not None and len(words) >= layers:
        return [str(word) in _SPARSE_WORDS for word in words[:layers]]
    places = fields.counts("moe_layers")
    if places:
        return [index in places for index in range(layers)]
    return [_is_sparse(fields, index, layers) for index in range(layers)]


def _words(fields: Fields) -> list[Any] | None:
    """One word a layer where a config writes down which ones hold experts; lists that name none are about mixers."""
    words = fields.items("mlp_layer_types")
    if words is not None:
        return words
    letters = fields.word("hybrid_override_pattern")
    words = list(letters.replace("|", "")) if letters else fields.items("layers_block_type")
    return words if words and _SPARSE_WORDS & set(map(str, words)) else None


def _is_sparse(fields: Fields, index: int, layers: int) -> bool:
    first = fields.count("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", least=0) or 0
    last = _last_sparse(fields)
    frequency = fields.raw("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(frequency[index]) if index < len(frequency) else True
    period = fields.count("expert_layer_period")
    if period is not None:
        return index % period == (fields.count("expert_layer_offset", least=0) or 0)
    step = fields.count("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval") or 1
    dense = fields.counts("mlp_only_layers") or []
    upto = layers if last is None else last + 1
    return first <= index < upto and index not in dense and (index + 1) % step == 0


def _last_sparse(fields: Fields) -> int | None:
    """The last layer with experts; of a list, which has one for text and one for pictures, the first."""
    if isinstance(fields.raw("moe_layer_end_index"), list):
        places = fields.counts("moe_layer_end_index")
        return places[0] if places else None
    return fields.count("moe_layer_end_index", least=0)


def dense(fields: Fields) -> Component | None:
    """One network of a layer without experts."""
    hidden = fields.need(*HIDDEN)
    decoder = ("decoder_ffn_dim",) if fields.flag("is_encoder_decoder") else ()
    width = _first(fields, "intermediate_size_mlp", "dense_intermediate_size", *decoder, *WIDTH)
    if width is None:
        width = 4 * hidden
    return None if width == 0 else {"kind": "dense", "intermediate_size": width}


def sparse(fields: Fields) -> Component:
    """Experts of a layer that has them."""
    nested = fields.part("ffn_config")
    width = _first(fields, *EXPERT_WIDTH) or (nested.count("ffn_hidden_size") if nested else None)
    component: dict[str, Any] = {
        "kind": "moe",
        "experts": experts(fields),
        "active": fields.count(*ACTIVE) or (nested.count("moe_top_k") if nested else None),
        "intermediate_size": width or _first(fields, *WIDTH),
        **_shared(fields),
    }
    return {key: value for key, value in component.items() if value is not None}


def _first(fields: Fields, *names: str) -> int | None:
    """A width; of a list the first, which is the first layer's or the text's."""
    if isinstance(fields.raw(*names), list):
        widths = fields.counts(*names)
        return widths[0] if widths else None
    return fields.count(*names, least=0)


def _shared(fields: Fields) -> Component:
    count, width = fields.count(*SHARED, least=0), fields.count(*SHARED_WIDTH, least=0)
    if width:
        return {"shared": 1, "shared_intermediate_size": width}
    return {"shared": count} if count else {}
