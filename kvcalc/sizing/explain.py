"""The formula of one model, term by term, with the numbers put in and the source of each."""

from kvcalc.cache.formats import find_format
from kvcalc.cache.sharding import WHOLE
from kvcalc.documents import ExplainDocument, ProjectionsDocument, Scope
from kvcalc.report import Column, Report, Table, Value
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.notes import notes_on
from kvcalc.sizing.report import need_document, rank_lines, request_document
from kvcalc.sizing.rows import Row
from kvcalc.units import exact_bytes, memory, plain, plain_number

SCHEMA = "kvcalc.explain/1"


def explain_report(size: CacheSize) -> Report:
    """The answer of `kvcalc explain`."""
    shown = (_stored_table(size), _source_table(size), _projection_table(size))
    return Report(
        document=_document(size),
        title=(
            size.spec.name,
            f"context {size.workload.context_tokens:,}",
            f"source: {size.spec.source or 'not stated'}",
        ),
        lines=tuple(_summary(size)),
        tables=(_terms_table(size), *shown),
        shown_tables=shown,
        notes=tuple(note.text for note in notes_on(size)),
    )


def growth_formula(row: Row) -> str:
    """What one more token adds to the row, as arithmetic: `2 x 32 x 8 x 128 x 2 B`."""
    entry = _entry_formula(row)
    ratio = row.component.span.ratio
    return f"{entry} / {ratio}" if ratio > 1 else entry


def _entry_formula(row: Row) -> str:
    """One entry in every layer of the row; the 2 of K and V leads, as the papers write it."""
    bare = row.entry_format.formula(row.component.parts(WHOLE)) if row.entry_format else ""
    head, two, rest = bare.partition("2 x ")
    return f"2 x {row.layers} x {rest}" if two and not head else f"{row.layers} x {bare}"


def fixed_formula(row: Row) -> str:
    """What no longer grows, as arithmetic: a full window, or the states."""
    if row.component.keeps_entries:
        return f"{row.component.span.cap:,} x {_entry_formula(row)}"
    states = " + ".join(row.states)
    return f"{row.layers} x ({states})" if len(row.states) > 1 else f"{row.layers} x {states}"


def _terms(size: CacheSize) -> list[tuple[Row, Scope, str, int | float]]:
    terms: list[tuple[Row, Scope, str, int | float]] = []
    for row in size.rows:
        if row.component.grows:
            terms.append((row, "a token", growth_formula(row), plain_number(row.bytes_per_token)))
        else:
            terms.append((row, "fixed", fixed_formula(row), row.fixed_bytes))
    return terms


def _terms_table(size: CacheSize) -> Table:
    rows: list[tuple[Value, ...]] = [
        (row.name, row.layers, scope, formula, value) for row, scope, formula, value in _terms(size)
    ]
    rows.append(("in all", None, "a token", _sum_of(size, "a token"), plain_number(size.bytes_per_token)))
    if size.fixed_bytes_per_sequence:
        rows.append(("in all", None, "fixed", _sum_of(size, "fixed"), size.fixed_bytes_per_sequence))
    if size.ranks > 1:
        rows.append(("batch", None, "fullest rank", None, size.bytes_per_rank))
    columns = (
        Column("term", "term"),
        Column("layers", "layers", "count"),
        Column("scope", "scope"),
        Column("formula", "formula"),
        Column("bytes", "bytes", "exact bytes"),
    )
    return Table(columns, rows, "what one sequence keeps")


def _sum_of(size: CacheSize, scope: str) -> str:
    return " + ".join(plain(value) for _, its_scope, _, value in _terms(size) if its_scope == scope) or "0"


def _stored_table(size: CacheSize) -> Table:
    tokens = size.workload.context_tokens
    rows = [
        (row.name, row.entries(tokens), row.stored_bytes(tokens), _readers(row, tokens), row.read_bytes(tokens))
        for row in size.rows
    ]
    total = ("in all", None, size.bytes_per_sequence, None, size.read_bytes_per_step // size.workload.batch)
    columns = (
        Column("component", "component"),
        Column("entries", "entries a layer", "count"),
        Column("stored_bytes", "stored", "exact bytes"),
        Column("readers", "readers"),
        Column("read_bytes", "read a step", "exact bytes"),
    )
    return Table(columns, [*rows, total], f"stored against read, one sequence of {tokens:,} tokens")


def _readers(row: Row, tokens: int) -> str:
    if not row.component.keeps_entries:
        return f"{row.layers} once"
    kept = row.entries(tokens)
    return ", ".join(f"{count} of {min(kept, kept if limit is None else limit):,}" for limit, count in row.reads)


def _sources(size: CacheSize) -> list[tuple[str, str]]:
    names = dict.fromkeys(part.rpartition("=")[2] for row in size.rows for part in row.format.split(","))
    formats = [(f"bytes of {name}", find_format(name).source) for name in names]
    return [("layers, heads, widths, windows", size.spec.source or "the spec states none"), *formats]


def _source_table(size: CacheSize) -> Table:
    columns = (Column("number", "number"), Column("source", "source"))
    return Table(columns, _sources(size), "where the numbers come from")


def projection_work(tokens: int) -> ProjectionsDocument:
    """K and V projections to produce `tokens` tokens one by one: recomputed each step, and cached."""
    without = tokens * (tokens + 1) // 2
    return {"without_cache": without, "with_cache": tokens, "ratio": (tokens + 1) / 2}


def _projection_table(size: CacheSize) -> Table:
    work = projection_work(size.workload.context_tokens)
    columns = (
        Column("cache", "cache"),
        Column("formula", "formula"),
        Column("projections", "tokens projected", "count"),
        Column("ratio", "ratio", "ratio"),
    )
    rows = [
        ("without", "n(n+1)/2", work["without_cache"], work["ratio"]),
        ("with", "n", work["with_cache"], 1),
    ]
    return Table(columns, rows, f"K and V projections to reach n = {size.workload.context_tokens:,} tokens, each layer")


def _summary(size: CacheSize) -> list[str]:
    tokens = size.workload.context_tokens
    lines = [
        f"{row.name} ({row.layers} layers of {row.component.geometry}, {row.format}): "
        f"{formula} = {exact_bytes(value)} {scope}"
        for row, scope, formula, value in _terms(size)
    ]
    lines.append(f"{tokens:,} tokens: {exact_bytes(size.bytes_per_sequence)} a sequence")
    if size.workload.batch > 1:
        lines.append(f"x {size.workload.batch:,} sequences: {memory(size.total_bytes)}")
    return lines + rank_lines(size)


def _document(size: CacheSize) -> ExplainDocument:
    tokens = size.workload.context_tokens
    return {
        "schema": SCHEMA,
        "model": {"name": size.spec.name, "source": size.spec.source},
        "request": request_document(size),
        "terms": [
            {"name": row.name, "scope": scope, "formula": formula, "bytes": value, "layers": row.layers}
            for row, scope, formula, value in _terms(size)
        ],
        **need_document(size),
        "stored_and_read": [
            {
                "name": row.name,
                "stored_bytes": row.stored_bytes(tokens),
                "read_bytes": row.read_bytes(tokens),
                "readers": [{"layers": count, "most_entries": limit} for limit, count in row.reads],
            }
            for row in size.rows
        ],
        "projections": projection_work(tokens),
        "sources": [{"number": number, "source": source} for number, source in _sources(size)],
        "notes": [note.text for note in notes_on(size)],
    }
