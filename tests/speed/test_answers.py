"""Bounds, sums and monotony of whole answers, over the catalogue and the GPUs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.hardware.gpus import find_gpu, load_gpus
from kvcalc.model.parameters import count_parameters
from kvcalc.speed.calibration import Scales
from kvcalc.speed.machine import find_machine, load_constants
from kvcalc.speed.room import most_sequences
from kvcalc.speed.setting import Use, decode_costs, machine_for, make_setting, prefill_costs, seconds_of
from kvcalc.speed.throughput import Load, estimate
from kvcalc.speed.timing import floor_seconds, limit_shares, timing

KNOWN = [name for name in kvcalc.models() if count_parameters(kvcalc.load(name)).total is not None]


def is_timed(gpu):
    try:
        find_machine(gpu)
    except KvcalcError:
        return False
    return bool(gpu.dense_flops_per_second.keys() & {"bf16", "fp16"})


GPUS = [gpu.name for gpu in load_gpus() if is_timed(gpu)]
ENGINES = list(load_constants().engines)
formats = st.sampled_from([None, "fp8", "nvfp4", "int4", "q4_k_m"])
spreads = st.sampled_from([Sharding(), Sharding(tp=2), Sharding(tp=8, ep=8), Sharding(pp=2), Sharding(tp=4, dp=2)])


def setting_of(model, gpu, engine=None, **use):
    used = Use(encoder_tokens=1500, **use)
    return make_setting(kvcalc.load(model), machine_for(gpu, engine, used), used)


def one_setting(model, gpu, engine, weights, sharding):
    try:
        return setting_of(model, gpu, engine, weights=weights, sharding=sharding)
    except KvcalcError as error:
        # A GPU without a link, or with fewer layers than stages.
        assert "link" in error.message or "layers" in error.message, error.message
        return None


def test_there_are_constants_for_most_gpus():
    assert len(GPUS) >= 55


@given(st.sampled_from(KNOWN), st.sampled_from(GPUS), st.sampled_from(ENGINES), formats, spreads,
       st.integers(1, 600), st.integers(1, 40_000))  # fmt: skip
def test_nothing_is_faster_than_the_peaks(model, gpu, engine, weights, sharding, batch, context):
    setting = one_setting(model, gpu, engine, weights, sharding)
    if setting is None:
        return
    for costs in (decode_costs(setting, batch, context, 2), prefill_costs(setting, context, 100, batch)):
        found = timing(costs, 0.3)
        assert 0 < found.lower_seconds <= found.seconds < found.upper_seconds
        for cost in costs:
            assert cost.floor_moving <= cost.moving * 1.000001, cost
            assert cost.floor_working <= cost.working * 1.000001, cost
        assert sum(term.seconds for term in found.terms) == pytest.approx(found.seconds)


@given(st.sampled_from(KNOWN), st.integers(1, 600), st.integers(1, 40_000))
def test_more_never_takes_less(model, batch, context):
    setting = setting_of(model, "h100-sxm5-80gb")
    here = seconds_of(decode_costs(setting, batch, context))
    assert seconds_of(decode_costs(setting, batch + 1, context)) >= here
    assert seconds_of(decode_costs(setting, batch, context + 1)) >= here
    prompt = seconds_of(prefill_costs(setting, context))
    assert seconds_of(prefill_costs(setting, context + 1)) >= prompt * 0.999999
    assert seconds_of(prefill_costs(setting, context, 1000)) >= prompt * 0.999999


@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b", "llama-4-scout"]
)
def test_a_grid_is_many_single_points(model):
    import numpy as np

    setting = setting_of(model, "h200-sxm-141gb", sharding=Sharding(tp=2))
    batches, contexts = np.array([1, 7, 64, 512]), np.array([5, 999, 8193, 100_000])
    for whole, single in ((decode_costs, lambda b, c: decode_costs(setting, b, c)),
                          (lambda s, b, c: prefill_costs(s, c, 0, b), lambda b, c: prefill_costs(setting, c, 0, b))):  # fmt: skip
        costs = whole(setting, batches, contexts)
        for place, (batch, context) in enumerate(zip(batches.tolist(), contexts.tolist(), strict=True)):
            one = single(batch, context)
            assert seconds_of(costs)[place] == pytest.approx(seconds_of(one))
            assert floor_seconds(costs)[place] == pytest.approx(floor_seconds(one))


def test_a_hundred_thousand_points_take_no_loop(benchmark_seconds=1.0):
    import time

    import numpy as np

    setting = setting_of("llama-3.1-70b", "h100-sxm5-80gb", sharding=Sharding(tp=4))
    batches, contexts = np.tile(np.arange(1, 401), 250), np.repeat(np.arange(1, 251) * 512, 400)
    start = time.process_time()
    found = seconds_of(decode_costs(setting, batches, contexts))
    assert found.shape == (100_000,)
    assert time.process_time() - start < benchmark_seconds


def answer(model="llama-3.1-8b", gpu="h100-sxm", load=None, use=None, **asked):
    return estimate(kvcalc.load(model), gpu, load or Load(), use, **asked)


def test_served_tpot_is_a_step_and_the_prompts_taken_in():
    """TPOT(C) = step(C, isl + osl / 2) + share (C - 1) prefill(isl) / osl."""
    load = Load(isl=2048, osl=256, batch=16)
    found = answer(load=load, served=True)
    setting = found.setting
    step = seconds_of(decode_costs(setting, 16, 2048 + 128))
    share = load_constants().free["prefill_share"].value
    waited = share * 15 * seconds_of(prefill_costs(setting, 2048)) / 256
    assert found.served.tpot.seconds == pytest.approx(step + waited)
    assert found.served.tpot.terms[-1].seconds == pytest.approx(waited)


def test_a_rank_of_its_own_waits_for_no_prompt():
    """Two users of four data-parallel ranks share none."""
    found = answer(load=Load(batch=2), use=Use(sharding=Sharding(dp=4)), served=True)
    assert {term.name: term.seconds for term in found.served.tpot.terms}["prefill interference"] == 0


def test_what_limits_is_told_of_every_second():
    costs = decode_costs(setting_of("gpt-oss-20b", "h100-sxm5-80gb", sharding=Sharding(tp=2)), 64, 2048)
    shares = list(limit_shares(costs))
    assert sum(seconds for _, seconds in shares) == pytest.approx(seconds_of(costs))
    assert sum(seconds for name, seconds in shares if name == "host") == costs[-1].start


def test_users_past_the_cache_wait():
    load = Load(isl=8192, osl=1024, batch=512)
    found = answer(load=load, served=True)
    most = int(most_sequences(found.setting, load.context))
    assert found.served.running < 512
    assert found.served.running == pytest.approx(most, rel=0.15)
    assert any("wait" in note for note in found.notes)
    # A step is of those that run, not of those that ask.
    alone = answer(load=msgspec.structs.replace(load, batch=found.served.running))
    assert found.decode.seconds == alone.decode.seconds
    assert found.tokens_per_second == alone.tokens_per_second
    with pytest.raises(KvcalcError, match="do not fit") as refused:
        answer(load=load)
    assert "--force" in refused.value.hint
    assert answer(load=load, force=True).decode.seconds > 0


def test_room_without_an_engines_rules():
    """A label of 96 GB, of which 0.9 is taken, beside 16.06 GB of bf16 weights; 131,072 B a token."""
    most = most_sequences(setting_of("llama-3.1-8b", "gaudi2"), 1152)
    assert most == pytest.approx((96e9 * 0.9 - 16.06e9) / (1152 * 131_072), rel=0.001)
    with pytest.raises(KvcalcError, match="do not fit gaudi2, 465 do"):
        answer(gpu="gaudi2", load=Load(batch=466))
    assert answer(gpu="gaudi2", load=Load(batch=465)).decode.seconds > 0


def test_a_rate_adds_a_queue_and_past_capacity_none():
    quiet, busy, over = (answer(load=Load(1024, 256, 64, rate=rate), served=True).served for rate in (0.01, 5, 10_000))
    assert quiet.ttft.seconds < quiet.queued_ttft_seconds < busy.queued_ttft_seconds
    assert quiet.utilisation < busy.utilisation < 1 < over.utilisation
    assert over.queued_ttft_seconds is None
    assert answer(served=True).served.queued_ttft_seconds is None


def test_drafted_tokens_are_checked_together():
    """Leviathan et al., arXiv 2211.17192: (1 - a^(d + 1)) / (1 - a) tokens a step; a perfect draft yields d + 1."""
    assert Load(draft_tokens=3, acceptance=0.8).tokens_a_step == pytest.approx((1 - 0.8**4) / 0.2)
    assert Load(draft_tokens=3, acceptance=1.0).tokens_a_step == 4
    plain, drafted = answer(), answer(load=Load(draft_tokens=3, acceptance=0.8))
    assert plain.decode.seconds < drafted.decode.seconds < 1.5 * plain.decode.seconds
    assert drafted.tokens_per_second > 1.5 * plain.tokens_per_second
    assert any("free" in note for note in drafted.notes)


def test_draft_layers_cost_a_pass_for_each_token():
    use = Use(weights="fp8", sharding=Sharding(tp=8))
    none, one, two = (
        answer("deepseek-v3", "h200-sxm", Load(draft_tokens=count, acceptance=0.5), use) for count in (0, 1, 2)
    )
    cost = [sum(term.seconds for term in found.decode.terms if term.name == "drafting") for found in (none, one, two)]
    assert cost[0] == 0 < cost[1]
    assert cost[2] == pytest.approx(2 * cost[1])


def test_a_shared_prefix_saves_its_prefill():
    whole, rest = answer(load=Load(isl=4096)), answer(load=Load(isl=4096, shared_prefix=3072))
    assert rest.prefill.seconds < 0.45 * whole.prefill.seconds
    assert rest.decode.seconds == whole.decode.seconds


def test_sequences_behind_a_shared_prefix_keep_their_own_windows_and_states():
    """A window of 4,096 tokens past the prefix holds the 193 own ones; a state is never another sequence's.

    mistral-7b-v0.1: 131,072 B a token. mamba-2.8b: nothing but states.
    """
    setting = setting_of("mistral-7b-v0.1", "h100-sxm")
    alone, behind = most_sequences(setting, 8193), most_sequences(setting, 8193, 8000)
    assert behind == pytest.approx((alone - 1) * 4096 / 193)
    states = setting_of("mamba-2.8b", "h100-sxm")
    assert most_sequences(states, 8193, 8000) == pytest.approx(most_sequences(states, 8193) - 1)


@pytest.mark.parametrize("engine", [None, "vllm", "tensorrt-llm"])
def test_ranks_that_keep_attention_whole_hold_its_weights(engine):
    """Four ranks that each keep the mixers of Llama-3.1-8B and serve a quarter; a token is 131,072 B on its rank.

    A layer's mixer is 2 x 4096 x (4096 + 1024) weights, its MLP 3 x 4096 x 14336; two tables of 128256 x 4096.
    """
    whole = Use(sharding=Sharding(tp=4, dp=4), attention_dp=True)
    weights = 2 * (32 * (2 * 4096 * 5120 + 3 * 4096 * 14336 / 4) + 2 * 128_256 * 4096 / 4)
    card = find_gpu("h100-sxm").driver_memory_bytes.value
    most = int(4 * (0.9 * card - weights) / (1152 * 131_072))
    with pytest.raises(KvcalcError, match=f"do not fit h100-sxm5-80gb, {most:,} do"):
        answer(load=Load(batch=most + 1), use=whole, engine=engine)
    assert answer(load=Load(batch=most), use=whole, engine=engine).decode.seconds > 0


@pytest.mark.parametrize(
    ("sharding", "attention_dp", "message"),
    [
        (Sharding(tp=8, dp=3), True, "--attention-dp --tp 8 --dp 3"),
        (Sharding(tp=8), True, "--attention-dp --tp 8 --dp 1"),
        (Sharding(tp=2, dp=8), True, "--attention-dp --tp 2 --dp 8"),
        (Sharding(dp=8, ep=8), False, "--ep 8 --tp 1"),
    ],
)
def test_ranks_that_cannot_be_timed(sharding, attention_dp, message):
    with pytest.raises(KvcalcError) as refused:
        Use(sharding=sharding, attention_dp=attention_dp)
    assert message in refused.value.message


def test_crossovers_are_where_one_passes_the_other():
    """Llama-3.1-8B in bf16: batch from peak over bandwidth, 989e12 / 3.35e12 = 295 at the peaks, less activations."""
    found = answer(load=Load(batch=4))
    assert 250 < found.compute_bound_batch < 450
    setting, context = found.setting, found.cache_bound_context
    weights, entry = 7_504_658_432 * 2, 131_072
    assert context == pytest.approx(weights / (4 * entry), rel=0.001)
    assert answer("mamba-2.8b", load=Load(isl=16, osl=16)).cache_bound_context is None
    assert setting.model.size.spec.name == "llama-3.1-8b"


def test_factors_change_what_they_name_and_narrow_the_band():
    plain = answer()
    scaled = answer(scales=Scales({"bandwidth": 1.1, "host": 2.0}, {"served, dense": 0.1}))
    times = [{term.name: term.seconds for term in found.decode.terms} for found in (plain, scaled)]
    assert times[1]["host"] == pytest.approx(2 * times[0]["host"])
    assert times[0]["feed-forward"] < times[1]["feed-forward"] < 1.1 * times[0]["feed-forward"]
    assert times[1]["attention"] == times[0]["attention"]
    assert scaled.bands["served"] < plain.bands["served"]
    hurried = answer(scales=Scales({"bandwidth": 0.01, "cache_bandwidth": 0.01, "overhead": 0.01}))
    assert hurried.decode.lower_seconds == plain.decode.lower_seconds < hurried.decode.seconds


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"batch": 0}, "--batch 0"),
        ({"isl": 0}, "--isl 0"),
        ({"osl": -1}, "--osl -1"),
        ({"rate": -1.0}, "--rate -1"),
        ({"rate": float("nan")}, "--rate nan"),
        ({"shared_prefix": 1024}, "at least one of its own"),
        ({"draft_tokens": 2, "acceptance": 1.5}, "a share from 0 to 1"),
        ({"draft_tokens": 10**9, "acceptance": 0.5}, "a count up to 1,000"),
        ({"isl": 131_072}, "pass the 131,072 tokens"),
    ],
)
def test_what_cannot_be_asked(load, message):
    with pytest.raises(KvcalcError) as refused:
        answer(load=Load(**load))
    assert message in refused.value.message


def test_ranks_of_a_torus_exchange_along_an_axis():
    """TPU v5p: 90 GB/s along an axis one way (jax-ml/scaling-book, tpus.md), and 15 GB/s of PCIe to its host."""
    assert find_machine("tpu-v5p", ranks=2).link_bytes_per_second == 90e9


def test_a_gpu_without_tables_takes_its_familys_and_says_so():
    found = answer(gpu="rtx-4090", use=Use(weights="fp8"))
    assert "rtx-4090 has no op tables: shares of its peaks are those of l40s" in found.notes
    with pytest.raises(KvcalcError, match="engine"):
        answer(engine="nothing")
    with pytest.raises(KvcalcError, match="GPU"):
        answer(gpu="abacus")
