"""Reports on a terminal, with rich: answer first, then why.

A pipe and a narrow terminal lose bars and colour before they lose content.
"""

import io
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from kvcalc.errors import printable
from kvcalc.render.text import bar_units, table_cells
from kvcalc.report import Bar, Report, Table
from kvcalc.units import memory

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable

BAR_WIDTH = 24
LEAST_WIDTH = 20
UNBOUNDED = 10_000
"""Columns of a pipe: more than any line needs."""
_GAP = 2


def print_report(report: Report) -> None:
    """Print `report` on stdout."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        sys.stdout.write(report_text(report))
        return
    console.width = max(console.width, LEAST_WIDTH)
    _print(report, console)


def report_text(report: Report) -> str:
    """`report` as a terminal would show it, without colour or bars, and as wide as its words need."""
    from rich.console import Console

    out = io.StringIO()
    _print(report, Console(file=out, highlight=False, markup=False, emoji=False, no_color=True, width=UNBOUNDED))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _print(report: Report, console: "Console") -> None:
    """Every text of a report may come out of a file: none of it moves a cursor or colours a line."""
    console.print(_title(report, console), soft_wrap=True)
    if report.bars:
        console.print()
        _print_breakdown(report.bars, console)
    if report.lines:
        console.print()
    for line in report.lines:
        console.print(_folded(f"  {printable(line)}", 2, console), soft_wrap=True)
    for table in report.for_people:
        console.print()
        if table.title:
            console.print(f"  {printable(table.title)}", soft_wrap=True)
        _print_table(table, console)


def _folded(line: str, hang: int, console: "Console") -> str:
    """A sentence as a terminal breaks it between words, the rest `hang` columns further in; a word stays whole."""
    if not console.is_terminal:
        return line
    inset = len(line) - len(line.lstrip()) + hang
    rest = " " * min(inset, console.width // 2)
    return textwrap.fill(
        line, console.width, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False, expand_tabs=False
    )


_LONGEST_TITLE = 120


def _title(report: Report, console: "Console") -> "RenderableType":
    from rich.text import Text

    name, *rest = map(printable, report.title)
    one_line = "   ".join([name, *rest])
    if len(one_line) <= min(console.width, _LONGEST_TITLE):
        return Text.assemble((name, "bold"), one_line[len(name) :])
    first, *facts = rest
    return Text("\n").join(
        [Text(name, "bold"), Text(f"  {first}"), *([Text("  " + "   ".join(facts))] if facts else [])]
    )


def _print_breakdown(bars: tuple[Bar, ...], console: "Console") -> None:
    """Label, bytes, picture and words in columns; without the picture, then without columns, where it is narrow."""
    words = _words_width(bars)
    if console.width >= words:
        console.print(_breakdown(bars, has_pictures=console.is_terminal and console.width >= words + BAR_WIDTH + _GAP))
        return
    rows = _bar_words(bars)
    labels, figures = (max(len(row[column]) for row in rows) for column in (0, 1))
    for label, shown, detail in rows:
        row = f"{label:{labels}}  {shown:>{figures}}  {detail}"
        console.print(_folded(row, labels + figures + 4 - len(label) + len(label.lstrip()), console), soft_wrap=True)


def _bar_words(bars: tuple[Bar, ...]) -> list[tuple[str, str, str]]:
    units = bar_units(bars)
    return [
        ("  " * (bar.depth + 1) + printable(bar.label), memory(bar.bytes, unit), printable(bar.detail))
        for bar, unit in zip(bars, units, strict=True)
    ]


def _words_width(bars: tuple[Bar, ...]) -> int:
    return sum(max(map(len, column)) + _GAP for column in zip(*_bar_words(bars), strict=True))


def _breakdown(bars: tuple[Bar, ...], has_pictures: bool) -> "RichTable":
    from rich.bar import Bar as RichBar
    from rich.table import Table as Grid

    most = max([1, *(bar.bytes for bar in bars if bar.drawn)])
    grid = Grid.grid(padding=(0, _GAP, 0, 0))
    for column in ("left", "right", *(["left"] if has_pictures else []), "left"):
        grid.add_column(justify=column)  # type: ignore[arg-type]
    for bar, (label, shown, detail) in zip(bars, _bar_words(bars), strict=True):
        drawn = RichBar(most, 0, bar.bytes, width=BAR_WIDTH, color="cyan") if bar.drawn else ""
        grid.add_row(label, shown, *([drawn] if has_pictures else []), detail)
    return grid


def _print_table(table: Table, console: "Console") -> None:
    """Columns where they fit, else with words that wrap, else a column a row, else a record a row: nothing is cut."""
    heads, cells = [column.heading for column in table.columns], table_cells(table)
    is_number = [column.unit != "text" for column in table.columns]
    turned = [list(row) for row in zip(heads, *cells, strict=True)]
    for shown in (
        _columns(heads, cells, is_number, console),
        _columns(heads, cells, is_number, console, _wrapped_widths(heads, cells, is_number, console.width)),
        _columns(turned[0], turned[1:], [False, *[True] * len(cells)], console),
    ):
        if console.measure(shown, options=console.options.update(width=UNBOUNDED)).maximum <= console.width:
            console.print(shown)
            return
    _print_records(heads, cells, console)


_FOLDED = 16
"""A column of words is never narrower than its longest word, or than this where a word is longer still."""


def _wrapped_widths(
    heads: list[str], cells: list[list[str]], is_number: list[bool], width: int
) -> list[int | None] | None:
    """A width for each column of words that must wrap for all to fit in `width`; None where they cannot."""
    columns = list(zip(heads, *cells, strict=True))
    widest = [max(map(len, column)) for column in columns]
    least = [_narrowest(column) for column in columns]
    words = [place for place, most in enumerate(widest) if most > least[place] and not is_number[place]]
    room = width - 1 - (_GAP + 1) * len(heads) - sum(most for place, most in enumerate(widest) if place not in words)
    widths: list[int | None] = [None] * len(heads)
    for left, place in enumerate(sorted(words, key=widest.__getitem__)):
        widths[place] = share = max(least[place], min(widest[place], room // (len(words) - left)))
        room -= share
    return widths if room >= 0 else None


def _narrowest(column: Sequence[str]) -> int:
    return min(_FOLDED, max((len(word) for cell in column for word in cell.split()), default=0))


def _print_records(heads: list[str], cells: list[list[str]], console: "Console") -> None:
    label = max(map(len, heads))
    for first, *rest in cells:
        console.print(f"\n  {first}", style="bold", soft_wrap=True)
        for heading, cell in zip(heads[1:], rest, strict=True):
            if not cell:
                continue
            console.print(f"    {heading:{label}}  {cell}", soft_wrap=True)


def _columns(
    heads: list[str],
    cells: list[list[str]],
    is_number: list[bool],
    console: "Console",
    widths: Sequence[int | None] | None = None,
) -> "RichTable":
    """The table; a column that `widths` names wraps its words in so many columns."""
    from rich import box
    from rich.table import Table as RichTable

    shown = RichTable(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 1, 0, _GAP - 1))
    for heading, number, width in zip(heads, is_number, widths or [None] * len(heads), strict=True):
        side: Literal["right", "left"] = "right" if number else "left"
        shown.add_column(heading, justify=side, no_wrap=width is None, width=width, overflow="fold")
    for row in cells:
        shown.add_row(*row)
    return shown
