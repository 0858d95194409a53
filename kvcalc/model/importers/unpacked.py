"""Parameters in a checkpoint: what its tensors hold once unpacked."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcalc.model.importers.safetensors import Tensor

# How quantised checkpoints name tensors: transformers 5.24 quantizers/, vllm 0.33 quantization/, modelopt's export.
_METHODS = {"fp8", "fbgemm_fp8", "awq", "gptq", "auto-round", "mxfp4", "modelopt", "bitsandbytes", "compressed-tensors"}
_HELPER = re.compile(
    r"(^|[._])((weight|proj|input|output|activation|[kqv]|prob|global|quant)_scale(_inv|_2)?|zero_point|weight_shape"
    r"|qzeros|scales|g_idx|absmax|quant_map|quant_state\.[^.]+|SCB|weight_format)$"
)
_WEIGHT = re.compile(r"(weight|weight_packed|proj|_blocks)$")
_BUFFER = re.compile(r"(rotary_emb\.inv_freq|masked_bias)$")
_PLAIN = {"F64", "F32", "F16", "BF16"}


def unpacked_parameters(tensors: Mapping[str, "Tensor"], config: Mapping[str, Any]) -> int | None:
    """Parameters before `config` packed them, without scales and buffers; None where the packing is unknown."""
    method, narrow = _packing(config)
    if method and method not in _METHODS:
        return None
    counts = [_values(name, tensors, narrow) for name in tensors]
    return None if None in counts else sum(count or 0 for count in counts)


def _packing(config: Mapping[str, Any]) -> tuple[str, dict[str, int | None]]:
    """The method that a config declares, and the bits of one value in each dtype that holds packed ones."""
    text = config.get("text_config")
    found = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if not isinstance(found, dict) or not found:
        return "", {}
    fallback = "modelopt" if "quant_algo" in found else "bitsandbytes" if "load_in_4bit" in found else "unknown"
    method = found.get("quant_method") or fallback
    # DeepSeek-V4 keeps two FP4 values of an expert in one I8.
    return str(method), {"I32": _integer_bits(found), "U8": 4, "I8": 4 if config.get("expert_dtype") == "fp4" else 8}


def _integer_bits(quantisation: Mapping[str, Any]) -> int | None:
    """Bits of a packed integer where all layers agree."""
    inner = [quantisation.get(key) for key in ("config_groups", "dynamic", "extra_config")]
    groups = [one for group in inner if isinstance(group, dict) for one in group.values() if isinstance(one, dict)]
    weights = [quantisation, *(one.get("weights") or one for one in groups)]
    integers = [one for one in weights if isinstance(one, dict) and one.get("type", "int") == "int"]
    stated = (one.get(key) for one in integers for key in ("bits", "w_bit", "num_bits"))
    widths = {bits for bits in stated if isinstance(bits, int) and 2 <= bits <= 8}
    return widths.pop() if len(widths) == 1 else None


def _values(name: str, tensors: Mapping[str, "Tensor"], narrow: Mapping[str, int | None]) -> int | None:
    """Parameters in one tensor; None where it is packed in a way that nothing declares."""
    tensor = tensors[name]
    mask = name.endswith(".bias") and len(tensor.shape) == 4 and tensor.shape[:2] == (1, 1)  # GPT-2's causal mask
    if mask or _BUFFER.search(name) or (narrow and (_HELPER.search(name) or _scales_weight(name, tensors))):
        return 0
    if narrow and f"{name}.absmax" in tensors:
        return tensor.bytes * 2  # bitsandbytes in 4 bits, whatever dtype stores them
    if tensor.dtype in _PLAIN or (narrow and tensor.dtype.startswith("F")):
        return tensor.elements
    bits = narrow.get(tensor.dtype)
    padded = name.endswith("weight_packed") and bits is not None and 32 % bits
    packed = tensor.bytes * 8 // bits if bits and not padded else None
    return packed if _WEIGHT.search(name) else 0


def _scales_weight(name: str, tensors: Mapping[str, "Tensor"]) -> bool:
    """Whether `x.scale` stands beside an `x.weight` that is quantised, as in DeepSeek-V4."""
    weight = tensors.get(f"{name.removesuffix('scale')}weight")
    return name.endswith(".scale") and weight is not None and weight.dtype not in _PLAIN
