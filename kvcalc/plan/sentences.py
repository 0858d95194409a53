"""What a verdict, an error, a move says in one line, for formats that show one line each.

Text from a plan (names, models, paths) passes `printable`: one line, and nothing that moves a terminal's cursor.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from kvcalc.errors import printable
from kvcalc.plan.documents import (
    BaselineDocument,
    CheckDocument,
    CheckedCaseDocument,
    LockDocument,
    LockedEntryDocument,
    MovedDocument,
    MovedFigureDocument,
    VerdictDocument,
)
from kvcalc.units import NUMBERS, SECONDS, decimal, memory, plain

Level = Literal["error", "warning", "notice"]


class Finding(NamedTuple):
    """Something to be told about a plan, and where, each text one printable line; a line below 1 is no line."""

    level: Level
    file: str
    line: int
    title: str
    message: str


def findings(document: CheckDocument) -> list[Finding]:
    """All that is worth a look: limits, the broken first; cases without an answer, the baseline, the lock.

    Errors are what fails the check; a warning is a verdict or a comparison that is not certain.
    """
    found = [*_of_cases(document), *_of_baseline(document), *_of_lock(document["lock"])]
    return [one._replace(file=printable(one.file), title=printable(one.title)) for one in found]


LEVELS: tuple[Level, ...] = ("error", "warning", "notice")
"""The worst first."""


def _of_cases(document: CheckDocument) -> Iterator[Finding]:
    judged = [(case, verdict) for case in document["cases"] for verdict in case["verdicts"]]
    for case, verdict in sorted(judged, key=lambda pair: (pair[1]["passed"], not pair[1]["certain"])):
        if not (verdict["passed"] and verdict["certain"]):
            level: Level = "warning" if verdict["passed"] else "error"
            title = f"{case['name']}: {verdict['limit']}"
            yield Finding(level, verdict["file"], verdict["line"], title, verdict_sentence(verdict))
    for case in document["cases"]:
        if case["error"] is not None:
            error = case["error"]
            yield Finding("error", error["file"], error["line"], f"{case['name']}: no answer", error_sentence(case))


def _of_baseline(document: CheckDocument) -> Iterator[Finding]:
    baseline = document["baseline"]
    if baseline is None:
        return
    places = {case["name"]: (case["file"], case["line"]) for case in document["cases"]}
    for moved in compared(baseline):
        level: Level = (
            "error" if fails(moved, baseline["fail_on"]) else "warning" if moved["change"] == "undecided" else "notice"
        )
        file, line = places.get(moved["case"], (document["plan"], 0))
        yield Finding(level, file, line, f"{moved['case']}: {moved['change']} {moved['figure']}", moved_sentence(moved))
    for name in baseline["removed_cases"]:
        yield Finding("notice", document["plan"], 0, f"{name}: removed", "a case of the baseline that is here no more")


def compared(baseline: BaselineDocument) -> list[MovedFigureDocument]:
    """The figures that got worse or cannot be told, worse first: what got better and what is new alarms nobody."""
    told = [one for one in baseline["moved"] if one["change"] in ("worse", "undecided") and one["before"] is not None]
    return sorted(told, key=lambda one: one["change"] != "worse")


def fails(moved: MovedFigureDocument | MovedDocument, fail_on: float) -> bool:
    """Whether a figure got worse by a larger share of what it was than `fail_on`."""
    if moved["change"] != "worse":
        return False
    ratio = moved["ratio"]
    # The ratio carries the rounding of one division.
    return ratio is None or abs(ratio - 1) > fail_on + 1e-9


def _of_lock(lock: LockDocument | None) -> Iterator[Finding]:
    for entry in lock["moved"] if lock else ():
        level: Level = "notice" if lock and lock["passed"] else "error"
        title = f"lock: {entry['kind']} {entry['name']}"
        yield Finding(level, lock["file"] if lock else "", 0, title, lock_sentence(entry))


def verdict_sentence(verdict: VerdictDocument) -> str:
    """`31.00 ms against max_tpot 25.00 ms (-24.0%), calibrated; --tp 2 would pass`; without a value its rule."""
    margin = "" if verdict["margin"] is None else f" ({verdict['margin']:+.1%})"
    value = "unknown" if verdict["value"] is None else shown(verdict["value"], verdict["unit"])
    doubt = "" if verdict["certain"] else ", not certain: an end of its bounds decides otherwise"
    change = f"; {verdict['change']} would pass" if verdict["change"] else ""
    bound = verdict["bound"]
    held = verdict["rule"] if bound is True else f"{value} against {verdict['limit']} {shown(bound, verdict['unit'])}"
    return printable(f"{held}{margin}, {verdict['basis']}{doubt}{change}")


def error_sentence(case: CheckedCaseDocument) -> str:
    """Why a case has no answer, and what would work."""
    error = case["error"]
    return printable("; ".join(filter(None, (error["message"], error["hint"])))) if error else ""


def moved_sentence(moved: MovedFigureDocument) -> str:
    """`kv_cache: 1.00 GiB before, 1.20 GiB now (x1.200)`."""
    before, now = (
        "nothing" if value is None else shown(value, moved["unit"]) for value in (moved["before"], moved["now"])
    )
    ratio = "" if moved["ratio"] is None else f" (x{moved['ratio']:.3f})"
    return printable(f"{moved['figure']}: {before} before, {now} now{ratio}")


def lock_sentence(entry: LockedEntryDocument) -> str:
    """`locked 0.1.0, now 0.2.0`; a digest is told by its first letters."""
    locked, now = ("nothing" if value is None else _short(value) for value in (entry["locked"], entry["now"]))
    return printable(f"locked {locked}, now {now}")


def _short(value: str) -> str:
    return " ".join(part[: len("sha256:") + 12] if part.startswith("sha256:") else part for part in value.split())


def shown(value: float | bool, unit: str) -> str:
    """A value with its unit, as people read it: 1.50 GiB, 131,072 tokens, 31.00 ms, yes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "bytes":
        return memory(value)
    if unit == "seconds":
        return decimal(value, SECONDS)
    if unit == "tokens/s":
        return f"{decimal(value, NUMBERS)} {unit}"
    if unit == "count":
        return plain(value)
    return f"{plain(value)} {unit.removesuffix('s') if value == 1 else unit}".strip()
