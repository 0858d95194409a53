"""Charts of speed: latency against throughput, where the time goes, and predictions against measurements."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.chart import Axis, Chart, Series
from kvcalc.errors import KvcalcError
from kvcalc.speed.question import Question
from kvcalc.units import SECONDS, counted, decimal, memory

if TYPE_CHECKING:
    from kvcalc.speed.documents import CalibrateDocument, TermDocument, ThroughputDocument

MOST_DRAWN = 20_000
"""Points of the largest chart: past it marks only cover one another, and a page grows past what a phone opens."""
_WHO = ("model", "weights", "kv_dtype", "engine", "gpu", "tp")
_KEPT_IN = ("model", "kv_dtype")
PER_GPU = "tokens_per_second_per_gpu"
Point = Mapping[str, Any]


def latency_chart(points: Sequence[Point], keys: Sequence[str] = _WHO) -> Chart | None:
    """Tokens/s a GPU against the time of a token, a deployment a series, and the front; None where nothing fits.

    A deployment is what has the same `keys`.
    """
    fitting = [point for point in points if point.get("fits")]
    if not fitting:
        return None
    _refuse_many(fitting)
    what, key = ("TPOT", "tpot_seconds") if "tpot_seconds" in fitting[0] else ("decode step", "step_seconds")
    groups = by_deployment(fitting, keys)
    series = [_cloud(name, group, key) for name, group in groups.items()]
    fronts = _fronts(fitting, key)
    best = max(fitting, key=lambda point: point[PER_GPU])
    says = (
        f"{counted(len(fitting), 'load')} that fit, of {len(points):,}: at most {best[PER_GPU]:,.0f} tokens/s a GPU, "
        f"where a token takes {decimal(best[key], SECONDS)}; the front joins those that none beats in both."
    )
    axes = Axis(what, "seconds", is_log=True), Axis("tokens/s a GPU", "number", is_log=True)
    return Chart("latency", "Latency against throughput", *axes, (*series, *fronts), says)


def _refuse_many(points: Sequence[Point]) -> None:
    if len(points) > MOST_DRAWN:
        raise KvcalcError(
            f"{len(points):,} points are too many to draw; at most {MOST_DRAWN:,}", "sweep with larger steps"
        )


def by_deployment(points: Sequence[Point], keys: Sequence[str] = _WHO) -> dict[str, list[Point]]:
    """The points of each deployment, under what tells it from the others."""
    varied = [key for key in keys if len({point.get(key) for point in points}) > 1] or ["model"]
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[", ".join(_named(key, point.get(key)) for key in varied)].append(point)
    return groups


def _named(key: str, value: object) -> str:
    return {"tp": f"tp {value}", "kv_dtype": f"KV {value}", "weights": f"weights {value}"}.get(key, str(value))


def _cloud(name: str, points: Sequence[Point], key: str) -> Series:
    hover = [f"context {point['context_tokens']:,}, batch {point['batch']:,}" for point in points]
    return Series(name, [point[key] for point in points], [point[PER_GPU] for point in points], "points", hover=hover)


def _fronts(points: Sequence[Point], key: str) -> list[Series]:
    """One line with a gap between the fronts of one model and context and the next."""
    fronts: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in points:
        if point.get("pareto"):
            fronts[point["model"], point["context_tokens"]].append(point)
    across: list[float] = []
    up: list[float | None] = []
    hover: list[str] = []
    for (model, context), front in fronts.items():
        joined = sorted(front, key=lambda point: point[key])
        across += [*(point[key] for point in joined), joined[-1][key]]
        up += [*(point[PER_GPU] for point in joined), None]
        hover += [f"{model}, context {context:,}, batch {point['batch']:,}" for point in (*joined, joined[-1])]
    name = "Pareto front" if len(fronts) == 1 else "Pareto front of each model and context"
    return [Series(name, across[:-1], up[:-1], is_dashed=True, hover=hover[:-1])] if fronts else []


def loads(name: str, question: Question, most: int) -> list[dict[str, Any]]:
    """The question at batches of powers of two up to `most`, as points that are called `name`; none past what fits."""
    points: list[dict[str, Any]] = []
    for batch in (2**exponent for exponent in range(most.bit_length())):
        load = msgspec.structs.replace(question.load, batch=batch)
        try:
            found = msgspec.structs.replace(question, load=load, served=False).answer
        except KvcalcError:
            break
        points.append(
            {
                "case": name,
                "model": question.spec.name,
                "context_tokens": load.context,
                "batch": batch,
                "fits": True,
                "step_seconds": found.decode.seconds / load.tokens_a_step,
                PER_GPU: found.tokens_per_second / question.use.gpus,
            }
        )
    return points


def with_front(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points, each with whether none of its model and context is better in one of latency and throughput, and no
    worse in the other.
    """
    best: dict[tuple[str, int], float] = {}
    marked = []
    for point in sorted(points, key=lambda one: (one["step_seconds"], -one[PER_GPU])):
        key = point["model"], point["context_tokens"]
        is_better = point[PER_GPU] > best.get(key, 0)
        best[key] = max(best.get(key, 0), point[PER_GPU])
        marked.append({**point, "pareto": is_better})
    return sorted(marked, key=lambda one: (one["case"], one["batch"]))


def swept_bytes_chart(points: Sequence[Point]) -> Chart | None:
    """Bytes of one sequence against the context, a line for every model and format; None at a single context."""
    _refuse_many(points)
    if not _are_several_contexts(points):
        return None
    series = []
    for name, group in by_deployment(points, _KEPT_IN).items():
        line = sorted({point["context_tokens"]: point["bytes_per_sequence"] for point in group}.items())
        series.append(Series(name, [tokens for tokens, _ in line], [count or None for _, count in line]))
    most = max(points, key=lambda point: point["bytes_per_sequence"])
    says = (
        f"Up to {memory(most['bytes_per_sequence'])} a sequence: {most['model']} at context "
        f"{most['context_tokens']:,}, KV {most['kv_dtype']}."
    )
    axes = Axis("context", "tokens", is_log=True), Axis("KV cache of one sequence", "bytes", is_log=True)
    return Chart("context", "Bytes against context", *axes, tuple(series), says)


def _are_several_contexts(points: Sequence[Point]) -> bool:
    return len({point["context_tokens"] for point in points}) > 1


def swept_capacity_chart(points: Sequence[Point]) -> Chart | None:
    """The longest context of the sweep that each batch can have, a line a deployment.

    None where nothing fits, and for a sweep of a single context.
    """
    fitting = [point for point in points if point.get("fits")]
    if not fitting or not _are_several_contexts(points):
        return None
    series = []
    for name, group in by_deployment(fitting).items():
        longest: dict[int, int] = {}
        for point in group:
            longest[point["batch"]] = max(point["context_tokens"], longest.get(point["batch"], 0))
        batches = sorted(longest)
        series.append(Series(name, batches, [longest[batch] for batch in batches]))
    says = "The longest of the contexts that were swept at which so many sequences run at once."
    axes = Axis("sequences at once", "count", is_log=True), Axis("longest context", "tokens", is_log=True)
    return Chart("capacity", "Capacity against batch", *axes, tuple(series), says)


def time_charts(document: "ThroughputDocument") -> list[Chart]:
    """Where the seconds of a step and of a prompt go, by term."""
    decode, prefill, served = document["decode"], document["prefill"], document["served"]
    steps = {"decode step": document["terms"], **({"TPOT, served": served["terms"]} if served else {})}
    step = f"A decode step takes {decimal(decode['step_seconds'], SECONDS)}, most of it {decode['limited_by']}."
    prompt = f"A prefill takes {decimal(prefill['seconds'], SECONDS)}, most of it {prefill['limited_by']}."
    return [
        _time_chart("step", "Where a step's time goes", steps, step),
        _time_chart("prompt", "Where a prompt's time goes", {"prefill": prefill["terms"]}, prompt),
    ]


def _time_chart(key: str, title: str, bars: "Mapping[str, Sequence[TermDocument]]", says: str) -> Chart:
    names = list(dict.fromkeys(term["name"] for terms in bars.values() for term in terms if term["seconds"]))
    spent = [{term["name"]: term["seconds"] for term in terms} for terms in bars.values()]
    limits = [{term["name"]: f"limited by {term['limited_by']}" for term in terms} for terms in bars.values()]
    series = tuple(
        Series(name, list(bars), [one.get(name) for one in spent], "bar", hover=[one.get(name, "") for one in limits])
        for name in names
    )
    return Chart(key, title, Axis("", "text"), Axis("time", "seconds"), series, says, is_stacked=True)


def measured_chart(document: "CalibrateDocument") -> Chart:
    """Predicted against measured seconds of every point, plain and calibrated, and the diagonal of a perfect one."""
    points = document["measurements"]
    measured = [point["seconds"] for point in points]
    plain, fitted = ([point[key] for point in points] for key in ("plain_seconds", "calibrated_seconds"))
    hover = [f"{point['where']}: {point['model']}, batch {point['batch']:,}, {point['metric']}" for point in points]
    ends = [end([*measured, *plain, *fitted]) for end in (min, max)]
    before = document["error_before"]["mape"]
    left_out = document["error_left_out"]
    after = f", {left_out['mape']:.1%} once calibrated without the point itself" if left_out else ""
    says = f"Predictions are off by {before:.1%} on the mean{after}; on the line a prediction is what was measured."
    axes = Axis("measured", "seconds", is_log=True), Axis("predicted", "seconds", is_log=True)
    series = (
        Series("plain", measured, plain, "points", hover=hover),
        Series("calibrated", measured, fitted, "points", hover=hover),
        Series("predicted = measured", ends, ends, is_dashed=True),
    )
    return Chart("measured", "Predicted against measured", *axes, series, says)
