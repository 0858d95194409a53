"""Step times from tables against the throughput model itself, and what they say of a step with prompts in it."""

import numpy as np
import pytest

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.speed.calibration import Scales
from kvcalc.speed.setting import Use, machine_for, make_setting
from kvcalc.speed.throughput import Load, estimate
from kvcalc.workload.steptime import FixedCost, ModelCost

CALIBRATED = Scales({"interference": 1.5, "overhead host": 1.3})
CASES = {
    "llama-8b": ("llama-8b", "h100-sxm", Use(), Scales()),
    "a calibration": ("llama-8b", "l40s", Use(), CALIBRATED),
    "windows": ("gemma-3-27b", "h100-sxm", Use(sharding=Sharding(tp=2)), Scales()),
    "a latent and experts": ("deepseek-v3", "h200-sxm", Use(weights="fp8", sharding=Sharding(tp=8)), Scales()),
    "states": ("qwen3-next-80b-a3b", "h200-sxm", Use(sharding=Sharding(tp=4)), Scales()),
}
MOST_SEQUENCES, MOST_TOKENS, MOST_PREFILL = 512, 32_768, 8192


@pytest.fixture(params=CASES)
def case(request):
    name, gpu, use, scales = CASES[request.param]
    spec = kvcalc.load(name)
    setting = make_setting(spec, machine_for(gpu, None, use), use)
    cost = ModelCost(setting, scales, MOST_SEQUENCES, MOST_TOKENS, MOST_PREFILL)

    def asked(served=False, **load):
        return estimate(spec, gpu, Load(**load), use, scales=scales, served=served, force=True)

    return cost, asked


def test_a_decoding_step_is_that_of_throughput(case):
    cost, asked = case
    draw = np.random.default_rng(1)
    for _ in range(60):
        batch, context = int(2 ** draw.uniform(0, 9)), int(2 ** draw.uniform(1, 15))
        seconds = asked(isl=context - 1, osl=1, batch=batch).decode.seconds
        assert cost.mixed(batch, batch * context, 0, 0.0) == pytest.approx(seconds, rel=0.01)
        assert cost.decoding(batch, batch * context, 3)[0] == pytest.approx(seconds, rel=0.01)


def test_a_prompt_is_that_of_throughput(case):
    cost, asked = case
    draw = np.random.default_rng(2)
    for _ in range(60):
        tokens, kept = int(2 ** draw.uniform(0, 13)), draw.choice([0, int(2 ** draw.uniform(0, 14))])
        seconds = asked(isl=kept + tokens, osl=1, shared_prefix=kept).prefill.seconds
        assert cost.mixed(0, 0, tokens, tokens * (kept + tokens / 2)) == pytest.approx(seconds, rel=0.01)


def test_steps_ahead_are_steps_one_by_one(case):
    cost, _ = case
    ahead = cost.decoding(7, 7 * 1000, 200)
    singly = [cost.mixed(7, 7 * (1000 + step), 0, 0.0) for step in range(200)]
    np.testing.assert_allclose(ahead, singly, rtol=1e-12)
    assert (np.diff(ahead) >= 0).all()


def test_a_prompt_delays_those_that_decode_by_the_share_that_served_figures_count(case):
    cost, asked = case
    found = asked(isl=1024, osl=128, batch=65, served=True)
    [wait] = [term.seconds for term in found.served.tpot.terms if term.name == "prefill interference"]
    step, prompt = cost.mixed(65, 65 * 1088, 0, 0.0), cost.mixed(0, 0, 1024, 1024 * 512)
    delay = cost.mixed(65, 65 * 1088, 1024, 1024 * 512) - step
    # 64 others bring a prompt each in the 128 steps of an answer.
    assert delay == pytest.approx(max(wait * 128 / 64, prompt - step), rel=0.01)


def test_several_prompts_cost_less_than_one_of_all_their_tokens(case):
    cost, _ = case
    apart = cost.mixed(0, 0, 8192, 8 * 1024 * 512)
    assert cost.mixed(0, 0, 1024, 1024 * 512) < apart <= cost.mixed(0, 0, 8192, 8192 * 4096)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_step_takes_time(seconds):
    with pytest.raises(KvcalcError, match="a step takes some seconds"):
        FixedCost(seconds)
