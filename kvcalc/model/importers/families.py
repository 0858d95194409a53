"""What a model type's own code makes of its config: structure that no field states, in the words of fields.

Each function answers with the fields that transformers' or the model's own code would derive, for one model
type. Everything that a field of some config states is read in the other modules, whatever the model type.
"""

from collections.abc import Mapping
from typing import Any

from kvcalc.model.importers import families_hybrid as hybrid
from kvcalc.model.importers.attention import HIDDEN, kv_heads
from kvcalc.model.importers.families_common import MOST_LAYERS, Derived, Rule, harmless, layers_of, words_of
from kvcalc.model.importers.feed_forward import experts
from kvcalc.model.importers.fields import Fields
from kvcalc.model.importers.layer_words import FULL, HEAVILY_COMPRESSED, INDEXED, SLIDING, SPARSE_COMPRESSED, TWICE


def _deepseek_v4(fields: Fields) -> Derived:
    """Two heavily compressed layers, then sparse and heavily compressed ones in turns."""
    sparse, heavy = fields.count("compress_rate_csa") or 4, fields.count("compress_rate_hca") or 128
    rates = {"compress_rates": fields.raw("compress_rates") or {SPARSE_COMPRESSED: sparse, HEAVILY_COMPRESSED: heavy}}
    if fields.raw("compress_ratios") is not None:
        return rates
    return rates | words_of(
        fields, lambda index: SPARSE_COMPRESSED if index >= 2 and (index - 2) % 2 else HEAVILY_COMPRESSED
    )


def _dots3_note(fields: Fields) -> Derived:
    """Sliding layers have a latent of their own; what a released config calls full attention is indexed."""
    is_sparse = fields.raw("use_dsa") if "use_dsa" in fields.data else "per_layer_config" not in fields.data or None
    full = FULL if is_sparse is False else INDEXED
    slides = fields.raw("use_sliding_window") is not False
    words = fields.items("layer_types") or [
        SLIDING if slides and index >= 2 and index % 4 != 1 else full for index in range(layers_of(fields))
    ]
    if is_sparse is not None:
        words = [full if word in (FULL, INDEXED, "deepseek_sparse_attention") else word for word in words]
    answer: Derived = {"layer_types": words, "sliding_window": fields.count("sliding_window", "sliding_window_size")}
    answer["sliding_window"] = answer["sliding_window"] or 512
    if fields.raw("per_layer_config") is None:
        own = {
            "num_attention_heads": fields.count("swa_num_attention_heads") or 64,
            "kv_lora_rank": fields.count("swa_kv_lora_rank") or 1024,
            "q_lora_rank": fields.count("swa_q_lora_rank") or 1024,
            "qk_nope_head_dim": fields.count("swa_qk_nope_head_dim") or 192,
            "v_head_dim": fields.count("swa_v_head_dim") or 128,
        }
        width = fields.count("swa_head_dim") or 256
        own["qk_rope_head_dim"] = fields.count("swa_qk_rope_head_dim") or max(0, width - own["qk_nope_head_dim"])
        answer["per_layer_config"] = {str(index): own for index, word in enumerate(words) if word == SLIDING}
    return answer


def _mistral_large4(fields: Fields) -> Derived:
    """Layers without rotary positions keep the latent alone."""
    marks = fields.counts("no_rope_layers")
    interval = fields.count("no_rope_layer_interval") or 4
    if marks is None:
        marks = [int((index + 1) % interval != 0) for index in range(layers_of(fields))]
    without = {str(index): {"qk_rope_head_dim": 0} for index, mark in enumerate(marks) if not mark}
    return {} if fields.raw("per_layer_config") is not None else {"per_layer_config": without}


def _hy_v4(fields: Fields) -> Derived:
    """After the first layer every fourth has an indexer of its own."""
    return words_of(fields, lambda index: "full" if index == 0 or index % 4 == 1 else "shared", "indexer_types")


def _mimo_v2_flash(fields: Fields) -> Derived:
    """Full attention in the first and every sixth layer; local layers have twice the KV heads, and chunk nothing.

    A window of W is W earlier tokens; transformers counts the token itself too, and so states W + 1.
    """
    fields.means_nothing("attention_chunk_size")
    width, counted = fields.count("sliding_window_size"), fields.count("sliding_window")
    more: Derived = {
        "~draft_layer_type": SLIDING,
        "sliding_window": width or (counted - 1 if counted and counted > 1 else counted),
        "swa_num_key_value_heads": fields.count("swa_num_key_value_heads") or 2 * kv_heads(fields),
    }
    if fields.raw("hybrid_layer_pattern") is not None:
        return more
    return more | words_of(fields, lambda index: FULL if index == 0 or (index + 1) % 6 == 0 else SLIDING)


def _cohere2_moe(fields: Fields) -> Derived:
    """The dense layers before the experts have a pattern of windows of their own."""
    period, own = fields.count("sliding_window_pattern") or 4, fields.count("prefix_dense_sliding_window_pattern") or 1
    first = fields.count("first_k_dense_replace", least=0) or 0

    def word(index: int) -> str:
        place, every = (index, own) if index < first else (index - first, period)
        return SLIDING if (place + 1) % every else FULL

    return words_of(fields, word)


def _cpmant(fields: Fields) -> Derived:
    """Every prompt begins with learned tokens of its task, which are kept too."""
    return {"~prompt_tokens": fields.count("prompt_length")}


def _flint(fields: Fields) -> Derived:
    last = layers_of(fields) - 1
    return words_of(fields, lambda index: FULL if index < 2 or index % 4 == 1 or index == last else SLIDING)


def _longcat_flash(fields: Fields) -> Derived:
    """A layer attends twice, and keeps two caches; transformers counts each as a layer of its own."""
    layers = min(fields.count("num_layers") or (fields.count("num_hidden_layers") or 0) // 2, 10_000)
    return {"num_hidden_layers": layers, "layer_types": [TWICE] * layers}


def _modernbert(fields: Fields) -> Derived:
    """The window is half of what it is called, and the first of every n layers sees everything."""
    period, width = fields.count("global_attn_every_n_layers") or 3, fields.count("local_attention")
    words = words_of(fields, lambda index: SLIDING if index % period else FULL)
    return words if width is None else {"sliding_window": max(1, width // 2)} | words


def _whisper(fields: Fields) -> Derived:
    """Thirty seconds of sound, always padded to that."""
    return {"~encoder_tokens": fields.count("max_source_positions")}


def _beam(fields: Fields) -> Derived:
    """The last layer sees everything, wherever the pattern stands."""
    last = layers_of(fields) - 1
    return words_of(fields, lambda index: FULL if (index + 1) % 6 == 0 or index == last else SLIDING)


def _all_full(fields: Fields) -> Derived:
    """A window that only a list of layer types turns on."""
    return words_of(fields, lambda _: FULL)


def _muse(fields: Fields) -> Derived:
    """Every fourth layer sees everything, counted from the last."""
    last = layers_of(fields) - 1
    return words_of(fields, lambda index: SLIDING if (last - index) % 4 else FULL)


def _dbrx(fields: Fields) -> Derived:
    """One KV head where attn_config states none."""
    nested = fields.part("attn_config")
    return {"kv_n_heads": (nested.count("kv_n_heads") if nested else None) or 1}


def _jetmoe(fields: Fields) -> Derived:
    """Experts of attention: each of those that a token takes asks with as many heads as there are of K and V."""
    kept, taken = fields.count("num_key_value_heads"), fields.count("num_experts_per_tok")
    return {"num_attention_heads": kept * taken} if kept and taken else {}


def _gemma4(fields: Fields) -> Derived:
    """Global heads are 512 wide unless something says otherwise."""
    stated = fields.raw("per_layer_config") is not None or fields.count("global_head_dim") is not None
    return {} if stated else {"global_head_dim": 512}


def _granite_moe(fields: Fields) -> Derived:
    """Without experts a layer has the network they would share; an all-attention stack states Mamba's shape too."""
    fields.means_nothing(*hybrid.MAMBA_SHAPE)
    return {} if experts(fields) else {"intermediate_size": fields.count("shared_intermediate_size")}


def _ouro(fields: Fields) -> Derived:
    """The whole stack runs several times, with a cache slot for each pass and layer (its UniversalTransformerCache)."""
    return {"loop_num_passes": fields.count("total_ut_steps"), "loop_layer_index_end": layers_of(fields)}


def _kosmos(fields: Fields) -> Derived:
    return {"num_hidden_layers": fields.count("layers"), "hidden_size": fields.count("embed_dim")}


def _nemotron_nas(fields: Fields) -> Derived:
    """Blocks that a search shaped one by one: query heads for a KV head, and a multiple of the hidden width."""
    blocks, hidden = fields.items("block_configs") or [], fields.need(*HIDDEN)
    own: dict[str, Derived] = {}
    for index, block in enumerate(blocks[:MOST_LAYERS]):
        parts = block if isinstance(block, Mapping) else {}
        attention, network = parts.get("attention"), parts.get("ffn")
        own[str(index)] = layer = {}
        if isinstance(attention, Mapping) and attention.get("n_heads_in_group") is not None:
            layer["n_heads_in_group"] = attention["n_heads_in_group"]
        if isinstance(network, Mapping):
            layer["intermediate_size"] = _network_width(network, hidden)
    return {"per_layer_config": own}


def _network_width(network: Mapping[str, Any], hidden: int) -> int | None:
    """Two thirds of a multiple of the hidden width, in whole 256s; 0 where there is no network."""
    if network.get("no_op") or network.get("replace_with_linear"):
        return 0
    multiple = network.get("ffn_mult")
    if not isinstance(multiple, int | float) or not 0 < multiple < 1000:
        return None
    return -(-int(2 * multiple * hidden / 3) // 256) * 256


FAMILIES: dict[str, Rule] = {
    "bailing_hybrid": hybrid.bailing_hybrid,
    "bailing_moe_linear": hybrid.bailing_moe_linear,
    "beam": _beam,
    "cohere2_moe": _cohere2_moe,
    "cohere_compass_text": _all_full,
    "cpmant": _cpmant,
    "dbrx": _dbrx,
    "deepseek_v4": _deepseek_v4,
    "diffusion_gemma_text": _gemma4,
    "dory": hybrid.dory,
    "dots3_note": _dots3_note,
    "dots3_note_text": _dots3_note,
    "flint": _flint,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "gpt_neo": harmless("attention_types", "attention_layers", "window_size"),  # engines keep local layers in full
    "granitemoehybrid": _granite_moe,
    "granitemoeshared": _granite_moe,
    "hrm_text": hybrid.hrm_text,
    "hy_v4": _hy_v4,
    "hy_v4_vl_text": _hy_v4,
    "inkling2_loop_text": hybrid.inkling,
    "inkling2_text": hybrid.inkling,
    "inkling_text": hybrid.inkling,
    "kimi_linear": hybrid.kimi_linear,
    "jetmoe": _jetmoe,
    "kosmos_2_5_text_model": _kosmos,
    "kosmos_2_text_model": _kosmos,
    "laguna": _all_full,
    "led": harmless("attention_window"),
    "lfm2": harmless("conv_L_cache", "conv_dim", "conv_dim_out"),  # a stack may be all attention
    "lfm2_moe": harmless("conv_L_cache", "conv_dim", "conv_dim_out"),  # a stack may be all attention
    "lfm3": hybrid.lfm3,
    "longcat_flash": _longcat_flash,
    "longt5": harmless("local_radius", "global_block_size"),
    "mellum": _all_full,
    "mimo_v2_flash": _mimo_v2_flash,
    "mistral_large4_text": _mistral_large4,
    "modernbert-decoder": _modernbert,
    "muse_glimmer_text": _muse,
    "muse_spark_text": _muse,
    "nemotron-nas": _nemotron_nas,
    # Block-sparse layers read less; what they keep is whole.
    "nemotron_h": hybrid.nemotron_h,
    "phi3small": harmless(
        "blocksparse_block_size",
        "blocksparse_num_local_blocks",
        "blocksparse_triton_kernel_block_size",
        "blocksparse_vert_stride",
        "dense_attention_every_n_layers",
    ),
    "ouro": _ouro,
    "phi4flash": hybrid.phi4flash,
    "qwen4_exp_text": hybrid.qwen4_exp,
    "rwkv": hybrid.rwkv("rwkv4"),
    "rwkv5": hybrid.rwkv("rwkv"),
    "rwkv6": hybrid.rwkv("rwkv"),
    "rwkv7": hybrid.rwkv("rwkv"),
    "speech_to_text": harmless("num_conv_layers", "conv_kernel_sizes", "conv_channels"),
    "whisper": _whisper,
    "xlstm": hybrid.xlstm,
    "zamba": hybrid.zamba,
    "zamba2": hybrid.zamba_heads,
}


def derived(fields: Fields) -> Derived:
    """What the model type's code adds to the fields of its config; nothing for most types."""
    rule = FAMILIES.get(str(fields.raw("model_type")))
    return rule(fields) if rule else {}
