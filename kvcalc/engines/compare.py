"""Engines and their versions side by side: what each takes for one workload, and the rules in which they differ."""

from collections.abc import Iterator, Sequence

import msgspec

from kvcalc.documents import CaseDocument, CompareDocument, DifferenceDocument
from kvcalc.engines.engine import Allocation, Capacity
from kvcalc.report import Column, Report, Table, Value
from kvcalc.sizing.compare import SCHEMA, ratios
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.notes import notes_on
from kvcalc.sizing.report import kv_formats, size_document


class Case(msgspec.Struct, frozen=True):
    """One workload in one engine, and what a pool that was given carries there."""

    size: CacheSize
    held: Allocation
    pool: Capacity | None = None

    @property
    def name(self) -> str:
        """The engine and its version."""
        return f"{self.held.name} {self.held.version}"


def compare_engines(cases: Sequence[Case]) -> Report:
    """The answer of `kvcalc compare --engine A,B`: one row a case, its bytes beside those of the first."""
    document: CompareDocument = {
        "schema": SCHEMA,
        "cases": [_document(case, cases[0]) for case in cases],
        "differences": [_difference(case, cases[0]) for case in cases[1:]],
    }
    first = cases[0].size
    return Report(
        document=document,
        title=(
            f"{len(cases)} case{'s' if len(cases) > 1 else ''}",
            f"context {first.workload.context_tokens:,}",
            f"batch {first.workload.batch:,}",
        ),
        tables=(_table(cases),),
        shown_tables=(_table(cases).filled(),),
        lines=tuple(line for case in cases[1:] for line in _lines(case, cases[0])),
        notes=tuple(
            dict.fromkeys(f"{one.size.spec.name}: {note.text}" for one in cases for note in notes_on(one.size))
        ),
    )


def _document(case: Case, first: Case) -> CaseDocument:
    return {
        **size_document(case.size, case.held.document(case.pool)),
        "ratios": {**ratios(case.size, first.size), "allocated_bytes": _ratio(case, first)},
    }


def _ratio(case: Case, first: Case) -> float | None:
    base = first.held.allocated_bytes
    return case.held.allocated_bytes / base if base else None


def _difference(case: Case, first: Case) -> DifferenceDocument:
    """The rules that only one of the two follows; their numbers count, so that the same rule with others is two."""
    here, there = case.held.rules, first.held.rules
    return {
        "first": f"{first.size.spec.name} in {first.name}",
        "other": f"{case.size.spec.name} in {case.name}",
        "only_first": [rule for rule in there if rule not in here],
        "only_other": [rule for rule in here if rule not in there],
    }


def _lines(case: Case, first: Case) -> Iterator[str]:
    found, ratio = _difference(case, first), _ratio(case, first)
    times = "" if ratio is None else f": {ratio:.3g}x"
    yield f"{found['other']} against {found['first']}{times}"
    yield from (f"  only {first.name}: {rule}" for rule in found["only_first"])
    yield from (f"  only {case.name}: {rule}" for rule in found["only_other"])
    if not found["only_first"] and not found["only_other"]:
        yield "  by the same rules"


def _table(cases: Sequence[Case]) -> Table:
    columns = (
        Column("model", "model"),
        Column("engine", "engine"),
        Column("kv_format", "KV"),
        Column("need_bytes", "need a rank", "bytes"),
        Column("allocated_bytes", "takes a rank", "bytes"),
        Column("allocated_ratio", "vs first", "ratio"),
        Column("tokens", "pool tokens", "tokens"),
        Column("max_concurrency", "concurrency", "ratio"),
        Column("sequences", "at once", "count"),
    )
    return Table(columns, [_cells(case, cases[0]) for case in cases])


def _cells(case: Case, first: Case) -> tuple[Value, ...]:
    pool = case.pool
    return (
        case.size.spec.name,
        case.name,
        kv_formats(case.size),
        case.size.bytes_per_rank,
        case.held.allocated_bytes,
        _ratio(case, first),
        None if pool is None else pool.tokens,
        None if pool is None else pool.max_concurrency,
        None if pool is None else pool.sequences,
    )
