"""Whether a point fits the device, asked before anything is allocated."""

from typing import NamedTuple

from kvcalc.errors import KvcalcError
from kvcalc.profiler.predict import Prediction
from kvcalc.profiler.request import ProfileRequest
from kvcalc.units import memory

HIDDEN_COPIES = 12
"""Copies of a prompt's hidden states that live at once: residual, norm, projections, an attention's output."""
MASKS = 2
"""Masks a kept choice costs at its peak: itself, and the parts that it is joined from."""
SPARE = 64 * 2**20


class Room(NamedTuple):
    """Bytes that a point will ask for beside the weights, and where they go."""

    cache_bytes: int
    rule_bytes: int
    scratch_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return self.cache_bytes + self.rule_bytes + self.scratch_bytes


def room_for(request: ProfileRequest, context: int, batch: int) -> Room:
    """What one point takes: caches and own rules as predicted, and an estimate of a prefill's scratch."""
    prediction = Prediction(request.size(context, batch), request.page)
    return Room(
        cache_bytes=sum(one.stored_bytes for one in prediction.components()),
        rule_bytes=sum(count for _, count in prediction.rules().values()),
        scratch_bytes=scratch_bytes(request, context, batch) + batch * _choice_bytes(prediction),
    )


def scratch_bytes(request: ProfileRequest, context: int, batch: int) -> int:
    """An estimate of what a prefill holds for a moment: hidden states, and what is not worth an estimate."""
    return HIDDEN_COPIES * batch * context * (request.spec.hidden_size or 0) * 4 + SPARE


def _choice_bytes(prediction: Prediction) -> int:
    """Bytes of the masks that indexes leave for a prompt, a sequence: who may see which entry, for each index."""
    tokens = prediction.tokens
    chosen = [row.component.entries(tokens) * row.layers for row in prediction.rows if row.component.selects]
    return MASKS * tokens * max(chosen, default=0)


def refuse_without_room(request: ProfileRequest, context: int, batch: int, available: int) -> None:
    """KvcalcError where a point asks for more than is available: what was asked, what there is, what would fit."""
    room = room_for(request, context, batch)
    if room.total_bytes <= available:
        return
    fits = longest_fitting(request, context, batch, available)
    hint = f"--ctx {fits} --batch {batch} would fit" if fits else "use a smaller --batch, or fewer --layers"
    raise KvcalcError(
        f"{context:,} tokens x {batch} ask for {memory(room.total_bytes)} (caches {memory(room.cache_bytes)}), "
        f"and {memory(available)} are available",
        hint,
    )


def longest_fitting(request: ProfileRequest, context: int, batch: int, available: int) -> int:
    """The longest context below `context` that fits at `batch`, in tokens; 0 where not even one token does."""
    low, high = 0, context
    while high - low > 1:
        middle = (low + high) // 2
        if room_for(request, middle, batch).total_bytes <= available:
            low = middle
        else:
            high = middle
    return low
