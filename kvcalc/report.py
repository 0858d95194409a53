"""Results as data: what a verb found, before anyone decides how it looks.

A `Report` carries the versioned document for machines and the same facts as quantities with units
for people. Renderers know units, never verbs.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import compress
from typing import Any, Literal

import msgspec

Unit = Literal[
    "bytes",
    "exact bytes",
    "tokens",
    "count",
    "parameters",
    "ratio",
    "fraction",
    "number",
    "seconds",
    "rate",
    "flops",
    "text",
]
"""`rate` is bytes a second and `flops` FLOP a second."""
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

    def without(self, *keys: str) -> "Table":
        """The table without the columns of these keys."""
        return self._kept([column.key not in keys for column in self.columns])

    def filled(self) -> "Table":
        """The table without the columns that have no value in any row."""
        return self._kept([any(row[place] is not None for row in self.rows) for place in range(len(self.columns))])

    def _kept(self, choice: Sequence[bool]) -> "Table":
        rows = [tuple(compress(row, choice)) for row in self.rows]
        return Table(tuple(compress(self.columns, choice)), rows, self.title)


class Bar(msgspec.Struct, frozen=True):
    """One line of a breakdown: bytes, their share of the largest, and why they are there."""

    label: str
    bytes: int
    detail: str
    depth: int = 0
    drawn: bool = True


class Report(msgspec.Struct, frozen=True):
    """What one verb answers: `document` for JSON; title, bars, lines and tables for people; `tables[0]` for CSV.

    `exit_code` is 1 where the answer is no.
    """

    document: Mapping[str, Any]
    title: tuple[str, ...]
    tables: tuple[Table, ...]
    bars: tuple[Bar, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shown_tables: tuple[Table, ...] | None = None
    exit_code: int = 0

    @property
    def for_people(self) -> tuple[Table, ...]:
        """The tables that a terminal shows: all of them unless the verb chose."""
        return self.tables if self.shown_tables is None else self.shown_tables
