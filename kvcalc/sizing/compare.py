"""Models and formats side by side, with ratios to the first."""

from collections.abc import Sequence
from fractions import Fraction

from kvcalc.documents import CaseDocument, CompareDocument, RatiosDocument
from kvcalc.report import Column, Report, Table, Value
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.notes import notes_on
from kvcalc.sizing.report import size_document
from kvcalc.units import plain_number

SCHEMA = "kvcalc.compare/1"


def compare_report(sizes: Sequence[CacheSize]) -> Report:
    """The answer of `kvcalc compare`: one column a case, each figure beside its ratio to the first."""
    first, table = sizes[0], _table(sizes)
    cases: list[CaseDocument] = [{**size_document(size), "ratios": ratios(size, first)} for size in sizes]
    document: CompareDocument = {"schema": SCHEMA, "cases": cases, "differences": []}
    return Report(
        document=document,
        title=(
            f"{len(sizes)} case{'s' if len(sizes) > 1 else ''}",
            f"context {_same(sizes, 'context_tokens')}",
            f"batch {_same(sizes, 'batch')}",
        ),
        tables=(table,),
        shown_tables=(table if any(size.ranks > 1 for size in sizes) else table.without("bytes_per_rank"),),
        notes=tuple(dict.fromkeys(f"{size.spec.name}: {note.text}" for size in sizes for note in notes_on(size))),
    )


def ratios(size: CacheSize, first: CacheSize) -> RatiosDocument:
    """Figures of `size` divided by those of `first`; None where the first has none."""
    return {
        "bytes_per_token": _ratio(size.bytes_per_token, first.bytes_per_token),
        "bytes_per_sequence": _ratio(size.bytes_per_sequence, first.bytes_per_sequence),
        "total_bytes": _ratio(size.total_bytes, first.total_bytes),
        "read_bytes_per_step": _ratio(size.read_bytes_per_step, first.read_bytes_per_step),
        "allocated_bytes": None,
    }


def _ratio(own: int | Fraction, base: int | Fraction) -> float | None:
    return float(Fraction(own) / Fraction(base)) if base else None


def _same(sizes: Sequence[CacheSize], name: str) -> str:
    values = dict.fromkeys(getattr(size.workload, name) for size in sizes)
    return ", ".join(f"{value:,}" for value in values)


def _table(sizes: Sequence[CacheSize]) -> Table:
    first = sizes[0]
    columns = (
        Column("model", "model"),
        Column("kv_format", "KV"),
        Column("context_tokens", "context", "tokens"),
        Column("bytes_per_token", "a token", "exact bytes"),
        Column("fixed_bytes_per_sequence", "fixed", "exact bytes"),
        Column("bytes_per_sequence", "a sequence", "bytes"),
        Column("total_bytes", "batch", "bytes"),
        Column("stored_ratio", "stored vs first", "ratio"),
        Column("read_bytes_per_step", "read a step", "bytes"),
        Column("read_ratio", "read vs first", "ratio"),
        Column("bytes_per_rank", "a rank", "bytes"),
        Column("weight_bytes", "weights", "bytes"),
    )
    return Table(columns, [_cells(size, ratios(size, first)) for size in sizes])


def _cells(size: CacheSize, ratio: RatiosDocument) -> tuple[Value, ...]:
    formats = dict.fromkeys(row.format for row in size.rows if row.component.keeps_entries)
    return (
        size.spec.name,
        "+".join(formats) or "-",
        size.workload.context_tokens,
        plain_number(size.bytes_per_token),
        size.fixed_bytes_per_sequence,
        size.bytes_per_sequence,
        size.total_bytes,
        ratio["bytes_per_sequence"],
        size.read_bytes_per_step,
        ratio["read_bytes_per_step"],
        size.bytes_per_rank,
        size.weight_bytes,
    )
