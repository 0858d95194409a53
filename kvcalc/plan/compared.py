"""Answers side by side, whoever gave them: figure by figure, with ratios to the first, explained by their parts."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.plan.baseline import change_of
from kvcalc.plan.results import Answer
from kvcalc.plan.sentences import fails, shown
from kvcalc.report import Column, Report, Table
from kvcalc.units import counted

if TYPE_CHECKING:
    from kvcalc.plan.documents import FigureDocument, MovedDocument, ResultsDocument

SCHEMA = "kvcalc.compare_results/1"
_SAME = 1e-9
_MOST_PARTS = 4
"""Parts that a line names; the rest are summed up."""


class Source(msgspec.Struct, frozen=True):
    """One thing on the command line, as it was written, and what it answers for."""

    name: str
    answers: Sequence[Answer]


class Pair(msgspec.Struct, frozen=True):
    """Two answers that are held against each other; `case` is what both are called."""

    case: str
    base: str
    other: str
    first: Answer
    second: Answer


def compare_results(sources: Sequence[Source], fail_on: float | None = None) -> Report:
    """Every figure that two answers share; exit code 1 only where `fail_on` is given and one got worse by more.

    The first source is what the others are held against: answer by answer of the same name where sources have
    several, else whatever they are called. KvcalcError where there is nothing to hold against each other.
    """
    if sum(len(source.answers) for source in sources) == 1:
        raise KvcalcError(
            f"{sources[0].name} alone is one answer", "compare it with another: a file, a model, a format"
        )
    pairs = list(_pairs(sources))
    moved = [row for pair in pairs for row in _moved(pair)]
    if not moved:
        raise KvcalcError("the answers share no figure", "compare answers of one verb, or of one kind")
    worse = [row for row in moved if fail_on is not None and fails(row, fail_on)]
    differences = [line for pair in pairs for line in _differences(pair)]
    document: ResultsDocument = {
        "schema": SCHEMA,
        "sources": [source.name for source in sources],
        "fail_on": fail_on,
        "figures": moved,
        "differences": differences,
        "only": _only(sources),
        "passed": not worse,
        "notes": [],
    }
    told = _told(moved)
    return Report(
        document=document,
        title=(f"{len(sources)} answers", *_title(moved, fail_on, worse)),
        lines=(*differences, *document["only"], *_explained(pairs), *_left_out(moved, told)),
        tables=(_table(moved),),
        shown_tables=(_shown(told),) if told else (),
        exit_code=1 if worse else 0,
    )


def _title(moved: "Sequence[MovedDocument]", fail_on: float | None, worse: Sequence[Any]) -> Iterator[str]:
    for change in ("worse", "better", "undecided", "same"):
        count = sum(row["change"] == change for row in moved)
        if count:
            yield f"{count} {change}"
    if fail_on is not None:
        yield f"{len(worse) or 'none'} worse by more than {fail_on * 100:g}%"


def _pairs(sources: Sequence[Source]) -> Iterator[Pair]:
    if len(sources) == 1:
        first, *others = sources[0].answers
        yield from (Pair("", first.name, other.name, first, other) for other in others)
        return
    base, *rest = sources
    for source in rest:
        if len(base.answers) == 1:
            many = len(source.answers) > 1
            for one in source.answers:
                yield Pair(one.name if many else "", base.name, source.name, base.answers[0], one)
            continue
        known = {answer.name: answer for answer in source.answers}
        alone = source.answers[0] if len(known) == 1 else None
        for answer in base.answers:
            found = known.get(answer.name, alone)
            if found is not None:
                yield Pair(answer.name, base.name, source.name, answer, found)


def _only(sources: Sequence[Source]) -> list[str]:
    """Answers of one source that another one with several lacks."""
    many = [source for source in sources if len(source.answers) > 1]
    if len(many) < 2:
        return []
    names = [{answer.name for answer in source.answers} for source in many]
    both = set.intersection(*names)
    return [
        f"only in {source.name}: {', '.join(sorted(own - both))}"
        for source, own in zip(many, names, strict=True)
        if own - both
    ]


def _moved(pair: Pair) -> "Iterator[MovedDocument]":
    for name, before in pair.first.figures.items():
        now = pair.second.figures.get(name)
        if now is not None and now["unit"] == before["unit"]:
            yield {
                "case": pair.case,
                "first": pair.base,
                "second": pair.other,
                "figure": name,
                "unit": now["unit"],
                "first_value": before["value"],
                "second_value": now["value"],
                "ratio": now["value"] / before["value"] if before["value"] else None,
                "change": change_of(before, now),
                "basis": _basis(before, now),
            }


def _basis(before: "FigureDocument", now: "FigureDocument") -> str:
    return before["basis"] if before["basis"] == now["basis"] else f"{before['basis']}, then {now['basis']}"


def _differences(pair: Pair) -> Iterator[str]:
    """What was asked otherwise."""
    first, second = pair.first.asked, pair.second.asked
    told = [
        f"{name} {_said(first.get(name))}, then {_said(second.get(name))}"
        for name in {**first, **second}
        if first.get(name) != second.get(name)
    ]
    if told:
        yield f"{_who(pair)} asked otherwise: {'; '.join(told)}"


def _said(value: Any) -> str:
    return "nothing" if value is None else str(value)


def _who(pair: Pair) -> str:
    return f"{pair.case} of {pair.other}:" if pair.case else f"{pair.other}:"


def _explained(pairs: Sequence[Pair]) -> Iterator[str]:
    """By which parts each figure that moved did."""
    for pair in pairs:
        for figure, parts in pair.second.parts.items():
            before = pair.first.parts.get(figure)
            if before is None or figure not in pair.first.figures:
                continue
            unit = pair.first.figures[figure]["unit"]
            moves = {name: parts.get(name, 0) - before.get(name, 0) for name in {**before, **parts}}
            told = sorted(
                (abs(move), name) for name, move in moves.items() if abs(move) > _SAME * abs(before.get(name, 0))
            )
            if len(moves) > 1 and told:
                words = [f"{name} {_signed(moves[name], unit)}" for _, name in reversed(told[-_MOST_PARTS:])]
                rest = sum(moves[name] for _, name in told[:-_MOST_PARTS])
                yield f"{_who(pair)} {figure} by part: {', '.join(words)}" + (
                    f", others {_signed(rest, unit)}" if rest else ""
                )


def _signed(move: float, unit: str) -> str:
    return f"{'-' if move < 0 else '+'}{shown(abs(move), unit)}"


_COLUMNS = (
    Column("case", "case"),
    Column("second", "of"),
    Column("figure", "figure"),
    Column("first_value", "first", "number"),
    Column("second_value", "then", "number"),
    Column("unit", "unit"),
    Column("ratio", "ratio", "ratio"),
    Column("change", "change"),
    Column("basis", "basis"),
)


def _table(moved: "Sequence[MovedDocument]") -> Table:
    rows: list[Any] = [tuple(row[column.key] for column in _COLUMNS) for row in moved]  # type: ignore[literal-required]
    return Table(_COLUMNS, rows)


MOST_ROWS = 20
"""Rows of a screen beyond which it leaves out what is the same."""


def _told(moved: "Sequence[MovedDocument]") -> "Sequence[MovedDocument]":
    return moved if len(moved) <= MOST_ROWS else [row for row in moved if row["change"] != "same"]


def _left_out(moved: "Sequence[MovedDocument]", told: "Sequence[MovedDocument]") -> Iterator[str]:
    if len(told) < len(moved):
        yield f"{counted(len(moved) - len(told), 'figure')} the same (--format csv or json lists them)"


def _shown(moved: "Sequence[MovedDocument]") -> Table:
    """The same for people: every value with its unit, without columns that say nothing."""
    columns = (*_COLUMNS[:3], Column("first_value", "first"), Column("second_value", "then"), *_COLUMNS[6:])
    rows: list[Any] = [
        (row["case"], row["second"], row["figure"], shown(row["first_value"], row["unit"]),
         shown(row["second_value"], row["unit"]), row["ratio"], row["change"], row["basis"])
        for row in moved
    ]  # fmt: skip
    empty = [key for key in ("case", "second") if len({row[0 if key == "case" else 1] for row in rows}) <= 1]
    return Table(columns, rows).without(*empty)
