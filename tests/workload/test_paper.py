"""PagedAttention (arXiv 2309.06180), figures 2 and 13 and table 1: OPT-13B's 12 GiB under ShareGPT's lengths.

The paper gives mean lengths of 161.31 and 337.99 tokens. Its Orca (Max) reserves 299 slots of 2,048 on average, which is
half of a request's answer: answers seen at a random time have E[o^2] / E[o] = 599 tokens, because long ones stay
longer. Both moments hold for lognormal answers of which those past 2,048 tokens with their prompts are left out, as
the paper's context leaves them out. The spread of prompts is not given; they take the same sigma, and the test below
of other spreads says how little hangs on it. No allocator has a setting of its own.

The servers are saturated: requests wait at all times. At which rate the figures were measured is not known here, so
that vLLM's mean batch, of a server that may not have been full, is an upper bound: 33 sequences fit where the paper has
30.42. Orca's allocators differ from ours in what is not published: Pow2 comes out 3 points above in token states.
"""

from functools import cache

import numpy as np
import pytest

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.sizing.blocks import layout_of
from kvcalc.sizing.need import Workload, size_workload
from kvcalc.workload.metrics import metrics_of
from kvcalc.workload.simulate import Setting, simulate
from kvcalc.workload.steptime import FixedCost
from kvcalc.workload.trace import Trace

POOL_BYTES, CONTEXT = 12 * 2**30, 2048
PROMPT, OUTPUT, BIASED = 161.31, 337.99, 599.0
REQUESTS = 12_000
TOKEN_STATES = {"max": 20.4, "pow2": 26.8, "oracle": 38.2}
RESERVED = {"max": 13.3, "pow2": 17.9, "oracle": 25.2}
INTERNAL = {"max": 57.3, "pow2": 13.6, "oracle": 0.0}
BATCHED = {"max": 7.00, "pow2": 9.81, "oracle": 13.62, "paged": 30.42}


def lognormal(draw, mean, ratio):
    """Lengths with E[x^2] / E[x]^2 = ratio."""
    sigma = np.sqrt(np.log(ratio))
    return np.maximum(1, np.rint(draw.lognormal(np.log(mean) - sigma**2 / 2, sigma, REQUESTS))).astype(np.int64)


@cache
def sharegpt(prompt_ratio=BIASED / OUTPUT):
    """Requests whose lengths have the paper's moments after those past the context are left out."""
    prompt_mean, mean, ratio = PROMPT, OUTPUT, BIASED / OUTPUT
    for _ in range(30):
        draw = np.random.default_rng(0)
        prompts, outputs = lognormal(draw, prompt_mean, prompt_ratio), lognormal(draw, mean, ratio)
        fits = prompts + outputs <= CONTEXT
        prompts, outputs = prompts[fits], outputs[fits]
        prompt_mean, mean = prompt_mean * PROMPT / prompts.mean(), mean * OUTPUT / outputs.mean()
        ratio = 1 + (ratio - 1) * (BIASED / ((outputs**2).sum() / outputs.sum())) ** 2
    return Trace(name="ShareGPT", prompt_tokens=prompts, output_tokens=outputs)


@cache
def layout(block_tokens):
    size = size_workload(kvcalc.load("opt-13b"), Workload(context_tokens=1, batch=1), Sharding())
    return layout_of(size, block_tokens)


def setting(allocator, **more):
    blocks = layout(16 if allocator == "paged" else 1)
    return Setting(
        layout=blocks, pool_units=blocks.pool_units(POOL_BYTES), allocator=allocator, max_model_len=CONTEXT, **more
    )


@cache
def served(allocator, prompt_ratio=BIASED / OUTPUT):
    return metrics_of(simulate(sharegpt(prompt_ratio), setting(allocator)))


def test_the_pool_of_table_1():
    assert layout(1).bytes_per_unit == 819_200
    assert setting("max").pool_units == 15_728


def test_the_moments_are_the_papers():
    trace = sharegpt()
    outputs = trace.output_tokens
    assert trace.prompt_tokens.mean() == pytest.approx(PROMPT, rel=1e-3)
    assert outputs.mean() == pytest.approx(OUTPUT, rel=1e-3)
    assert (outputs**2).sum() / outputs.sum() == pytest.approx(BIASED, rel=1e-3)
    assert (trace.prompt_tokens * outputs).sum() / outputs.sum() == pytest.approx(160, abs=3)


def test_orca_max_holds_seven_requests_and_leaves_885_percent():
    found = served("max")
    assert found.peak_running == 7
    assert found.mean_running == pytest.approx(7.00, abs=0.01)
    full = simulate(Trace(name="alike", prompt_tokens=np.full(700, 1), output_tokens=np.full(700, 2)), setting("max"))
    assert metrics_of(full).pool.external == pytest.approx(1 - 7 * 2048 / 15_728)
    assert found.pool.external == pytest.approx(0.0885, abs=0.001)


@pytest.mark.parametrize("prompt_ratio", [1.0001, BIASED / OUTPUT, 3.0])
@pytest.mark.parametrize("allocator", TOKEN_STATES)
def test_shares_of_figure_2(allocator, prompt_ratio):
    pool = served(allocator, prompt_ratio).pool
    # Without a spread of prompts Pow2 is 3.2 points above.
    within = 3.0 if prompt_ratio > 1.1 else 3.5
    assert 100 * pool.filled == pytest.approx(TOKEN_STATES[allocator], abs=within)
    assert 100 * pool.reserved == pytest.approx(RESERVED[allocator], abs=3)
    assert 100 * pool.internal == pytest.approx(INTERNAL[allocator], abs=3)


def test_max_is_the_closed_form_of_length_biased_requests():
    trace = sharegpt()
    outputs, prompts = trace.output_tokens, trace.prompt_tokens
    answer, prompt = (outputs**2).sum() / outputs.sum(), (prompts * outputs).sum() / outputs.sum()
    pool, share = served("max").pool, 7 / 15_728
    assert pool.filled == pytest.approx((prompt + answer / 2) * share, rel=0.01)
    assert pool.reserved == pytest.approx(answer / 2 * share, rel=0.01)
    assert pool.internal == pytest.approx((2048 - prompt - answer) * share, rel=0.01)


@pytest.mark.parametrize("allocator", RESERVED)
def test_reserved_to_filled_is_the_same_under_each_allocator(allocator):
    pool = served(allocator).pool
    assert pool.reserved / pool.filled == pytest.approx(0.66, abs=0.02)


def test_paged_wastes_a_few_percent():
    pool = served("paged").pool
    assert 100 * pool.filled == pytest.approx(96.3, abs=1.5)
    # Half a block a sequence, whoever will fill it.
    waste = (pool.reserved + pool.internal) * setting("paged").pool_units * 16 / served("paged").mean_running
    assert waste == pytest.approx((16 - 1) / 2, rel=0.05)


def test_mean_batches_of_figure_13():
    found = {name: served(name).mean_running for name in BATCHED}
    assert list(found) == sorted(found, key=found.__getitem__)
    for name in ("max", "pow2", "oracle"):
        assert found[name] == pytest.approx(BATCHED[name], rel=0.05)
    assert found["paged"] == pytest.approx(BATCHED["paged"], rel=0.15)
    assert found["paged"] > BATCHED["paged"]


@pytest.mark.parametrize("allocator", BATCHED)
def test_a_flooded_server_with_a_clock_comes_to_the_same(allocator):
    import msgspec

    draw = np.random.default_rng(1)
    trace = sharegpt()
    arrivals = draw.exponential(1 / 10, len(trace)).cumsum()
    timed = msgspec.structs.replace(trace, arrival_seconds=arrivals - arrivals[0])
    found = metrics_of(simulate(timed, setting(allocator, cost=FixedCost(0.05))))
    np.testing.assert_allclose(found.pool, served(allocator).pool, atol=0.01)
    assert found.mean_running == pytest.approx(served(allocator).mean_running, rel=0.02)
