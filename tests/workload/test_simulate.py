"""The one entry of simulations: what it refuses, bounds and keeps, and figures worked by hand."""

import signal
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from workload.stepwise import layout_of_blocks

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import catalogue_names
from kvcalc.sizing.blocks import Window, layout_of
from kvcalc.sizing.need import Workload, size_workload
from kvcalc.workload.metrics import metrics_of, spread_of
from kvcalc.workload.outcome import CONTEXT, POOL
from kvcalc.workload.simulate import Setting, simulate
from kvcalc.workload.steptime import FixedCost
from kvcalc.workload.trace import Trace


def trace_of(*requests, arrivals=None, **more):
    prompts, outputs = (np.array(side) for side in zip(*requests, strict=True))
    times = None if arrivals is None else np.array(arrivals, dtype=float)
    return Trace(name="small", prompt_tokens=prompts, output_tokens=outputs, arrival_seconds=times, **more)


def setting(pool_units=100, **more):
    return Setting(**{"layout": layout_of_blocks(), "pool_units": pool_units, **more})


def test_one_request_by_hand():
    """Eight tokens in a step, then four steps with one more each; a step takes a quarter of a second."""
    outcome = simulate(trace_of((8, 5), arrivals=[0]), setting(cost=FixedCost(0.25)))
    requests, totals, found = outcome.requests, outcome.totals, metrics_of(outcome)
    assert requests.first_token_seconds[0] == 0.25
    assert requests.finished_seconds[0] == 1.25
    # 8, then 9 to 12 tokens in blocks of 4: 8 units for a step, 12 for four; half of a unit a token holds something.
    assert totals.peak_units == 12
    held = (8 + 4 * 12) * 0.25
    filled = (9 + 10 + 11 + 12 + 13) / 2 * 0.25
    assert totals.filled == filled
    assert totals.filled + totals.reserved + totals.internal == held
    assert found.tpot.mean == 0.25
    assert found.pool.external == pytest.approx(1 - held / 1.25 / 100)
    assert found.output_tokens_per_second == 4
    assert found.mean_running == 1 and found.mean_waiting == 0 and found.busy_share == 1


def test_the_second_of_two_waits_for_the_first():
    outcome = simulate(trace_of((8, 5), (8, 5), arrivals=[0, 0.5]), setting(pool_units=12, cost=FixedCost(0.25)))
    assert outcome.requests.admitted_seconds.tolist() == [0, 1.25]
    found = metrics_of(outcome)
    assert found.queueing.largest == 0.75
    assert found.mean_waiting == pytest.approx(0.75 / 2.5)


def test_a_server_sleeps_between_requests():
    outcome = simulate(trace_of((8, 1), (8, 1), arrivals=[0, 10]), setting(cost=FixedCost(0.25)))
    assert outcome.requests.finished_seconds.tolist() == [0.25, 10.25]
    assert metrics_of(outcome).busy_share == pytest.approx(0.5 / 10.25)


def test_a_preempted_request_comes_back_and_makes_all_its_tokens():
    """Two of 4 + 12 tokens in 6 blocks: each needs 4 at its end, so that the second one has to go once."""
    trace = trace_of((4, 12), (4, 12))
    outcome = simulate(trace, setting(pool_units=24))
    assert outcome.requests.preemptions.tolist() == [0, 1]
    assert not np.isnan(outcome.requests.finished_seconds).any()
    # It goes when both have 12 tokens and want a 13th: 9 made, 13 to compute again.
    assert metrics_of(outcome).recomputed_tokens == 13
    swapped = simulate(trace, setting(pool_units=24, preemption="swap"))
    assert metrics_of(swapped).recomputed_tokens == 0
    assert swapped.requests.finished_seconds.tolist() == outcome.requests.finished_seconds.tolist()


class Steps:
    """A second each, which the scheduler does not know."""

    fixed_seconds = None

    def mixed(self, *_):
        return 1.0

    def decoding(self, sequences, context, steps):
        return np.ones(steps)


@pytest.mark.parametrize("cost", [Steps(), FixedCost(1.0)])
def test_who_comes_as_a_step_ends_is_in_the_next_one(cost):
    outcome = simulate(trace_of((4, 20), (4, 1), (4, 1), arrivals=[0, 3, 5.5]), setting(cost=cost))
    assert outcome.requests.admitted_seconds.tolist() == [0, 3, 6]


def test_swapping_takes_time_both_ways():
    trace = trace_of((4, 12), (4, 12), arrivals=[0, 0])
    free, slow = (
        simulate(trace, setting(pool_units=24, preemption="swap", cost=Steps(), swap_bytes_per_second=rate))
        for rate in (None, 12)
    )
    # 12 units of a byte go, 16 come back with the place of the next token.
    assert slow.totals.seconds == pytest.approx(free.totals.seconds + (12 + 16) / 12)


def test_what_is_refused_is_counted_and_named():
    outcome = simulate(trace_of((8, 5), (90, 5), (200, 5), (97, 1)), setting(max_model_len=98, pool_units=92))
    assert outcome.requests.refused.tolist() == [0, POOL, CONTEXT, POOL]
    assert outcome.refused == {"longer than the server's contexts": 1, "larger than the whole pool": 2}
    assert outcome.refused_requests().tolist() == [1, 2, 3]
    assert np.isnan(outcome.requests.finished_seconds[1:]).all()
    assert metrics_of(outcome).finished == 1


def test_a_buddy_system_holds_no_more_than_its_largest_piece():
    """100 = 64 + 32 + 4."""
    reserved = setting(layout=layout_of_blocks(1), allocator="oracle")
    outcome = simulate(trace_of((60, 4), (60, 5)), reserved)
    assert outcome.requests.refused.tolist() == [0, POOL]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"pool_units": 8},
            r"no request of small fits; the first one, 8 and 5 tokens, needs 12 bytes in one pool of 8",
        ),
        ({"max_model_len": 12}, r"the first one, 8 and 5 tokens, passes --max-model-len 12"),
        ({"pool_units": 0}, "holds nothing"),
        ({"allocator": "oracel"}, "--allocator 'oracel' is not known"),
        ({"allocator": "max"}, "--allocator max reserves the longest context"),
        ({"allocator": "max", "prefix_caching": True}, "no prefix is shared"),
        ({"prefix_caching": True}, "does not say which prefixes are shared"),
        ({"watermark": 1.0}, "no share below 1"),
        ({"max_num_seqs": 0}, "--max-num-seqs 0"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens 0"),
        ({"state_slots": -1}, "--state-slots -1"),
        ({"swap_bytes_per_second": 0.0}, "never ends"),
    ],
)
def test_settings_that_cannot_be_served(more, says):
    with pytest.raises(KvcalcError, match=says):
        simulate(trace_of((8, 5)), setting(**more))


def test_an_empty_trace():
    empty = Trace(name="empty", prompt_tokens=np.array([], dtype=int), output_tokens=np.array([], dtype=int))
    with pytest.raises(KvcalcError, match="empty has no requests"):
        simulate(empty, setting())


def test_prefixes_need_a_cache_that_keeps_all():
    window = Window(name="window", block_tokens=4, units=4, cap=8)
    layout = msgspec.structs.replace(layout_of_blocks(), groups=(window,))
    shared = trace_of((8, 1), prefix_ids=np.array([1, 2]), prefix_ends=np.array([2]), prefix_tokens=4)
    with pytest.raises(KvcalcError, match="no layer keeps every token"):
        simulate(shared, setting(layout=layout, prefix_caching=True))


def test_state_slots_bound_those_that_run():
    outcome = simulate(trace_of(*[(4, 4)] * 9), setting(pool_units=1000, state_slots=2))
    assert outcome.totals.peak_running == 2


def test_a_watermark_leaves_room_that_is_grown_into():
    trace = trace_of(*[(4, 12)] * 40)
    preempted = {share: metrics_of(simulate(trace, setting(watermark=share))).preemptions for share in (0.0, 0.3)}
    assert preempted[0.3] < preempted[0.0]


def test_a_watermark_does_not_keep_out_who_is_alone():
    outcome = simulate(trace_of((94, 2), (94, 2)), setting(watermark=0.1))
    assert outcome.requests.finished_seconds.tolist() == [2, 4]


def test_a_timeline_holds_shared_tokens_once():
    ids = {"prefix_ids": np.array([1, 2, 3, 1, 2, 3]), "prefix_ends": np.array([3, 6]), "prefix_tokens": 4}
    outcome = simulate(trace_of((12, 4), (12, 4), **ids), setting(prefix_caching=True))
    # Each fills (12 + 1) / 2 units; of the three blocks of both, 2 units each are there once.
    assert outcome.timeline["filled_units"][0] == 2 * 6.5 - 3 * 2


def test_a_timeline_stays_small_and_spans_all():
    outcome = simulate(trace_of(*[(4, 9)] * 3000), setting(samples=50))
    seconds = outcome.timeline["seconds"]
    assert 20 <= len(seconds) <= 50
    assert (np.diff(seconds) > 0).all()
    assert seconds[-1] > 0.9 * outcome.totals.seconds
    assert outcome.timeline["waiting"][0] > outcome.timeline["waiting"][-1]


def test_progress_and_an_interrupt_that_keeps_what_is_done():
    seen = []

    def interrupt(done, served):
        seen.append((done, served))
        if len(seen) == 3:
            raise KeyboardInterrupt

    outcome = simulate(trace_of(*[(4, 9)] * 20_000), setting(), interrupt)
    assert not outcome.is_complete
    assert [served for _, served in seen] == [20_000] * 3
    found = metrics_of(outcome)
    assert 0 < found.finished < 20_000
    assert sum(found.pool) == pytest.approx(1) and found.pool.filled > 0.3
    assert found.mean_waiting > 0


def test_ctrl_c_waits_for_the_end_of_a_step():
    handler = signal.getsignal(signal.SIGINT)
    outcome = simulate(trace_of(*[(4, 9)] * 20_000), setting(), lambda *_: signal.raise_signal(signal.SIGINT))
    assert not outcome.is_complete and metrics_of(outcome).finished > 0
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_thread_of_its_own_is_as_good():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(simulate, trace_of((8, 5)), setting()).result().is_complete


def test_what_never_was_has_no_spread():
    assert spread_of(np.array([])) is None
    one_token = metrics_of(simulate(trace_of((8, 1)), setting()))
    assert one_token.tpot is None and one_token.ttft.mean == 1


@pytest.mark.parametrize("name", catalogue_names())
def test_every_model_of_the_catalogue(name):
    """Windows, latents, states, shared caches: each is served by blocks and by reservation, and all of it adds up."""
    size = size_workload(kvcalc.load(name), Workload(context_tokens=1, batch=1), Sharding())
    for allocator in ("paged", "oracle"):
        layout = layout_of(size, 16 if allocator == "paged" else 1)
        one = max(1, layout.most_units(3000))
        trace = trace_of(*[(1000, 200), (10, 300), (2500, 40)] * 7)
        outcome = simulate(trace, setting(layout=layout, pool_units=5 * one, allocator=allocator))
        assert not np.isnan(outcome.requests.finished_seconds).any()
        shares = metrics_of(outcome).pool
        assert sum(shares) == pytest.approx(1) and min(shares) >= -1e-9
        assert outcome.totals.peak_units <= 5 * one
