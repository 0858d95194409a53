"""A check as a report: what is broken first, with the change that would pass, then what holds."""

from collections.abc import Iterator, Sequence

from kvcalc.errors import printable
from kvcalc.plan.documents import CheckDocument, CheckedCaseDocument, VerdictDocument
from kvcalc.plan.sentences import error_sentence, lock_sentence, moved_sentence, shown
from kvcalc.report import Column, Report, Table, Value
from kvcalc.units import counted

MOST_SHOWN = 30
"""Limits that hold are counted rather than listed past so many: one screen."""
MOST_NOTES = 6

Judged = tuple[CheckedCaseDocument, VerdictDocument]


def check_report(document: CheckDocument) -> Report:
    """The answer of `kvcalc check`; exit code 2 where a case has no answer, 1 where something is broken."""
    judged = [(case, verdict) for case in document["cases"] for verdict in case["verdicts"]]
    broken = [pair for pair in judged if not pair[1]["passed"]]
    held = [pair for pair in judged if pair[1]["passed"]]
    shown_held = held if len(held) <= MOST_SHOWN else []
    return Report(
        document=document,
        title=tuple(_title(document, judged, broken)),
        lines=tuple(_lines(document, held, broken, has_all=bool(shown_held) or not held)),
        tables=(_table([*broken, *held]),),
        shown_tables=tuple(_table(pairs, title) for pairs, title in _shown(broken, shown_held)),
        notes=tuple(check_notes(document)),
        exit_code=exit_code(document),
    )


def exit_code(document: CheckDocument) -> int:
    """2 where a case has no answer, 1 where something is broken, 0 where all holds."""
    if any(case["error"] for case in document["cases"]):
        return 2
    return 0 if document["passed"] else 1


def _shown(broken: Sequence[Judged], held: Sequence[Judged]) -> Iterator[tuple[Sequence[Judged], str]]:
    if broken:
        yield broken, "broken"
    if held:
        yield held, "held"


def _title(document: CheckDocument, judged: Sequence[Judged], broken: Sequence[Judged]) -> Iterator[str]:
    yield printable(document["plan"])
    yield counted(len(document["cases"]), "case")
    yield counted(len(judged), "limit")
    yield f"{len(broken):,} broken" if broken else "none broken"
    silent = sum(case["error"] is not None for case in document["cases"])
    if silent:
        yield f"{silent:,} without an answer"


def _lines(
    document: CheckDocument, held: Sequence[Judged], broken: Sequence[Judged], *, has_all: bool
) -> Iterator[str]:
    for case in document["cases"]:
        if case["error"] is not None:
            place = printable(f"{case['error']['file']}:{case['error']['line']}")
            yield f"{place}: {printable(case['name'])}: no answer: {error_sentence(case)}"
    for case, verdict in broken:
        name = f"{printable(case['name'])}: {verdict['limit']}"
        yield f"{name}: {_would_pass(verdict)}"
    unsure = sum(not verdict["certain"] for _, verdict in held)
    if unsure:
        yield f"{counted(unsure, 'limit')} held, but not at both ends of what is not known"
    if not has_all:
        yield f"{counted(len(held), 'limit')} held (--format csv or json lists them)"
    yield from _beside(document)


def _would_pass(verdict: VerdictDocument) -> str:
    rule = printable(verdict["rule"])
    return f"{rule}; {verdict['change']} would pass" if verdict["change"] else f"{rule}; no single change would pass"


def _beside(document: CheckDocument) -> Iterator[str]:
    """What an earlier result and a lock say."""
    baseline, lock = document["baseline"], document["lock"]
    if baseline is not None:
        counts = {word: sum(one["change"] == word for one in baseline["moved"]) for word in _WORDS}
        told = ", ".join(f"{count:,} {word}" for word, count in counts.items())
        yield f"beside {printable(baseline['file'])}: {told}"
        for moved in baseline["moved"]:
            if moved["change"] == "worse":
                yield f"  worse: {printable(moved['case'])}: {moved_sentence(moved)}"
    if lock is not None:
        count = len(lock["moved"])
        state = f"{count:,} moved" if count else "nothing moved"
        state += "" if lock["passed"] else " (--update-lock takes what is there now)"
        yield f"{printable(lock['file'])}: {state}"
        yield from (f"  {one['kind']} {printable(one['name'])}: {lock_sentence(one)}" for one in lock["moved"])


_WORDS = ("better", "worse", "same", "undecided")


def _table(judged: Sequence[Judged], title: str = "") -> Table:
    columns = (
        Column("case", "case"),
        Column("limit", "limit"),
        Column("value", "is"),
        Column("bound", "asked"),
        Column("margin", "margin"),
        Column("basis", "basis"),
        Column("place", "place"),
    )
    return Table(columns, [_row(case, verdict) for case, verdict in judged], title)


def _row(case: CheckedCaseDocument, verdict: VerdictDocument) -> tuple[Value, ...]:
    value, margin = verdict["value"], verdict["margin"]
    return (
        printable(case["name"]),
        verdict["limit"],
        "unknown" if value is None else shown(value, verdict["unit"]),
        shown(verdict["bound"], verdict["unit"]),
        None if margin is None else f"{margin:+.1%}",
        verdict["basis"] if verdict["certain"] else f"{verdict['basis']}, not certain",
        printable(f"{verdict['file']}:{verdict['line']}"),
    )


def check_notes(document: CheckDocument) -> Iterator[str]:
    """What is said of the whole, then of cases, each once, and how many there are where they are too many."""
    yield from document["notes"]
    by_text: dict[str, list[str]] = {}
    for case in document["cases"]:
        for text in case["notes"]:
            by_text.setdefault(text, []).append(case["name"])
    for text, names in list(by_text.items())[:MOST_NOTES]:
        yield f"{_of(names)}: {text}"
    if len(by_text) > MOST_NOTES:
        yield f"{len(by_text) - MOST_NOTES:,} more notes stand in --format json"


def _of(names: Sequence[str]) -> str:
    return printable(names[0]) if len(names) == 1 else f"{len(names):,} cases"
