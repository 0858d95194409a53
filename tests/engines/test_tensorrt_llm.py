"""TensorRT-LLM's pools, held against what it printed (golden/tensorrt_llm_logs.yaml) and against rules of its code.

The rules stand in resource_manager.py and kvCacheManager.cpp; the figures beside them are worked out by hand here.
"""

from fractions import Fraction

import pytest
import yaml
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

import kvcalc
from kvcalc.engines.engine import Card, find_engine
from kvcalc.engines.tensorrt_llm_layers import Stage, stages_on_rank
from kvcalc.errors import KvcalcError

LOGS = yaml.safe_load((GOLDEN / "tensorrt_llm_logs.yaml").read_text())
GIB = 2**30
NEWER = ("1.3",)


def _asked(log):
    size = kvcalc.size(kvcalc.load(log["model"]), log["ctx"], 1, **log.get("kvcalc", {}))
    version = "1.3" if str(log["release"]).startswith(NEWER) else "1.1"
    return find_engine(f"tensorrt-llm@{version}", log["settings"]), size


def _whole_blocks(log, engine, size):
    """The pool of exactly the blocks that were printed."""
    blocks = log.get("blocks") or log["tokens"] // engine.tokens_per_block
    return engine.capacity(size, blocks * engine.capacity(size, GIB).bytes_per_block)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["id"])
def test_a_pool_is_what_the_log_says(log):
    engine, size = _asked(log)
    pool = _whole_blocks(log, engine, size)
    found = {
        "blocks": pool.num_blocks,
        "tokens": pool.tokens,
        "allocated_gib": round(pool.figures["allocated_bytes"] / GIB, 2),
        "allocated_bytes": pool.figures["allocated_bytes"],
        "blocks_per_sequence": pool.figures["max_blocks_per_sequence"],
        "longest_request": pool.longest_request,
    }
    printed = {name: log[name] for name in found if name in log}
    assert printed
    assert {name: found[name] for name in printed} == printed


@pytest.mark.parametrize("log", [log for log in LOGS if "available_gib" in log], ids=lambda log: log["id"])
def test_the_share_of_the_free_memory_gives_the_blocks_of_the_log(log):
    engine, size = _asked(log)
    least, most = (
        engine.capacity(size, engine.pool_bytes(Card(total_bytes=int((log["available_gib"] + rounding) * GIB)), size))
        for rounding in (-0.005, 0.005)
    )
    assert least.tokens <= log.get("tokens", log.get("blocks", 0) * engine.tokens_per_block) <= most.tokens


@pytest.mark.parametrize("log", [log for log in LOGS if "budget_gib" in log], ids=lambda log: log["id"])
def test_the_budget_gives_the_blocks_of_the_log(log):
    engine, size = _asked(log)
    least, most = (
        engine.capacity(size, int((log["budget_gib"] + rounding) * GIB)).num_blocks for rounding in (-0.005, 0.005)
    )
    assert least <= log["blocks"] <= most


def test_what_weights_and_a_dummy_run_leave_is_shared_out():
    card = Card(
        total_bytes=80 * GIB,
        weights_bytes=15 * GIB,
        activation_bytes=2 * GIB,
        non_torch_bytes=GIB,
        graphs_bytes=GIB,
        communication_bytes=GIB,
    )
    size = kvcalc.size(kvcalc.load("llama-3.1-8b"), 64)
    half = find_engine("tensorrt-llm", {"kv_cache_free_gpu_mem_fraction": 0.5})
    assert find_engine("tensorrt-llm").pool_bytes(card, size) == 54 * GIB
    assert half.pool_bytes(card, size) == 30 * GIB
    assert half.pool_rule.startswith("0.5 of what is free once the model has run")


def test_the_pool_is_said_in_the_words_of_the_log():
    log = next(log for log in LOGS if log["id"] == "llama-3.1-8b-fp8-rtx5090")
    pool = _whole_blocks(log, *_asked(log))
    # https://github.com/NVIDIA/TensorRT-LLM/issues/4275 prints this line.
    assert pool.log == "[MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008)."


@pytest.mark.parametrize(("version", "blocks"), [("1.1", 11), ("1.3", 10)])
def test_a_part_of_a_block_counts_until_1_1(version, blocks):
    size = kvcalc.size(kvcalc.load("llama-3.1-8b"), 64)
    block = 32 * 131_072
    assert find_engine(f"tensorrt-llm@{version}").capacity(size, 10 * block + 131_072).num_blocks == blocks


# gpt-oss-20b: 12 layers that slide and 12 that do not, 2,048 B of K and V a token in each.
HALF = 12 * 2048
WINDOWS = {"max_attention_window": (128, 32768)}


def test_without_the_flag_windows_are_kept_whole():
    spec = kvcalc.load("gpt-oss-20b")
    held = find_engine("tensorrt-llm").allocate(kvcalc.size(spec, 32768))
    assert held.allocated_bytes == 2 * HALF * 32768
    assert any("--max-attention-window" in rule for rule in held.rules)


def test_windows_share_the_pool_equally_and_reserve_a_step():
    spec, engine = kvcalc.load("gpt-oss-20b"), find_engine("tensorrt-llm", WINDOWS)
    size = kvcalc.size(spec, 32768)
    pool = engine.capacity(size, 10 * GIB)
    each = int(5 * GIB / HALF) // 32
    assert pool.figures["window_128_blocks"] == pool.figures["window_32768_blocks"] == each
    assert pool.num_blocks == 2 * each
    # 128 tokens of the window and 8,192 of a step, against 32,768.
    assert pool.figures["blocks_per_request"] == 260 + 1024
    assert (pool.sequences, pool.limited_by) == (each // 1024, "full-attention tokens")
    assert engine.allocate(size).allocated_bytes == (260 + 1024) * 32 * HALF


def test_a_step_is_no_longer_than_the_prompt():
    engine = find_engine("tensorrt-llm", WINDOWS | {"max_num_tokens": 65536})
    size = kvcalc.size(kvcalc.load("gpt-oss-20b"), 1000)
    assert engine.capacity(size, GIB).figures["blocks_per_request"] == 2 * 32
    assert engine.with_flags(max_seq_len=32768).capacity(size, GIB).figures["blocks_per_request"] == 2 * 32
    # A prompt of at most 2,048 tokens has 1,920 past a window of 128: together 64 blocks, beside the 65 of the whole.
    size = kvcalc.size(kvcalc.load("gpt-oss-20b"), 2049)
    assert engine.capacity(size, GIB).figures["blocks_per_request"] == 64 + 65


def test_windows_that_shrank_take_no_request_of_the_context():
    size = kvcalc.size(kvcalc.load("gpt-oss-20b"), 32768)
    pool = find_engine("tensorrt-llm", WINDOWS).capacity(size, GIB // 2)
    held = 128 + (GIB // 2 - 128 * 2 * HALF) // HALF
    blocks = int(Fraction(GIB // 4, HALF)) // 32
    assert (pool.sequences, pool.longest_request) == (0, min(held, blocks * 32))


def test_windows_shrink_until_one_sequence_fits():
    # 100 B a token in a window of 10, 50 B in one of 100: 10 tokens of both take 1,500 B, 20 more of the other 1,000 B.
    stage = Stage({10: 100, 100: 50}, 0)
    assert stage.fitted(6001) == stage
    assert stage.fitted(2500).token_bytes == {10: 100, 30: 50}
    assert stage.fitted(650).token_bytes == {4: 150}
    assert Stage({100: 50}, 0).fitted(1).token_bytes == {100: 50}


def test_states_stand_ready_for_every_request_of_a_batch():
    spec = kvcalc.load("nemotron-h-8b")
    size = kvcalc.size(spec, 4096)
    one = kvcalc.size(spec, 1).bytes_per_sequence - 4 * 4096
    flags = {"max_batch_size": 8, "enable_block_reuse": False}
    newer, older = (find_engine(f"tensorrt-llm@{one}", flags) for one in ("1.3", "1.1"))
    assert newer.capacity(size, 40 * GIB).figures["mamba_bytes"] == 9 * one
    # 1.1 keeps a state in the model's format, whatever the config says.
    in_bf16 = 24 * (128 * 64 * 128 + 3 * (128 * 64 + 2 * 8 * 128)) * 2
    assert older.capacity(size, 40 * GIB).figures["mamba_bytes"] == 8 * in_bf16
    assert newer.allocate(size).allocated_bytes == 9 * one + 4096 * 4 * 4096
    tokens = newer.capacity(size, 40 * GIB).tokens
    assert tokens == int((40 * GIB - int(9 * one * 0.9)) / 16384) // 32 * 32


def test_a_latent_has_no_second_half_and_an_index_key_is_fp8():
    # 61 layers of 576 values, and of 132 B of index keys under every format.
    for kv_dtype, width in (("auto", 2), ("fp8", 1)):
        size = kvcalc.size(kvcalc.load("deepseek-v3.2"), 32, kv_dtype=kv_dtype)
        assert find_engine("tensorrt-llm").allocate(size).allocated_bytes == 32 * 61 * (576 * width + 132)


def test_fp4_brings_a_scale_for_sixteen_values():
    size = kvcalc.size(kvcalc.load("llama-3.1-8b"), 32, kv_dtype="nvfp4")
    assert find_engine("tensorrt-llm").allocate(size).allocated_bytes == 32 * 32 * 2048 * 9 // 16


def test_ranks_hold_whole_heads_and_the_first_stages_a_layer_more():
    spec = kvcalc.load("llama-3.1-8b")
    engine = find_engine("tensorrt-llm")
    assert engine.allocate(kvcalc.size(spec, 32, tp=16)).allocated_bytes == 32 * 32 * 512
    staged = kvcalc.size(spec, 32, pp=5)
    layers = [stage.token_bytes[32] // 4096 for stage in stages_on_rank(staged, (32,), keeps_state_dtype=True)]
    assert layers == [7, 7, 6, 6, 6]
    assert engine.allocate(staged).allocated_bytes == 32 * 7 * 4096
    assert engine.capacity(staged, 70 * 32 * 4096).num_blocks == 10
    assert engine.allocate(kvcalc.size(spec, 32, 6, dp=4)).allocated_bytes == 2 * 32 * 32 * 4096


@pytest.mark.parametrize(
    ("model", "asked", "flags", "message"),
    [
        ("deepseek-v4-flash", {}, {}, "compressed entries"),
        ("whisper-large-v3", {}, {}, "encoder's tokens"),
        ("gemma-4-31b", {}, {}, "heads of one width"),
        ("llama-3.1-8b", {"dcp": 2}, {}, "decode-context"),
        ("llama-3.1-8b", {"kv_dtype": "q8_0"}, {}, "no cache in q8_0"),
        ("nemotron-h-8b", {}, {}, "block reuse"),
        ("llama-3.1-8b", {"batch": 9}, {"max_batch_size": 8}, "at most 8"),
        ("llama-3.1-8b", {}, {"max_seq_len": 512}, "past --max-seq-len 512"),
        ("llama-3.1-8b", {"kv_dtype": "nvfp4"}, {"max_attention_window": (512, 1024)}, "several windows in nvfp4"),
        ("gpt-oss-20b", {"pp": 23}, WINDOWS, "same windows on every pipeline stage"),
    ],
)
def test_what_it_does_not_hold_or_is_not_known_is_said(model, asked, flags, message):
    asked = dict(asked)
    size = kvcalc.size(kvcalc.load(model), 1024, asked.pop("batch", 1), **asked)
    with pytest.raises(KvcalcError, match=message):
        find_engine("tensorrt-llm", flags).allocate(size)


def test_more_requests_than_may_run_are_the_limit():
    size = kvcalc.size(kvcalc.load("llama-3.1-8b"), 1024)
    pool = find_engine("tensorrt-llm", {"max_batch_size": 3}).capacity(size, 40 * GIB)
    assert (pool.sequences, pool.limited_by) == (3, "running requests")
    assert pool.max_concurrency == pytest.approx(320)


def test_a_pool_too_small_takes_a_shorter_request():
    size = kvcalc.size(kvcalc.load("llama-3.1-8b"), 131072)
    pool = find_engine("tensorrt-llm").capacity(size, GIB)
    assert (pool.sequences, pool.longest_request) == (0, 8192)


@given(st.integers(0, 64 * GIB), st.integers(1, 32768), st.sampled_from([None, (128, 32768), (512,)]))
def test_a_pool_never_takes_more_than_it_has(pool_bytes, tokens, windows):
    size = kvcalc.size(kvcalc.load("gpt-oss-20b"), tokens)
    engine = find_engine("tensorrt-llm", {"max_attention_window": windows, "max_seq_len": 32768})
    pool = engine.capacity(size, pool_bytes)
    assert pool.figures["allocated_bytes"] <= pool_bytes
    assert pool.sequences <= pool.max_concurrency
    assert pool.longest_request <= tokens
