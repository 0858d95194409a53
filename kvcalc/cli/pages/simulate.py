"""The page of a simulation: how much cache requests need, where it goes, and who waits."""

from collections.abc import Sequence

from kvcalc.render.html import Page, Section
from kvcalc.report import Column, Table, Unit, Value
from kvcalc.units import counted, memory
from kvcalc.workload.charts import simulate_charts
from kvcalc.workload.documents import GoalsDocument, RunDocument, SimulateDocument, SpreadDocument


def simulate_page(document: SimulateDocument) -> Page:
    """What the pool was used for first, then times, and a row a setting."""
    runs, trace, time = document["runs"], document["trace"], document["time"]
    goals = document["goals"]
    charts = simulate_charts(document)
    return Page(
        title=f"{document['model']['name']}, simulated",
        facts=list(_facts(document)),
        answer=_answer(document),
        is_good=all(goal["meets"] for goal in goals) if goals else None,
        key_figures=_figures(runs[0], time) if len(runs) == 1 else Table((), []),
        lines=[] if document["complete"] else ["It was interrupted: figures are of the part that was done."],
        sections=(
            Section("Where the pool goes", charts=[one for one in charts if one.key in ("waste", "hits")]),
            Section(
                "Times", charts=[one for one in charts if one.key in ("ttft", "tpot") or one.key.startswith("rate")]
            ),
            Section("Over time", charts=[one for one in charts if one.key.startswith(("pool", "queue"))]),
            Section("Goals", tables=[_searches(goal) for goal in goals if goal["searches"]]),
            Section("Settings", tables=[_settings(runs, time)] if len(runs) > 1 else []),
            Section("Replicas", tables=[_replicas(run, time) for run in runs if run["replicas"]]),
            Section("Requests", tables=[_requests(document)], is_folded=True),
        ),
        notes=[*document["notes"], *(f"{why}: {count:,}" for why, count in trace["counted"].items())],
    )


def _facts(document: SimulateDocument) -> Sequence[str]:
    trace, setting, pool = document["trace"], document["runs"][0]["setting"], document["runs"][0]["pool"]
    # The name of drawn requests ends with their seed.
    seed = "" if trace["seed"] is None or "seed=" in trace["name"] else f", seed {trace['seed']}"
    facts = [f"{counted(trace['requests'], 'request')} of {trace['name']}{seed}"]
    facts += [f"{setting['gpus']:,} x {setting['gpu']}"] if setting["gpu"] else []
    facts += [setting["engine"]] if setting["engine"] else []
    if setting["replicas"] > 1:
        facts.append(f"{setting['replicas']:,} replicas, {setting['routing'] or 'round-robin'}")
    return [*facts, f"a pool of {memory(pool['bytes'])} on each rank"]


def _answer(document: SimulateDocument) -> str:
    runs = document["runs"]
    best = max(runs, key=lambda run: run["rates"]["requests_per_second"])
    use, replicas = best["use"], best["setting"]["replicas"]
    together = f", of all {replicas:,} replicas" if replicas > 1 else ""
    said = f"{memory(use['peak_bytes'])} of cache would have done{together}" if use["peak"] < 1 else "the pool was full"
    which = f" ({best['setting']['name']})" if len(runs) > 1 else ""
    finished, total = best["requests"]["finished"], best["requests"]["total"]
    return f"{finished:,} of {counted(total, 'request')} served{which}; {use['mean']:.0%} of the pool held, {said}"


def _figures(run: RunDocument, time: str) -> Table:
    times, at_once = run["times"], run["at_once"]
    cells: dict[Column, Value] = {
        _time_column("ttft", time): _p99(times["ttft"]),
        _time_column("tpot", time): _p99(times["tpot"]),
        Column("running", "at once, mean", "number"): at_once["running_mean"],
        Column("waiting", "waiting, at most", "count"): at_once["waiting_peak"],
        Column("states", "token states", "fraction"): run["use"]["shares"]["token_states"],
        Column("preempted", "preemptions", "count"): run["preemptions"]["count"],
    }
    if run["prefixes"]:
        cells[Column("hits", "prefix hit rate", "fraction")] = run["prefixes"]["hit_rate"]
    return Table(tuple(cells), [tuple(cells.values())])


def _time_column(key: str, time: str) -> Column:
    unit: Unit = "seconds" if time == "seconds" else "number"
    return Column(key, f"{key.upper()} p99{'' if unit == 'seconds' else ', steps'}", unit)


def _p99(spread: SpreadDocument | None) -> float | None:
    return None if spread is None else spread["p99"]


def _settings(runs: Sequence[RunDocument], time: str) -> Table:
    columns = (
        Column("name", "setting"),
        Column("bytes", "pool", "bytes"),
        Column("mean", "held", "fraction"),
        Column("states", "token states", "fraction"),
        Column("hits", "hit rate", "fraction"),
        Column("running", "at once", "number"),
        _time_column("ttft", time),
        _time_column("tpot", time),
        Column("preempted", "preemptions", "count"),
        Column("refused", "refused", "count"),
    )
    rows: list[tuple[Value, ...]] = [
        (
            run["setting"]["name"],
            run["pool"]["bytes"],
            run["use"]["mean"],
            run["use"]["shares"]["token_states"],
            run["prefixes"]["hit_rate"] if run["prefixes"] else None,
            run["at_once"]["running_mean"],
            _p99(run["times"]["ttft"]),
            _p99(run["times"]["tpot"]),
            run["preemptions"]["count"],
            sum(run["requests"]["refused"].values()),
        )
        for run in runs
    ]
    return Table(columns, rows, "Settings").filled()


def _replicas(run: RunDocument, time: str) -> Table:
    columns = (
        Column("place", "replica", "count"),
        Column("requests", "requests", "count"),
        Column("finished", "finished", "count"),
        _time_column("ttft", time),
        Column("running", "at once", "number"),
        Column("peak", "pool, at most", "fraction"),
        Column("hits", "hit rate", "fraction"),
        Column("busy", "busy", "fraction"),
    )
    rows: list[tuple[Value, ...]] = [
        (
            place,
            one["requests"],
            one["finished"],
            one["ttft_p99"],
            one["running_mean"],
            one["pool_peak"],
            one["hit_rate"],
            one["busy"],
        )
        for place, one in enumerate(run["replicas"], 1)
    ]
    return Table(columns, rows, f"Replicas: {run['setting']['name']}" if run["setting"]["name"] else "Replicas")


def _searches(goal: GoalsDocument) -> Table:
    columns = (
        Column("what", "searched"),
        Column("value", "tried", "number"),
        Column("ttft", "TTFT", "seconds"),
        Column("tpot", "TPOT", "seconds"),
        Column("breaks", "breaks"),
    )
    rows: list[tuple[Value, ...]] = [
        (search["what"], trial["value"], trial["ttft"], trial["tpot"], trial["breaks"] or None)
        for search in goal["searches"]
        for trial in sorted(search["trials"], key=lambda one: one["value"])
    ]
    return Table(columns, rows, "Searches")


def _requests(document: SimulateDocument) -> Table:
    columns = (
        Column("what", "tokens of"),
        Column("mean", "mean", "number"),
        Column("p50", "p50", "number"),
        Column("p90", "p90", "number"),
        Column("p99", "p99", "number"),
        Column("largest", "largest", "count"),
    )
    trace = document["trace"]
    rows: list[tuple[Value, ...]] = [
        (name, one["mean"], one["p50"], one["p90"], one["p99"], one["largest"])
        for name, one in (("prompts", trace["prompt_tokens"]), ("answers", trace["output_tokens"]))
    ]
    return Table(columns, rows, "Requests")
