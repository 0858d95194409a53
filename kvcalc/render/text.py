"""Reports as JSON, CSV and Markdown."""

import io
from collections.abc import Callable
from typing import Any

from kvcalc.report import Report, Table, Unit, Value
from kvcalc.units import count_of, memory, plain_number


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
    blocks = [f"**{report.title[0]}** " + ", ".join(" ".join(part.split()) for part in report.title[1:])]
    if report.bars:
        blocks.append(_bar_table(report))
    blocks += [markdown_table(table) for table in report.for_people]
    blocks += ["\n".join(f"- {' '.join(line.split())}" for line in report.lines)] if report.lines else []
    blocks += ["\n".join(f"> {note}" for note in report.notes)] if report.notes else []
    return "\n\n".join(blocks) + "\n"


def _bar_table(report: Report) -> str:
    rows = [f"| {'&nbsp;&nbsp;' * bar.depth}{bar.label} | {memory(bar.bytes)} | {bar.detail} |" for bar in report.bars]
    return "\n".join(["| | bytes | |", "|---|---:|---|", *rows])


def markdown_table(table: Table) -> str:
    """One table, numbers aligned right."""
    heads = " | ".join(column.heading for column in table.columns)
    rules = " | ".join("---" if column.unit == "text" else "---:" for column in table.columns)
    rows = ["| " + " | ".join(cells).replace("\n", " ") + " |" for cells in table_cells(table)]
    title = [f"**{table.title}**\n"] if table.title else []
    return "\n".join([*title, f"| {heads} |", f"| {rules} |", *rows])


def table_cells(table: Table) -> list[list[str]]:
    """Every cell as people read it."""
    return [
        [cell_text(cell, column.unit) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows
    ]


def cell_text(value: Value, unit: Unit) -> str:
    """One value under its unit; a missing one is a dash."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return _NUMBERS[unit](value)


_NUMBERS: dict[Unit, Callable[[Any], str]] = {
    "bytes": memory,
    "exact bytes": lambda value: f"{value:,} B" if value == int(value) else f"{float(value):,.2f} B",
    "tokens": lambda value: f"{value:,}",
    "count": lambda value: f"{value:,}",
    "parameters": count_of,
    "ratio": lambda value: f"{value:,.1f}x" if value >= 100 else f"{float(value):.3g}x",
    "text": str,
}


def _raw(value: Value) -> Value:
    from fractions import Fraction

    return plain_number(value) if isinstance(value, Fraction) else value


RENDERERS = {"json": to_json, "csv": to_csv, "markdown": to_markdown}
