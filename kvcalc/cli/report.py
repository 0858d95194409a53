"""kvcalc report: a saved result as a page; a recorded run as a picture or a table too."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcalc.cli.emit import STDOUT, emit, format_of, refuse_existing, write_file
from kvcalc.cli.options import OutputOptions, verb

if TYPE_CHECKING:
    from kvcalc.profiler.documents import ProfileDocument

SavedFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="What another verb wrote with -o x.json, or a plan kvcalc.yaml.", show_default=False
    ),
]
_PAGES = (".html", ".htm")
_PICTURES = (".svg", ".png")


@verb
def report(file: SavedFile, output: OutputOptions) -> None:
    """A saved result as one page (the default: FILE's name, .html); a run as a picture (-o x.svg) or a table too."""
    out = Path(f"{file.stem}.html") if output.out is None and output.format is None else output.out
    if out is not None and out != STDOUT and output.format is None and out.suffix.lower() in _PAGES:
        refuse_existing(out, output.force)
        write_file(_page(file), out, output.force)
    else:
        _show_run(file, out, output)


def _page(file: Path) -> bytes:
    from kvcalc.cli.pages import damaged, page_of_file
    from kvcalc.render.html import to_html

    page = page_of_file(file)
    try:
        return to_html(page).encode()
    except (ArithmeticError, LookupError, ValueError) as error:
        # As a time below zero, which no logarithmic axis shows.
        raise damaged(str(file), error) from error


def _show_run(file: Path, out: Path | None, output: OutputOptions) -> None:
    """A recorded run as a picture, or in the formats of other verbs."""
    from kvcalc.profiler.record import read_run
    from kvcalc.profiler.report import profile_report

    run = read_run(file)
    if out is not None and output.format is None and out.suffix.lower() in _PICTURES:
        write_file(_picture(run, out), out, output.force)
        return
    if out is not None and out != STDOUT and output.format is None:
        format_of(out, more=(*_PAGES, *_PICTURES))
    emit(profile_report(run), output)


def _picture(run: "ProfileDocument", out: Path) -> bytes:
    from kvcalc.profiler.picture import picture

    return picture(run, out.suffix[1:].lower())
