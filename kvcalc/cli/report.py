"""kvcalc report: a recorded run as a page, a picture, or what the terminal showed."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kvcalc.cli.emit import STDOUT, emit, format_of, write_file
from kvcalc.cli.options import OutputOptions, verb
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.profiler.documents import ProfileDocument

RunFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="What kvcalc profile -o run.json wrote.", show_default=False)
]


@verb
def report(file: RunFile, output: OutputOptions) -> None:
    """A recorded run as a page (the default: FILE's name, .html), a picture (-o x.svg, x.png), or a table again."""
    from kvcalc.profiler.record import read_run

    run = read_run(file)
    out = Path(f"{file.stem}.html") if output.out is None and output.format is None else output.out
    write = None if out is None or output.format else _WRITERS.get(out.suffix.lower())
    if out is not None and write is not None:
        write_file(write(run), out, output.force)
        return
    from kvcalc.profiler.report import profile_report

    if out is not None and out != STDOUT and output.format is None:
        format_of(out, more=_WRITERS)
    emit(profile_report(run), output)


def _page(run: "ProfileDocument") -> bytes:
    from kvcalc.profiler.report import key_figures, profile_report, samples_table
    from kvcalc.profiler.tables import environment_table, op_tables
    from kvcalc.render.html import Page, to_html

    shown = profile_report(run)
    verdict, *others = shown.lines
    smaller = op_tables(run)[:-1]
    titles = {table.title for table in smaller}
    figure, note = _figure(run)
    page = Page(
        report=msgspec.structs.replace(shown, lines=tuple(others)),
        verdict=verdict,
        is_good=not shown.exit_code,
        key_figures=key_figures(run),
        figure=figure,
        figure_note=note,
        tables=(*(table for table in shown.tables[1:] if table.title not in titles), environment_table(run)),
        folded=(*smaller, samples_table(run)),
    )
    return to_html(page).encode()


def _figure(run: "ProfileDocument") -> tuple[str, str]:
    """The picture, or why there is none."""
    from kvcalc.profiler.picture import inline_svg

    try:
        return inline_svg(run), ""
    except KvcalcError as error:
        return "", f"No picture: {error.message} ({error.hint})."


def _picture(form: str) -> "Callable[[ProfileDocument], bytes]":
    def write(run: "ProfileDocument") -> bytes:
        from kvcalc.profiler.picture import picture

        return picture(run, form)

    return write


_WRITERS: "dict[str, Callable[[ProfileDocument], bytes]]" = {
    ".html": _page,
    ".htm": _page,
    ".svg": _picture("svg"),
    ".png": _picture("png"),
}
