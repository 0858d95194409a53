"""A check beside an earlier one: which figures got better, worse, stayed, or cannot be told apart.

Every figure lies between bounds, and most of what makes them wide is common to both results: the same calibrated
share of the bandwidth, the same overhead of an engine. So bounds of one basis are compared end with end, and a
prediction that got 10% worse at both ends is worse, however wide the bounds are. Where the basis is another one, or
the ends moved apart, what is common is not known: then only bounds that lie clear of each other decide.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from kvcalc.errors import KvcalcError, shorten
from kvcalc.model.files import read_json
from kvcalc.plan.documents import (
    BaselineDocument,
    BrokenLimitDocument,
    Change,
    CheckDocument,
    CheckedCaseDocument,
    FigureDocument,
    MovedFigureDocument,
)
from kvcalc.plan.sentences import fails

MOST_BYTES = 64 * 2**20
"""Far past a plan of ten thousand cases."""
LARGEST_NUMBER = 1e30
"""Far past every byte, token and second."""
SCHEMA = "kvcalc.check/1"
_FAMILY, _, _VERSION = SCHEMA.rpartition("/")
_AGAIN = "kvcalc check --format json -o main.json writes one"
_SAME = 1e-9
"""Shares below this are the rounding of floats."""


def compare(now: CheckDocument, path: Path, fail_on: float = 0.0) -> BaselineDocument:
    """The figures of each case beside those of the earlier result in the file at `path`.

    It passes where no figure got worse by a larger share than `fail_on`, and no limit that was passed is broken.
    KvcalcError for a file that is no result of `kvcalc check`.
    """
    before = read_check(path)
    old, new = (_by_name(one) for one in (before, now))
    both = [name for name in new if name in old]
    moved = [one for name in both for one in _moved(old[name], new[name])]
    newly_broken = [one for name in both for one in _newly_broken(old[name], new[name])]
    return {
        "file": str(path),
        "kvcalc": before["kvcalc"],
        "fail_on": fail_on,
        "moved": moved,
        "newly_broken": newly_broken,
        "added_cases": [name for name in new if name not in old],
        "removed_cases": [name for name in old if name not in new],
        "passed": not newly_broken and not any(fails(one, fail_on) for one in moved),
    }


def _by_name(document: CheckDocument) -> dict[str, CheckedCaseDocument]:
    return {case["name"]: case for case in document["cases"]}


def _moved(before: CheckedCaseDocument, now: CheckedCaseDocument) -> Iterator[MovedFigureDocument]:
    for figure in {**now["figures"], **before["figures"]}:
        old, new = before["figures"].get(figure), now["figures"].get(figure)
        yield {
            "case": now["name"],
            "figure": figure,
            "unit": cast("FigureDocument", new or old)["unit"],
            "before": None if old is None else old["value"],
            "now": None if new is None else new["value"],
            "ratio": new["value"] / old["value"] if old and new and old["value"] else None,
            "change": "undecided" if old is None or new is None else change_of(old, new),
        }


def change_of(before: FigureDocument, now: FigureDocument) -> Change:
    """How a figure moved: `undecided` where its bounds, its basis or its unit leave room for no change or the other.

    Exact figures, whose ends are the value, are never undecided.
    """
    if (before["unit"], before["better"]) != (now["unit"], now["better"]):
        return "undecided"
    value, low, high = (_direction(before[end], now[end]) for end in ("value", "low", "high"))
    if not (value or low or high):
        return "same"
    moves_as_one = before["basis"] == now["basis"] and value and -value not in (low, high)
    moved = value if moves_as_one else _clear(before, now)
    if not moved:
        return "undecided"
    return "worse" if (moved > 0) == (now["better"] == "lower") else "better"


def _direction(before: float, now: float) -> int:
    """1 where it rose, -1 where it fell, 0 where the difference is the rounding of floats."""
    return 0 if math.isclose(before, now, rel_tol=_SAME, abs_tol=0.0) else 1 if now > before else -1


def _clear(before: FigureDocument, now: FigureDocument) -> int:
    """1 where all of the bounds lie above those before, -1 where all lie below, 0 where they meet."""
    return (now["low"] > before["high"]) - (now["high"] < before["low"])


def _newly_broken(before: CheckedCaseDocument, now: CheckedCaseDocument) -> Iterator[BrokenLimitDocument]:
    passed = {verdict["limit"] for verdict in before["verdicts"] if verdict["passed"]}
    for verdict in now["verdicts"]:
        if verdict["limit"] in passed and not verdict["passed"]:
            place = {"file": verdict["file"], "line": verdict["line"]}
            yield cast("BrokenLimitDocument", {**place, "case": now["name"], "limit": verdict["limit"]})


def read_check(path: Path) -> CheckDocument:
    """The result of `kvcalc check --format json` in the file at `path`; KvcalcError where it is none.

    Keys that this version does not know are passed over: a version may add some.
    """
    document = read_json(path, MOST_BYTES, "result of kvcalc check", _AGAIN, _AGAIN)
    return _checked(document, shorten(str(path), 200))


def _checked(document: dict[str, Any], name: str) -> CheckDocument:
    family, _, version = str(document.get("schema", "")).rpartition("/")
    if family != _FAMILY:
        other = f"it is a {shorten(family)} document" if family else f"it has no schema {SCHEMA}"
        raise KvcalcError(f"{name} is no result of kvcalc check: {other}", _AGAIN)
    if version != _VERSION:
        raise KvcalcError(f"{name}: schema {_FAMILY}/{shorten(version)}, this kvcalc reads {SCHEMA}", _OTHER)
    try:
        found = msgspec.convert(document, CheckDocument)
    except msgspec.ValidationError as error:
        raise KvcalcError(f"{name} is damaged: {error}", _AGAIN) from error
    _check_cases(found, name)
    return found


_OTHER = "a newer kvcalc wrote it: upgrade, or write it again with kvcalc check --format json"


def _check_cases(document: CheckDocument, name: str) -> None:
    """KvcalcError where two cases have one name, or a figure does not lie within bounds that can be compared."""
    if len(_by_name(document)) != len(document["cases"]):
        raise KvcalcError(f"{name} is damaged: two of its cases have one name", _AGAIN)
    for case in document["cases"]:
        for what, figure in case["figures"].items():
            if not -LARGEST_NUMBER <= figure["low"] <= figure["value"] <= figure["high"] <= LARGEST_NUMBER:
                where = f"{shorten(what)} of {shorten(case['name'])}"
                raise KvcalcError(f"{name} is damaged: {where} is not within its bounds", _AGAIN)
