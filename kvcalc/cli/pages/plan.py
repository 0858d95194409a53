"""The page of a checked plan: verdicts first, then its cases."""

from collections.abc import Iterator, Sequence

from kvcalc.plan.documents import CheckDocument, CheckedCaseDocument, FigureDocument, VerdictDocument
from kvcalc.render.html import Page, Section
from kvcalc.render.ticks import words
from kvcalc.report import Column, Table, Unit
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
            *_moved(document),
            *sections,
            Section("Figures of every case", tables=[_figures(cases)], is_folded=bool(sections)),
        ),
        notes=[*document["notes"], *(f"{case['name']}: {note}" for case in cases for note in case["notes"])],
    )


def _verdicts(cases: Sequence[CheckedCaseDocument]) -> Table:
    columns = (
        Column("case", "case"),
        Column("limit", "limit"),
        Column("bound", "bound"),
        Column("value", "value"),
        Column("margin", "margin"),
        Column("verdict", "verdict"),
        Column("basis", "basis"),
        Column("change", "what would pass"),
        Column("place", "stands in"),
    )
    rows = [_verdict_cells(case["name"], verdict) for case in cases for verdict in case["verdicts"]]
    return Table(columns, rows, "Verdicts").filled()


def _verdict_cells(case: str, verdict: VerdictDocument) -> tuple[str | None, ...]:
    margin = verdict["margin"]
    said = "holds" if verdict["passed"] else "broken"
    return (
        case,
        verdict["limit"],
        shown(verdict["bound"], verdict["unit"]),
        shown(verdict["value"], verdict["unit"]),
        None if margin is None else f"{margin:+.1%}",
        said if verdict["certain"] else f"{said}, not certain",
        verdict["rule"] or verdict["basis"],
        verdict["change"],
        f"{verdict['file']}:{verdict['line']}",
    )


UNITS: dict[str, Unit] = {"bytes": "bytes", "tokens": "tokens", "seconds": "seconds", "count": "count"}


def shown(value: float | bool | None, unit: str) -> str:
    """A figure in its unit; yes and no where there is nothing to count."""
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "unknown"}[value]
    return words(value, UNITS.get(unit, "number"))


def _errors(cases: Sequence[CheckedCaseDocument]) -> Iterator[str]:
    for case in cases:
        if error := case["error"]:
            hint = f" ({error['hint']})" if error["hint"] else ""
            yield f"{case['name']}: {error['message']}{hint}, {error['file']}:{error['line']}"


def _moved(document: CheckDocument) -> Iterator[Section]:
    if baseline := document["baseline"]:
        columns = (Column("case", "case"), Column("figure", "figure"), Column("before", "before"), Column("now", "now"),
                   Column("ratio", "ratio", "ratio"), Column("change", "change"))  # fmt: skip
        rows = [
            (one["case"], one["figure"], shown(one["before"], one["unit"]), shown(one["now"], one["unit"]),
             one["ratio"], one["change"])
            for one in baseline["moved"]
        ]  # fmt: skip
        lines = [f"against {baseline['file']}, written by kvcalc {baseline['kvcalc']}"]
        lines += [f"new: {name}" for name in baseline["added_cases"]]
        lines += [f"gone: {name}" for name in baseline["removed_cases"]]
        yield Section("Against the baseline", lines=lines, tables=[Table(columns, rows, "Against the baseline")])
    if lock := document["lock"]:
        kinds = (Column("kind", "kind"), Column("name", "name"), Column("locked", "locked"), Column("now", "now"))
        entries = [(one["kind"], one["name"], one["locked"], one["now"]) for one in lock["moved"]]
        lines = [f"{lock['file']}: {'nothing moved' if lock['passed'] else 'what the plan rests on has moved'}"]
        yield Section("Against the lock", lines=lines, tables=[Table(kinds, entries, "Against the lock")])


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
