"""The page of a simulation: what was needed, what was waste, who waited."""

from collections.abc import Iterator
from typing import Literal

from kvcalc.render.html import Page, Section
from kvcalc.report import Column, Table, Unit, Value
from kvcalc.units import SECONDS, counted, decimal, memory
from kvcalc.workload.charts import simulate_charts
from kvcalc.workload.documents import RunDocument, SimulateDocument


def simulate_page(document: SimulateDocument) -> Page:
    """Pool, queue and waste over time, hit rates and times, and a row a setting."""
    runs, trace = document["runs"], document["trace"]
    kept = [goals["meets"] for goals in document["goals"]]
    return Page(
        title=f"{document['model']['name']} under {trace['name']}",
        facts=list(_facts(document)),
        answer=_need(runs[0]) if len(runs) == 1 else f"{counted(trace['requests'], 'request')}, {len(runs)} settings",
        is_good=all(kept) if kept else None,
        key_figures=_key_figures(runs[0]) if len(runs) == 1 else Table((), []),
        lines=[line for run in runs for line in _lines(run, document["time"] == "seconds")],
        sections=(
            Section("Charts", charts=simulate_charts(document)),
            Section("Times", tables=[_times(run, document["time"] == "seconds") for run in runs]),
            Section("Settings", tables=[_settings(document)]),
        ),
        notes=document["notes"],
    )


def _facts(document: SimulateDocument) -> Iterator[str]:
    setting = document["runs"][0]["setting"]
    yield f"{setting['gpus']} x {setting['gpu']}" if setting["gpu"] else "a pool that was given"
    yield setting["engine"] or "no engine"
    if not document["complete"]:
        yield "interrupted: the figures are of what is done"


def _need(run: RunDocument) -> str:
    use = run["use"]
    return f"{memory(use['peak_bytes'])} of cache at the peak, {use['peak']:.1%} of the pool"


def _lines(run: RunDocument, is_timed: bool) -> Iterator[str]:
    at_once, name = run["at_once"], run["setting"]["name"]
    running = f"{at_once['running_mean']:,.3g} requests run at once, at most {at_once['running_peak']:,}"
    waiting = f"{at_once['waiting_mean']:,.3g} wait, at most {at_once['waiting_peak']:,}" if is_timed else "all wait"
    yield f"{name}: {running}; {waiting}" if name else f"{running}; {waiting}"


def _key_figures(run: RunDocument) -> Table:
    shares, times = run["use"]["shares"], run["times"]
    held = run["use"]["mean"] or 1.0
    cells: dict[str, Value] = {
        "pool": memory(run["pool"]["bytes"]),
        "mean use": f"{run['use']['mean']:.1%}",
        "of it tokens": f"{shares['token_states'] / held:.1%}",
        "hit rate": None if run["prefixes"] is None else f"{run['prefixes']['hit_rate']:.1%}",
        "preempted": f"{run['preemptions']['count']:,}",
        "TTFT p99": None if times["ttft"] is None else decimal(times["ttft"]["p99"], SECONDS),
        "TPOT p99": None if times["tpot"] is None else decimal(times["tpot"]["p99"], SECONDS),
    }
    return Table(tuple(Column(name, name) for name in cells), [tuple(cells.values())]).filled()


def _times(run: RunDocument, is_timed: bool) -> Table:
    unit: Unit = "seconds" if is_timed else "number"
    times = run["times"]
    named = {
        "TTFT": times["ttft"],
        "TPOT": times["tpot"],
        "whole request": times["e2e"],
        "waiting for room": times["queueing"],
    }
    spreads = [(name, spread) for name, spread in named.items() if spread is not None]
    keys: tuple[Literal["mean", "p50", "p90", "p95", "p99", "largest"], ...]
    keys = ("mean", "p50", "p90", "p95", "p99", "largest")
    columns = (Column("of", ""), *(Column(name, name, unit) for name, _ in spreads))
    rows: list[tuple[Value, ...]] = [(key, *(spread[key] for _, spread in spreads)) for key in keys]
    return Table(columns, rows if spreads else [], run["setting"]["name"])


def _settings(document: SimulateDocument) -> Table:
    columns = (
        Column("setting", "setting"),
        Column("finished", "done", "count"),
        Column("pool_bytes", "pool", "bytes"),
        Column("peak_bytes", "peak", "bytes"),
        Column("mean", "mean use", "fraction"),
        Column("token_states", "tokens", "fraction"),
        Column("reserved", "reserved", "fraction"),
        Column("internal", "internal", "fraction"),
        Column("external", "external", "fraction"),
        Column("hit_rate", "hit rate", "fraction"),
        Column("running", "running", "number"),
        Column("waiting", "waiting", "number"),
        Column("preemptions", "preempted", "count"),
    )
    return Table(columns, [_row(run) for run in document["runs"]]).filled()


def _row(run: RunDocument) -> tuple[Value, ...]:
    use, at_once, prefixes = run["use"], run["at_once"], run["prefixes"]
    shares = use["shares"]
    return (
        run["setting"]["name"] or "the one asked for",
        run["requests"]["finished"],
        run["pool"]["bytes"],
        use["peak_bytes"],
        use["mean"],
        shares["token_states"],
        shares["reserved"],
        shares["internal"],
        shares["external"],
        None if prefixes is None else prefixes["hit_rate"],
        at_once["running_mean"],
        at_once["waiting_mean"],
        run["preemptions"]["count"],
    )
