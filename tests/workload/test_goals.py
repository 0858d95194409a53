"""Searches against what was meant to be found: functions whose answer is known, and servers that can be counted."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload.test_fleet import server, steady

from kvcalc.errors import KvcalcError
from kvcalc.workload.fleet import simulate_fleet
from kvcalc.workload.goals import Slo, at_rate, fewest_gpus, largest_rate, rate_of, smallest_pool
from kvcalc.workload.metrics import metrics_of, tpot_of, ttft_of
from kvcalc.workload.search import Verdict, largest, smallest
from kvcalc.workload.simulate import simulate
from kvcalc.workload.steptime import FixedCost

BOUNDS = (1e-6, 1e6)


def below(limit):
    return lambda value: Verdict("" if value <= limit else f"over {limit}", {})


def above(limit):
    return lambda value: Verdict("" if value >= limit else f"under {limit}", {})


@given(st.floats(1e-4, 1e4), st.floats(1e-3, 1e3), st.sampled_from([0.01, 0.2]))
def test_the_largest_is_found_from_anywhere(limit, start, tolerance):
    found = largest(below(limit), start, BOUNDS, tolerance)
    assert found.value <= limit < found.beyond.value <= found.value * (1 + tolerance) * (1 + 1e-12)
    assert found.beyond.breaks == f"over {limit}"
    assert found.odd == ()
    assert len({one.value for one in found.trials}) == len(found.trials)


@given(st.integers(3, 5000), st.integers(1, 2), st.integers(5000, 10_000))
def test_the_smallest_is_found_exactly(limit, low, high):
    found = smallest(above(limit), (low, high))
    assert found.value == limit
    assert found.beyond.value == limit - 1
    assert found.odd == ()
    assert min(one.value for one in found.trials) >= low and max(one.value for one in found.trials) <= high


def test_where_nothing_is_in_the_way_or_nothing_does():
    assert largest(lambda _: Verdict("", {}), 1.0, BOUNDS).value == math.inf
    assert largest(lambda _: Verdict("", {}), 1.0, BOUNDS).beyond is None
    none = largest(lambda _: Verdict("always", {}), 1.0, BOUNDS)
    assert none.value is None and none.beyond.breaks == "always" and none.beyond.value < 1e-5
    assert (
        smallest(lambda _: Verdict("", {}), (5, 9)).value == 5
        and smallest(lambda _: Verdict("", {}), (5, 9)).beyond is None
    )
    none = smallest(lambda _: Verdict("always", {}), (5, 9))
    assert none.value is None and none.beyond.value == 9
    assert smallest(above(7), (7, 7)).value == 7


def test_what_noise_breaks_is_said():
    def ragged(value):
        return Verdict("noise" if 66 < value < 72 or value > 100 else "", {})

    found = largest(ragged, 50.0, BOUNDS)
    assert 99 < found.value <= 100
    assert [one.breaks for one in found.odd] == ["noise"] and 66 < found.odd[0].value < 72
    found = smallest(lambda value: Verdict("" if value >= 100 or 83 <= value <= 87 else "few", {}), (1, 1000))
    assert found.value == 100 and [one.value for one in found.odd] == [85]


SLO = Slo(ttft=1.0, tpot=0.2)


@pytest.fixture(scope="module")
def trace():
    draw = np.random.default_rng(3)
    count = 400
    arrivals = np.cumsum(draw.exponential(0.5, count))
    return steady(draw.integers(8, 120, count), draw.integers(2, 60, count), arrivals - arrivals[0])


def limited(**more):
    return server(**{"prefix_caching": False, "pool_units": 4000, "cost": FixedCost(0.1), "max_num_seqs": 8, **more})


def test_the_largest_rate_meets_the_slo_and_one_percent_more_does_not(trace):
    found = largest_rate(trace, limited(), SLO)
    assert found.beyond.value <= found.value * 1.01
    inside, beyond = (metrics_of(simulate(at_rate(trace, one), limited())) for one in (found.value, found.beyond.value))
    assert inside.ttft.percentiles[3] <= 1.0 < beyond.ttft.percentiles[3]
    assert found.beyond.breaks.startswith("TTFT p99 1.")
    # 8 sequences of 30.5 steps a request on average: more than this cannot come out.
    steps = float(trace.output_tokens.mean())
    assert 0.5 < found.value / (8 / (steps * 0.1)) <= 1
    assert found == largest_rate(trace, limited(), SLO)


def test_a_rate_scales_the_gaps(trace):
    faster = at_rate(trace, 10.0)
    assert rate_of(faster) == pytest.approx(10.0)
    ratio = np.diff(trace.arrival_seconds) / np.diff(faster.arrival_seconds)
    assert ratio == pytest.approx(10.0 / rate_of(trace))


def test_a_rate_that_no_gap_helps_and_one_without_end(trace):
    never = largest_rate(trace, limited(), Slo(ttft=0.05))
    assert never.value is None and never.beyond.breaks == "TTFT p99 100.0 ms > 50.00 ms"
    assert largest_rate(trace, limited(max_num_seqs=None, pool_units=10**6), Slo(ttft=0.2)).value == math.inf


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_the_smallest_pool_is_the_smallest(seed):
    draw = np.random.default_rng(seed)
    count = 30
    trace = steady(draw.integers(1, 30, count), draw.integers(1, 30, count), np.sort(draw.uniform(0, 20, count)))
    setting, slo = limited(cost=FixedCost(0.1), max_num_seqs=None), Slo(ttft=0.5)
    found = smallest_pool(trace, setting, slo, tolerance=0.0)
    needs = [
        4 * -(-(prompt + output - 1) // 4)
        for prompt, output in zip(trace.prompt_tokens, trace.output_tokens, strict=True)
    ]
    assert found.value >= max(needs)

    def meets(units):
        return not slo.breaks(simulate(trace, msgspec.structs.replace(setting, pool_units=units)))

    assert meets(int(found.value))
    if found.beyond is None:
        assert found.value == max(needs)
        assert slo.breaks(simulate(trace, msgspec.structs.replace(setting, pool_units=max(needs) - 1))) in (
            "1 request is larger than the whole pool", f"{needs.count(max(needs))} requests are larger than the whole pool",
        )  # fmt: skip
    else:
        assert found.beyond.value == found.value - 1 and not meets(int(found.value) - 1)


def test_memory_is_not_what_lacks(trace):
    found = smallest_pool(trace, limited(), Slo(tpot=0.05))
    assert found.value is None and found.beyond.breaks == "TPOT p99 100.0 ms > 50.00 ms"


def test_a_pool_of_a_fleet_is_that_of_a_replica(trace):
    def run(asked, setting):
        return simulate_fleet(asked, setting, 2, "least-loaded").whole

    one, two = (
        smallest_pool(trace, limited(max_num_seqs=None), SLO),
        smallest_pool(trace, limited(max_num_seqs=None), SLO, serve=run),
    )
    assert two.value < one.value
    assert not SLO.breaks(run(trace, limited(max_num_seqs=None, pool_units=int(two.value))))


def test_the_fewest_gpus(trace):
    hurry = at_rate(trace, 8.0)

    def make(gpus):
        """Steps get shorter by less than the GPUs; one GPU alone has no room."""
        return None if gpus == 1 else limited(cost=FixedCost({2: 0.1, 4: 0.06, 8: 0.05}[gpus]))

    found = fewest_gpus(hurry, make, SLO, most_gpus=32)
    met = [
        (tp * replicas, tp)
        for tp in (2, 4, 8)
        for replicas in range(1, 32 // tp + 1)
        if not SLO.breaks(simulate_fleet(hurry, make(tp), replicas).whole)
    ]
    assert (found.gpus, found.tp) == min(met) and found.gpus == found.tp * found.replicas
    assert sorted(found.searches) == [2, 4, 8][: len(found.searches)]
    assert found.searches[found.tp].beyond.breaks.startswith("TTFT")
    assert fewest_gpus(hurry, make, Slo(tpot=0.01), most_gpus=8).gpus is None


def test_times_are_those_of_the_metrics(trace):
    outcome = simulate(trace, limited())
    found = metrics_of(outcome)
    assert np.percentile(ttft_of(outcome), 99) == found.ttft.percentiles[3]
    assert np.percentile(tpot_of(outcome), 50) == found.tpot.percentiles[0]
    median = Slo(ttft=found.ttft.percentiles[0], percentile=50)
    assert not median.breaks(outcome)
    assert msgspec.structs.replace(median, percentile=50.5).breaks(outcome).startswith("TTFT p50.5")


def test_a_simulation_that_was_cut_short_ends_a_search(trace):
    cut = msgspec.structs.replace(simulate(trace, limited()), is_complete=False)
    with pytest.raises(KeyboardInterrupt):
        SLO.breaks(cut)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "no limit is set"),
        ({"ttft": 0.0}, "--max-ttft 0.0"),
        ({"tpot": float("nan")}, "--max-tpot nan"),
        ({"ttft": 1.0, "percentile": 0.0}, "--percentile 0.0"),
        ({"ttft": 1.0, "percentile": 101.0}, "--percentile 101.0"),
    ],
)
def test_what_is_no_slo(asked, message):
    with pytest.raises(KvcalcError, match=message):
        Slo(**asked)


def test_what_has_no_rate(trace):
    with pytest.raises(KvcalcError, match="has no rate"):
        largest_rate(msgspec.structs.replace(trace, arrival_seconds=None), limited(), SLO)
    with pytest.raises(KvcalcError, match="a rate needs times"):
        largest_rate(trace, limited(cost=None), SLO)
