"""kvcalc report: a saved result as a page; a recorded run as a picture or a table too."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcalc.cli.emit import STDOUT, emit, format_of, refuse_existing, write_file
from kvcalc.cli.options import OutputOptions, verb
from kvcalc.errors import KvcalcError, shorten

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
_PLANS = (".yaml", ".yml")


@verb
def report(file: SavedFile, output: OutputOptions) -> None:
    """A plan or a saved result as one offline page (FILE's name, .html); a run as a picture (-o x.svg) too."""
    out = Path(f"{file.stem}.html") if output.out is None and output.format is None else output.out
    if out is not None and out != STDOUT and output.format is None and out.suffix.lower() in _PAGES:
        refuse_existing(out, output.force)
        write_file(_page(file), out, output.force)
    else:
        _show_run(file, out, output)


def _page(file: Path) -> bytes:
    from kvcalc.cli.pages import page_of_file
    from kvcalc.render.html import to_html

    try:
        return to_html(page_of_file(file)).encode()
    except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError) as error:
        if file.suffix.lower() in _PLANS:
            raise
        # Every value may be of its type, and together they are none that a verb would write: no stages, endless time.
        name = shorten(str(file), 200)
        raise KvcalcError(f"{name} is damaged: its figures do not go together", "write it again with -o") from error


def _show_run(file: Path, out: Path | None, output: OutputOptions) -> None:
    """A recorded run as a picture, or in the formats of other verbs."""
    from kvcalc.profiler.record import read_run
    from kvcalc.profiler.report import profile_report

    is_picture = out is not None and output.format is None and out.suffix.lower() in _PICTURES
    if out is not None and out != STDOUT and output.format is None and not is_picture:
        format_of(out, more=(*_PAGES, *_PICTURES))
    run = read_run(file)
    if out is not None and is_picture:
        write_file(_picture(run, out), out, output.force)
        return
    emit(profile_report(run), output)


def _picture(run: "ProfileDocument", out: Path) -> bytes:
    from kvcalc.profiler.picture import picture

    return picture(run, out.suffix[1:].lower())
