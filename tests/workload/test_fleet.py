"""Fleets: what holds under every routing, and what each routing promises."""

import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload.test_scheduler import SETTINGS, Linear, layout_of_blocks, traces

from kvcalc.errors import KvcalcError
from kvcalc.workload.clock import clock_of
from kvcalc.workload.fleet import part_of, route, simulate_fleet
from kvcalc.workload.joined import REFUSED
from kvcalc.workload.metrics import metrics_of
from kvcalc.workload.routing import ROUTINGS, Inbox, PrefixAware, Replica, is_uneven
from kvcalc.workload.scheduler import Limits, Records, Scheduler
from kvcalc.workload.simulate import Setting, admissible, simulate
from kvcalc.workload.steptime import FixedCost
from kvcalc.workload.trace import Trace

RECORDS = ("admitted_seconds", "first_token_seconds", "finished_seconds", "preemptions", "hit_tokens", "refused")


def server(**more):
    return Setting(layout=layout_of_blocks(), **{"pool_units": 60, "prefix_caching": True, **more})


def served(trace, setting):
    """The requests that a server takes."""
    return np.flatnonzero(admissible(trace, setting)[1] == 0)


def same_requests(found, expected):
    for name in RECORDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def drawn_settings(**more):
    return st.fixed_dictionaries({**SETTINGS, **more})


@settings(max_examples=80, deadline=None)
@given(traces(shares=True), drawn_settings(), st.integers(1, 5), st.sampled_from(sorted(ROUTINGS)))
def test_every_request_is_served_once_by_one_replica(trace, setting, replicas, routing):
    setting = server(**setting)
    mine = served(trace, setting)
    if not len(mine):
        with pytest.raises(KvcalcError, match="no request of drawn fits"):
            simulate_fleet(trace, setting, replicas, routing)
        return
    fleet = simulate_fleet(trace, setting, replicas, routing)
    whole = fleet.whole
    assert set(np.flatnonzero(fleet.replica_of != REFUSED)) == set(mine)
    assert (~np.isnan(whole.requests.finished_seconds)).nonzero()[0].tolist() == mine.tolist()
    assert sum(len(one.trace) for one in fleet.outcomes.values()) == len(mine)
    assert whole.setting.pool_units == setting.pool_units * replicas
    assert metrics_of(whole).finished == sum(metrics_of(one).finished for one in fleet.outcomes.values())
    assert metrics_of(whole).hit_rate <= 1
    assert sum(metrics_of(whole).pool) == pytest.approx(1)
    assert metrics_of(whole).busy_share <= 1 + 1e-9
    for place, outcome in fleet.outcomes.items():
        same_requests(
            outcome.requests, simulate(part_of(trace, (fleet.replica_of == place).nonzero()[0]), setting).requests
        )


@settings(max_examples=60, deadline=None)
@given(traces(shares=True), drawn_settings(), st.sampled_from(sorted(ROUTINGS)))
def test_a_fleet_of_one_is_a_server(trace, setting, routing):
    setting = server(**setting)
    if not len(served(trace, setting)):
        return
    fleet, alone = simulate_fleet(trace, setting, 1, routing).whole, simulate(trace, setting)
    same_requests(fleet.requests, alone.requests)
    assert fleet.totals == alone.totals
    assert metrics_of(fleet) == metrics_of(alone)


@settings(max_examples=40, deadline=None)
@given(traces(), drawn_settings(), st.integers(2, 4))
def test_round_robin_deals_in_turn(trace, setting, replicas):
    setting = server(prefix_caching=False, **setting)
    if not len(served(trace, setting)):
        return
    fleet = simulate_fleet(trace, setting, replicas, "round-robin")
    for place, outcome in fleet.outcomes.items():
        own = [one for one in range(place, len(trace), replicas) if one in served(trace, setting)]
        alone = msgspec.structs.replace(
            trace,
            prompt_tokens=trace.prompt_tokens[own],
            output_tokens=trace.output_tokens[own],
            arrival_seconds=trace.arrival_seconds[own],
        )
        same_requests(outcome.requests, simulate(alone, setting).requests)


@settings(max_examples=60, deadline=None)
@given(traces(), st.integers(2, 5))
def test_least_loaded_keeps_graham_s_bound(trace, replicas):
    """Each to the least loaded: nobody has more than the mean and a part of the largest (Graham, 1966, theorem 1)."""
    setting = server(prefix_caching=False, pool_units=200)
    chosen = route(trace, setting, replicas, "least-loaded").replica_of
    loads = np.bincount(chosen, weights=trace.prompt_tokens, minlength=replicas)
    largest = trace.prompt_tokens.max()
    assert loads.max() <= loads.mean() + (1 - 1 / replicas) * largest + 1e-9
    assert loads.max() - loads.min() <= largest


@settings(max_examples=60, deadline=None)
@given(traces(shares=True), drawn_settings(cost=st.sampled_from([FixedCost(0.25), Linear()])), st.integers(2, 4))
def test_least_loaded_knows_what_is_answered_by_then(trace, setting, replicas):
    """The replica that gets a request has the fewest prompt tokens under way, by the answers of the final outcome."""
    setting = server(**setting)
    if not len(served(trace, setting)):
        return
    fleet = simulate_fleet(trace, setting, replicas, "least-loaded")
    chosen, arrival, finished = fleet.replica_of, trace.arrival_seconds, fleet.whole.requests.finished_seconds
    for request in served(trace, setting):
        # A step that begins before an arrival runs to its end: its answers are known.
        before = (np.arange(len(trace)) < request) & (chosen != REFUSED)
        step = 0.25 if isinstance(setting.cost, FixedCost) else 8.0
        surely, maybe = before & (finished > arrival[request] + step), before & (finished > arrival[request])
        prompts = [trace.prompt_tokens[surely & (chosen == one)].sum() for one in range(replicas)]
        mine = trace.prompt_tokens[maybe & (chosen == chosen[request])].sum()
        other = [trace.prompt_tokens[maybe & (chosen == one)].sum() for one in range(replicas)]
        assert prompts[chosen[request]] <= min(other)
        assert mine >= prompts[chosen[request]]


def steady(prompts, outputs, arrivals, ids=None):
    """A trace whose prompts have blocks of 4 tokens."""
    counts = [len(one) for one in ids or []]
    return Trace(
        name="by hand",
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        arrival_seconds=np.array(arrivals, dtype=float),
        prefix_ids=None if ids is None else np.array([one for each in ids for one in each]),
        prefix_ends=None if ids is None else np.cumsum(counts),
        prefix_tokens=4 if ids else 0,
    )


def test_least_loaded_by_hand():
    # Steps of a second. 0 and 1 go apart; at 2.5 s the second has answered, at 4.5 s only the third is under way there.
    trace = steady([20, 8, 12, 8, 4], [9, 2, 9, 2, 2], [0.0, 0.0, 2.5, 2.5, 20.5])
    setting = server(prefix_caching=False, pool_units=1000, cost=FixedCost(1.0))
    assert route(trace, setting, 2, "least-loaded").replica_of.tolist() == [0, 1, 1, 1, 0]


def test_prefix_aware_by_hand():
    a, b = [1, 2, 3, 4], [5, 6, 7, 8]
    # The fourth matches 1 of its 4 blocks, which is below 0.3; the fifth 2 of 4.
    ids = [a, b, a, [5, 9, 10, 11], [5, 6, 12, 13], a]
    trace = steady([16] * 6, [3] * 6, [0, 1, 20, 40, 60, 80], ids)
    setting = server(pool_units=1000, cost=FixedCost(0.5))
    # Nothing is under way at 20 s and later: what does not match goes to the first.
    assert route(trace, setting, 2, "prefix-aware").replica_of.tolist() == [0, 1, 0, 0, 1, 0]


def test_of_equal_matches_the_less_loaded_replica_wins():
    trace = steady([16] * 4, [9] * 4, [0.0] * 4, [[1, 2, 3, 4]] * 4)
    router = PrefixAware(trace, admissible(trace, server(pool_units=1000))[0], 2)
    loads = [(0, 0), (100, 0), (5, 2), (2, 5)]
    # The second goes to the other one because load is uneven: from then on both match.
    chosen = [
        router.choose(request, [SimpleNamespace(requests=one) for one in each]) for request, each in enumerate(loads)
    ]
    assert chosen == [0, 1, 1, 0]


def test_a_router_forgets_what_the_pool_cannot_hold():
    a, b, c = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]
    trace = steady([16, 16, 16, 8, 16], [2, 2, 2, 9, 2], [0, 20, 40, 60, 61], [a, b, c, b[:2], a])
    # The fourth is under way at the first replica when the last one comes, which only its prefix can send there too.
    large, small = (server(pool_units=units, cost=FixedCost(0.5)) for units in (1000, 24))
    assert route(trace, large, 2, "prefix-aware").replica_of.tolist() == [0, 0, 0, 0, 0]
    # Of 6 blocks c has left 2 for the head of b, and nothing of a.
    assert route(trace, small, 2, "prefix-aware").replica_of.tolist() == [0, 0, 0, 0, 1]


def test_load_is_uneven_by_both_thresholds():
    """The defaults of SGLang's gateway: over 64 more, and over 1.5 times as many."""
    assert not is_uneven([64, 0]) and is_uneven([65, 0])
    assert not is_uneven([300, 200]) and is_uneven([301, 200])
    assert not is_uneven([7, 7, 7])


def test_a_crowd_of_one_prefix_is_spread():
    count = 400
    trace = steady([16] * count, [30] * count, np.linspace(0, 1, count), [[1, 2, 3, 4]] * count)
    setting = server(pool_units=100_000, cost=FixedCost(0.5))
    chosen = route(trace, setting, 2, "prefix-aware").replica_of
    counts = np.bincount(chosen, minlength=2)
    # Nobody is answered meanwhile: one is ahead until it has 65 more, and later until it has half as many again.
    assert counts.min() >= 0.35 * count
    assert (chosen[:65] == chosen[0]).all()


def test_a_server_advances_to_a_time_and_no_further():
    trace = steady([4, 4], [10, 10], [0.0, 100.0])
    setting = server(prefix_caching=False, pool_units=1000, cost=FixedCost(1.0))
    policy, _ = admissible(trace, setting)
    inbox = Inbox(trace.arrival_seconds.tolist())
    replica = Replica(Scheduler(inbox, policy, clock_of(FixedCost(1.0)), Limits(), Records(len(trace))), inbox)
    replica.send(0, 4)
    replica.advance(3.5)
    assert replica.server.clock.now == 4.0 and replica.requests == 1 and replica.prompt_tokens == 4
    replica.advance(4.0)
    assert replica.server.clock.now == 4.0
    replica.advance(50.0)
    assert replica.server.clock.now == 10.0 and replica.requests == 0 and replica.prompt_tokens == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"replicas": 0}, "--replicas 0"),
        ({"replicas": 10**9}, "--replicas 1,000,000,000 is no fleet"),
        ({"routing": "roundrobin"}, "--routing 'roundrobin' is not known"),
        (
            {"routing": "prefix-aware", "prefix_caching": False},
            "--routing prefix-aware: replicas that keep no prefixes",
        ),
    ],
)
def test_what_a_fleet_cannot_be(asked, message):
    trace = steady([4], [4], [0.0], [[1]])
    setting = server(prefix_caching=asked.get("prefix_caching", True))
    with pytest.raises(KvcalcError, match=message):
        simulate_fleet(trace, setting, asked.get("replicas", 2), asked.get("routing", "round-robin"))


def test_prefix_aware_finds_more_on_published_traces():
    """Mooncake's conversations (FAST'25, arXiv 2407.00079): turns come back to the replica that has the talk so far."""
    folder = os.environ.get("KVCALC_TRACES")
    if not folder:
        pytest.skip("KVCALC_TRACES names no folder of traces")
    from kvcalc.workload.readers import read_trace

    trace = read_trace(Path(folder) / "mooncake_conversation.jsonl")
    trace = part_of(trace, np.arange(3000))
    layout = msgspec.structs.replace(layout_of_blocks(512), bytes_per_unit=1)
    setting = Setting(layout=layout, pool_units=4_000_000, prefix_caching=True, cost=FixedCost(0.05), max_num_seqs=128)
    rates = {one: metrics_of(simulate_fleet(trace, setting, 4, one).whole).hit_rate for one in ROUTINGS}
    assert rates["prefix-aware"] > 1.5 * rates["round-robin"]
    together = metrics_of(simulate(trace, msgspec.structs.replace(setting, pool_units=16_000_000))).hit_rate
    assert rates["prefix-aware"] <= together
