"""A run as tables: bytes held, times of prefill and decode, operations, and what a reader may ask for later."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from kvcalc.profiler.documents import (
    DecodeDocument,
    OpDocument,
    PointDocument,
    PrefillDocument,
    ProfileDocument,
    SeriesDocument,
)
from kvcalc.profiler.fit import step_bytes
from kvcalc.report import Column, Table, Value

POINT = (Column("context_tokens", "context", "tokens"), Column("batch", "batch", "count"))


def _place(point: PointDocument) -> tuple[Value, ...]:
    return point["context_tokens"], point["batch"]


def where(context_tokens: int, batch: int) -> str:
    """A point in words."""
    return f"context {context_tokens:,}, batch {batch:,}"


def kv_formats(document: ProfileDocument) -> str:
    """The formats in which the caches are held; what was asked for where none was measured."""
    formats = dict.fromkeys(one["format"] for point in document["points"] for one in point["components"])
    return " + ".join(formats) or document["request"]["kv_dtype"]


def points_table(document: ProfileDocument) -> Table:
    """One row a point: bytes predicted and measured, prefill and decode."""
    columns = (
        Column("model", "model"),
        *POINT,
        Column("predicted_bytes", "predicted", "bytes"),
        Column("measured_bytes", "measured", "bytes"),
        Column("weight_bytes", "weights", "bytes"),
        Column("peak_bytes", "peak", "bytes"),
        *_keyed("prefill_", _PREFILL),
        *_keyed("decode_", _DECODE),
        Column("stopped", "stopped"),
    )
    return Table(columns, [_point_row(document, point) for point in document["points"]], "Points")


def _keyed(prefix: str, columns: Iterable[Column]) -> Iterator[Column]:
    for column in columns:
        yield Column(prefix + column.key, column.heading, column.unit)


def _point_row(document: ProfileDocument, point: PointDocument) -> tuple[Value, ...]:
    held, stopped = [*point["components"], *point["rules"]], point["stopped"]
    return (
        document["model"]["name"],
        *_place(point),
        sum(one["predicted_bytes"] for one in held),
        sum(one["measured_bytes"] for one in held),
        point["weight_bytes"],
        point["peak_bytes"],
        *(_prefill_cells(point["prefill"]) if point["prefill"] else [None] * len(_PREFILL)),
        *(_decode_cells(point["decode"]) if point["decode"] else [None] * len(_DECODE)),
        stopped["reason"] if stopped else None,
    )


def memory_table(document: ProfileDocument) -> Table:
    """Bytes of every component, of the rules beside them, and of the allocator, at every point."""
    columns = (
        *POINT,
        Column("component", "holds"),
        Column("kind", "kind"),
        Column("format", "format"),
        Column("layers", "layers", "count"),
        Column("predicted_bytes", "predicted", "exact bytes"),
        Column("measured_bytes", "measured", "exact bytes"),
        Column("error_bytes", "error", "exact bytes"),
        Column("predicted_read_bytes_per_step", "read a step", "exact bytes"),
        Column("counted_read_bytes_per_step", "counted", "exact bytes"),
    )
    rows = [(*_place(point), *cells) for point in document["points"] for cells in _held_rows(point)]
    return Table(columns, rows, "Memory: predicted, and the bytes of the tensors' storages")


HIDDEN_OF_MEMORY = ("kind", "layers")


def _held_rows(point: PointDocument) -> Iterator[tuple[Value, ...]]:
    for held in point["components"]:
        kept = held["name"], held["kind"], held["format"], held["layers"]
        reads = held["predicted_read_bytes_per_step"], held["counted_read_bytes_per_step"]
        yield (*kept, *_against(held["predicted_bytes"], held["measured_bytes"]), *reads)
    for rule in point["rules"]:
        against = _against(rule["predicted_bytes"], rule["measured_bytes"])
        yield (rule["name"], "rule", None, None, *against, None, None)
    if allocator := point["allocator"]:
        name = f"allocator, {allocator['tensors']:,} tensors"
        against = _against(allocator["predicted_bytes"], allocator["measured_bytes"])
        yield (name, "allocator", None, None, *against, None, None)


def _against(predicted: int, measured: int | None) -> tuple[Value, ...]:
    return predicted, measured, None if measured is None else measured - predicted


def decode_table(document: ProfileDocument) -> Table:
    """Decode steps at the end of each context."""
    rows = [(*_place(point), *_decode_cells(point["decode"])) for point in document["points"] if point["decode"]]
    return Table((*POINT, *_DECODE), rows, "Decode: one step of the whole batch")


_DECODE = (
    Column("median_seconds", "step", "seconds"),
    Column("p10_seconds", "p10", "seconds"),
    Column("p90_seconds", "p90", "seconds"),
    Column("total_bytes_per_step", "reads", "bytes"),
    Column("read_bytes_per_step", "of caches", "bytes"),
    Column("achieved_bytes_per_second", "achieved", "rate"),
    Column("bandwidth_fraction", "of peak", "fraction"),
    Column("specified_fraction", "of specified", "fraction"),
    Column("predicted_seconds", "predicted", "seconds"),
    Column("measured_to_predicted", "vs predicted", "ratio"),
    Column("graph_seconds", "as a graph", "seconds"),
    Column("host_seconds", "host", "seconds"),
    Column("tokens_per_second", "tokens/s", "number"),
)
HIDDEN_OF_DECODE = ("read_bytes_per_step", "host_seconds", "tokens_per_second")


def _decode_cells(decode: DecodeDocument) -> tuple[Value, ...]:
    return (
        *_percentiles(decode),
        step_bytes(decode),
        decode["read_bytes_per_step"],
        decode["achieved_bytes_per_second"],
        decode["bandwidth_fraction"],
        decode["specified_fraction"],
        decode["predicted_seconds"],
        _ratio(decode["median_seconds"], decode["predicted_seconds"]),
        decode["graph_seconds"],
        decode["host_seconds"],
        decode["tokens_per_second"],
    )


def prefill_table(document: ProfileDocument) -> Table:
    """Prompts from empty caches."""
    rows = [(*_place(point), *_prefill_cells(point["prefill"])) for point in document["points"] if point["prefill"]]
    return Table((*POINT, *_PREFILL), rows, "Prefill: the whole prompt from empty caches")


_PREFILL = (
    Column("tokens", "tokens", "tokens"),
    Column("median_seconds", "time", "seconds"),
    Column("p10_seconds", "p10", "seconds"),
    Column("p90_seconds", "p90", "seconds"),
    Column("achieved_flops_per_second", "achieved", "flops"),
    Column("flops_fraction", "of peak", "fraction"),
    Column("predicted_seconds", "predicted", "seconds"),
    Column("measured_to_predicted", "vs predicted", "ratio"),
    Column("tokens_per_second", "tokens/s", "number"),
)


def _prefill_cells(prefill: PrefillDocument) -> tuple[Value, ...]:
    return (
        prefill["tokens"],
        *_percentiles(prefill),
        prefill["achieved_flops_per_second"],
        prefill["flops_fraction"],
        prefill["predicted_seconds"],
        _ratio(prefill["median_seconds"], prefill["predicted_seconds"]),
        prefill["tokens_per_second"],
    )


def _percentiles(series: SeriesDocument | PrefillDocument | DecodeDocument) -> tuple[Value, ...]:
    """Median, p10 and p90; one sample has no spread, so only its median is told."""
    spread = (series["p10_seconds"], series["p90_seconds"]) if len(series["samples_seconds"]) > 1 else (None, None)
    return series["median_seconds"], *spread


def _ratio(measured: float, predicted: float) -> float | None:
    return measured / predicted if predicted > 0 else None


def op_tables(document: ProfileDocument) -> list[Table]:
    """Operations of a decode step on their own, a table a point."""
    return [
        Table(_OPS, [_op_cells(op) for op in point["ops"]], f"Operations of a decode step at {where(*place)}")
        for point in document["points"]
        if point["ops"] and (place := (point["context_tokens"], point["batch"]))
    ]


_OPS = (
    Column("op", "operation"),
    Column("kernel", "best kernel"),
    Column("calls", "calls", "count"),
    Column("seconds", "time", "seconds"),
    Column("bytes", "bytes", "bytes"),
    Column("bytes_per_second", "achieved", "rate"),
    Column("flops_per_second", "arithmetic", "flops"),
    Column("roofline_fraction", "of roofline", "fraction"),
)


def _op_cells(op: OpDocument) -> tuple[Value, ...]:
    return (
        op["name"],
        op["kernel"],
        op["calls"],
        op["seconds"],
        op["bytes"],
        op["bytes_per_second"],
        op["flops_per_second"],
        op["roofline_fraction"],
    )


def served_tables(document: ProfileDocument) -> list[Table]:
    """A server's two times, where one was asked."""
    served = document["served"]
    if not served:
        return []
    median = Column("median_seconds", "median", "seconds")
    columns = (Column("what", "time"), median, *_DECODE[1:3], Column("samples", "streams", "count"))
    times = {"time to first token": served["ttft"], "time per output token": served["tpot"]}
    rows = [(name, *_percentiles(one), len(one["samples_seconds"])) for name, one in times.items()]
    return [Table(columns, rows, "Served")]


def ranks_tables(document: ProfileDocument) -> list[Table]:
    """What every rank held at the last point that tells, and how fast it stepped; none where there is one rank."""
    points = [point for point in document["points"] if point.get("ranks")]
    if not points:
        return []
    point = points[-1]
    rows = [tuple(rank[column.key] for column in _RANKS) for rank in point["ranks"]]
    copies = f"; together {point['replication']:.4g} copies of the caches" if "replication" in point else ""
    return [Table(_RANKS, rows, f"Ranks at {where(point['context_tokens'], point['batch'])}{copies}")]


_RANKS = (
    Column("rank", "rank", "count"),
    Column("predicted_bytes", "predicted", "exact bytes"),
    Column("measured_bytes", "measured", "exact bytes"),
    Column("weight_bytes", "weights", "bytes"),
    Column("decode_seconds", "decode step", "seconds"),
)


def environment_table(document: ProfileDocument) -> Table:
    """Where and with what it ran, and what was asked: a row a fact that the machine told."""
    facts = cast("Mapping[str, Any]", {**document["environment"], **document["request"]})
    rows = [(name.replace("_", " "), _fact(value)) for name, value in facts.items() if value not in (None, [], {})]
    return Table((Column("fact", ""), Column("value", "")), rows, "Environment and request")


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(_fact(part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def series_of(document: ProfileDocument) -> dict[tuple[int, int, str], SeriesDocument]:
    """Every series of the run by context, batch and name; a server's by the first that was asked for."""
    found: dict[tuple[int, int, str], SeriesDocument] = {}
    for point in document["points"]:
        for what, series in (("prefill", point["prefill"]), ("decode", point["decode"])):
            if series:
                found[point["context_tokens"], point["batch"], what] = series
    if served := document["served"]:
        asked = document["request"]["contexts"][0], document["request"]["batches"][0]
        found |= {(*asked, "time to first token"): served["ttft"], (*asked, "time per output token"): served["tpot"]}
    return found
