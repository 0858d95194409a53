"""Reports on a terminal, with rich: answer first, then why.

A pipe and a narrow terminal lose bars and colour before they lose content.
"""

import io
import sys
from typing import TYPE_CHECKING

from kvcalc.render.text import bar_units, table_cells
from kvcalc.report import Bar, Report, Table
from kvcalc.units import memory

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable

BAR_WIDTH = 24
_ROOM_BESIDE_BARS = 12


def print_report(report: Report) -> None:
    """Print `report` on stdout."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        _print(report, console)
    else:
        sys.stdout.write(report_text(report))


def report_text(report: Report) -> str:
    """`report` as a terminal would show it, without colour or bars, and as wide as its words need."""
    from rich.console import Console

    out = io.StringIO()
    width = _widest(report) + 8
    _print(report, Console(file=out, highlight=False, markup=False, emoji=False, no_color=True, width=width))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _print(report: Report, console: "Console") -> None:
    console.print(_title(report, console), soft_wrap=True)
    console.print()
    if report.bars:
        console.print(_breakdown(report.bars, console))
        console.print()
    for line in report.lines:
        console.print(f"  {line}", soft_wrap=True)
    for table in report.for_people:
        console.print()
        if table.title:
            console.print(f"  {table.title}", soft_wrap=True)
        console.print(_table(table, console))


def _widest(report: Report) -> int:
    tables = [
        sum(max(map(len, column)) + 3 for column in zip(*_with_heads(table), strict=True))
        for table in report.for_people
    ]
    bars = [len(bar.label) + len(bar.detail) + 40 for bar in report.bars]
    return max([80, *tables, *bars, *map(len, report.lines)])


def _with_heads(table: Table) -> list[list[str]]:
    return [[column.heading for column in table.columns], *table_cells(table)]


def _title(report: Report, console: "Console") -> "RenderableType":
    from rich.text import Text

    name, *rest = report.title
    one_line = "   ".join([name, *rest])
    if len(one_line) <= console.width:
        return Text.assemble((name, "bold"), one_line[len(name) :])
    return Text("\n").join([Text(name, "bold"), *(Text(f"  {part}") for part in rest)])


def _breakdown(bars: tuple[Bar, ...], console: "Console") -> "RichTable":
    from rich.bar import Bar as RichBar
    from rich.table import Table as Grid

    most = max([1, *(bar.bytes for bar in bars if bar.drawn)])
    grid = Grid.grid(padding=(0, 2, 0, 0))
    has_room = _bars_fit(bars, console)
    for column in ("left", "right", *(["left"] if has_room else []), "left"):
        grid.add_column(justify=column, no_wrap=len(grid.columns) < 2)  # type: ignore[arg-type]
    for bar, unit in zip(bars, bar_units(bars), strict=True):
        picture = [RichBar(most, 0, bar.bytes, width=BAR_WIDTH, color="cyan") if bar.drawn else ""] if has_room else []
        grid.add_row("  " * (bar.depth + 1) + bar.label, memory(bar.bytes, unit), *picture, bar.detail)
    return grid


def _bars_fit(bars: tuple[Bar, ...], console: "Console") -> bool:
    """Whether the terminal is wide enough to draw beside the words, and can draw at all."""
    words = max(len(bar.detail) for bar in bars) + max(len(bar.label) + 2 * bar.depth for bar in bars)
    return (
        console.is_terminal
        and not console.legacy_windows
        and console.width >= words + BAR_WIDTH + 2 * _ROOM_BESIDE_BARS
    )


def _table(table: Table, console: "Console") -> "RenderableType":
    from rich import box
    from rich.table import Table as RichTable

    shown = RichTable(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 1, 0, 2))
    for column in table.columns:
        justify = "left" if column.unit == "text" else "right"
        shown.add_column(column.heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for cells in table_cells(table):
        shown.add_row(*cells)
    return shown
