"""Results as data: what a verb found, before anyone decides how it looks.

A `Report` carries the versioned document for machines and the same facts as quantities with units
for people. Renderers know units, never verbs.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import msgspec

Unit = Literal["bytes", "exact bytes", "tokens", "count", "parameters", "ratio", "text"]
Value = int | float | str | Fraction | None


class Column(msgspec.Struct, frozen=True):
    """A column of a table: the key that machine formats carry, the heading for people, the unit of its cells."""

    key: str
    heading: str
    unit: Unit = "text"


class Table(msgspec.Struct, frozen=True):
    """Rows of raw values under columns; `title` may be empty."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Value]]
    title: str = ""


class Bar(msgspec.Struct, frozen=True):
    """One line of a breakdown: bytes, their share of the largest, and why they are there."""

    label: str
    bytes: int
    detail: str
    depth: int = 0
    drawn: bool = True


class Report(msgspec.Struct, frozen=True):
    """What one verb answers: `document` for JSON; title, bars, lines and tables for people; `tables[0]` for CSV."""

    document: Mapping[str, Any]
    title: tuple[str, ...]
    tables: tuple[Table, ...]
    bars: tuple[Bar, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shown_tables: tuple[Table, ...] | None = None

    @property
    def for_people(self) -> tuple[Table, ...]:
        """The tables that a terminal shows: all of them unless the verb chose."""
        return self.tables if self.shown_tables is None else self.shown_tables
