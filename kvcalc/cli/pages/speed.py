"""Pages of speed: one throughput, and a calibration."""

from kvcalc.render.html import Page, Section
from kvcalc.report import Column, Table, Value
from kvcalc.speed.charts import measured_chart, time_charts
from kvcalc.speed.documents import CalibrateDocument, DecodeDocument, PrefillDocument, ThroughputDocument
from kvcalc.units import SECONDS, counted, decimal


def throughput_page(document: ThroughputDocument) -> Page:
    """How fast, between which bounds, and where the time goes."""
    asked, decode = document["request"], document["decode"]
    return Page(
        title=document["model"]["name"],
        facts=[
            f"{asked['gpu']} under {asked['engine']}",
            *(f"{key} {asked[key]:,}" for key in ("tp", "pp", "dp", "ep", "dcp") if asked[key] > 1),
            f"{asked['isl']:,} tokens in, {asked['osl']:,} out",
            f"batch {asked['batch']:,}",
            f"weights {asked['weights']}, KV {asked['kv_dtype']}",
        ],
        answer=f"{decode['tokens_per_second_total']:,.0f} tokens/s in decode alone, a step in "
        f"{decimal(decode['step_seconds'], SECONDS)}, limited by {decode['limited_by']}",
        key_figures=_figures(document),
        sections=(
            Section("Charts", charts=time_charts(document)),
            Section("Estimates and bounds", tables=[_bounds(document)]),
        ),
        notes=document["notes"],
    )


def _figures(document: ThroughputDocument) -> Table:
    decode, served = document["decode"], document["served"]
    cells = {
        Column("total", "tokens/s in decode", "number"): decode["tokens_per_second_total"],
        Column("each", "tokens/s a sequence", "number"): decode["tokens_per_second_per_sequence"],
        Column("prefill", "prefill of a prompt", "seconds"): document["prefill"]["seconds"],
        Column("batch", "compute-bound from batch", "count"): decode["compute_bound_batch"],
        Column("context", "more cache than weights from", "tokens"): decode["kv_bound_context_tokens"],
    }
    if served:
        cells[Column("served", "tokens/s served", "number")] = served["tokens_per_second_total"]
    return Table(tuple(cells), [tuple(cells.values())])


def _bounds(document: ThroughputDocument) -> Table:
    prefill, decode, served = document["prefill"], document["decode"], document["served"]
    rows: list[tuple[Value, ...]] = [
        ("prefill of a prompt", prefill["seconds"], *_bounds_of(prefill)),
        ("decode step", decode["step_seconds"], *_bounds_of(decode)),
    ]
    if served:
        tpot = served["tpot_seconds"], served["tpot_lower_seconds"], served["tpot_upper_seconds"]
        ttft = served["ttft_seconds"], served["ttft_lower_seconds"], served["ttft_upper_seconds"]
        rows.append(("TPOT, served", *tpot, served["tpot_limited_by"]))
        rows.append(("TTFT, served (uncertain)", *ttft, None))
    columns = (
        Column("what", "time"),
        Column("seconds", "estimate", "seconds"),
        Column("lower_seconds", "at least", "seconds"),
        Column("upper_seconds", "at most", "seconds"),
        Column("limited_by", "limited by"),
    )
    return Table(columns, rows, "Estimates and bounds")


def _bounds_of(timing: PrefillDocument | DecodeDocument) -> tuple[Value, ...]:
    return timing["lower_seconds"], timing["upper_seconds"], timing["limited_by"]


def calibrate_page(document: CalibrateDocument) -> Page:
    """How far predictions are off, and the factors that bring them nearer."""
    before, left_out = document["error_before"], document["error_left_out"]
    after = f", {left_out['mape']:.1%} calibrated and left out" if left_out else ""
    factors = [(name, factor) for name, factor in document["factors"].items()]
    columns = (Column("name", "term"), Column("factor", "factor of time", "ratio"))
    return Page(
        title=f"Calibration of {document['gpu']} under {document['engine']}",
        facts=[counted(document["points"], "point"), document["date"]],
        answer=f"mean error {before['mape']:.1%} before{after}",
        sections=(
            Section("Charts", charts=[measured_chart(document)] if document["measurements"] else []),
            Section("Factors", tables=[Table(columns, factors, "Factors")]),
        ),
        notes=document["notes"],
    )
