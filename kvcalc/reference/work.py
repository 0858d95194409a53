"""How much arithmetic a pass takes, counted from the layers that run: what a roofline needs beside the bytes."""

from typing import TYPE_CHECKING

from kvcalc.cache.sharding import WHOLE
from kvcalc.reference.layer import Part, RunningLayer
from kvcalc.reference.model import ReferenceModel
from kvcalc.reference.numbers import is_plain

if TYPE_CHECKING:
    from torch import Tensor


def pass_flops(model: ReferenceModel, past: int, tokens: int, page: int | None = None) -> int:
    """Multiply-adds x 2 of one sequence that passes `tokens` new tokens behind `past`, on this rank.

    Layers above `lower` see the last `replay` tokens of a prompt; the first of them keeps what all leave. `page` is the
    block of its caches, None where they are contiguous.
    """
    upper, end = min(tokens, model.replay), past + tokens
    total = _encoder_flops(model, past)
    for place, layer in enumerate(model.layers):
        kept = tokens if place <= model.lower else upper
        asked = tokens if place < model.lower else upper
        total += _layer_flops(model, layer, end, (kept, asked), page)
    return total


def _layer_flops(
    model: ReferenceModel, layer: RunningLayer, end: int, counts: tuple[int, int], page: int | None
) -> int:
    """The work of one layer that keeps so many of the last of `end` tokens and lets so many of them through."""
    kept, asked = counts
    total = 0
    for part in layer.parts:
        total += 0 if part.reference.encoder_tokens else kept * _matrix_flops(part.keeper)
        total += asked * sum(map(_matrix_flops, (part.asker, part.chooser, part.mixer)))
        total += part.mixer.flops(asked) if part.mixer is not None else 0
        if part.chooser is not None:
            total += part.chooser.flops(_pairs(model, part, end - asked, end))
    for asker, targets in layer.attending:
        spells_out = asked > 1 and page is None and _is_one_view(model, targets)
        total += sum(asker.flops(_pairs(model, part, end - asked, end), spells_out) for part in targets)
    return total + (0 if layer.mlp is None else asked * layer.mlp.flops_per_token)


def _is_one_view(model: ReferenceModel, targets: list[Part]) -> bool:
    """Whether an asker reads one cache, all of it, in a format that needs no unpacking."""
    if len(targets) > 1 or targets[0].is_chosen_for:
        return False
    layer, position = targets[0].target
    owner = model.spec_layers[layer].components[position]
    form = model.packer.entry_format(owner)
    return all(is_plain(form.name_for(part.name)) for part in owner.parts(WHOLE))


def _encoder_flops(model: ReferenceModel, past: int) -> int:
    """An encoder's tokens are projected once, by the first pass."""
    return 0 if past else sum(part.reference.encoder_tokens * _matrix_flops(part.keeper) for part in model.parts)


def _matrix_flops(holder: object) -> int:
    """Multiply-adds x 2 that every matrix of a part costs one token."""
    weights: dict[str, Tensor] = getattr(holder, "weights", {})
    return sum(2 * weight.numel() for weight in weights.values() if weight.dim() > 1)


def _pairs(model: ReferenceModel, part: Part, first: int, end: int) -> int:
    """Pairs of a query from `first` to `end` and an entry of the part's target that it reads."""
    import torch

    owner = model.spec_layers[part.target[0]].components[part.target[1]]
    read = owner.entries(owner.tokens_in_sight(torch.arange(first + 1, end + 1)))
    if part.most_read is not None:
        read = read.clamp(max=part.most_read)
    return int(read.sum())
