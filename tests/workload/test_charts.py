"""Charts against the outcomes that they are drawn from."""

import msgspec
import numpy as np
import pytest
from workload.test_fleet import server, steady

from kvcalc.workload.charts import (
    hit_chart,
    pool_chart,
    queue_chart,
    rate_chart,
    simulate_charts,
    times_chart,
    waste_chart,
)
from kvcalc.workload.documents import SimulateDocument
from kvcalc.workload.goals import Slo, largest_rate
from kvcalc.workload.metrics import tpot_of, ttft_of
from kvcalc.workload.search import Found, Trial
from kvcalc.workload.simulate import simulate
from kvcalc.workload.spreads import SHARES, distribution_document, search_document
from kvcalc.workload.steptime import FixedCost


@pytest.fixture(scope="module")
def outcome():
    draw = np.random.default_rng(5)
    count = 120
    trace = steady(draw.integers(8, 60, count), draw.integers(1, 60, count), np.sort(draw.uniform(0, 50, count)))
    return simulate(trace, server(prefix_caching=False, pool_units=600, cost=FixedCost(0.1)))


def run_document(outcome, name=""):
    seen, units = outcome.timeline, outcome.setting.pool_units
    spread = {"mean": 1.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 2.0, "largest": 3.0}
    return {
        "setting": {"name": name},
        "times": {"ttft": spread, "tpot": spread},
        "distribution": distribution_document(outcome),
        "at_once": {"running_mean": 3.5, "running_peak": 7, "waiting_mean": 0.5, "waiting_peak": 12},
        "use": {
            "mean": 0.4,
            "peak": 0.9,
            "shares": {"token_states": 0.3, "reserved": 0.06, "internal": 0.04, "external": 0.35, "cached": 0.25},
        },
        "timeline": {
            "seconds": seen["seconds"].tolist(),
            "running": seen["running"].tolist(),
            "waiting": seen["waiting"].tolist(),
            "held": (seen["held_units"] / units).tolist(),
            "cached": [0.125] * len(seen["seconds"]),
            "token_states": (seen["filled_units"] / units).tolist(),
        },
    }


def test_bars_stack_up_to_the_whole_pool(outcome):
    chart = waste_chart([run_document(outcome, "paged"), run_document(outcome, "max")])
    assert chart.is_stacked and {series.mark for series in chart.series} == {"bar"}
    assert all(tuple(series.x) == ("paged", "max") for series in chart.series)
    assert np.sum([series.y for series in chart.series], axis=0) == pytest.approx([1, 1])
    assert [series.name for series in chart.series][:3] == ["token states", "reserved", "internal fragmentation"]
    assert "30.0% of the pool" in chart.says and "paged" in chart.says


def test_the_timeline_shows_what_was_seen(outcome):
    document = run_document(outcome)
    chart = pool_chart(document, 0, "seconds")
    lines = {series.name: series for series in chart.series}
    assert list(lines) == ["token states", "held by requests", "with cached prefixes"]
    for one in lines.values():
        assert list(one.x) == outcome.timeline["seconds"].tolist()
    held = outcome.timeline["held_units"] / 600
    assert list(lines["held by requests"].y) == held.tolist()
    assert list(lines["with cached prefixes"].y) == pytest.approx(held + 0.125)
    assert all(a <= b for a, b in zip(lines["token states"].y, lines["held by requests"].y, strict=True))
    assert chart.x.unit == "seconds" and pool_chart(document, 0, "count").x.label == "steps"
    queue = queue_chart(document, 0, "seconds")
    assert [list(series.y) for series in queue.series] == [
        outcome.timeline["running"].tolist(),
        outcome.timeline["waiting"].tolist(),
    ]
    assert queue.says == "3.5 run on average, 7 at most; 0.5 wait, 12 at most."
    document["timeline"]["seconds"] = []
    assert pool_chart(document, 0, "seconds") is None and queue_chart(document, 0, "seconds") is None


def test_times_are_a_distribution(outcome):
    document = run_document(outcome)
    for key, seconds in (("ttft", ttft_of(outcome)), ("tpot", tpot_of(outcome))):
        (line,) = times_chart([document], key, "seconds").series
        assert list(line.x) == sorted(line.x) and tuple(line.y) == SHARES
        for time, share in zip(line.x, line.y, strict=True):
            assert (seconds <= time + 1e-9).mean() >= share - 1 / len(seconds)
            assert (seconds < time - 1e-9).mean() <= share + 1 / len(seconds)
        assert line.x[-1] == seconds.max()
    assert times_chart([document], "ttft", "seconds").says == "half within 500.0 ms, 99% within 2.000 s."
    nobody = {**document, "distribution": {"shares": [], "ttft": [], "tpot": []}}
    assert times_chart([nobody], "ttft", "seconds") is None


CURVE = {
    "block_tokens": 16,
    "bytes_per_token": 1.0,
    "capacity_tokens": [16, 160, 1600],
    "hit_rates": [0.1, 0.25, 0.4],
    "unlimited": 0.4,
}


def test_the_hit_rate_over_capacities():
    chart = hit_chart([CURVE, {**CURVE, "block_tokens": 512, "capacity_tokens": [], "hit_rates": [], "unlimited": 0.0}])
    assert chart.x.is_log and chart.x.unit == "tokens"
    assert [(list(one.x), list(one.y)) for one in chart.series] == [([16, 160, 1600], [0.1, 0.25, 0.4])]
    assert chart.says == "At most 40.0% of prompt tokens can be found; 160 tokens of cache find half of those."
    assert hit_chart([]) is None


def test_a_search_shows_each_side(outcome):
    found = largest_rate(outcome.trace, outcome.setting, Slo(ttft=1.0))
    chart = rate_chart(search_document("rate", found), 1.0)
    meets, breaks, limit = chart.series
    assert max(meets.x) == found.value and max(meets.y) <= 1.0 < min(breaks.y)
    assert min(breaks.x) == found.beyond.value and found.beyond.breaks in chart.says
    assert set(limit.y) == {1.0} and limit.is_dashed
    assert len(meets.x) + len(breaks.x) == len(found.trials)
    odd = Trial(1.0, "noise", {"TTFT": 2.0, "TPOT": 0.1})
    ragged = Found(value=2.0, beyond=None, trials=(odd, Trial(2.0, "", {"TTFT": 0.5, "TPOT": 0.1})), odd=(odd,))
    assert "1 trial on the wrong side" in rate_chart(search_document("rate", ragged), None).says
    never = Found(value=None, beyond=odd, trials=(odd,), odd=())
    assert len(rate_chart(search_document("rate", never), None).series) == 1
    assert search_document("rate", msgspec.structs.replace(never, value=float("inf")))["value"] is None


def test_a_document_has_all_its_charts_under_keys_of_their_own(outcome):
    found = search_document("rate", largest_rate(outcome.trace, outcome.setting, Slo(ttft=1.0)))
    goals = {"max_ttft_seconds": 1.0, "searches": [found, {**found, "what": "pool"}]}
    document = {
        "time": "seconds",
        "runs": [run_document(outcome, str(place)) for place in range(6)],
        "hit_curves": [CURVE],
        "goals": [goals, goals],
    }
    charts = simulate_charts(document)
    keys = [chart.key for chart in charts]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {
        "waste",
        "hits",
        "ttft",
        "tpot",
        "rate-0",
        "rate-1",
        *(f"{one}-{place}" for one in ("pool", "queue") for place in range(4)),
    }
    assert all(chart.says.endswith(".") for chart in charts)
    assert set(SimulateDocument.__annotations__) >= set(document)
