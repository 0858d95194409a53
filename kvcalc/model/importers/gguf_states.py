"""The state that a recurrent layer of a GGUF model keeps: which kind it is, by the keys that size it.

Sizes: n_embd_r and n_embd_s of llama.cpp's src/llama-hparams.cpp. Every recurrent layer of a model
has the same state.
"""

from typing import Any

from kvcalc.model.importers.gguf_arch import DELTA_RULE, TWO_SHIFTS
from kvcalc.model.importers.gguf_keys import Keys

Component = dict[str, Any]

_DEFAULT_KERNEL = 4


def state_of(keys: Keys) -> Component | None:
    """The component of a recurrent layer; None where no key sizes a state."""
    if keys.count("wkv.head_size"):
        return _rwkv(keys)
    if keys.count("shortconv.l_cache"):
        return {"kind": "short_conv", "width": keys.need("embedding_length"), "kernel": keys.need("shortconv.l_cache")}
    if keys.count("kda.head_dim"):
        return _delta_attention(keys)
    if keys.count("ssm.state_size"):
        return _selective(keys)
    return None


def _rwkv(keys: Keys) -> Component:
    """RWKV: token shifts of the width, and a head_size x head_size state a head."""
    width, size = keys.need("embedding_length"), keys.need("wkv.head_size")
    if width % size:
        keys.fail(f"embedding_length {width} is no multiple of wkv.head_size {size}", "is the file damaged?")
    shifts = keys.count("token_shift_count")
    if shifts in (None, TWO_SHIFTS):
        return {"kind": "rwkv", "hidden": width, "heads": width // size, "head_dim": size}
    wkv = {"name": "wkv", "heads": width // size, "shape": [size, size]}
    shift = [{"name": "shift", "shape": [shifts, width], "format": "model"}] if shifts else []
    return {"kind": "recurrent", "states": [*shift, wkv]}


def _delta_attention(keys: Keys) -> Component:
    """Kimi Delta Attention: q, k and v convolved, a square state a head."""
    heads, size = keys.need("attention.head_count"), keys.need("kda.head_dim")
    kernel = keys.count("ssm.conv_kernel") or _DEFAULT_KERNEL
    return {"kind": "gated_delta", "k_heads": heads, "v_heads": heads, "k_dim": size, "v_dim": size, "kernel": kernel}


def _selective(keys: Keys) -> Component:
    """The state that `ssm.*` keys size: a delta rule, Mamba-2 where there are groups, Mamba otherwise."""
    inner, state, kernel = (keys.need(f"ssm.{name}") for name in ("inner_size", "state_size", "conv_kernel"))
    groups, rank = keys.count("ssm.group_count") or 0, keys.count("ssm.time_step_rank") or 0
    if not groups:
        return {
            "kind": "mamba1",
            "inner": inner,
            "state": state,
            "kernel": kernel,
            **({"dt_rank": rank} if rank else {}),
        }
    if not rank or inner % rank:
        keys.fail(f"ssm.inner_size {inner} is no multiple of ssm.time_step_rank {rank}", "is the file damaged?")
    if _is_delta_rule(keys):
        found = {"kind": "gated_delta", "k_heads": groups, "v_heads": rank, "k_dim": state, "v_dim": inner // rank}
        return {**found, "kernel": kernel}
    return {
        "kind": "mamba2",
        "heads": rank,
        "head_dim": inner // rank,
        "state": state,
        "groups": groups,
        "kernel": kernel,
    }


def _is_delta_rule(keys: Keys) -> bool:
    """Gated DeltaNet and Mamba-2 are sized by the same keys; its own tensors or its interval tell them apart."""
    tensors = any(keys.has(layer, "ssm_ba", "ssm_beta", "ssm_alpha") for layer in keys.by_layer)
    return tensors or keys.arch in DELTA_RULE or bool(keys.raw("full_attention_interval"))
