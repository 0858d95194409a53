"""A simulation as tables: settings side by side, times that users see, and the hit-rate curve."""

from typing import TYPE_CHECKING

from kvcalc.report import Column, Table, Unit, Value
from kvcalc.workload.answer import Answer
from kvcalc.workload.runs import Run, names_of

if TYPE_CHECKING:
    from kvcalc.workload.documents import HitCurveDocument


def times_table(run: Run) -> Table:
    """What users see: a column a time, a row a percentile."""
    found = run.metrics
    named = {
        "TTFT": found.ttft,
        "TPOT": found.tpot,
        "whole request": found.e2e,
        "waiting for room": found.queueing,
    }
    spreads = {name: spread for name, spread in named.items() if spread is not None}
    unit: Unit = "seconds" if run.case.server.is_timed else "number"
    columns = (Column("of", "" if unit == "seconds" else "steps"), *(Column(name, name, unit) for name in spreads))
    each = [(spread.mean, *spread.percentiles, spread.largest) for spread in spreads.values()]
    rows: list[tuple[Value, ...]] = [(name, *(one[place] for one in each)) for place, name in enumerate(_SPREAD)]
    return Table(columns, rows if spreads else [])


_SPREAD = ("mean", "p50", "p90", "p95", "p99", "largest")


def settings_table(answer: Answer) -> Table:
    """A row a setting; what no setting has is left out."""
    unit: Unit = "seconds" if answer.is_timed else "number"
    columns = (
        Column("setting", "setting"),
        Column("finished", "done", "count"),
        Column("refused", "refused", "count"),
        Column("unfinished", "cut off", "count"),
        Column("pool_bytes", "pool", "bytes"),
        Column("peak_bytes", "peak", "bytes"),
        Column("pool_mean", "mean use", "fraction"),
        Column("token_states", "tokens", "fraction"),
        Column("reserved", "reserved", "fraction"),
        Column("internal", "internal", "fraction"),
        Column("external", "external", "fraction"),
        Column("cached", "kept", "fraction"),
        Column("hit_rate", "hit rate", "fraction"),
        Column("running_mean", "running", "number"),
        Column("waiting_mean", "waiting", "number"),
        Column("preemptions", "preempted", "count"),
        Column("ttft_p99", "TTFT p99", unit),
        Column("tpot_p99", "TPOT p99", unit),
        Column("duration", "duration" if answer.is_timed else "steps", unit),
        Column("output_tokens_rate", "tokens/s" if answer.is_timed else "tokens/step", "number"),
    )
    rows = [_row(run, name) for run, name in zip(answer.runs, names_of(answer.runs), strict=True)]
    table = Table(columns, rows)
    empty = [
        column.key
        for place, column in enumerate(columns)
        if column.key in ("refused", "unfinished", "preemptions", "cached", "setting")
        and not any(row[place] for row in rows)
    ]
    return table.without(*empty).filled()


def shown_table(table: Table) -> Table:
    """What a screen has room for: shares to a thousandth, and no more than what is held."""
    shares = {place for place, column in enumerate(table.columns) if column.unit == "fraction"}
    rows = [
        tuple(round(float(cell), 3) if place in shares and cell is not None else cell for place, cell in enumerate(row))
        for row in table.rows
    ]
    return Table(table.columns, rows, table.title).without("external", "cached", "output_tokens_rate")


def _row(run: Run, name: str) -> tuple[Value, ...]:
    found, shares = run.metrics, run.metrics.pool
    return (
        name,
        found.finished,
        sum(run.outcome.refused.values()),
        run.served - found.finished,
        run.case.pool.pool_bytes,
        run.outcome.totals.peak_units * run.case.setting.layout.bytes_per_unit,
        shares.filled + shares.reserved + shares.internal,
        shares.filled,
        shares.reserved,
        shares.internal,
        shares.external,
        shares.cached,
        found.hit_rate if run.case.setting.prefix_caching else None,
        found.mean_running,
        found.mean_waiting,
        found.preemptions,
        None if found.ttft is None else found.ttft.percentiles[3],
        None if found.tpot is None else found.tpot.percentiles[3],
        run.outcome.totals.seconds,
        found.output_tokens_per_second,
    )


def curve_table(curve: "HitCurveDocument") -> Table:
    """A few capacities of the whole curve."""
    columns = (
        Column("capacity_tokens", "tokens kept", "tokens"),
        Column("capacity_bytes", "of cache", "bytes"),
        Column("hit_rate", "hit rate", "fraction"),
        Column("of_largest", "of the largest", "fraction"),
    )
    largest = curve["unlimited"] or 1.0
    rows, before = [], -1
    for share in _SHOWN:
        place = next((at for at, rate in enumerate(curve["hit_rates"]) if rate >= share * largest), None)
        if place is not None and place != before:
            before = place
            tokens, rate = curve["capacity_tokens"][place], curve["hit_rates"][place]
            rows.append((tokens, round(tokens * curve["bytes_per_token"]), rate, rate / largest))
    return Table(
        columns, rows, f"Hit rate of a cache that keeps prefixes alone, blocks of {curve['block_tokens']:,} tokens"
    )


_SHOWN = (0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
