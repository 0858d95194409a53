"""The largest or smallest value that still meets something, by bisection, with a log of all that was tried."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec


class Verdict(NamedTuple):
    """What is broken, "" where all is met, and the seconds that were measured, by name."""

    breaks: str
    seconds: dict[str, float]


Judge = Callable[[float], Verdict]
"""What is said of a value."""


class Trial(msgspec.Struct, frozen=True):
    """One value that was tried, and what was said of it."""

    value: float
    breaks: str
    seconds: dict[str, float]

    @property
    def is_met(self) -> bool:
        """Whether it meets all."""
        return not self.breaks


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a search. `value` is None where no value was found to do, infinite where all did.

    `beyond` is what was tried one step further, and broke something; None where nothing was in the way. `trials` are
    in the order in which they were made. `odd` are those on the wrong side of the value: met beyond it, or broken
    before it, as noise of single requests makes them; none of them where every trial agrees.
    """

    value: float | None
    beyond: Trial | None
    trials: tuple[Trial, ...]
    odd: tuple[Trial, ...]


class _Log:
    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.trials: dict[float, Trial] = {}

    def meets(self, value: float) -> bool:
        if value not in self.trials:
            self.trials[value] = Trial(value, *self._judge(value))
        return self.trials[value].is_met


NEARBY = (0.7, 0.85, 0.95, 1.05, 1.15, 1.3)
"""Where a value that was found is tried again: what holds for it should hold on its side of it."""


def largest(judge: Judge, start: float, bounds: tuple[float, float], tolerance: float = 0.01) -> Found:
    """The largest value within `bounds` that meets all, and at most the share `tolerance` above it one that does not.

    From `start` on values double, or halve, until one meets and another does not.
    """
    log = _Log(judge)
    met, broken = start, start
    if log.meets(start):
        while met == broken or log.meets(broken):
            met, broken = broken, 2 * broken
            if met >= bounds[1]:
                return _found(log, float("inf"), None)
    else:
        while not log.meets(met):
            met, broken = met / 2, met
            if broken <= bounds[0]:
                return _found(log, None, broken)
    while broken > met * (1 + tolerance):
        middle = (met * broken) ** 0.5
        met, broken = (middle, broken) if log.meets(middle) else (met, middle)
    for share in NEARBY:
        log.meets(met * share)
    return _found(log, met, broken)


def smallest(judge: Judge, bounds: tuple[int, int], tolerance: float = 0.0) -> Found:
    """The smallest whole number within `bounds` that meets all; one at most the share `tolerance` below it does not.

    From the lower bound on numbers double until one meets: the value is None where the upper bound does not.
    """
    log = _Log(judge)
    broken, met = bounds[0] - 1, bounds[0]
    while not log.meets(met):
        if met >= bounds[1]:
            return _found(log, None, met, is_smallest=True)
        broken, met = met, min(2 * met, bounds[1])
    while met - broken > max(1, tolerance * met):
        middle = (met + broken) // 2
        met, broken = (middle, broken) if log.meets(middle) else (met, middle)
    for share in NEARBY:
        near = round(met * share)
        if bounds[0] <= near <= bounds[1]:
            log.meets(near)
    return _found(log, met, broken if broken >= bounds[0] else None, is_smallest=True)


def _found(log: _Log, value: float | None, beyond: float | None, *, is_smallest: bool = False) -> Found:
    trials = tuple(log.trials.values())
    sign = -1 if is_smallest else 1
    # What lies between the value and the one beyond it may be either.
    odd = tuple(
        one
        for one in trials
        if value is not None
        and (sign * one.value < sign * value if one.breaks else beyond is not None and sign * one.value > sign * beyond)
    )
    return Found(value=value, beyond=None if beyond is None else log.trials[beyond], trials=trials, odd=odd)
