"""A run as a report: what `kvcalc profile` shows when it is done, and `kvcalc report` later."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from kvcalc.profiler import tables
from kvcalc.profiler.documents import MachineDocument, PointDocument, ProfileDocument, ServedDocument
from kvcalc.profiler.fit import decode_line, decode_points
from kvcalc.profiler.verdict import exit_code
from kvcalc.report import Column, Report, Table, Value
from kvcalc.units import BYTE_RATES, FLOP_RATES, SECONDS, decimal, memory


def profile_report(document: ProfileDocument) -> Report:
    """The run for a terminal; its exit code is 1 where a prediction was off. CSV carries one row a point."""
    held, decode = tables.memory_table(document), tables.decode_table(document)
    others = [tables.prefill_table(document), *tables.served_tables(document), *tables.ranks_tables(document)]
    ops = tables.op_tables(document)
    shown = (held.without(*tables.HIDDEN_OF_MEMORY), decode.without(*tables.HIDDEN_OF_DECODE), *others, *ops[-1:])
    return Report(
        document=cast("Mapping[str, Any]", document),
        title=_title(document),
        lines=tuple(_lines(document)),
        tables=(tables.points_table(document), *_told((held, decode, *others, *ops))),
        shown_tables=_told(shown),
        notes=tuple(_doubts(document)),
        exit_code=exit_code(document["verdict"]),
    )


def _told(found: Iterable[Table]) -> tuple[Table, ...]:
    """The tables that have rows, each without empty columns."""
    return tuple(_filled(table) for table in found if table.rows)


def _filled(table: Table) -> Table:
    """The table without empty columns, but for the spread, whose absence says that there was one sample."""
    kept = {column.key for column in table.filled().columns} | _SPREAD
    return table.without(*(column.key for column in table.columns if column.key not in kept))


_SPREAD = {"p10_seconds", "p90_seconds"}


def _title(document: ProfileDocument) -> tuple[str, ...]:
    asked = document["request"]
    if not asked["layers"]:
        # A server was timed and no model named: nothing is known of its layers and formats.
        return document["model"]["name"], document["environment"]["device_name"], asked["backend"]
    some = asked["layers"] != asked["layers_of_model"]
    return (
        document["model"]["name"],
        f"{asked['layers']:,} of {asked['layers_of_model']:,} layers" if some else f"{asked['layers']:,} layers",
        document["environment"]["device_name"] or document["environment"]["device"],
        f"{asked['dtype']}, KV {tables.kv_formats(document)}",
        asked["backend"],
        *([f"rank 0 of {asked['tp']:,}"] if asked["tp"] > 1 else []),
    )


def _lines(document: ProfileDocument) -> Iterator[str]:
    """Verdict, machine, what a layer costs beside its bytes, and where it ended early."""
    yield verdict_line(document)
    yield from (f"  {reason}" for reason in document["verdict"]["reasons"])
    if document["machine"]:
        yield from machine_lines(document["machine"])
    yield from _overhead_lines(document)
    if served := document["served"]:
        yield from _served_lines(served)
    rules = {rule["name"]: rule["rule"] for point in document["points"] for rule in point["rules"]}
    yield from (f"{name}: {rule}" for name, rule in rules.items())
    yield from (line for point in document["points"] for line in _stopped(point))


def verdict_line(document: ProfileDocument) -> str:
    """Whether memory and time are as predicted, in one line."""
    verdict = document["verdict"]
    allowed = f" {verdict['tolerance']:.4%}".rstrip("0%").rstrip(".") + "%" if verdict["tolerance"] else ""
    time = {
        "not judged": "not judged",
        "within": f"within{allowed} of the prediction",
        "off": f"off by more than{allowed}",
    }
    return f"verdict: memory {_MEMORY[verdict['memory']]}; time {time[verdict['time']]}"


_MEMORY = {"exact": "exact to the byte", "off": "off", "not measured": "not measured"}


def machine_lines(machine: MachineDocument) -> Iterator[str]:
    """What the device did at best, and what its maker says."""
    yield (
        f"measured peak: reads {decimal(machine['read_bytes_per_second'], BYTE_RATES)}, "
        f"copies {decimal(machine['copy_bytes_per_second'], BYTE_RATES)}, "
        f"{machine['gemm_dtype']} GEMM {decimal(machine['gemm_flops_per_second'], FLOP_RATES)}"
    )
    rates = (machine["specified_bytes_per_second"], BYTE_RATES), (machine["specified_flops_per_second"], FLOP_RATES)
    specified = [decimal(rate, scales) for rate, scales in rates if rate is not None]
    if specified:
        yield f"specified: {', '.join(specified)} ({machine['specified_source'] or 'no source'})"


def _overhead_lines(document: ProfileDocument) -> Iterator[str]:
    """What a decode step takes beside reading at the measured peak, and what the line through all points says."""
    if decode := document["decode"]:
        beyond = decode["overhead_seconds_per_layer"]
        if beyond:
            yield f"overhead: {decimal(beyond, SECONDS)} a layer of a step, beyond its bytes at the measured peak"
    if line := decode_line(document):
        fixed = decimal(line.overhead_seconds / document["request"]["layers"], SECONDS)
        rate = decimal(line.bytes_per_second, BYTE_RATES)
        yield f"fixed overhead: {fixed} a layer, then {rate} (a line through {len(decode_points(document))} points)"


def _served_lines(served: ServedDocument) -> Iterator[str]:
    yield f"{served['served_model']} at {served['url']}: {served['tokens_per_second']:,.1f} tokens/s"
    if known := [_figure(name, value) for name, value in served["cache"].items() if value is not None]:
        yield f"its cache: {', '.join(known)}"


def _figure(name: str, value: Any) -> str:
    """A figure of a server's cache with its unit, which ends its name: `peak_tokens`, `predicted_pool_bytes`."""
    what, _, unit = name.rpartition("_")
    if unit in _UNITS:
        return f"{what.replace('_', ' ')} {_UNITS[unit](value)}"
    return f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int | float) else f"{name} {value}"


_UNITS: Mapping[str, Callable[[Any], str]] = {"bytes": memory, "fraction": "{:.1%}".format}


def _stopped(point: PointDocument) -> Iterator[str]:
    if stopped := point["stopped"]:
        place = tables.where(point["context_tokens"], point["batch"])
        if stopped["reason"] == _INTERRUPTED:
            reached = stopped["reached"]
            yield f"{place} interrupted {'before anything ran' if reached == 'nothing' else f'during {reached}'}"
            return
        asked, available = stopped["asked_bytes"], stopped["available_bytes"]
        sizes = f": asked for {memory(asked)}" if asked is not None else ""
        sizes += f", {memory(available)} there" if available is not None else ""
        yield f"{place} ended early at {stopped['reached']}, {stopped['reason']}{sizes}"


_INTERRUPTED = "interrupted"
"""The reason of a stop by the user, for which no bytes are to blame."""


def _doubts(document: ProfileDocument) -> Iterator[str]:
    """Doubts of the run, those of single points that it does not repeat, and notes."""
    yield from (said := dict.fromkeys((*document["doubts"], *document["notes"])))
    for point in document["points"]:
        place = tables.where(point["context_tokens"], point["batch"])
        yield from (f"{place}: {doubt}" for doubt in point["doubts"] if not any(doubt in one for one in said))


def key_figures(document: ProfileDocument) -> Table:
    """One row with what a reader looks for first, of the largest point that was finished."""
    cells = list(_key_cells(document))
    return Table(tuple(column for column, _ in cells), [tuple(value for _, value in cells)])


def _key_cells(document: ProfileDocument) -> Iterator[tuple[Column, Value]]:
    if held := document["components"]:
        yield Column("measured_bytes", "KV cache held", "bytes"), sum(one["measured_bytes"] for one in held)
    if decode := document["decode"]:
        yield Column("step", "a decode step", "seconds"), decode["median_seconds"]
        yield Column("achieved", "read while decoding", "rate"), decode["achieved_bytes_per_second"]
        yield Column("fraction", "of measured peak", "fraction"), decode["bandwidth_fraction"]
        yield Column("overhead", "overhead a layer", "seconds"), decode["overhead_seconds_per_layer"]
    if prefill := document["prefill"]:
        yield Column("prefill", "prefill", "seconds"), prefill["median_seconds"]
        yield Column("flops", "while prefilling", "flops"), prefill["achieved_flops_per_second"]
    if served := document["served"]:
        yield Column("ttft", "time to first token", "seconds"), served["ttft"]["median_seconds"]
        yield Column("tpot", "time per output token", "seconds"), served["tpot"]["median_seconds"]
        yield Column("tokens_per_second", "tokens a second", "number"), served["tokens_per_second"]


def samples_table(document: ProfileDocument) -> Table:
    """Every raw sample, in the order in which it was taken."""
    columns = (*tables.POINT, Column("what", "what"), Column("samples", "seconds"))
    rows = [
        (*key, ", ".join(f"{sample:.6g}" for sample in series["samples_seconds"]))
        for key, series in tables.series_of(document).items()
    ]
    return Table(columns, rows, "Raw samples")
