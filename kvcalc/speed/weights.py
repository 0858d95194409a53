"""In which numbers the matrices of a model lie, and in which ones a GPU multiplies them.

A checkpoint keeps the LM head and the latent's per-head sides in the model's own format, and one of 4 bits quantises
only the routed experts of a model that has them (gpt-oss, Kimi-K2, nvidia/DeepSeek-R1-FP4 config.json,
quantization_config.ignore).
"""

from typing import NamedTuple

import msgspec

from kvcalc.cache.formats import Format, find_format
from kvcalc.model.importers.ggml_types import BY_NAME
from kvcalc.speed.machine import Machine


class Numbers(NamedTuple):
    """A weight format: bytes of one weight, and the rate (a key of `dense_flops_per_second`) of its products."""

    name: str
    bytes_per_value: float
    rate: str


class WeightNumbers(msgspec.Struct, frozen=True):
    """The numbers of matrices that every token passes, of routed experts, of the LM head and of the latent's sides."""

    matrices: Numbers
    experts: Numbers
    head: Numbers
    sides: Numbers
    notes: tuple[str, ...] = ()


def is_recipe(weights: str | None) -> bool:
    """Whether `weights` is one of llama.cpp's recipes, which mix types of tensors, and no format."""
    return weights is not None and weights.strip().casefold() in RECIPES


def weight_numbers(weights: str, dtype: str, machine: Machine, has_experts: bool) -> WeightNumbers:
    """The numbers of a model whose weights are asked for as `weights`, a format or a llama.cpp recipe."""
    own = _numbers(dtype, machine)
    recipe = RECIPES.get(weights.strip().lower())
    if recipe is not None:
        blocks, head = (Numbers(name, _ggml_bytes(name, part), machine.plain) for name, part in recipe)
        return WeightNumbers(blocks, blocks, head, blocks)
    asked = _numbers(weights, machine)
    notes = (_instead(asked, machine),) if _is_emulated(asked) else ()
    if has_experts and asked.bytes_per_value < _EXPERTS_ONLY and asked.bytes_per_value < own.bytes_per_value:
        rest = Numbers("q8_0", _ggml_bytes("q8_0", _ALL_Q8[1]), machine.plain) if machine.emulates else own
        return WeightNumbers(rest, asked, rest, rest, (*notes, f"{asked.name} reaches the routed experts only"))
    return WeightNumbers(asked, asked, own, own, notes)


def file_numbers(formats: str, bytes_per_value: float, machine: Machine) -> WeightNumbers:
    """The numbers of weights in files: their average, and the units of the format that most of them are in."""
    first = _UNITS.get(formats.partition("+")[0], "")
    rate = first if first in machine.flops_per_second and not machine.emulates else machine.plain
    one = Numbers(formats, bytes_per_value, rate)
    return WeightNumbers(
        one, one, one, one, (f"weights as in the files: {8 * bytes_per_value:.2f} bits each on average",)
    )


_EXPERTS_ONLY = 0.75
"""Bytes a weight below which published checkpoints of MoE models quantise nothing but the experts."""


def _numbers(name: str, machine: Machine) -> Numbers:
    form = find_format(name, "--weights")
    rate = _UNITS.get(form.name, "")
    known = rate if rate in machine.flops_per_second and not machine.emulates else machine.plain
    return Numbers(form.name, _bytes_per_value(form), known)


def _bytes_per_value(form: Format) -> float:
    return form.bulk_bytes(_MANY, "weights") / _MANY


_MANY = 2**20


def _is_emulated(numbers: Numbers) -> bool:
    return numbers.name in _UNITS and _UNITS[numbers.name] != numbers.rate and numbers.bytes_per_value < 2


def _instead(numbers: Numbers, machine: Machine) -> str:
    return (
        f"{numbers.name} on {machine.gpu.name} with {machine.engine}: no {_UNITS[numbers.name]} units are used; "
        f"weights are kept in {numbers.name} and multiplied in {numbers.rate}, so that bytes fall and FLOPs do not"
    )


_UNITS = {"fp8": "fp8", "mxfp8": "fp8", "mxfp6": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "fp32": "bf16", "fp16": "fp16"}
"""The units that multiply a format; a format that is not here is unpacked and multiplied in the model's own."""


def _ggml_bytes(name: str, parts: tuple[tuple[str, float], ...]) -> float:
    """Bytes of a weight where shares of the weights lie in several block types."""
    return sum(share * BY_NAME[kind].bytes / BY_NAME[kind].values for kind, share in parts)


_ALL_Q8 = ("q8_0", (("q8_0", 1.0),))
_Q6 = ("q6_k", (("q6_k", 1.0),))
RECIPES: dict[str, tuple[tuple[str, tuple[tuple[str, float], ...]], ...]] = {
    "q8_0": (_ALL_Q8, _ALL_Q8),
    "q4_0": (("q4_0", (("q4_0", 1.0),)), _Q6),
    # llama.cpp src/llama-quant.cpp: V and down projections of half of the layers are q6_k: 0.144 of Llama-3-8B.
    "q4_k_m": (("q4_k_m", (("q4_k", 0.856), ("q6_k", 0.144))), _Q6),
}
"""llama.cpp's recipes of tensor types: the blocks, then the LM head, each as shares of block types."""
