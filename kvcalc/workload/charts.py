"""Charts of a simulation: what the pool was spent on, who waited how long, and what a cache would find."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvcalc.chart import Axis, Chart, Series
from kvcalc.report import Unit
from kvcalc.units import SECONDS, counted, decimal

if TYPE_CHECKING:
    from kvcalc.workload.documents import HitCurveDocument, RunDocument, SearchDocument, SimulateDocument

SHARES = {
    "token_states": "token states",
    "reserved": "reserved",
    "internal": "internal fragmentation",
    "cached": "cached prefixes",
    "external": "external, free",
}
"""Shares of a pool by their keys, in the order in which they stand on one another."""
MOST_TIMELINES = 4
"""Settings whose pools are drawn over time, one chart each."""


def simulate_charts(document: "SimulateDocument") -> tuple[Chart, ...]:
    """All charts of a kvcalc.simulate/1 document that it has figures for."""
    runs = document["runs"]
    clock: Unit = "seconds" if document["time"] == "seconds" else "count"
    found: list[Chart | None] = [waste_chart(runs)]
    for place, run in enumerate(runs[:MOST_TIMELINES]):
        found += [pool_chart(run, place, clock), queue_chart(run, place, clock)]
    found += [hit_chart(document["hit_curves"])]
    found += [times_chart(runs, key, clock) for key in ("ttft", "tpot")]
    for place, goals in enumerate(document["goals"]):
        rates = [search for search in goals["searches"] if search["what"] == "rate"]
        found += [rate_chart(search, goals["max_ttft_seconds"], place) for search in rates]
    return tuple(chart for chart in found if chart is not None)


def waste_chart(runs: "Sequence[RunDocument]") -> Chart:
    """Where each setting's pool was on average, as figure 2 of arXiv 2309.06180 has it; no share that none has."""
    names = [_name(run) for run in runs]
    series = tuple(
        Series(name, names, shares, "bar")
        for key, name in SHARES.items()
        if any(shares := [run["use"]["shares"][key] for run in runs])  # type: ignore[literal-required]
    )
    best = max(runs, key=lambda run: run["use"]["shares"]["token_states"])
    most = f"{best['use']['shares']['token_states']:.1%} of the pool holds what requests have written"
    says = f"Over all of the time {most}{f', the most: {_name(best)}' if len(runs) > 1 else ''}."
    return Chart(
        "waste", "Where the pool is", Axis("", "text"), Axis("share of the pool", "fraction"), series, says, True
    )


def pool_chart(run: "RunDocument", place: int, clock: Unit) -> Chart | None:
    """Shares of the pool over time; None where nobody looked."""
    seen = run["timeline"]
    if not seen["seconds"]:
        return None
    held = [a + b for a, b in zip(seen["held"], seen["cached"], strict=True)]
    lines = {"token states": seen["token_states"], "held by requests": seen["held"]}
    if any(seen["cached"]):
        lines["with cached prefixes"] = held
    says = f"Requests hold {run['use']['mean']:.0%} of the pool on average, {run['use']['peak']:.0%} at most."
    return Chart(
        f"pool-{place}",
        _titled("Pool over time", run),
        Axis(_clock_name(clock), clock),
        Axis("share of the pool", "fraction"),
        tuple(Series(name, seen["seconds"], values) for name, values in lines.items()),
        says,
    )


def queue_chart(run: "RunDocument", place: int, clock: Unit) -> Chart | None:
    """Requests that run and that wait over time; None where nobody looked."""
    seen, at_once = run["timeline"], run["at_once"]
    if not seen["seconds"]:
        return None
    says = (
        f"{at_once['running_mean']:,.1f} run on average, {at_once['running_peak']:,} at most; "
        f"{at_once['waiting_mean']:,.1f} wait, {at_once['waiting_peak']:,} at most."
    )
    return Chart(
        f"queue-{place}",
        _titled("Requests over time", run),
        Axis(_clock_name(clock), clock),
        Axis("requests", "number"),
        (Series("running", seen["seconds"], seen["running"]), Series("waiting", seen["seconds"], seen["waiting"])),
        says,
    )


def hit_chart(curves: "Sequence[HitCurveDocument]") -> Chart | None:
    """Share of prompt tokens that an LRU cache finds, by its capacity; None where no prefixes are known."""
    drawn = [curve for curve in curves if curve["capacity_tokens"]]
    if not drawn:
        return None
    series = tuple(
        Series(f"blocks of {curve['block_tokens']:,}", curve["capacity_tokens"], curve["hit_rates"]) for curve in drawn
    )
    best = max(drawn, key=lambda curve: curve["unlimited"])
    half = next(
        tokens
        for tokens, rate in zip(best["capacity_tokens"], best["hit_rates"], strict=True)
        if rate >= best["unlimited"] / 2
    )
    says = (
        f"At most {best['unlimited']:.1%} of prompt tokens can be found; {half:,} tokens of cache find half of those."
    )
    axes = Axis("capacity", "tokens", is_log=True), Axis("hit rate", "fraction")
    return Chart("hits", "Hit rate against capacity", *axes, series, says)


def times_chart(runs: "Sequence[RunDocument]", key: str, clock: Unit) -> Chart | None:
    """Share of requests that are served within each time, by setting; None where no request came to it."""
    name = key.upper()
    series = tuple(
        Series(_name(run) or name, times, run["distribution"]["shares"])
        for run in runs
        if (times := run["distribution"][key])  # type: ignore[literal-required]
    )
    if not series:
        return None
    in_steps = "" if clock == "seconds" else ", steps"
    axes = Axis(f"{name}{in_steps}", clock, is_log=True), Axis("share of requests", "fraction")
    return Chart(key, f"{_WHAT[key]} over requests", *axes, series, "; ".join(_medians(runs, key, clock)) + ".")


_WHAT = {"ttft": "Time to first token", "tpot": "Time a token"}


def _medians(runs: "Sequence[RunDocument]", key: str, clock: Unit) -> Iterator[str]:
    for run in runs[:MOST_TIMELINES]:
        spread = run["times"][key]  # type: ignore[literal-required]
        if spread is not None:
            middle, last = (_time(spread[one], clock) for one in ("p50", "p99"))
            yield f"{_name(run)}{': ' if _name(run) else ''}half within {middle}, 99% within {last}"


def rate_chart(search: "SearchDocument", limit: float | None, place: int = 0) -> Chart:
    """TTFT against the rates that a search tried: those that meet the limits, and those that break one."""
    trials = sorted(search["trials"], key=lambda one: one["value"])
    series = []
    for name, is_met in (("meets the limits", True), ("breaks one", False)):
        mine = [one for one in trials if (not one["breaks"]) == is_met]
        if mine:
            rates, times = [one["value"] for one in mine], [one["ttft"] for one in mine]
            series.append(Series(name, rates, times, "points", hover=[one["breaks"] for one in mine]))
    if limit is not None:
        ends = [trials[0]["value"], trials[-1]["value"]]
        series.append(Series("limit of TTFT", ends, [limit, limit], is_dashed=True))
    if search["value"] is None:
        says = "No rate that was tried is the largest one: all of them meet the limits, or none does."
    else:
        beyond = search["beyond"]
        further = f"; at {beyond['value']:,.4g}: {beyond['breaks']}" if beyond else ""
        says = f"At most {search['value']:,.4g} requests/s{further}."
    if search["odd"]:
        says += f" {counted(len(search['odd']), 'trial')} on the wrong side of it: single requests decide here."
    axes = Axis("requests a second", "number", is_log=True), Axis("TTFT", "seconds", is_log=True)
    return Chart(f"rate-{place}", "Rate against TTFT", *axes, tuple(series), says)


def _name(run: "RunDocument") -> str:
    return run["setting"]["name"]


def _titled(title: str, run: "RunDocument") -> str:
    return f"{title}: {_name(run)}" if _name(run) else title


def _clock_name(clock: Unit) -> str:
    return "time" if clock == "seconds" else "steps"


def _time(value: float, clock: Unit) -> str:
    return decimal(value, SECONDS) if clock == "seconds" else counted(round(value), "step")
