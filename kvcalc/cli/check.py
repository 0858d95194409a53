"""kvcalc check: a plan of deployments with limits, a verdict each."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import typer

from kvcalc.cli.emit import STDOUT, emit, format_of, say, write_text
from kvcalc.cli.options import OutputFormat, OutputOptions, verb
from kvcalc.cli.plan_settings import override_flags, typed_in, vocabulary
from kvcalc.errors import KvcalcError, shorten
from kvcalc.units import parse_percent

if TYPE_CHECKING:
    from kvcalc.plan.documents import CheckDocument, LockDocument
    from kvcalc.plan.evaluate import Checked
    from kvcalc.plan.settings import Given


class CheckFormat(StrEnum):
    """What stdout carries."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"
    github = "github"
    junit = "junit"


class CheckOptions(msgspec.Struct, frozen=True):
    """What the verdicts are held against."""

    PANEL: ClassVar = "Check"
    strict: Annotated[bool, typer.Option("--strict", help="Exit 2 where a limit rests on an assumption.")] = False
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An earlier result: check --format json -o main.json.")
    ] = None
    fail_on: Annotated[
        str | None, typer.Option("--fail-on", metavar="PERCENT", help="Fail where a figure got worse by more: 5%.")
    ] = None
    locked: Annotated[bool, typer.Option("--locked", help="Fail where kvcalc.lock says otherwise.")] = False
    update_lock: Annotated[bool, typer.Option("--update-lock", help="Write kvcalc.lock beside the plan.")] = False
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the JSON Schema of a plan, for editors, and nothing else.")
    ] = False


class CheckOutput(msgspec.Struct, frozen=True):
    """What is written, and where."""

    PANEL: ClassVar = "Output"
    format: Annotated[
        CheckFormat | None, typer.Option("--format", help="What stdout carries.", show_default="table")
    ] = None
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to a file instead.")] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes.")] = False


PlanFile = Annotated[
    Path | None,
    typer.Argument(metavar="[PLAN]", help="The plan; else kvcalc.yaml here or above.", show_default=False),
]


def check(plan: PlanFile = None, *, check: CheckOptions, output: CheckOutput, settings: Any) -> int:
    """A plan of deployments against its limits: a verdict each, and the change that would keep a broken one."""
    if check.print_schema:
        return _print_schema(output)
    _refuse_contradictions(check)
    checked, path = _checked(plan, check, typed_in(settings))
    document = _compared(checked, path, check)
    return _emit(document, output)


# Which settings there are is not known to a type checker: they are those of the option groups of other verbs.
check.__annotations__["settings"] = override_flags()
check_verb = verb(check)


def _print_schema(output: CheckOutput) -> int:
    from kvcalc.plan.schema import plan_schema

    text = msgspec.json.format(msgspec.json.encode(plan_schema(vocabulary())), indent=1).decode()
    write_text(f"{text}\n", output.out, output.force)
    return 0


def _refuse_contradictions(check: CheckOptions) -> None:
    if check.fail_on is not None and check.baseline is None:
        raise KvcalcError("--fail-on is about an earlier result", "add --baseline FILE")
    if check.locked and check.update_lock:
        raise KvcalcError("--locked refuses what --update-lock writes", "use one of them")


def _checked(plan: Path | None, check: CheckOptions, typed: Any) -> "tuple[Checked, Path]":
    """Every case, asked; and where the plan is."""
    from kvcalc.plan.find import find_plan

    path = find_plan(plan, Path.cwd())
    return ask_plan(path, typed, check.strict), path


def ask_plan(path: Path, typed: "Mapping[str, Given]", is_strict: bool = False) -> "Checked":
    """Every case of the plan at `path`, asked; settings that were `typed` go before the plan's."""
    from kvcalc.cli.plan_cases import Asker
    from kvcalc.plan.evaluate import Checker
    from kvcalc.plan.reader import read_plan

    words = vocabulary()
    return Checker(Asker(), words, is_strict).check(path, read_plan(path, words, typed))


def _compared(checked: "Checked", plan: Path, check: CheckOptions) -> "CheckDocument":
    """The document with what an earlier result and a lock say of it."""
    document = checked.document
    if check.baseline is not None:
        from kvcalc.plan.baseline import compare

        fail_on = 0.0 if check.fail_on is None else parse_percent(check.fail_on, "--fail-on")
        document["baseline"] = found = compare(document, check.baseline, fail_on)
        document["passed"] = document["passed"] and found["passed"]
    document["lock"] = lock = _locked(checked, plan, check)
    document["passed"] = document["passed"] and (lock is None or lock["passed"])
    return document


def _locked(checked: "Checked", plan: Path, check: CheckOptions) -> "LockDocument | None":
    """What the lock beside the plan says, None where there is none and none is asked for."""
    from kvcalc.plan.lock import compare_lock, fingerprint, lock_beside, write_lock

    path = lock_beside(plan)
    cases = checked.document["cases"]
    if check.update_lock and len(checked.uses) < len(cases):
        silent = next(shorten(case["name"]) for case in cases if case["error"])
        raise KvcalcError(f"{path} is not written: {silent} has no answer", "kvcalc check says why")
    if check.update_lock:
        write_lock(path, fingerprint(checked.uses))
        with contextlib.suppress(OSError):
            print(f"Wrote {path}", file=sys.stderr)
    if not (check.locked or path.exists()):
        return None
    if len(checked.uses) < len(cases):
        checked.document["notes"].append(f"{path} is not compared: not every case has an answer")
        return None
    found = compare_lock(path, checked.uses, locked=check.locked)
    if found["moved"]:
        count = len(found["moved"])
        moved = f"{path}: {count:,} {'entry has' if count == 1 else 'entries have'} moved since it was written"
        checked.document["notes"].append(f"{moved}; --update-lock takes what is there now")
    return found


def _emit(document: "CheckDocument", output: CheckOutput) -> int:
    """Write the document as asked."""
    from kvcalc.plan.report import check_report, exit_code

    form = output.format or _named_by(output.out)
    if form in _WRITERS:
        write_text(_WRITERS[form](document), output.out, output.force)
        for note in () if output.quiet else document["notes"]:
            say("note", note)
        return exit_code(document)
    plain = None if form is None else OutputFormat(form.value)
    to_stdout = output.out in (None, STDOUT) and form in (None, CheckFormat.table)
    with _annotated(document) if to_stdout else contextlib.nullcontext():
        emit(check_report(document), OutputOptions(plain, output.out, output.force, output.quiet))
    return exit_code(document)


@contextlib.contextmanager
def _annotated(document: "CheckDocument") -> Iterator[None]:
    """In GitHub Actions annotations follow a table, no line of which is a command, whatever a case is called."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        yield
        return
    import secrets

    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}")
    try:
        yield
    finally:
        print(f"::{token}::")
    print(_github(document), end="", flush=True)


def _named_by(out: Path | None) -> CheckFormat | None:
    """The format that the suffix of a file names."""
    if out is None or out == STDOUT:
        return None
    return CheckFormat.junit if out.suffix.lower() == ".xml" else CheckFormat(format_of(out, more=(".xml",)).value)


def _github(document: "CheckDocument") -> str:
    """Annotations for stdout, and a summary where the step has room for one: verdicts stand where it has none."""
    from kvcalc.plan.github import annotations, append_summary

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    try:
        if summary:
            append_summary(document, Path(summary))
    except OSError as error:
        say("note", f"the step has no summary: GITHUB_STEP_SUMMARY {shorten(summary or '', 200)}: {error.strerror}")
    return annotations(document)


def _junit(document: "CheckDocument") -> str:
    from kvcalc.plan.junit import junit

    return junit(document)


_WRITERS: "dict[CheckFormat | None, Callable[[CheckDocument], str]]" = {
    CheckFormat.github: _github,
    CheckFormat.junit: _junit,
}
