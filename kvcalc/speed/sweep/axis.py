"""The sides of a grid: lists of counts and ranges of them, read and counted before anything is made."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

from kvcalc.errors import KvcalcError, shorten
from kvcalc.units import parse_tokens


class Axis(NamedTuple):
    """The counts along one side of a grid, as the parts that stood behind commas."""

    parts: tuple[Sequence[int], ...]

    @property
    def length(self) -> int:
        """How many counts there are; one that stands in two parts is counted twice."""
        return sum(map(len, self.parts))

    def values(self) -> list[int]:
        """Every count once, from the smallest."""
        return sorted(set(chain(*self.parts)))


def parse_axis(text: str, flag: str, what: str = "number of tokens") -> Axis:
    """Read `1,2,8`, `1K..1M` (doubling), `1..256*4` (four times the one before), `512..8K+512` (in steps), or a mix.

    A range stops at the last count that does not pass its end. Commas part counts here, never thousands.
    """
    return Axis(tuple(_part(part.strip(), flag, what) for part in text.split(",")))


_RANGE = re.compile(r"(.+?)\.\.(.+?)(?:([*+])(.+))?")
_THOUSANDS = re.compile(r"0[0-9]+")


def _part(text: str, flag: str, what: str) -> Sequence[int]:
    match = _RANGE.fullmatch(text)
    if match is None and ".." in text:
        raise KvcalcError(f"{flag} {shorten(text)!r} is no range", "both ends: 1K..1M doubles, 1..256*4, 512..8K+512")
    if match is None:
        return (_count(text, flag, what),)
    start, stop = (_count(end, flag, what) for end in (match[1], match[2]))
    if start > stop:
        raise KvcalcError(f"{flag} {shorten(text)!r} runs backwards", f"the smaller end first: {match[2]}..{match[1]}")
    step = 2 if match[4] is None else _count(match[4], flag, "number")
    if match[3] == "+":
        return range(start, stop + 1, step)
    if step == 1:
        raise KvcalcError(f"{flag} {shorten(text)!r} never rises", "a factor is at least 2; +1 is a step")
    return tuple(_powers(start, stop, step))


def _powers(start: int, stop: int, factor: int) -> Iterable[int]:
    while start <= stop:
        yield start
        start *= factor


def _count(text: str, flag: str, what: str) -> int:
    if _THOUSANDS.fullmatch(text):
        raise KvcalcError(f"{flag}: {shorten(text)!r} looks like the end of a number", "commas part counts: 8192 or 8K")
    return parse_tokens(text, flag, what)


MOST_POINTS = 10**8
"""Points of the largest grid: hours of work past it are more likely a slip than a wish."""
LONGEST_SIDE = 4 * 10**6
"""Counts of one axis: its numbers are made before the first point is."""
MOST_HELD = 10**6
"""Points of the largest grid that is held in memory as a whole; larger ones are written as they are made."""


def can_be_held(sides: Sequence[int]) -> bool:
    """Whether a grid of these sides is held in memory as a whole."""
    return prod(sides) <= MOST_HELD


def refuse_unheld(sides: Sequence[int]) -> None:
    """KvcalcError for a grid that is too large for one document."""
    if not can_be_held(sides):
        raise KvcalcError(
            f"{prod(sides):,} points are too many for one document; at most {MOST_HELD:,} are held",
            "-o sweep.csv, .jsonl or .parquet writes them as they are made",
        )


def refuse_too_many(sides: Sequence[int]) -> None:
    """KvcalcError where a grid of these sides is larger than any that is answered, or one of them than memory takes."""
    if prod(sides) > MOST_POINTS:
        counts = [f"{side:,}" for side in sides if side > 1]
        product = f" ({' x '.join(counts)})" if len(counts) > 1 else ""
        raise KvcalcError(
            f"a grid of {prod(sides):,} points{product}; at most {MOST_POINTS:,} are answered",
            _FEWER,
        )
    if max(sides) > LONGEST_SIDE:
        raise KvcalcError(f"a side of {max(sides):,} counts; at most {LONGEST_SIDE:,} are taken", _FEWER)


_FEWER = "let a range double (1K..1M) or take larger steps (1..4096+64)"
