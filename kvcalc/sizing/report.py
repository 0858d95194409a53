"""A CacheSize as a report: the JSON contract of `kvcalc size`, and the screen beside it."""

from fractions import Fraction
from typing import TYPE_CHECKING, cast

from kvcalc.report import Bar, Column, Report, Table, Value
from kvcalc.sizing.engine_lines import engine_lines
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.notes import basis, notes_on
from kvcalc.sizing.rows import Row
from kvcalc.units import count_of, exact_bytes, memory, plain_number

if TYPE_CHECKING:
    from kvcalc.documents import (
        ComponentDocument,
        EngineDocument,
        NeedDocument,
        RequestDocument,
        SizeDocument,
    )

SCHEMA = "kvcalc.size/1"


def size_report(size: CacheSize, engine: "EngineDocument | None" = None) -> Report:
    """The answer of `kvcalc size`; `engine` says what an engine would hold."""
    return Report(
        document=size_document(size, engine),
        title=_title(size),
        bars=tuple(_bars(size)),
        lines=(*_lines(size), *engine_lines(size, engine)),
        tables=(component_table(size),),
        shown_tables=(),
        notes=tuple(note.text for note in notes_on(size)),
    )


def size_document(size: CacheSize, engine: "EngineDocument | None" = None) -> "SizeDocument":
    """The versioned JSON document: plain numbers under names that carry the unit."""
    notes = notes_on(size)
    return {
        "schema": SCHEMA,
        "model": {"name": size.spec.name, "source": size.spec.source},
        "request": request_document(size, engine),
        "kv_cache": {
            **need_document(size),
            "replication": plain_number(size.replication),
            "read_bytes_per_step": size.read_bytes_per_step,
            "basis": basis(size, "cache"),
            "read_basis": basis(size, "cache", "reads"),
            "components": [_component(row, size.workload.context_tokens) for row in size.rows],
        },
        "weights": {
            "parameters": size.parameters.total,
            "active_parameters": size.parameters.active,
            "format": size.weights_format,
            "bytes": size.weight_bytes,
            "basis": basis(size, "weights"),
        },
        "engine": engine,
        "notes": [note.text for note in notes],
    }


def need_document(size: CacheSize) -> "NeedDocument":
    """The sums that every answer about one workload gives, in bytes."""
    return {
        "bytes_per_token": plain_number(size.bytes_per_token),
        "fixed_bytes_per_sequence": size.fixed_bytes_per_sequence,
        "bytes_per_sequence": size.bytes_per_sequence,
        "total_bytes": size.total_bytes,
        "bytes_per_rank": size.bytes_per_rank,
        "all_ranks_bytes": size.all_ranks_bytes,
    }


def request_document(size: CacheSize, engine: "EngineDocument | None" = None) -> "RequestDocument":
    """What was asked, as it was understood."""
    work, sharding = size.workload, size.sharding
    return {
        "context_tokens": work.context_tokens,
        "batch": work.batch,
        "kv_dtype": work.kv_dtype,
        "dtype": size.packer.dtype,
        "state_dtype": work.state_dtype,
        "encoder_tokens": work.encoder_tokens,
        "draft_layers": work.draft_layers,
        "engine": f"{engine['name']}@{engine['version']}" if engine else None,
        "tp": sharding.tp,
        "pp": sharding.pp,
        "dp": sharding.dp,
        "ep": sharding.ep,
        "dcp": sharding.dcp,
        "set": list(size.spec.overrides),
    }


def _component(row: Row, tokens: int) -> "ComponentDocument":
    return {
        "name": row.name,
        "kind": row.component.kind,
        "geometry": row.component.geometry,
        "layers": row.layers,
        "format": row.format,
        "entries_per_sequence": row.entries(tokens),
        "bytes_per_entry": row.bytes_per_entry,
        "fixed_bytes_per_layer": row.fixed_bytes_per_layer,
        "bytes_per_token": plain_number(row.bytes_per_token),
        "bytes_per_sequence": row.stored_bytes(tokens),
        "read_bytes_per_step": row.read_bytes(tokens),
    }


def component_table(size: CacheSize) -> Table:
    """Every component, the cache as a whole, for one sequence and for the batch, and the weights."""
    tokens, batch = size.workload.context_tokens, size.workload.batch
    rows: list[tuple[Value, ...]] = []
    for row in size.rows:
        cells = tuple(cast("dict[str, Value]", _component(row, tokens)).values())
        rows.append((size.spec.name, tokens, batch, *cells, row.stored_bytes(tokens) * batch, None, None))
    growth, read = plain_number(size.bytes_per_token), size.read_bytes_per_step // batch
    head, blank = (size.spec.name, tokens, batch), (None,) * 3
    ranks = (size.bytes_per_rank, size.all_ranks_bytes)
    whole = (growth, size.bytes_per_sequence, read, size.total_bytes, *ranks)
    rows.append((*head, "kv_cache", *blank, None, *blank, *whole))
    rows.append((*head, "weights", *blank, size.weights_format, *blank, *blank, size.weight_bytes, None, None))
    return Table(_COMPONENT_COLUMNS, rows)


_COMPONENT_COLUMNS = (
    Column("model", "model"),
    Column("context_tokens", "context", "tokens"),
    Column("batch", "batch", "count"),
    Column("component", "component"),
    Column("kind", "kind"),
    Column("geometry", "geometry"),
    Column("layers", "layers", "count"),
    Column("format", "format"),
    Column("entries_per_sequence", "entries", "count"),
    Column("bytes_per_entry", "an entry", "bytes"),
    Column("fixed_bytes_per_layer", "fixed a layer", "bytes"),
    Column("bytes_per_token", "a token", "bytes"),
    Column("bytes_per_sequence", "a sequence", "bytes"),
    Column("read_bytes_per_step", "read a step", "bytes"),
    Column("total_bytes", "in all", "bytes"),
    Column("bytes_per_rank", "a rank", "bytes"),
    Column("all_ranks_bytes", "all ranks", "bytes"),
)


def _title(size: CacheSize) -> tuple[str, ...]:
    work = size.workload
    return (
        size.spec.name,
        f"{len(size.layers)} layers: {stack(size)}",
        f"context {work.context_tokens:,}",
        f"batch {work.batch:,}",
        f"KV {kv_formats(size)}",
    )


def stack(size: CacheSize) -> str:
    """What its layers keep, in a few words: `32 kv of 8 KV heads x 128`."""
    if len(size.rows) == 1:
        return f"{size.rows[0].layers} {size.rows[0].name} of {size.rows[0].component.geometry}"
    kept = [f"{row.layers} {row.name}" for row in size.rows[:_MOST_NAMED]]
    more = len(size.rows) - len(kept)
    return " + ".join([*kept, *([f"{more} more"] if more else [])]) or "nothing is cached"


_MOST_NAMED = 8


def kv_formats(size: CacheSize) -> str:
    """The formats of what is kept, as one text."""
    names = list(dict.fromkeys(row.format for row in size.rows if row.component.keeps_entries))
    return ", ".join(names) or "-"


def _bars(size: CacheSize) -> list[Bar]:
    batch, tokens = size.workload.batch, size.workload.context_tokens
    bars = [Bar("KV cache", size.total_bytes, f"per sequence {memory(size.bytes_per_sequence)}")]
    if len(size.rows) > 1 or any(row.fixed_bytes for row in size.rows):
        bars += [Bar(row.name, row.stored_bytes(tokens) * batch, behaviour(row, tokens), depth=1) for row in size.rows]
    if size.weight_bytes is not None:
        bars.append(Bar("weights", size.weight_bytes, _weights_detail(size), drawn=False))
    return bars


def _weights_detail(size: CacheSize) -> str:
    total, active = size.parameters.total or 0, size.parameters.active
    detail = f"{size.weights_format}, {total:,} parameters"
    return f"{detail}, {count_of(active)} active" if active and active < _MOSTLY_IDLE * total else detail


_MOSTLY_IDLE = Fraction(4, 5)
"""Below this share of active parameters experts are idle, and a reader should know."""


def behaviour(row: Row, tokens: int) -> str:
    """How the row behaves as the context grows, and which layers keep and read it."""
    layers = f"{row.layers} layer{'s' if row.layers != 1 else ''} of {row.component.geometry}"
    readers = sum(count for _, count in row.reads)
    shared = f", read by {readers}" if readers > row.layers else ""
    if row.component.grows:
        return f"grows {memory(row.bytes_per_token)} a token, {layers}{shared}"
    cap = row.component.span.cap
    if not row.component.keeps_entries or row.entries(1) == cap:
        return f"constant, {layers}{shared}"
    verb = "full since token" if cap is not None and tokens >= cap else "fills at token"
    return f"{verb} {cap:,}, {layers}{shared}"


def _lines(size: CacheSize) -> list[str]:
    lines = [f"one more token costs {exact_bytes(size.bytes_per_token)} a sequence"]
    if size.fixed_bytes_per_sequence:
        bounded = any(row.component.unbounded() != row.component for row in size.rows)
        when = "fixed once windows are full" if bounded else "fixed"
        lines.append(f"{when}: {exact_bytes(size.fixed_bytes_per_sequence)} a sequence")
    lines.append(f"a decode step reads {memory(size.read_bytes_per_step)}")
    return lines + rank_lines(size) + _what_if(size)


def rank_lines(size: CacheSize) -> list[str]:
    """What the fullest rank and all of them hold, where there is more than one."""
    if size.ranks == 1:
        return []
    replicated = f", replicated {float(size.replication):.3g}x" if size.replication > Fraction(101, 100) else ""
    return [
        f"KV on the fullest rank: {memory(size.bytes_per_rank)}",
        f"KV on all {size.ranks:,} ranks: {memory(size.all_ranks_bytes)}{replicated}",
    ]


def _what_if(size: CacheSize) -> list[str]:
    """What the model's savings are worth: every cache global, every reader with a cache of its own."""
    tokens, batch, now = size.workload.context_tokens, size.workload.batch, size.bytes_per_sequence
    lines = []
    unbounded = sum(
        row.layers * (_entries_unbounded(row, tokens) * row.bytes_per_entry + row.fixed_bytes_per_layer)
        for row in size.rows
    )
    if now and unbounded > now:
        alone = sum(row.layers for row in size.rows if row.component.keeps_entries) == len(size.layers)
        what = "if every layer were global" if alone else "if its windows kept everything"
        lines.append(f"{what}: {memory(unbounded * batch)} ({unbounded / now:.1f}x)")
    own = sum(
        row.stored_bytes(tokens) // row.layers * max(row.layers, sum(n for _, n in row.reads)) for row in size.rows
    )
    if now and own > now:
        lines.append(f"if every reader kept its own: {memory(own * batch)} ({own / now:.1f}x)")
    return lines


def _entries_unbounded(row: Row, tokens: int) -> int:
    if not row.component.keeps_entries:
        return 0
    return int(row.component.unbounded().entries(tokens))
