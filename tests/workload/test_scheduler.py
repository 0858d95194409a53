"""The scheduler that jumps against the one that goes step by step, on random traces under every policy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload.stepwise import Sequence, Server, layout_of_blocks

from kvcalc.errors import KvcalcError
from kvcalc.workload.metrics import metrics_of
from kvcalc.workload.simulate import Setting, simulate
from kvcalc.workload.steptime import FixedCost
from kvcalc.workload.trace import Trace


class Linear:
    """Steps of 1/8 s and something for all that they work on; sums of these are exact."""

    fixed_seconds = None

    def mixed(self, sequences, context, prefill, prefill_context):
        return 0.125 + sequences / 64 + context / 1024 + prefill / 128 + prefill_context / 4096

    def decoding(self, sequences, context, steps):
        return np.array([self.mixed(sequences, context + sequences * step, 0, 0) for step in range(steps)])


@st.composite
def traces(draw, shares=False):
    count = draw(st.integers(1, 14))
    prompts = draw(st.lists(st.integers(1, 30), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 30), min_size=count, max_size=count))
    gaps = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    arrivals = np.cumsum(gaps) / 8 - gaps[0] / 8
    ids, ends = [], []
    if shares:
        # An id names a block and all before it: the branch of a tree that a prompt walks down.
        for prompt in prompts:
            path = 1
            for _ in range(prompt // 4):
                path = 2 * path + draw(st.integers(0, 1))
                ids.append(path)
            ends.append(len(ids))
    return Trace(
        name="drawn",
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        arrival_seconds=arrivals,
        prefix_ids=np.array(ids, dtype=np.int64) if shares else None,
        prefix_ends=np.array(ends) if shares else None,
        prefix_tokens=4 if shares else 0,
    )


def stepwise(trace, setting):
    """The same by the oracle: which requests it takes, and what became of them."""
    layout, timed = setting.layout, setting.cost is not None
    ends = trace.prefix_ends if setting.prefix_caching else np.zeros(len(trace), int)
    starts = [0, *ends[:-1].tolist()]
    sequences = [
        Sequence(i, float(trace.arrival_seconds[i]) if timed else 0.0, int(trace.prompt_tokens[i]), int(trace.output_tokens[i]),
                 trace.prefix_ids[starts[i]:ends[i]].tolist() if setting.prefix_caching else [])
        for i in range(len(trace))
    ]  # fmt: skip
    most = setting.max_model_len or max(one.prompt + one.output for one in sequences)
    server = Server(
        sequences=[], pool=setting.pool_units, units=layout.units, filled=layout.written_bytes,
        cost=setting.cost or FixedCost(1.0), timed=timed, allocator=setting.allocator, most_context=most,
        max_seqs=min(setting.max_num_seqs or 10**9, setting.state_slots or 10**9, setting.max_num_batched_tokens or 10**9),
        budget=setting.max_num_batched_tokens or 10**9, spare=int(setting.watermark * setting.pool_units),
        swaps=setting.preemption == "swap", block=4 if setting.prefix_caching else 0,
        block_units=4 if setting.prefix_caching else 0, block_filled=2.0,
    )  # fmt: skip
    for one in sequences:
        needs = (
            server.reserve(one)
            if setting.allocator != "paged"
            else max(layout.units(t) for t in range(1, one.final + 1))
        )
        room = (
            setting.pool_units
            if setting.allocator in ("paged", "places")
            else 1 << (setting.pool_units.bit_length() - 1)
        )
        if one.prompt + one.output <= most and needs <= room:
            server.sequences.append(one)
    if server.sequences:
        server.run()
    return sequences, server


def same(trace, setting):
    sequences, server = stepwise(trace, setting)
    if not server.sequences:
        with pytest.raises(KvcalcError, match="no request of drawn fits"):
            simulate(trace, setting)
        return None
    outcome = simulate(trace, setting)
    found = outcome.requests
    none = float("nan")
    for name, values in {
        "admitted_seconds": [none if one.admitted is None else one.admitted for one in sequences],
        "first_token_seconds": [none if one.first is None else one.first for one in sequences],
        "finished_seconds": [none if one.finished is None else one.finished for one in sequences],
        "preemptions": [one.preemptions for one in sequences],
        "hit_tokens": [one.hits for one in sequences],
    }.items():
        np.testing.assert_array_equal(getattr(found, name), np.array(values), err_msg=name)
    totals = outcome.totals
    assert totals.peak_units == server.peak
    assert totals.steps == server.steps
    assert totals.prefilled_tokens == server.prefilled
    assert totals.running_seconds == pytest.approx(server.running_seconds)
    for name, value in server.sums.items():
        assert getattr(totals, name) == pytest.approx(value, abs=1e-6), name
    seen = outcome.timeline
    assert (seen["filled_units"] <= seen["held_units"] + 1e-9).all()
    return outcome


SETTINGS = {
    "pool_units": st.integers(20, 200),
    "max_num_seqs": st.sampled_from([None, 1, 3]),
    "max_num_batched_tokens": st.sampled_from([None, 3, 7, 16]),
    "cost": st.sampled_from([None, FixedCost(0.25), Linear()]),
}


@settings(max_examples=200, deadline=None)
@given(
    traces(),
    st.fixed_dictionaries(SETTINGS),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from(["recompute", "swap"]),
    st.sampled_from([None, 6]),
    st.sampled_from([0, 5]),
)
def test_paged_as_step_by_step(trace, setting, watermark, preemption, window, state):
    layout = layout_of_blocks(window=window, state=state)
    same(trace, Setting(layout=layout, watermark=watermark, preemption=preemption, **setting))


@settings(max_examples=150, deadline=None)
@given(traces(shares=True), st.fixed_dictionaries(SETTINGS), st.sampled_from(["recompute", "swap"]))
def test_prefixes_as_step_by_step(trace, setting, preemption):
    same(trace, Setting(layout=layout_of_blocks(), prefix_caching=True, preemption=preemption, **setting))


@settings(max_examples=60, deadline=None)
@given(traces(), st.fixed_dictionaries(SETTINGS), st.sampled_from(["max", "pow2", "oracle", "places"]))
def test_contiguous_as_step_by_step(trace, setting, allocator):
    same(trace, Setting(layout=layout_of_blocks(1), allocator=allocator, max_model_len=60, **setting))


@settings(max_examples=60, deadline=None)
@given(traces(), st.fixed_dictionaries(SETTINGS))
def test_what_holds_for_every_outcome(trace, setting):
    try:
        outcome = simulate(trace, Setting(layout=layout_of_blocks(), **setting))
    except KvcalcError:
        return
    requests, done = outcome.requests, outcome.requests.refused == 0
    assert (requests.arrival_seconds <= requests.admitted_seconds)[done].all()
    assert (requests.admitted_seconds < requests.first_token_seconds)[done].all()
    assert (requests.first_token_seconds <= requests.finished_seconds)[done].all()
    assert np.isnan(requests.finished_seconds[~done]).all()
    assert outcome.totals.peak_units <= setting["pool_units"]
    shares = metrics_of(outcome).pool
    assert sum(shares) == pytest.approx(1) and min(shares) >= -1e-12
    for row in zip(*outcome.timeline.values(), strict=True):
        assert min(row) >= 0
    held = outcome.timeline["held_units"] + outcome.timeline["cached_units"]
    assert (held <= setting["pool_units"]).all()
