"""Every architecture of the catalogue serves requests: what holds its cache is what runs out."""

import numpy as np
import pytest

import kvcalc
from kvcalc.workload.trace import Trace

LENGTHS = [(30, 5), (200, 40), (7, 1), (128, 64), (64, 1), (300, 100)]
LONGEST = 401


@pytest.fixture(scope="module")
def trace():
    prompts, answers = zip(*LENGTHS, strict=True)
    return Trace(name="six", prompt_tokens=np.array(prompts), output_tokens=np.array(answers))


def served(name, trace, pool_bytes, **more):
    return kvcalc.simulate(name, trace, kv_cache_memory_bytes=pool_bytes, max_model_len=LONGEST, **more)["runs"][0]


@pytest.mark.parametrize("name", kvcalc.models())
def test_a_pool_of_four_of_the_longest_serves_all(name, trace):
    spec = kvcalc.load(name)
    run = served(spec, trace, 4 * kvcalc.size(spec, LONGEST).bytes_per_sequence)
    assert run["requests"]["finished"] == len(LENGTHS)
    assert 0 < run["use"]["peak"] <= 1
    shares = run["use"]["shares"]
    assert sum(shares.values()) == pytest.approx(1) and min(shares.values()) > -1e-9


def test_states_alone_are_slots(trace):
    """Nothing grows: three and a half states are three requests at once, and a block size changes nothing."""
    state = kvcalc.size("mamba-2.8b", LONGEST).bytes_per_sequence
    assert state == kvcalc.size("mamba-2.8b", 1).bytes_per_sequence
    for block in (16, 512):
        run = served("mamba-2.8b", trace, 7 * state // 2, block_tokens=block)
        assert run["at_once"]["running_peak"] == 3
        assert run["use"]["peak_bytes"] == 3 * state
        assert run["use"]["shares"]["internal"] == 0


def test_a_pool_of_tokens_without_bytes_is_filled_by_nothing(trace):
    """SGLang counts tokens of a model of states alone, of 0 bytes each."""
    run = served("mamba-2.8b", trace, 20 << 30, engine="sglang")
    assert run["pool"]["bytes_per_unit"] == 0
    assert run["requests"]["finished"] == len(LENGTHS)
    assert run["use"]["shares"]["token_states"] == run["use"]["peak_bytes"] == 0


def test_slots_of_an_engine_bound_a_hybrid(trace):
    """SGLang keeps states in a pool of their own, of as many slots as are asked for."""
    asked = {"engine": "sglang", "engine_flags": {"max_mamba_cache_size": 8, "max_running_requests": 8}}
    free = served("qwen3-next-80b-a3b", trace, 8 << 30, engine="sglang", engine_flags={"max_running_requests": 8})
    bound = served("qwen3-next-80b-a3b", trace, 8 << 30, max_num_seqs=100, **asked)
    assert bound["pool"]["most_sequences"] < free["pool"]["most_sequences"]
    assert bound["at_once"]["running_peak"] == bound["pool"]["most_sequences"]
    assert free["at_once"]["running_peak"] == len(LENGTHS)
