"""Costs summed into an answer: seconds with their bounds, and what limits each term and the whole."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from kvcalc.speed.kernels import Cost

LAUNCH, COMMUNICATION, HOST, FLOPS = "launch overhead", "communication", "host", "FLOPs"
_STARTS = {"host": HOST, "all-reduce": COMMUNICATION, "all-to-all": COMMUNICATION, "pipeline": COMMUNICATION}
_MOVES = {
    "weights": "weights bandwidth",
    "KV cache": "KV bandwidth",
    "activations": "activation bandwidth",
    "link": COMMUNICATION,
}


class TermTime(NamedTuple):
    """Seconds of one term, and what most of them are spent on."""

    name: str
    seconds: float
    limited_by: str


class Timing(msgspec.Struct, frozen=True):
    """An estimate in seconds between a bound that no machine of these figures beats and one that nine in ten keep.

    The terms add up to `seconds`.
    """

    seconds: float
    lower_seconds: float
    upper_seconds: float
    limited_by: str
    terms: tuple[TermTime, ...]


def timing(costs: Sequence[Cost], band: float) -> Timing:
    """The costs of a pass as an answer; `band` is the share by which nine in ten held-out measurements stay below."""
    seconds = float(sum(cost.seconds for cost in costs))
    lower = float(floor_seconds(costs))
    # What is moved and computed at the peak is never more than at the share of it that is reached.
    assert lower <= seconds * _ROUNDING, "an estimate below its bound"  # noqa: S101
    return Timing(seconds, min(lower, seconds), seconds * (1 + band), _limit(costs), tuple(_terms(costs)))


_ROUNDING = 1 + 1e-9


def floor_seconds(costs: Sequence[Cost]) -> Any:
    """Seconds for all bytes at the full bandwidth or all FLOPs at the full rates, whichever is longer."""
    moving, working = (sum(getattr(cost, name) for cost in costs) for name in ("floor_moving", "floor_working"))
    return (moving + working + abs(moving - working)) / 2


def scaled(costs: Iterable[Cost], factor: float, term: str) -> list[Cost]:
    """`factor` times the costs, as one term; they bound nothing, because a batch may have no prompt among it."""
    return [
        cost._replace(
            term=term,
            start=cost.start * factor,
            moving=cost.moving * factor,
            working=cost.working * factor,
            floor_moving=0.0,
            floor_working=0.0,
        )
        for cost in costs
    ]


def _terms(costs: Sequence[Cost]) -> Iterable[TermTime]:
    for name in dict.fromkeys(cost.term for cost in costs):
        own = [cost for cost in costs if cost.term == name]
        yield TermTime(name, float(sum(cost.seconds for cost in own)), _limit(own))


def _limit(costs: Sequence[Cost]) -> str:
    """What the most seconds are spent on."""
    spent: dict[str, float] = {}
    for cost in costs:
        start = _STARTS.get(cost.term, LAUNCH)
        bulk = _MOVES[cost.moves] if cost.moving >= cost.working else FLOPS
        spent[start] = spent.get(start, 0.0) + float(cost.start)
        spent[bulk] = spent.get(bulk, 0.0) + float(cost.overlapped)
    return max(spent, key=lambda name: spent[name])
