"""Layers on pipeline stages: which stage has which, and what a rank of each holds."""

from collections import Counter
from collections.abc import Sequence

from kvcalc.cache.component import Component
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import Layer, ModelSpec


def split_stages(layers: int, with_drafts: int, pp: int) -> tuple[tuple[int, int], ...]:
    """First and last-plus-one layer of each pipeline stage, as even as possible.

    Left-over layers go to the stages before the last, which also holds the LM head (vLLM's rule,
    distributed/utils.py get_pp_indices) and the draft layers, those from `layers` to `with_drafts`.
    """
    if pp > layers:
        raise KvcalcError(f"--pp {pp}: there are only {layers} layers", f"use at most --pp {layers}")
    sizes = [layers // pp] * pp
    for back in range(2, layers % pp + 2):
        sizes[-back] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(pp - 1)] + [with_drafts]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def held_by_stages(
    spec: ModelSpec, layers: Sequence[Layer], stages: Sequence[tuple[int, int]]
) -> list[list[Component]]:
    """What a rank of each stage holds: its layers' components, and a copy of each source read from another stage."""
    foreign = foreign_sources(spec, stages)
    return [
        components_of(layers[first:end]) + [layers[layer].components[position] for layer, position in foreign[stage]]
        for stage, (first, end) in enumerate(stages)
    ]


def foreign_sources(spec: ModelSpec, stages: Sequence[tuple[int, int]]) -> list[set[tuple[int, int]]]:
    """For each stage, the places on other stages whose caches it reads."""
    stage_of = [stage for stage, (first, end) in enumerate(stages) for _ in range(first, end)]
    foreign: list[set[tuple[int, int]]] = [set() for _ in stages]
    for read in spec.reads:
        if read.layer < len(stage_of) and stage_of[read.layer] != stage_of[read.owner_layer]:
            foreign[stage_of[read.layer]].add((read.owner_layer, read.owner))
    return foreign


def components_of(layers: Sequence[Layer]) -> list[Component]:
    """Every component of `layers` in order."""
    return [one for layer in layers for one in layer.components]


Counted = tuple[Component, int]
"""A component, and how many layers have that very one: equal layers are mostly one object."""


def counted(held: Sequence[Component]) -> list[Counted]:
    """Every component once, with its count."""
    counts = Counter(map(id, held))
    return [(one, counts[id(one)]) for one in {id(one): one for one in held}.values()]
