"""In which numbers the matrices of a model lie, and in which ones a GPU multiplies them.

A checkpoint keeps the LM head and the latent's per-head sides in the model's own format, and one of 4 bits quantises
only the routed experts of a model that has them (gpt-oss, Kimi-K2, nvidia/DeepSeek-R1-FP4 config.json,
quantization_config.ignore).
"""

from typing import NamedTuple

import msgspec

from kvcalc.cache.formats import Format, find_format
from kvcalc.sizing.weight_formats import RECIPES, Mix, is_recipe
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


def weight_numbers(weights: str, dtype: str, machine: Machine, has_experts: bool) -> WeightNumbers:
    """The numbers of a model whose weights are asked for as `weights`, a format or a llama.cpp recipe."""
    own = _numbers(dtype, machine)
    if is_recipe(weights):
        blocks, head = (_mixed(mix, machine) for mix in RECIPES[weights.strip().casefold()])
        return WeightNumbers(blocks, blocks, head, blocks)
    asked = _numbers(weights, machine)
    notes = (_instead(asked, machine),) if _is_emulated(asked) else ()
    if has_experts and asked.bytes_per_value < _EXPERTS_ONLY and asked.bytes_per_value < own.bytes_per_value:
        rest = _mixed(RECIPES["q8_0"][1], machine) if machine.emulates else own
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


def _mixed(mix: Mix, machine: Machine) -> Numbers:
    """Block types, which are unpacked and multiplied in the model's own format."""
    return Numbers(mix.name, float(mix.bytes_per_value), machine.plain)
