"""Where an answer goes: stdout or a file, whole or not at all."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from kvcalc.cli.options import OutputFormat, OutputOptions
from kvcalc.errors import KvcalcError, printable, shorten
from kvcalc.report import Report

_SUFFIXES = {
    ".json": OutputFormat.json,
    ".csv": OutputFormat.csv,
    ".md": OutputFormat.markdown,
    ".markdown": OutputFormat.markdown,
    ".txt": OutputFormat.table,
    "": OutputFormat.table,
}
STDOUT = Path("-")


def emit(report: Report, output: OutputOptions, notes: Sequence[str] = ()) -> None:
    """Write `report` as asked; notes go to stderr, and into the document where it carries notes."""
    report = _with_notes(report, (*notes, *report.notes))
    out = None if output.out == STDOUT else output.out
    form = output.format or (OutputFormat.table if out is None else format_of(out))
    if out is not None:
        write_file(render(report, form).encode(), out, output.force, output.quiet)
    elif form is OutputFormat.table:
        from kvcalc.render.terminal import print_report

        print_report(report)
    else:
        sys.stdout.write(render(report, form))
    if not output.quiet:
        for note in report.notes:
            say("note", note)


def write_text(text: str, out: Path | None, force: bool) -> None:
    """Write a text that is its own format to a file, whole or not at all, or to stdout."""
    if out is None or out == STDOUT:
        sys.stdout.write(text)
    else:
        write_file(text.encode(), out, force)


def say(what: str, text: str) -> None:
    """Print `what: text` on stderr, coloured on a terminal; where that cannot be written, the answer still counts.

    No line of it is a command to GitHub Actions, whatever a file calls its cases: the runner reads `##[name]` anywhere
    in a line, and `::name` where one begins (actions/runner, src/Runner.Common/ActionCommand.cs, TryParse, TryParseV2).
    """
    is_coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    label = f"\x1b[{_COLOURS[what]}m{what}\x1b[0m" if is_coloured and what in _COLOURS else what
    with contextlib.suppress(OSError):
        print(f"{label}: {printable(text).replace('##[', '#_[')}", file=sys.stderr)


_COLOURS = {"error": "1;31", "hint": "36", "note": "33"}


def _with_notes(report: Report, notes: tuple[str, ...]) -> Report:
    """The report with these notes, its document too unless that is sealed with a digest of what it says."""
    takes_notes = "notes" in report.document and "digest" not in report.document
    document = {**report.document, "notes": list(notes)} if takes_notes else report.document
    return msgspec.structs.replace(report, notes=notes, document=document)


def format_of(path: Path, more: Iterable[str] = ()) -> OutputFormat:
    """The format that a file's suffix names; `more` suffixes are known to the verb that asks."""
    form = _SUFFIXES.get(path.suffix.lower())
    if form is None:
        known = ", ".join(filter(None, (*more, *_SUFFIXES)))
        raise KvcalcError(f"-o {path}: {path.suffix} names no format", f"known suffixes: {known}; or say --format")
    return form


def render(report: Report, form: OutputFormat) -> str:
    """The report as text; a table in a file is the terminal's without colour."""
    if form is OutputFormat.table:
        from kvcalc.render.terminal import report_text

        return report_text(report)
    from kvcalc.render.text import RENDERERS

    return RENDERERS[form.value](report)


def write_file(content: bytes, path: Path, force: bool, quiet: bool = False) -> None:
    """Write `content` to the file at `path`, whole or not at all, and say so; KvcalcError where that cannot be."""
    write_through(lambda draft: _write_bytes(draft, content), path, force, quiet)


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def write_through(write: Callable[[Path], None], path: Path, force: bool, quiet: bool = False) -> None:
    """The same of what `write` puts into a file that it is given, a piece at a time."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            write(path)
        else:
            _replace_file(write, path.resolve(), path, force)
    except (OSError, RuntimeError) as error:
        # Path.resolve raises RuntimeError for links that lead in a circle.
        reason = getattr(error, "strerror", None) or "its links lead in a circle"
        raise KvcalcError(
            f"{shorten(str(path))}: {reason}", "-o names a file in a folder that can be written"
        ) from error
    if not quiet:
        with contextlib.suppress(OSError):
            print(f"Wrote {printable(str(path)).replace('##[', '#_[')}", file=sys.stderr)


def refuse_existing(path: Path, force: bool) -> None:
    """KvcalcError where a file would be overwritten that must not be, before work is spent on it."""
    if path.is_dir():
        raise KvcalcError(f"{path} is a directory", "-o names a file")
    if path.is_file() and not force:
        raise KvcalcError(f"{path} exists", "--force overwrites it")


def _replace_file(write: Callable[[Path], None], target: Path, path: Path, force: bool) -> None:
    """Through a symbolic link to its target, which is replaced as a whole."""
    refuse_existing(path, force)
    draft = target.with_name(f".kvcalc-{os.getpid()}.part")
    try:
        write(draft)
        draft.replace(target)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
