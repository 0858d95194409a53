"""Where an answer goes: stdout or a file, whole or not at all."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvcalc.cli.options import OutputFormat, OutputOptions
from kvcalc.errors import KvcalcError
from kvcalc.report import Report

_SUFFIXES = {".json": OutputFormat.json, ".csv": OutputFormat.csv, ".md": OutputFormat.markdown}


def emit(report: Report, output: OutputOptions, notes: Sequence[str] = ()) -> None:
    """Write `report` as asked; notes go to stderr."""
    report = msgspec.structs.replace(report, notes=(*notes, *report.notes))
    form = output.format or (_SUFFIXES.get(output.out.suffix) if output.out else None) or OutputFormat.table
    if output.out is not None:
        _write(render(report, form), output.out, output.force)
    elif form is OutputFormat.table:
        from kvcalc.render.terminal import print_report

        print_report(report)
    else:
        sys.stdout.write(render(report, form))
    if not output.quiet:
        _print_notes(report)


def render(report: Report, form: OutputFormat) -> str:
    """The report as text; a table in a file is the terminal's without colour."""
    if form is OutputFormat.table:
        from kvcalc.render.terminal import report_text

        return report_text(report)
    from kvcalc.render.text import RENDERERS

    return RENDERERS[form.value](report)


def _print_notes(report: Report) -> None:
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)


def _write(text: str, path: Path, force: bool) -> None:
    if path.is_dir():
        raise KvcalcError(f"{path} is a directory", "-o names a file")
    if path.exists() and not force:
        raise KvcalcError(f"{path} exists", "--force overwrites it")
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise KvcalcError(f"{path}: {error.strerror}", "-o names a file in a folder that can be written") from error
    print(f"Wrote {path}", file=sys.stderr)
