"""Fields of a config that may bear on the cache and that nothing read.

A name is suspected by the words in it. Some words are strong (kv, cache, window, latent): only a name known to be
harmless is let go. Others (head, attention, index, conv) stand in many names that have nothing to do with a cache.
A switch that is off, a zero, an empty list and a null are never suspected.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvcalc.model.importers.fields import Fields

_STRONG = re.compile(
    r"(^|_)(kv|kvs|cache|cached|caches|ssm|mamba|mems|mem|memory|memories|swa|sinks?|yoco|mla|cla)(_|\d|$)"
    r"|key_value|window|latent|lora_rank|compress|state_size|d_state|recurr|retention|evict|(^|_)sliding|xattn"
    r"|(share|sharing|reuse)_?(kv|layers|attention|attn)|layers?_(share|sharing|reuse)"
    r"|attention_(head_type|projection_size)|expand_(k|v|ratio)|ut_steps"
)
_WEAK = re.compile(
    r"head|attn|attention|conv|index|state|share|layer_type|layers_|block_type|pattern|chunk|local_|global_|sparse"
    r"|linear_|recur|delta|rank|loop|pool|stride|kernel|budget|group"
)
_HARMLESS_WEAK = re.compile(
    r"dropout|pdrop|drop_rate|layerdrop|bias|norm|_eps|epsilon|theta|rope|rotary|alibi|init|soft_?cap|scal|multiplier"
    r"|_impl|dtype|token_id|_token|_index$|^index_share_for_mtp|_act$|activation|temperature|gate|gating|flash|expert"
    r"|moe|router|routing|topk_group|^n_group$|^num_beam|loss|coef|alpha|beta|gamma|vision|image|audio|video|visual"
    r"|speech|^mm_|embed|vocab|label|train|checkpoint|parallel|fused|return_|output_|mlp|ffn|quant|^tie_|^lm_|_proj"
    r"|classifier|summary|pretrain|clip|_fp32|upcast|memory_efficient|qk_|interleave|^hc_|mtp|encoder|cross_attn_impl"
    r"|freq|lower_bound|_lr|loss|log|sdpa|residual|res_block|hash_layers|no_rope|relative_|_pos|position"
    r"|^index_(local_blocks|block_size|topk|n_heads|head_dim|kpool)|use_triton|use_custom|initial|softmax|precision"
    r"|^o_(groups|lora_rank)$|topk|^chunk_size$|chunksize|laurel|max_attn|adapter|sliding_attention_heads|share_q|bidirectional|layers_per_stack|neg_eigval|deepstack|mask|layer_lr|^num_hash|sparse_(decoder|encoder)|cross_attention_hidden|prefix_lm|_tying|^block_size$|summary|^id2|2id$"
    r"|time_step|head_size_divisor|low_rank_dim$|swiglu|anyres|^chunk_input$|(spatial|temporal)_conv"
)
_HARMLESS_STRONG = frozenset(
    {
        "use_cache",
        "cache_implementation",
        "cache_position",
        "use_kv_cache",
        "num_sliding_attention_heads",  # query heads
        "keep_window_size",  # Doge: how many keys a mask lets through
        "kv_cache_dtype",
        "compress_rope_theta",
        "latent_moe_use_norm",
        "shared_expert_sink",
        "layer_norm_window",
        "o_lora_rank",
        "index_share_for_mtp_iteration",
        "low_cpu_mem_usage",
        "use_mem_rope",
        "use_mem_eff_path",
        "num_mem_blocks",
        "attention_sinks",
        "attention_sink",
        "attention_sink_bias",
        "add_swa_attention_sink_bias",
        "add_full_attention_sink_bias",
        "learnable_sink",
        "learnable_sink_init",
        "swa_rope_theta",
        "swa_attention_sink_bias",
        "swiglu_limit_swa",
        "swa_partial_rotary_factor",
        "swa_qk_rope_head_dim",
        "swa_q_lora_rank",
        "swa_qk_nope_head_dim",
        "mamba_chunk_size",
        "mamba_conv_bias",
        "mamba_proj_bias",
        "mamba_hidden_act",
        "hidden_mamba_act",
        "mamba_rms_norm",
        "mamba_norm_before_gate",
        "mamba_use_mlp",
        "mamba_dt_rank",
        "mamba_dt_min",
        "mamba_dt_max",
        "mamba_dt_init_floor",
        "mamba_dt_limit",
        "mamba_act",
        "mamba_inner_layernorms",
        "mamba_dt_scale",
        "mamba_dt_init",
        "use_mamba_kernels",
        "use_mamba_conv_bias",
        "ssm_multipliers",
        "ssm_in_multiplier",
        "ssm_out_multiplier",
        "mla_use_nope",
        "mla_scale_q_lora",
        "mla_scale_kv_lora",
        "mla_use_output_gate",
        "use_mla_rope",
        "kv_b_proj_bias",
        "sliding_rope_theta",
        "sliding_window_rope_theta",
        "rope_sliding_theta",
        "max_window_layers",
        "use_sliding_window_rope",
        "scoring_func_window",
    }
)
# What describes something else than the language model's layers: another tower, and parts that are no tower.
_OTHER_TOWER = re.compile(r"vision|visual|image|audio|video|speech|(^|_)encoder|(^|_)vit_|^mm_|codec|vq_|depth_decoder")
_OTHER_PART = re.compile(
    r"quant|compression_config|generation|rope|task_specific|projector|auto_map|label|sampl|code_predictor|talker"
    r"|token2wav|peft|adapter|freeze|processor|id2|2id|dspark|engram|perceiver"
)


def unread_cache_fields(fields: Fields) -> list[str]:
    """Names of stated fields that look as if they bear on the cache, and that nothing here knows."""
    names = [name for name in _unread(fields.data, fields.read) if _is_suspect(name, fields.data[name])]
    for part, nested in fields.parts.items():
        found = [name for name in _unread(nested.data, nested.read) if _is_suspect(name, nested.data[name])]
        names += [f"{part}.{name}" for name in found]
    return names


def _unread(data: Mapping[str, Any], read: set[str]) -> Iterator[str]:
    for name, value in data.items():
        is_off = value is None or value is False or value in (0, "", [], {})
        if name not in read and not is_off and not name.startswith(("~", "_")):
            yield name


def _is_suspect(name: str, value: Any) -> bool:
    word = name.casefold()
    is_one = value == 1 and word.endswith(("ratio", "factor", "_rate", "_mod", "_every_n", "group_size"))
    if is_one or _OTHER_TOWER.search(word) or word in _HARMLESS_STRONG:
        return False
    if isinstance(value, Mapping):
        inner = "config" in word and any(_STRONG.search(str(key).casefold()) for key in value)
        return not _OTHER_PART.search(word) and (inner or bool(_STRONG.search(word)))
    if _STRONG.search(word):
        return True
    # A fraction or a word says how something is computed; a count, a list or a switch may say what is kept.
    is_count = isinstance(value, bool | int | list) or (isinstance(value, float) and value.is_integer())
    return is_count and bool(_WEAK.search(word)) and not _HARMLESS_WEAK.search(word)
