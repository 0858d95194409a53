"""A check as GitHub Actions reads it: annotations beside the lines of a plan, and a summary of the step.

The form of workflow commands and what must be escaped in them: actions/toolkit, packages/core/src/command.ts
(escapeData, escapeProperty), undone by actions/runner, src/Runner.Common/ActionCommand.cs.
"""

import html
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kvcalc.errors import printable
from kvcalc.plan.documents import CheckDocument, CheckedCaseDocument
from kvcalc.plan.sentences import (
    LEVELS,
    Finding,
    error_sentence,
    findings,
    lock_sentence,
    moved_sentence,
    shown,
)
from kvcalc.units import counted

MOST_ANNOTATIONS = 10
"""Of each level in one step; GitHub drops those behind (docs.github.com, "Workflow commands", limits)."""
MOST_SUMMARY_BYTES = 2**20
"""Of a step's summary; GitHub shows none that is larger (docs.github.com, "Adding a job summary")."""


def annotations(document: CheckDocument) -> str:
    """Workflow commands, one a line, the broken first; what is past GitHub's limit is counted in the last one."""
    found, lines = findings(document), []
    for level in LEVELS:
        lines += [_command(one) for one in _shortened([one for one in found if one.level == level])]
    return "".join(f"{line}\n" for line in lines)


def _shortened(found: Sequence[Finding]) -> Iterator[Finding]:
    if len(found) <= MOST_ANNOTATIONS:
        yield from found
        return
    yield from found[: MOST_ANNOTATIONS - 1]
    rest = found[MOST_ANNOTATIONS - 1 :]
    first = rest[0]
    more = f"and {len(rest)} more: {', '.join(one.title for one in rest[:_NAMED])}"
    tail = ", ..." if len(rest) > _NAMED else ""
    yield Finding(first.level, first.file, 0, f"kvcalc check: {len(rest)} more", f"{more}{tail}")


_NAMED = 20


def _command(finding: Finding) -> str:
    line = {"line": str(finding.line)} if finding.line > 0 else {}
    properties = {"file": _in_repository(finding.file), **line, "title": finding.title}
    text = ",".join(f"{name}={escape_property(value)}" for name, value in properties.items())
    return f"::{finding.level} {text}::{escape_data(finding.message)}"


def _in_repository(file: str) -> str:
    """The path from the root of the checkout, which is what GitHub takes; a path from elsewhere stays."""
    root = os.environ.get("GITHUB_WORKSPACE")
    place = Path(os.path.abspath(file))  # noqa: PTH100 - a link is no reason to leave the checkout
    return place.relative_to(root).as_posix() if root and place.is_relative_to(root) else file


def escape_data(text: str) -> str:
    """A message as a workflow command carries it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """A property's value as a workflow command carries it."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def summary(document: CheckDocument, room_bytes: int = MOST_SUMMARY_BYTES) -> str:
    """Markdown for a step's summary, of at most `room_bytes` in UTF-8: the broken first, whole rows left out behind."""
    blocks = [_heading(document), *_tables(document)]
    kept: list[str] = []
    left = room_bytes - len(_CUT.encode())
    for line in "\n\n".join(blocks).split("\n"):
        left -= len(line.encode()) + 1
        if left < 0:
            return "\n".join([*kept, _CUT]) if room_bytes > len(_CUT.encode()) else ""
        kept.append(line)
    return "\n".join(kept) + "\n"


_CUT = "\n*More rows than a summary holds: see the log.*\n"


def append_summary(document: CheckDocument, path: Path) -> None:
    """Add the summary to the file that GITHUB_STEP_SUMMARY names, within what GitHub takes of one."""
    written = path.stat().st_size if path.exists() else 0
    with path.open("a", encoding="utf-8") as stream:
        stream.write(summary(document, max(0, MOST_SUMMARY_BYTES - written)))


def _heading(document: CheckDocument) -> str:
    judged = [verdict for case in document["cases"] for verdict in case["verdicts"]]
    broken = sum(not verdict["passed"] for verdict in judged)
    silent = sum(case["error"] is not None for case in document["cases"])
    parts = [counted(len(document["cases"]), "case"), counted(len(judged), "limit"), f"{broken} broken"]
    parts += [f"{silent} without an answer"] if silent else []
    verdict = "passed" if document["passed"] else "failed"
    return f"### kvcalc check: {verdict}\n\n{_cell(document['plan'])}: {', '.join(parts)}; kvcalc {document['kvcalc']}"


def _tables(document: CheckDocument) -> Iterator[str]:
    yield from _table(("case", "limit", "asked", "is", "margin", "basis", "verdict", "change"), _limit_rows(document))
    errors = ([case["name"], error_sentence(case)] for case in document["cases"] if case["error"])
    yield from _table(("case without an answer", "why"), errors)
    baseline, lock = document["baseline"], document["lock"]
    if baseline:
        told = (moved for moved in baseline["moved"] if moved["change"] != "same")
        rows = ([moved["case"], moved["change"], moved_sentence(moved)] for moved in told)
        yield from _table(("case", "against the baseline", "figure"), rows)
        names = [f"passed before, broken now: {one['case']} {one['limit']}" for one in baseline["newly_broken"]]
        names += [f"added: {one}" for one in baseline["added_cases"]]
        names += [f"removed: {one}" for one in baseline["removed_cases"]]
        yield from ["\n".join(f"- {_cell(name)}" for name in names)] if names else []
    if lock:
        rows = ([entry["kind"], entry["name"], lock_sentence(entry)] for entry in lock["moved"])
        yield from _table(("locked", "name", "moved"), rows)
    yield from ["\n".join(f"> - {_cell(note)}" for note in document["notes"])] if document["notes"] else []


def _limit_rows(document: CheckDocument) -> Iterator[list[str]]:
    rows = [row for case in document["cases"] for row in _rows_of(case)]
    return (row for _, row in sorted(rows, key=lambda pair: pair[0]))


def _rows_of(case: CheckedCaseDocument) -> Iterator[tuple[int, list[str]]]:
    for verdict in case["verdicts"]:
        unit, value, margin = verdict["unit"], verdict["value"], verdict["margin"]
        is_value = "unknown" if value is None else shown(value, unit)
        left = "" if margin is None else f"{margin:+.1%}"
        word = ("passed" if verdict["passed"] else "**broken**") + ("" if verdict["certain"] else ", not certain")
        asked = shown(verdict["bound"], unit)
        cells = [case["name"], verdict["limit"], asked, is_value, left, verdict["basis"]]
        yield (verdict["passed"] + verdict["passed"] * verdict["certain"], [*cells, word, verdict["change"] or ""])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    lines = ["| " + " | ".join(cell if cell == "**broken**" else _cell(cell) for cell in row) + " |" for row in rows]
    if lines:
        yield "\n".join([f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *lines])


def _cell(text: str) -> str:
    """Text that stays in its cell and is nothing but text: neither HTML nor Markdown."""
    plain = html.escape(printable(text).strip(), quote=False)
    return "".join(f"\\{letter}" if letter in _MARKS else letter for letter in plain)


_MARKS = frozenset("|`*_[]~\\!$")
"""What Markdown of GitHub reads as more than itself."""
