"""States of a config as components of the spec language: which kind of recurrence, by the fields that it states."""

import math
from typing import Any

from kvcalc.errors import SpecError
from kvcalc.model.importers.attention import HIDDEN, Component, head_dim, kv_heads, query_heads
from kvcalc.model.importers.fields import Fields

KERNEL = ("mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim", "short_conv_kernel_size", "conv1d_width", "d_conv")
STATE = ("mamba_d_state", "ssm_state_size", "state_size", "d_state")
MAMBA_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
MAMBA_HEAD_DIM = ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
GROUPS = ("mamba_n_groups", "n_groups", "mamba_ngroups")


def linear(fields: Fields) -> Component:
    """The state of one layer of the linear kind, by the first family whose fields are there."""
    for read in (_lightning, _kimi_delta, _gated_delta, _rg_lru, _compressed_convolution, _mlstm, _mamba2, _mamba1):
        component = read(fields)
        if component is not None:
            return component
    raise SpecError(f"{fields.where}: layers of a linear kind, and no field says what they keep", "write a spec for it")


def beside(fields: Fields, attended: Component) -> Component:
    """The state that a layer keeps beside its attention."""
    return _token_convolutions(fields, attended) or linear(fields)


def _lightning(fields: Fields) -> Component | None:
    """MiniMax-Text-01: linear attention with a decay, as many heads as the softmax layers have query heads."""
    if fields.raw("linear_attn_alpha_factor", "layernorm_linear_attention_alpha", "attn_type_list") is None:
        return None
    width = head_dim(fields)
    return {"kind": "linear", "heads": query_heads(fields), "k_dim": width, "v_dim": width}


def _token_convolutions(fields: Fields, attended: Component) -> Component | None:
    """Inkling: short convolutions over K, over V, and over what attention and the experts return."""
    if not fields.flag("~token_convolutions"):
        return None
    kernel = fields.need("conv_kernel_size", "sconv_kernel_size")
    fields.means_nothing("number_of_conv_states")
    width = 2 * attended["kv_heads"] * attended["head_dim"] + 2 * fields.need(*HIDDEN)
    return {"kind": "recurrent", "states": [{"name": "conv", "shape": [width], "kernel": kernel}]}


def _compressed_convolution(fields: Fields) -> Component | None:
    """Zaya: two convolutions over queries and keys in a row, and half of every value, one token late."""
    first, second = fields.count("cca_time0"), fields.count("cca_time1")
    if first is None or second is None:
        return None
    width, keys = head_dim(fields), kv_heads(fields)
    states: list[Component] = [{"name": "late_v", "shape": [max(1, keys * width // 2)], "format": "model"}]
    if first + second > 2:
        shape = [(keys + query_heads(fields)) * width, first + second - 2]
        states.append({"name": "late_qk", "shape": shape, "format": "model"})
    return {"kind": "recurrent", "states": states}


def _mlstm(fields: Fields) -> Component | None:
    """xLSTM: a matrix memory, a normaliser and a stabiliser a head (transformers xlstm, mLSTM cell)."""
    k_factor, v_factor = fields.raw("qk_dim_factor"), fields.raw("v_dim_factor")
    if k_factor is None or v_factor is None:
        return None
    hidden, heads = fields.need(*HIDDEN), fields.need("num_heads")
    if not all(isinstance(factor, int | float) and 0 < factor <= 1000 for factor in (k_factor, v_factor)):
        raise fields.wrong(("qk_dim_factor", "v_dim_factor"), (k_factor, v_factor), "a pair of factors above 0")
    k_dim, v_dim = (max(1, 64 * math.ceil(hidden * factor / 64) // heads) for factor in (k_factor, v_factor))
    shapes = {"memory": [k_dim, v_dim], "normaliser": [k_dim], "stabiliser": [1]}
    return {
        "kind": "recurrent",
        "states": [{"name": name, "heads": heads, "shape": shape} for name, shape in shapes.items()],
    }


def n_gram_convolution(fields: Fields) -> list[Component]:
    """Qwen4-Exp: a dilated convolution over looked-up n-grams, in the layers that look any up."""
    places = fields.counts("ple_layer_ids")
    if not places or fields.layer not in places:
        return []
    width, size = fields.need(*HIDDEN) * fields.need("hc_count"), fields.need("ngram_size")
    columns = (fields.need("ple_conv_kernel_size") - 1) * size
    state = {"name": "n_grams", "shape": [width, columns], "format": "model"}
    return [{"kind": "recurrent", "id": "n_grams", "states": [state]}] if columns else []


def token_shift(fields: Fields) -> Component:
    """RWKV-5 and later: the last token of both mixers, and a square state a head."""
    hidden, width = fields.need(*HIDDEN), fields.count("head_size", "head_dim") or 64
    inner = fields.count("attention_hidden_size") or hidden
    fields.means_nothing("num_attention_heads")  # copies of RWKV-5 and 6 state head_size there
    return {"kind": "rwkv", "hidden": hidden, "heads": max(1, inner // width), "head_dim": width}


def token_average(fields: Fields) -> Component:
    """RWKV-4: the last token of both mixers, and a running numerator, denominator and maximum."""
    hidden = fields.need(*HIDDEN)
    inner = fields.count("attention_hidden_size") or hidden
    shift = {"name": "shift", "shape": [2, hidden], "format": "model"}
    return {"kind": "recurrent", "states": [shift, {"name": "average", "shape": [3, inner]}]}


def _kimi_delta(fields: Fields) -> Component | None:
    nested = fields.part("linear_attn_config")
    if nested is None:
        heads, width = fields.count("linear_num_heads"), fields.count("linear_head_dim")
    else:
        heads, width = nested.count("num_heads"), nested.count("head_dim")
    if heads is None or width is None:
        return None
    kernel = (nested.count(*KERNEL) if nested else None) or fields.need(*KERNEL)
    return {"kind": "gated_delta", "k_heads": heads, "v_heads": heads, "k_dim": width, "v_dim": width, "kernel": kernel}


def _gated_delta(fields: Fields) -> Component | None:
    v_heads = fields.count("linear_num_value_heads")
    if v_heads is None:
        return None
    return {
        "kind": "gated_delta",
        "k_heads": fields.need("linear_num_key_heads"),
        "v_heads": v_heads,
        "k_dim": fields.need("linear_key_head_dim"),
        "v_dim": fields.need("linear_value_head_dim"),
        "kernel": fields.need(*KERNEL),
    }


def _rg_lru(fields: Fields) -> Component | None:
    width = fields.count("lru_width")
    if width is None and fields.raw("conv1d_width") is None:
        return None
    heads = fields.count("num_attention_heads")
    component: dict[str, Any] = {
        "kind": "rg_lru",
        "width": width or fields.need(*HIDDEN),
        "kernel": fields.need(*KERNEL),
    }
    return component if heads is None else {**component, "heads": heads}


def inner_width(fields: Fields) -> int:
    """Channels of a Mamba block: stated, or heads x width, or expand x hidden."""
    stated = fields.count("mamba_d_ssm", "mamba_intermediate_size", "d_inner")
    if stated:
        return stated
    heads, width = fields.count(*MAMBA_HEADS[:2]), fields.count(*MAMBA_HEAD_DIM[:2])
    if heads and width:
        return heads * width
    return (fields.count("mamba_expand", "expand") or 2) * fields.need(*HIDDEN)


def _mamba2(fields: Fields) -> Component | None:
    groups = fields.count(*GROUPS)
    if groups is None:
        return None
    fields.means_nothing("mamba_expand", "expand", "mamba_intermediate_size")
    inner = inner_width(fields)
    heads, stated = fields.count(*MAMBA_HEADS), fields.count(*MAMBA_HEAD_DIM[:-1])
    width = stated or fields.count("head_dim", least=0) if heads is None else inner // heads
    if not width or not (heads or inner // width):
        return None
    if heads and stated and heads * stated != inner and fields.states(*MAMBA_HEAD_DIM[:-1]):
        message = f"{fields.where}: {heads} Mamba heads of {stated} are not {inner} channels"
        raise SpecError(message, "check the expansion, the heads and their width")
    fields.means_nothing("head_dim")
    return {
        "kind": "mamba2",
        "heads": heads or inner // width,
        "head_dim": width,
        "state": fields.need(*STATE),
        "groups": groups,
        "kernel": fields.need(*KERNEL),
    }


def _mamba1(fields: Fields) -> Component | None:
    state = fields.count(*STATE)
    if state is None:
        return None
    fields.means_nothing(*MAMBA_HEADS[:-1])
    own_width = fields.states("time_step_rank") or "time_step_rank" in fields.defaults
    component: Component = {
        "kind": "mamba1",
        "inner": (fields.count("intermediate_size") if own_width else None) or inner_width(fields),
        "state": state,
        "kernel": fields.need(*KERNEL),
    }
    rank = fields.raw("mamba_dt_rank", "time_step_rank")
    return {**component, "dt_rank": rank} if isinstance(rank, int) and rank > 0 else component


def short_convolution(fields: Fields) -> Component:
    """LFM2's gated short convolution over the hidden width."""
    return {
        "kind": "short_conv",
        "width": fields.count("conv_dim") or fields.need(*HIDDEN),
        "kernel": fields.need("conv_L_cache", *KERNEL),
    }
