"""Engines that share a pool: each line of the log narrows the bytes that the pool can have, until nothing is left."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor

import msgspec

from kvcalc.engines.logs.pattern import Finding, Printed
from kvcalc.engines.reconcile.question import Question
from kvcalc.engines.reconcile.row import Row, judged, unexplained
from kvcalc.errors import KvcalcError
from kvcalc.units import memory

Figure = Callable[[Question, int], float | None]
"""A figure of the log, of a question and the bytes of its pool: the more bytes, the larger, or always the same."""

MOST_POOL = 2**50


class Pool(msgspec.Struct, frozen=True):
    """Bytes that the pool of each rank may have, as far as the log tells; both ends included."""

    low: int = 0
    high: int = MOST_POOL
    is_known: bool = False
    """Whether anything in the log says so."""

    @property
    def text(self) -> str:
        """For a person."""
        return " to ".join(dict.fromkeys((memory(self.low), memory(self.high))))


def least_pool(said: Sequence[Printed], is_uneven: bool = False) -> Pool:
    """The pool that ranks with so much memory share: the least of theirs, since all hold equal blocks.

    Where stages are uneven, a rank with more memory may have the larger blocks: the pool is one of them.
    """
    if not said:
        return Pool()
    low, high = min(one.low for one in said), (max if is_uneven else min)(one.high for one in said)
    return Pool(max(0, ceil(low)), max(0, floor(high)), is_known=True)


class Narrowing:
    """One question held against the figures of the ranks that share a pool."""

    def __init__(self, question: Question, pool: Pool, figures: Mapping[str, Figure]) -> None:
        self.question, self.pool, self.figures = question, pool, figures

    def row(self, one: Finding, key: str) -> Row:
        """The verdict on one figure; what it leaves of the pool counts for the next."""
        ctx = one.values.get("ctx")
        try:
            question = self.question if ctx is None or ctx.value is None else self.question.at(int(ctx.value))
            return self._row(question, one, key)
        except KvcalcError as error:
            return unexplained(one, key, error.message)

    def _row(self, question: Question, one: Finding, key: str) -> Row:
        logged = one.values[key]

        def value(pool_bytes: int) -> Fraction:
            found = self.figures[key](question, pool_bytes)
            if found is None:
                raise KvcalcError(f"{question.engine.name} {question.engine.version} has no such figure here")
            return Fraction(found)

        least, most = value(self.pool.low), value(self.pool.high)
        if least == most or least > logged.high or most < logged.low:
            return judged(one, key, least, most)
        rise = (self.pool.high - self.pool.low) / (most - least)
        guess = self.pool.low + int((logged.low - least) * rise)
        low = _first(lambda pool_bytes: value(pool_bytes) >= logged.low, self.pool.low, self.pool.high, guess)
        if value(low) > logged.high:
            # The figure moves in steps, and none of them is the log's: those next to it are shown.
            return judged(one, key, value(low), value(low)) if low == self.pool.low else _between(one, key, value, low)
        end, guess = self.pool.high + 1, low + int((2 * logged.half or 1) * rise)
        above = _first(lambda pool_bytes: pool_bytes == end or value(pool_bytes) > logged.high, low, end, guess)
        was_known = self.pool.is_known
        self.pool = Pool(low, above - 1, is_known=True)
        if was_known:
            return judged(one, key, least, most, f"a pool of {self.pool.text} on each rank makes it")
        row = judged(
            one, key, value(low), value(low), f"nothing says the pool: this takes {self.pool.text} on each rank"
        )
        return msgspec.structs.replace(row, verdict="given")


def _between(one: Finding, key: str, value: Callable[[int], Fraction], place: int) -> Row:
    """The row of a figure that lies between the steps before `place` and there."""
    return msgspec.structs.replace(judged(one, key, value(place - 1), value(place)), verdict="unexplained")


def _first(holds: Callable[[int], bool], low: int, high: int, guess: int) -> int:
    """The least number of `low` to `high` for which `holds` answers yes, as it does for `high`; it is near `guess`."""
    step = max(1, (guess - low) // 64)
    place = min(max(guess, low), high)
    while low < high:
        if holds(place):
            high, place = place, max(low, place - step)
        else:
            low, place = place + 1, min(high, place + 1 + step)
        step *= 4
        if step > high - low:
            place = (low + high) // 2
    return low


def pool_rows(
    question: Question, pool: Pool, findings: Sequence[Finding], figures: Mapping[str, Figure]
) -> Iterator[Row]:
    """A row for every figure of ranks that share a pool."""
    narrowing = Narrowing(question, pool, figures)
    lines = (one for one in findings if one.kind not in _ASKED)
    return (narrowing.row(one, key) for one in lines for key in figures if key in one.values)


def lesser_pool(question: Question, pool: Pool, findings: Sequence[Finding], figures: Mapping[str, Figure]) -> str:
    """The smaller pool with which all figures agree, where a rank with less memory may not be printed; else empty."""
    said = {one.rank for one in findings if "available_bytes" in one.values}
    if not said or len(said) >= question.sharding.tp * question.sharding.pp:
        return ""
    narrowing = Narrowing(question, Pool(0, pool.high, is_known=True), figures)
    lines = (one for one in findings if one.kind not in _ASKED)
    if any(narrowing.row(one, key).is_bad for one in lines for key in figures if key in one.values):
        return ""
    return f"a pool of {narrowing.pool.text}, if a rank that is not printed has no more"


_ASKED = {"start", "config", "arguments"}
"""Kinds of lines that repeat what was asked, in words that elsewhere are figures."""
