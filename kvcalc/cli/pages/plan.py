"""The page of a checked plan: verdicts first, then its cases."""

from collections.abc import Iterator, Sequence

from kvcalc.plan.documents import (
    BaselineDocument,
    CheckDocument,
    CheckedCaseDocument,
    FigureDocument,
    VerdictDocument,
)
from kvcalc.plan.report import check_notes
from kvcalc.plan.sentences import error_sentence, lock_sentence, moved_sentence, shown
from kvcalc.render.html import Page, Section
from kvcalc.report import Column, Table
from kvcalc.units import counted


def check_page(document: CheckDocument) -> Page:
    """What a check found."""
    return plan_page(document, ())


def plan_page(document: CheckDocument, sections: Sequence[Section]) -> Page:
    """Verdicts, what moved, then `sections` of single cases, and every figure behind a click."""
    cases = document["cases"]
    broken = sum(not verdict["passed"] for case in cases for verdict in case["verdicts"])
    asked = sum(len(case["verdicts"]) for case in cases)
    failed = sum(case["error"] is not None for case in cases)
    answer = f"{asked - broken:,} of {counted(asked, 'limit')} hold" if asked else "no limits are set"
    answer += f"; {counted(failed, 'case')} cannot be answered" if failed else ""
    return Page(
        title=f"Plan {document['plan']}",
        facts=[counted(len(cases), "case"), f"kvcalc {document['kvcalc']}"],
        answer=f"{'Passed' if document['passed'] else 'Failed'}: {answer}",
        is_good=document["passed"],
        sections=(
            Section("Verdicts", tables=[_verdicts(cases)]),
            Section("Not answered", lines=list(_errors(cases))),
            *_beside(document),
            *sections,
            Section("Figures of every case", tables=[_figures(cases)], is_folded=bool(sections)),
        ),
        notes=list(dict.fromkeys(check_notes(document))),
    )


def _verdicts(cases: Sequence[CheckedCaseDocument]) -> Table:
    """What is broken first."""
    columns = (
        Column("case", "case"),
        Column("limit", "limit"),
        Column("verdict", "verdict"),
        Column("value", "is"),
        Column("bound", "asked"),
        Column("margin", "margin"),
        Column("change", "what would pass"),
        Column("basis", "basis"),
        Column("rule", "of what"),
        Column("place", "stands in"),
    )
    judged = [(case["name"], verdict) for case in cases for verdict in case["verdicts"]]
    rows = [_verdict_cells(*pair) for pair in sorted(judged, key=lambda pair: pair[1]["passed"])]
    return Table(columns, rows, "Verdicts").filled()


def _verdict_cells(case: str, verdict: VerdictDocument) -> tuple[str | None, ...]:
    margin = verdict["margin"]
    said = "holds" if verdict["passed"] else "broken"
    return (
        case,
        verdict["limit"],
        said if verdict["certain"] else f"{said}, not certain",
        "unknown" if verdict["value"] is None else shown(verdict["value"], verdict["unit"]),
        shown(verdict["bound"], verdict["unit"]),
        None if margin is None else f"{margin:+.1%}",
        verdict["change"],
        verdict["basis"],
        verdict["rule"],
        f"{verdict['file']}:{verdict['line']}",
    )


def _errors(cases: Sequence[CheckedCaseDocument]) -> Iterator[str]:
    for case in cases:
        if error := case["error"]:
            yield f"{error['file']}:{error['line']}: {case['name']}: {error_sentence(case)}"


def _beside(document: CheckDocument) -> Iterator[Section]:
    """What an earlier result and a lock say of the plan, where they were asked."""
    if baseline := document["baseline"]:
        lines = [f"against {baseline['file']}, written by kvcalc {baseline['kvcalc']}"]
        lines += [f"new: {name}" for name in baseline["added_cases"]]
        lines += [f"gone: {name}" for name in baseline["removed_cases"]]
        yield Section("Against an earlier result", lines=lines, tables=[_moved(baseline)])
    if lock := document["lock"]:
        columns = (Column("kind", "kind"), Column("name", "name"), Column("moved", "moved"))
        rows = [(one["kind"], one["name"], lock_sentence(one)) for one in lock["moved"]]
        lines = [f"{lock['file']}: {'as locked' if lock['passed'] else 'what the plan rests on has moved'}"]
        yield Section("Against the lock", lines=lines, tables=[Table(columns, rows, "Against the lock")])


def _moved(baseline: BaselineDocument) -> Table:
    columns = (Column("case", "case"), Column("moved", "moved"), Column("change", "change"))
    rows = [(one["case"], moved_sentence(one), one["change"]) for one in baseline["moved"]]
    return Table(columns, rows, "Against an earlier result")


def _figures(cases: Sequence[CheckedCaseDocument]) -> Table:
    """A row a case, a column a figure."""
    names = list(dict.fromkeys(name for case in cases for name in case["figures"]))
    columns = [Column("case", "case"), Column("model", "model"), Column("engine", "engine"), Column("gpu", "GPU")]
    columns += [Column(name, name.replace("_", " ")) for name in names]
    rows = [
        (
            case["name"],
            case["model"],
            case["engine"],
            case["gpu"],
            *(_figure(case["figures"].get(name)) for name in names),
        )
        for case in cases
    ]
    return Table(tuple(columns), rows, "Figures of every case").filled()


def _figure(figure: FigureDocument | None) -> str | None:
    return None if figure is None else shown(figure["value"], figure["unit"])
