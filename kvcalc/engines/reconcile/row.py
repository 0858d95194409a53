"""One figure of a log beside what is computed for it, and what that means."""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Literal

import msgspec

from kvcalc.engines.logs.pattern import Finding, Printed
from kvcalc.engines.reconcile.question import Question
from kvcalc.errors import KvcalcError

Verdict = Literal["equal", "within rounding", "given", "measured", "different", "contradictory", "unexplained"]
"""`given`: taken from the log, since nothing else in it says the pool; `measured`: by the engine, beyond arithmetic.

`different` has one change that would make it equal; `unexplained` has none, or no rule at all.
"""

BAD: tuple[Verdict, ...] = ("different", "contradictory", "unexplained")
"""Verdicts that make the exit code 1."""

MOST_CHANGES = 3
"""Changes that are named where several would explain a figure."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A figure: where it stands, its value as printed, the interval that is computed, and why it is so."""

    line: int
    rank: str = ""
    figure: str
    logged: Printed
    verdict: Verdict
    low: Fraction | None = None
    high: Fraction | None = None
    why: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether it is no agreement."""
        return self.verdict in BAD

    @property
    def shown(self) -> str:
        """What the log says, in its unit."""
        return self.logged.text if self.logged.value is None else self.logged.as_printed(self.logged.value)

    @property
    def computed(self) -> str:
        """What is computed, in the unit and with the digits of the log; empty where nothing is."""
        if self.low is None or self.high is None:
            return ""
        return " to ".join(dict.fromkeys(self.logged.as_printed(end) for end in (self.low, self.high)))


def judged(one: Finding, key: str, low: Fraction | float, high: Fraction | float, why: str = "") -> Row:
    """The row of `key`, for which `low` to `high` is computed: equal, within rounding, or unexplained so far."""
    logged, least, most = one.values[key], Fraction(low), Fraction(high)
    fits = logged.low <= most and least <= logged.high
    is_exact = fits and logged.low <= least and most <= logged.high
    verdict: Verdict = "equal" if is_exact else "within rounding" if fits else "unexplained"
    kept = "" if verdict == "equal" and low == high else why
    return Row(line=one.line, rank=one.rank, figure=key, logged=logged, verdict=verdict, low=least, high=most, why=kept)


def unexplained(one: Finding, key: str, why: str) -> Row:
    """The row of a figure for which nothing is computed."""
    return Row(line=one.line, rank=one.rank, figure=key, logged=one.values[key], verdict="unexplained", why=why)


_RowsOf = Callable[[Question], Iterable[Row]]


def explained(
    rows_of: _RowsOf, question: Question, is_release_open: bool = False, otherwise: Callable[[], str] = str
) -> Iterator[Row]:
    """The rows of `question`; one that differs says with which single change all of them would agree.

    Another release is such a change where nobody knows for sure which one it was; `otherwise` says what else is one.
    """
    rows = list(rows_of(question))
    found = []
    if any(row.is_bad and not row.why for row in rows):
        found = _changes(rows_of, question, is_release_open) or [one for one in [otherwise()] if one]
    for row in rows:
        if not row.is_bad or row.why:
            yield row
        elif found:
            yield msgspec.structs.replace(row, verdict="different", why=f"equal with {' or '.join(found)}")
        else:
            yield msgspec.structs.replace(row, why="no single change of the request makes it so")


def _changes(rows_of: _RowsOf, question: Question, is_release_open: bool) -> list[str]:
    """The changes under which all rows agree, at most `MOST_CHANGES`; of releases the newest, and how many more."""

    def agrees(other: Question) -> bool:
        try:
            return not any(row.is_bad for row in rows_of(other))
        except KvcalcError:
            return False

    found = list(islice((name for name, other in question.changed() if agrees(other)), MOST_CHANGES))
    others = question.other_releases() if is_release_open and len(found) < MOST_CHANGES else ()
    releases = [name for name, one in others if agrees(one)]
    if releases:
        more = f" ({len(releases) - 1} more releases, back to {releases[-1]})" if len(releases) > 1 else ""
        found.append(f"--engine {question.engine.name}@{releases[0]}{more}")
    return found
