"""Reports as JSON, CSV and Markdown."""

import io
from collections.abc import Callable, Sequence
from fractions import Fraction

from kvcalc.errors import printable
from kvcalc.report import Bar, Report, Table, Unit, Value
from kvcalc.units import (
    BYTE_RATES,
    FLOP_RATES,
    NUMBERS,
    SECONDS,
    column_unit,
    count_of,
    decimal_writer,
    memory,
    memory_unit,
    plain,
    plain_number,
)

Number = int | float | Fraction


def to_json(report: Report) -> str:
    """The versioned document, one line a key."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(report.document), indent=2).decode() + "\n"


def to_csv(report: Report) -> str:
    """The first table with plain numbers; an empty cell is a figure that does not apply."""
    import csv

    table, out = report.tables[0], io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([["" if cell is None else _raw(cell) for cell in row] for row in table.rows])
    return out.getvalue()


def to_markdown(report: Report) -> str:
    """Title, figures and tables as GitHub reads them."""
    blocks = [_harmless(f"**{report.title[0]}** " + ", ".join(report.title[1:]))]
    if report.bars:
        blocks.append(_bar_table(report))
    blocks += [markdown_table(table) for table in report.for_people]
    blocks += ["\n".join(f"- {_harmless(' '.join(line.split()))}" for line in report.lines)] if report.lines else []
    blocks += ["\n".join(f"> - {_harmless(note)}" for note in report.notes)] if report.notes else []
    return "\n\n".join(blocks) + "\n"


def _bar_table(report: Report) -> str:
    units = bar_units(report.bars)
    rows = [
        f"| {'&nbsp;&nbsp;' * bar.depth}{_escaped(bar.label)} | {memory(bar.bytes, unit)} | {_escaped(bar.detail)} |"
        for bar, unit in zip(report.bars, units, strict=True)
    ]
    return "\n".join(["| | bytes | |", "|---|---:|---|", *rows])


def markdown_table(table: Table) -> str:
    """One table, numbers aligned right."""
    heads = " | ".join(column.heading for column in table.columns)
    rules = " | ".join("---" if column.unit == "text" else "---:" for column in table.columns)
    rows = ["| " + " | ".join(map(_escaped, cells)) + " |" for cells in table_cells(table)]
    title = [f"**{table.title}**\n"] if table.title else []
    return "\n".join([*title, f"| {heads} |", f"| {rules} |", *rows])


def _escaped(cell: str) -> str:
    """A cell that cannot end its column, and is no HTML."""
    return _harmless(" ".join(cell.split())).replace("|", "\\|")


def _harmless(text: str) -> str:
    """Text that is no HTML, and moves no cursor."""
    return printable(text).replace("<", "&lt;")


def bar_units(bars: Sequence[Bar]) -> list[int]:
    """The unit of each bar: one for all that are drawn, the same beside them unless it would be absurd."""
    unit = column_unit((bar.bytes for bar in bars if bar.drawn), least=Fraction(1, 100))
    return [unit if bar.drawn or bar.bytes < _MOST_IN_A_UNIT * unit else memory_unit(bar.bytes) for bar in bars]


_MOST_IN_A_UNIT = 100_000


def table_cells(table: Table) -> list[list[str]]:
    """Every cell as people read it; bytes of one column share a unit."""
    columns = list(zip(*table.rows, strict=True))
    shown = [_column_cells(cells, column.unit) for cells, column in zip(columns, table.columns, strict=True)]
    return [list(row) for row in zip(*shown, strict=True)]


def _column_cells(values: Sequence[Value], unit: Unit) -> list[str]:
    numbers = [value for value in values if isinstance(value, int | float | Fraction)]
    write = _NUMBERS[unit](numbers)
    return ["-" if value is None else printable(value) if isinstance(value, str) else write(value) for value in values]


def _bytes_writer(numbers: Sequence[Number]) -> Callable[[Number], str]:
    unit = column_unit(numbers)
    return lambda value: memory(value, unit)


def _ratio(value: Number) -> str:
    return f"{value:,.1f}x" if value >= 100 else f"{float(value):.3g}x"


def _fraction(value: Number) -> str:
    return f"{value:.2f}" if value >= _LEAST_FRACTION else f"{float(value):.2g}"


_LEAST_FRACTION = 0.1
"""Below it two digits behind the point say too little."""

_NUMBERS: dict[Unit, Callable[[Sequence[Number]], Callable[[Number], str]]] = {
    "bytes": _bytes_writer,
    "exact bytes": lambda _: lambda value: f"{plain(value)} B",
    "tokens": lambda _: plain,
    "count": lambda _: plain,
    "parameters": lambda _: count_of,
    "ratio": lambda _: _ratio,
    "fraction": lambda _: _fraction,
    "number": lambda numbers: decimal_writer(numbers, NUMBERS),
    "seconds": lambda numbers: decimal_writer(numbers, SECONDS),
    "rate": lambda numbers: decimal_writer(numbers, BYTE_RATES),
    "flops": lambda numbers: decimal_writer(numbers, FLOP_RATES),
    "text": lambda _: str,
}
"""For each unit, what writes one number, given all numbers of its column."""


def _raw(value: Value) -> Value:
    return plain_number(value) if isinstance(value, Fraction) else value


RENDERERS = {"json": to_json, "csv": to_csv, "markdown": to_markdown}
