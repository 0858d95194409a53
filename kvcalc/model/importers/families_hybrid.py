"""Model types with states, or with a stack that runs several times: what their code makes of their config."""

from kvcalc.model.importers.attention import HIDDEN, query_heads
from kvcalc.model.importers.families_common import Derived, Rule, layers_of, words_of
from kvcalc.model.importers.fields import Fields
from kvcalc.model.importers.layer_words import (
    FULL,
    HYBRID,
    HYBRID_SLIDING,
    INDEXED,
    LINEAR,
    MEMORY,
    MLP,
    MOE,
    SHARED,
    SLIDING,
)


def kimi_linear(fields: Fields) -> Derived:
    if fields.raw("linear_attn_config") is not None:
        return {}
    return words_of(fields, lambda index: FULL if index and index % 4 == 0 else LINEAR)


def lfm3(fields: Fields) -> Derived:
    return words_of(fields, lambda index: FULL if index % 4 == 2 else SLIDING if index and index % 4 == 0 else "conv")


def zamba_heads(fields: Fields) -> Derived:
    """The shared block reads the hidden state beside the embedding: its heads are twice as wide."""
    fields.means_nothing("attention_hidden_size")
    if fields.count("attention_head_dim") is not None:
        return {}
    return {"attention_head_dim": max(1, 2 * fields.need(*HIDDEN) // query_heads(fields))}


def zamba(fields: Fields) -> Derived:
    period, offset = fields.count("attn_layer_period") or 6, fields.count("attn_layer_offset", least=0)
    offset = 4 if offset is None else offset
    words = words_of(
        fields,
        lambda index: HYBRID if index == 2 or (index > 2 and (index - 3) % period == offset) else LINEAR,
        "layers_block_type",
    )
    return zamba_heads(fields) | words


def nemotron_h(fields: Fields) -> Derived:
    """Without a pattern, one layer of each kind, however many are stated."""
    if fields.raw("layer_types", "layers_block_type", "hybrid_override_pattern") is not None:
        return {}
    return {"num_hidden_layers": 4, "layers_block_type": [LINEAR, MOE, FULL, MLP]}


def bailing_hybrid(fields: Fields) -> Derived:
    """Linear layers have the heads of the others."""
    return {"linear_num_heads": query_heads(fields), "linear_head_dim": fields.count("linear_head_dim", "head_dim")}


MAMBA_SHAPE = ("mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand", "mamba_n_groups", "mamba_n_heads")


def bailing_moe_linear(fields: Fields) -> Derived:
    """Ring-linear: the last of every group of layers attends, and those that are left over; the others keep a state."""
    group, layers = fields.count("layer_group_size") or 1, layers_of(fields)
    whole = layers // group * group
    words = [FULL if (index + 1) % group == 0 or index >= whole else LINEAR for index in range(layers)]
    return {"layer_types": words, "linear_attn_alpha_factor": 1}  # lightning attention, as MiniMax-Text-01 marks it


def inkling(fields: Fields) -> Derived:
    """Four short convolutions in every layer; a looped stack keeps a cache for each pass."""
    local, loop = fields.counts("local_layer_ids"), fields.part("loop_config")
    names = {
        "loop_layer_index_start": "core_start",
        "loop_layer_index_end": "core_end",
        "loop_num_passes": "num_passes",
    }
    passes = {ours: loop.count(theirs, least=0) for ours, theirs in names.items()} if loop else {}
    words = words_of(
        fields,
        lambda index: HYBRID_SLIDING if (index in local if local is not None else (index + 1) % 6) else HYBRID,
    )
    return {"~token_convolutions": True} | words | passes


def qwen4_exp(fields: Fields) -> Derived:
    """What a released config calls full attention is indexed, if it has an indexer."""
    words, interval = fields.items("layer_types"), fields.count("full_attention_interval") or 4
    if words is None:
        words = [LINEAR if (index + 1) % interval else FULL for index in range(layers_of(fields))]
    fields.means_nothing("indexer_kv_heads", "number_of_conv_states", "ple_conv_kernel_size", "heads_per_ngram")
    kind, other = (FULL, INDEXED) if fields.raw("indexer_head_dim") is None else (INDEXED, FULL)
    return {"layer_types": [kind if word in (other, "qwen_sparse_attention") else word for word in words]}


def phi4flash(fields: Fields) -> Derived:
    """SambaY (vllm phi4flash.py): Mamba and windows in turns, one full cache, and an upper half that keeps nothing."""
    layers, period = layers_of(fields), fields.count("mb_per_layer") or 2
    half = layers // 2

    def word(index: int) -> str:
        if index % period == 0:
            return LINEAR if index <= half else MEMORY
        if index < half:
            return SLIDING
        return FULL if index == half + 1 else SHARED

    return {"layer_types": [word(index) for index in range(layers)], "~prefill_layers": min(layers, half + 2)}


def xlstm(fields: Fields) -> Derived:
    return {"layer_types": [LINEAR] * layers_of(fields)}


def rwkv(word: str) -> Rule:
    return lambda fields: {"layer_types": [word] * layers_of(fields)}


def hrm_text(fields: Fields) -> Derived:
    """Two stacks in turns, a cache for each pass; a released config counts the layers of one stack."""
    if fields.count("num_layers_per_stack") is not None:
        return {}
    passes = (fields.count("H_cycles") or 2) * ((fields.count("L_cycles") or 3) + 1)
    return {"num_hidden_layers": layers_of(fields) * passes}


def dory(fields: Fields) -> Derived:
    """A middle that runs several times; a config that lists MLPs among its layers counts each layer twice."""
    words, layers = fields.items("layer_types"), layers_of(fields)
    first, last = fields.count("n_input_layers", least=0) or 0, fields.count("n_output_layers", least=0) or 0
    if words is not None and "mlp" in words:
        words, layers, first, last = words[::2], layers // 2, first // 2, last // 2
    once = fields.word("recurrent_kv_cache_mode") == "last_loop"
    loop = {
        "loop_layer_index_start": first,
        "loop_layer_index_end": layers - last,
        "loop_num_passes": 1 if once else fields.count("n_recurrent_loops") or 1,
    }
    fields.means_nothing("n_recurrent_layers")
    return {"num_hidden_layers": layers, "layer_types": words, **loop}
