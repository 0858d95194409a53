"""A throughput as a report: the JSON contract of `kvcalc throughput`, and the screen beside it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvcalc.report import Column, Report, Table
from kvcalc.speed.throughput import Served, Throughput
from kvcalc.speed.timing import Timing
from kvcalc.units import count_of

if TYPE_CHECKING:
    from kvcalc.speed.calibrated import CalibrationFile
    from kvcalc.speed.documents import (
        AppliedDocument,
        DecodeDocument,
        LoadDocument,
        PrefillDocument,
        ServedDocument,
        TermDocument,
        ThroughputDocument,
        TimingDocument,
    )

SCHEMA = "kvcalc.throughput/1"


def throughput_report(found: Throughput, calibration: "CalibrationFile | None" = None) -> Report:
    """The answer of `kvcalc throughput`, with what its `calibration` rests on where it has one.

    Exit code 1 where requests come faster than they are answered.
    """
    served = found.served
    overrun = served is not None and served.utilisation is not None and served.utilisation >= 1
    return Report(
        document=throughput_document(found, calibration),
        title=tuple(_title(found)),
        lines=(*_lines(found), *([calibration.provenance] if calibration else [])),
        tables=(_summary(found), _term_table(found)),
        notes=found.notes,
        exit_code=1 if overrun else 0,
    )


def throughput_document(found: Throughput, calibration: "CalibrationFile | None" = None) -> "ThroughputDocument":
    """The versioned JSON document: plain numbers under names that carry the unit."""
    return {
        "schema": SCHEMA,
        "model": {"name": found.spec.name, "source": found.spec.source},
        "request": _request(found),
        "prefill": _prefill(found),
        "decode": _decode(found),
        "served": None if found.served is None else _served(found, found.served),
        "terms": _terms(found.decode),
        "bands": found.bands,
        "calibration": _applied(found, calibration),
        "notes": list(found.notes),
    }


def _applied(found: Throughput, one: "CalibrationFile | None") -> "AppliedDocument":
    return {
        "factors": found.scales.factors,
        "points": None if one is None else one.points,
        "date": None if one is None else one.date,
        "device": None if one is None else one.device,
        "driver": None if one is None else one.driver,
        "error_before": None if one is None else one.error_before,
        "error_left_out": None if one is None else one.error_left_out,
    }


def _request(found: Throughput) -> "LoadDocument":
    load, size, sharding = found.load, found.setting.model.size, found.use.sharding
    return {
        "gpu": found.setting.machine.gpu.name,
        "engine": found.setting.machine.engine,
        "isl": load.isl,
        "osl": load.osl,
        "context_tokens": load.context,
        "batch": load.batch,
        "weights": found.use.weights or size.weights_format,
        "kv_dtype": found.use.kv_dtype,
        "dtype": size.packer.dtype,
        "shared_prefix_tokens": load.shared_prefix,
        "draft_tokens": load.draft_tokens,
        "acceptance": load.acceptance,
        "rate_per_second": load.rate,
        "tp": sharding.tp,
        "pp": sharding.pp,
        "dp": sharding.dp,
        "ep": sharding.ep,
        "dcp": sharding.dcp,
        "attention_dp": found.use.attention_dp,
    }


def _prefill(found: Throughput) -> "PrefillDocument":
    own = found.load.isl - found.load.shared_prefix
    return {**_timing(found.prefill), "tokens_per_second": own / found.prefill.seconds}


def _decode(found: Throughput) -> "DecodeDocument":
    decode = found.decode
    return {
        "step_seconds": decode.seconds,
        "lower_seconds": decode.lower_seconds,
        "upper_seconds": decode.upper_seconds,
        "limited_by": decode.limited_by,
        "tokens_per_second_total": found.tokens_per_second,
        "tokens_per_second_per_sequence": found.tokens_per_second_per_sequence,
        "tokens_per_step": found.load.tokens_a_step,
        "compute_bound_batch": found.compute_bound_batch,
        "kv_bound_context_tokens": found.cache_bound_context,
    }


def _served(found: Throughput, served: Served) -> "ServedDocument":
    return {
        "tpot_seconds": served.tpot.seconds,
        "tpot_lower_seconds": served.tpot.lower_seconds,
        "tpot_upper_seconds": served.tpot.upper_seconds,
        "tpot_limited_by": served.tpot.limited_by,
        "ttft_seconds": served.ttft.seconds,
        "ttft_lower_seconds": served.ttft.lower_seconds,
        "ttft_upper_seconds": served.ttft.upper_seconds,
        "ttft_is_uncertain": True,
        "queued_ttft_seconds": served.queued_ttft_seconds,
        "utilisation": served.utilisation,
        "running_sequences": served.running,
        "tokens_per_second_total": served.running / served.tpot.seconds,
        "terms": _terms(served.tpot),
    }


def _timing(timing: Timing) -> "TimingDocument":
    return {
        "seconds": timing.seconds,
        "lower_seconds": timing.lower_seconds,
        "upper_seconds": timing.upper_seconds,
        "limited_by": timing.limited_by,
        "terms": _terms(timing),
    }


def _terms(timing: Timing) -> "list[TermDocument]":
    return [{"name": term.name, "seconds": term.seconds, "limited_by": term.limited_by} for term in timing.terms]


def _title(found: Throughput) -> Iterator[str]:
    load, machine, sharding = found.load, found.setting.machine, found.use.sharding
    yield found.spec.name
    ranks = [f"{name} {size}" for name, size in (("tp", sharding.tp), ("pp", sharding.pp), ("dp", sharding.dp),
             ("ep", sharding.ep), ("dcp", sharding.dcp)) if size > 1]  # fmt: skip
    if found.use.attention_dp:
        ranks.append("attention-dp")
    yield " ".join([f"{machine.gpu.name} under {machine.engine}", *ranks])
    yield f"{load.isl:,} tokens in, {load.osl:,} out, batch {load.batch:,}"
    numbers = found.setting.numbers
    yield f"weights {found.use.weights or numbers.matrices.name}, KV {found.use.kv_dtype}"


def _lines(found: Throughput) -> Iterator[str]:
    per_sequence = found.tokens_per_second_per_sequence
    yield f"{found.tokens_per_second:,.0f} tokens/s in all, {per_sequence:,.1f} a sequence, in decode alone"
    if found.served is not None:
        yield from _served_lines(found.served)
    batch, context = found.compute_bound_batch, found.cache_bound_context
    yield (
        "matrices stay limited by bandwidth at any batch"
        if batch is None
        else (f"matrices turn compute-bound at batch {count_of(batch)}")
    )
    yield (
        "the KV cache never passes the weights"
        if context is None
        else (f"a step reads more KV cache than weights from context {count_of(context)} on")
    )
    shown = ("prefill", "decode") if found.served is None else found.bands
    bands = ", ".join(f"{what} +{band:.0%}" for what, band in found.bands.items() if what in shown)
    yield f"at least: all bytes or all FLOPs at the peak; at most: nine in ten held-out measurements ({bands})"


def _served_lines(served: Served) -> Iterator[str]:
    total = served.running / served.tpot.seconds
    yield f"served: {total:,.0f} tokens/s in all, {served.running:,} requests in the batch"
    if served.utilisation is not None:
        queued = served.queued_ttft_seconds
        waits = "the queue only grows" if queued is None else f"TTFT with the queue {queued * 1e3:,.0f} ms, uncertain"
        yield f"at that rate the GPUs are {served.utilisation:.0%} busy: {waits}"


def _summary(found: Throughput) -> Table:
    columns = (
        Column("what", ""),
        Column("seconds", "estimate", "seconds"),
        Column("lower_seconds", "at least", "seconds"),
        Column("upper_seconds", "at most", "seconds"),
        Column("limited_by", "limited by"),
    )
    rows = [("prefill of a prompt", found.prefill), ("decode step", found.decode)]
    if found.served is not None:
        rows += [("TPOT, served", found.served.tpot), ("TTFT, served (uncertain)", found.served.ttft)]
    cells = [(name, one.seconds, one.lower_seconds, one.upper_seconds, one.limited_by) for name, one in rows]
    return Table(columns, cells)


def _term_table(found: Throughput) -> Table:
    """The terms of the decode step, or of a served token, and their sum."""
    timing, what = (found.decode, "decode step") if found.served is None else (found.served.tpot, "TPOT, served")
    columns = (Column("term", what), Column("seconds", "time", "seconds"), Column("limited_by", "limited by"))
    rows = [(term.name, term.seconds, term.limited_by) for term in timing.terms if term.seconds > 0]
    return Table(columns, [*rows, ("all of them", timing.seconds, timing.limited_by)])
