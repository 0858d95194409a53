"""vLLM's planning in the newest release, held against its own planning code (golden/vllm.json)."""

import json

import pytest
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from vllm_cases import answer

import kvcalc
from kvcalc.engines.engine import find_engine
from kvcalc.engines.vllm_compressed import compressed_of
from kvcalc.engines.vllm_groups import make_groups
from kvcalc.engines.vllm_plan import Planner
from kvcalc.engines.vllm_specs import Full, Latent, Limits, Sliding, SlidingLatent
from kvcalc.engines.vllm_states import States
from kvcalc.errors import KvcalcError

CASES = json.loads((GOLDEN / "vllm.json").read_text())["cases"]
WHOLE_MODELS = json.loads((GOLDEN / "vllm_models.json").read_text())["cases"]
GIB = 2**30

# The model of a case, where the catalogue has it: how it is asked, and the engine's flags.
MODELS = {
    "llama3-8b-bf16-tp1": ("llama-3.1-8b", {}, {}),
    "llama3-70b-bf16-tp8": ("llama-3.1-70b", {"tp": 8}, {}),
    "llama3-8b-fp8": ("llama-3.1-8b", {"kv_dtype": "fp8"}, {}),
    "llama3-8b-nvfp4": ("llama-3.1-8b", {"kv_dtype": "nvfp4"}, {}),
    "llama3-8b-int4-per-token-head": ("llama-3.1-8b", {"kv_dtype": "int4_per_token_head"}, {}),
    "llama3-8b-odd": ("llama-3.1-8b", {}, {}),
    "gpt-oss-20b-sync": ("gpt-oss-20b", {}, {"max_num_batched_tokens": 4096}),  # one batch of 8,192 in flight there
    "llama4-scout": ("llama-4-scout", {}, {}),
    "gemma4-26b-a4b": ("gemma-4-26b-a4b", {}, {}),
    "mimo-v2-flash": ("mimo-v2-flash", {}, {}),
    "deepseek-v3-bf16": ("deepseek-v3", {}, {}),
    "deepseek-v3-fp8": ("deepseek-v3", {"kv_dtype": "fp8"}, {}),
    "deepseek-v3-dcp8": ("deepseek-v3", {"tp": 8, "dcp": 8}, {}),
    "deepseek-v3.2-bf16": ("deepseek-v3.2", {}, {}),
    "deepseek-v3.2-fp8_ds_mla": ("deepseek-v3.2", {"kv_dtype": "fp8"}, {}),
    "deepseek-v3.2-nvfp4_ds_mla": ("deepseek-v3.2", {"kv_dtype": "latent=nvfp4_ds_mla"}, {}),
    "qwen3.5-35b-a3b": ("qwen3.5-35b-a3b", {}, {"enable_prefix_caching": False}),
    "qwen3.5-35b-a3b-align": ("qwen3.5-35b-a3b", {}, {}),
    "nemotron-3-nano-30b": ("nemotron-3-nano-30b-a3b", {}, {"enable_prefix_caching": False}),
    "whisper-large-v3": ("whisper-large-v3", {}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_plans_what_vllm_plans(name):
    case, expected = CASES[name]["case"], dict(CASES[name]["answer"])
    planned = answer(case)
    if "error" in expected:
        assert f"the estimated maximum model length is {planned.pop('longest')}." in expected.pop("error")
    assert planned == expected


@pytest.mark.parametrize("name", MODELS)
def test_a_model_becomes_the_layers_that_vllm_was_asked_about(name):
    model, asked, flags = MODELS[name]
    case, expected = CASES[name]["case"], CASES[name]["answer"]
    size = kvcalc.size(model, case["max_model_len"], **asked)
    engine = find_engine("vllm", flags)
    assert engine.allocate(size).allocated_bytes == expected["needed_bytes_one_request"]
    pool = engine.capacity(size, case["available_bytes"])
    assert pool.takes_one_request == ("error" not in expected)
    if "error" in expected:
        assert f"maximum model length is {pool.longest_request}." in expected["error"]
        return
    keys = {"num_blocks": "num_blocks", "bytes_per_block": "bytes_per_block"}
    keys |= {"kv_cache_size_tokens": "tokens", "max_concurrency": "max_concurrency"}
    assert {there: getattr(pool, here) for there, here in keys.items()} == {there: expected[there] for there in keys}


@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_caches_of_vllms_own_layer_classes_are_planned_alike(name):
    """Compressed entries, index keys beside K and V, draft layers: the specs come from the classes themselves."""
    one = WHOLE_MODELS[name]
    case, expected = one["case"], one["answer"]
    size = kvcalc.size(one["model"], case["max_model_len"], **one["asked"])
    engine = find_engine("vllm", one["flags"])
    assert engine.allocate(size).allocated_bytes == expected["needed_bytes_one_request"]
    pool = engine.capacity(size, case["available_bytes"])
    keys = {"num_blocks": "num_blocks", "bytes_per_block": "bytes_per_block"}
    keys |= {"tokens": "kv_cache_size_tokens", "max_concurrency": "max_concurrency"}
    assert {here: getattr(pool, here) for here in keys} == {here: expected[there] for here, there in keys.items()}
    assert pool.figures["kv_cache_groups"] == len(expected["groups"])


@pytest.mark.parametrize(("kv_dtype", "stride"), [("auto", 3168), ("fp8", 528), ("fp8_ds_mla", 1)])
def test_a_block_holds_whole_records_of_both_kinds(kv_dtype, stride):
    """DeepSeek-V4.1 on cards of capability 10: 528 B a window's token, 288 or 528 B an entry."""
    size = kvcalc.size("deepseek-v4.1-flash", 4096, kv_dtype=kv_dtype)
    [window] = compressed_of(size, None, 0).specs(size.layers[0].components)
    assert window.stride_alignment == stride


def test_what_a_request_of_deepseek_v4_claims():
    """https://github.com/vllm-project/vllm/issues/44376, vLLM 0.22 with 16,384 tokens in flight.

    30,000 tokens need 6.66 GiB, and 13,528 are the most that 5.44 GiB hold. A block had 22 pages of every width there
    (0.33 packs them closer), 22 x (37,440 + 8,640 + 1,728) B; what a request claims is the same.
    """

    def claimed(tokens):
        pool = find_engine("vllm").capacity(kvcalc.size("deepseek-v4-flash", tokens), 10**10)
        return pool.blocks_per_request * 22 * (37440 + 8640 + 1728) / GIB

    assert round(claimed(30000), 2) == 6.66
    assert claimed(13528) < 5.445
    assert claimed(13529) > 5.435
    assert claimed(13529) > claimed(13528)


def test_draft_layers_draft_one_token_each_where_nothing_else_is_said():
    """config/speculative.py: num_speculative_tokens is the draft's n_predict."""
    size = kvcalc.size("qwen3.5-35b-a3b", 131072, draft_layers=1)
    asked = find_engine("vllm", {"num_speculative_tokens": 1}).allocate(size)
    assert find_engine("vllm").allocate(size).allocated_bytes == asked.allocated_bytes
    more = find_engine("vllm", {"num_speculative_tokens": 3}).allocate(size)
    # Of 3 groups of states, with 2 blocks more each; K - 1 + 3 columns of 8,192 x 2 B make attention blocks larger.
    assert more.allocated_bytes > asked.allocated_bytes


def test_mamba_1_keeps_no_columns_for_draft_tokens():
    """mamba1_state_shape takes no num_spec: 3 of 5,120 in bf16 and 5,120 x 16 a layer, in 1 + 2 blocks."""
    held = find_engine("vllm", {"num_speculative_tokens": 2}).allocate(kvcalc.size("mamba-2.8b", 8192))
    assert held.allocated_bytes == 64 * 3 * (3 * 5120 * 2 + 5120 * 16 * 2)


def test_two_stages_of_unequal_layers_take_the_blocks_of_the_fuller():
    """61 layers over two stages: 31 and 30; MLA takes 64 tokens x 576 values x 2 bytes a layer."""
    size = kvcalc.size("deepseek-v3", 4096, pp=2)
    engine = find_engine("vllm")
    assert engine.allocate(size).allocated_bytes == 4096 * 31 * 576 * 2
    assert engine.capacity(size, 10**9).num_blocks == 10**9 // (64 * 31 * 576 * 2)


@pytest.mark.parametrize(
    ("model", "asked", "blocks", "block_size"),
    [
        # Mamba-2 in align mode holds 2 blocks and a checkpoint's: 4 groups of it, and ceil(262,144 / 2,096) of attention.
        ("nemotron-3-nano-30b-a3b", {}, 4 * 3 + 126, 2096),
        # A state on one of two ranks is (32 x 128 x 128 x 4 + 3 x 4096 x 3 x 2) / 2 = 1,085,440 B, a token 576 x 2 B:
        # 943 tokens, in steps of 128. Three groups of states, one of attention.
        ("kimi-linear-48b-a3b", {"tp": 2}, 3 * 2 + 256, 1024),
    ],
)
def test_prefix_caching_keeps_more_of_a_state(model, asked, blocks, block_size):
    pool = find_engine("vllm").capacity(kvcalc.size(model, 262144, **asked), 10**10)
    assert (pool.blocks_per_request, pool.block_tokens) == (blocks, (block_size,))


def test_data_parallel_ranks_share_the_requests():
    """8 requests over 4 ranks are 2 on each; one of 4,096 tokens takes 4,096 x 131,072 B."""
    held = find_engine("vllm").allocate(kvcalc.size("llama-3.1-8b", 4096, 8, dp=4))
    assert held.allocated_bytes == 2 * 4096 * 131072


def test_a_page_that_cannot_grow_to_the_largest_is_refused():
    """584 x 16 B rounded up to 576 is 9,792; two of its blocks are 19,008, not twice that. vLLM stops there too."""
    packed = Latent(block_size=16, kv_heads=1, head_size=584, state_bytes=584, alignment=576)
    window = Sliding(block_size=17, kv_heads=1, head_size=1152, state_bytes=1152, window=128)
    assert window.page_bytes == 2 * packed.page_bytes
    with pytest.raises(KvcalcError, match="no common page size"):
        make_groups([packed, window])


SPECS = st.one_of(
    st.builds(Full, block_size=st.just(16), kv_heads=st.sampled_from([1, 2, 8]), head_size=st.just(128)),
    st.builds(
        Sliding,
        block_size=st.just(16),
        kv_heads=st.sampled_from([2, 4]),
        head_size=st.just(128),
        window=st.sampled_from([128, 4096]),
    ),
    st.builds(States, block_size=st.just(16), values_bytes=st.integers(1, 10**6)),
)


@given(st.lists(SPECS, min_size=1, max_size=24), st.integers(1, 100_000), st.integers(0, 10**11))
def test_every_layer_is_in_one_group_and_a_pool_never_overflows(specs, length, budget):
    groups = make_groups(specs)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(specs)))
    planner = Planner(groups, Limits(max_model_len=length))
    pool = planner.pool([budget])
    assert pool.num_blocks * pool.bytes_per_block <= budget < (pool.num_blocks + 1) * pool.bytes_per_block
    bare = sum(specs[layer].page_bytes for group in groups for layer in group.layers if len(groups) == 1)
    assert pool.bytes_per_block >= bare
    longest = planner.longest_request(pool)
    assert planner.takes_one_request(pool) == (longest == length)
    assert not longest or planner.request_blocks(longest) < pool.num_blocks


@pytest.mark.parametrize(
    ("model", "asked", "flags", "said"),
    [
        ("llama-3.1-8b", {}, {"block_size": 24}, "multiples of 16"),
        ("llama-3.1-8b", {"tp": 3}, {}, "--tp 3 does not divide 8 KV heads"),
        ("qwen3.5-35b-a3b", {"tp": 64}, {}, "--tp 64 does not divide"),
        ("llama-3.1-8b", {"tp": 8, "dcp": 2}, {}, "needs --tp 16"),
        ("gpt-oss-20b", {"tp": 32, "dcp": 2}, {}, "beside windows"),
        ("llama-3.1-8b", {"kv_dtype": "q8_0"}, {}, "q8_0"),
        ("deepseek-v4-flash", {}, {"block_size": 64}, "compressed entries in blocks of 256"),
        ("deepseek-v4-flash", {"kv_dtype": "fp32"}, {}, "no window in fp32"),
        ("deepseek-v4-flash", {"kv_dtype": "csa=bf16"}, {}, "all such caches in one format"),
        ("deepseek-v4-flash", {"tp": 8, "dcp": 2}, {}, "beside windows"),
        ("deepseek-v4.1-flash", {"pp": 3}, {}, "refuses to start"),
        ("rwkv6-7b", {}, {}, "the states shift and wkv"),
        ("minimax-m3", {"kv_dtype": "index=nvfp4"}, {}, "in bf16 or fp8, not nvfp4"),
        ("deepseek-v3", {"draft_layers": 1, "tp": 2, "dcp": 2}, {}, "draft layers"),
        ("gemma-4-e4b", {"pp": 3}, {}, "parts layers from the cache that they share"),
    ],
)
def test_what_vllm_would_refuse_or_nobody_knows_is_refused_by_name(model, asked, flags, said):
    with pytest.raises(KvcalcError, match=said):
        find_engine("vllm", flags).allocate(kvcalc.size(model, 4096, **asked))


def test_ratios_that_vllm_has_not_are_refused(spec_file):
    spec = spec_file(
        "name: odd\ndtype: bf16\nlayers:\n- mixer: {kind: latent, latent_dim: 448, rope_dim: 64, ratio: 16}\n"
    )
    with pytest.raises(KvcalcError, match="not by 16"):
        find_engine("vllm").allocate(kvcalc.size(str(spec), 4096))


def test_a_window_of_latents_is_never_kept_like_full_attention():
    """A TypeError of vLLM 0.33: replace_as hands `bounded_replay` to MLAAttentionSpec."""
    full = Full(block_size=16, kv_heads=1, head_size=128)
    window = SlidingLatent(block_size=16, kv_heads=1, head_size=128, window=128)
    with pytest.raises(KvcalcError, match="window of latents"):
        make_groups([full, window], hybrid=False)


def test_windows_of_two_sizes_are_never_kept_like_full_attention():
    """merge_window_sizes raises a ValueError, which is_kv_cache_spec_uniform lets through: vLLM 0.33 stops."""
    full = Full(block_size=16, kv_heads=1, head_size=128)
    windows = [Sliding(block_size=16, kv_heads=1, head_size=128, window=size) for size in (128, 512)]
    assert make_groups([full, windows[0]], hybrid=False)
    with pytest.raises(KvcalcError, match="windows of different sizes"):
        make_groups([full, *windows], hybrid=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--block-size", "16"), "--block-size is a flag of vllm"),
        (("--kv-cache-memory", "40GiB"), "--kv-cache-memory is the pool of an engine"),
        (("--engine", "vllm", "--block-size", "0"), "at least 1"),
        (("--engine", "vllm", "--kv-cache-memory", "40G"), "no amount of memory with its base"),
        (("--engine", "vllm", "--kv-cache-memory", "0GiB"), "from 1 B to 8 EiB"),
        (("--engine", "vllm@0.34"), "rules are known for vllm 0.2.0 to 0.33.0"),
        (("--engine", "vllm@0.1"), "rules are known for vllm 0.2.0 to 0.33.0"),
        (("--engine", "vlm"), "unknown engine 'vlm'"),
    ],
)
def test_wrong_flags_are_errors_with_a_hint(kvcalc, arguments, said):
    refused = kvcalc("size", "llama-8b", *arguments)
    assert refused.code == 2
    assert said in refused.err
    assert "hint: " in refused.err


def test_a_pool_is_on_the_screen_and_in_the_document(kvcalc):
    asked = ("size", "llama-8b", "--ctx", "131072", "--engine", "vllm", "--kv-cache-memory", "60GB")
    screen = kvcalc(*asked).out
    assert "28,610 blocks" in screen
    assert "GPU KV cache size: 457,760 tokens, Maximum concurrency for 131,072 tokens per request: 3.49x" in screen
    pool = kvcalc(*asked, "--format", "json").json["engine"]["pool"]
    assert (pool["num_blocks"], pool["tokens"], pool["blocks_per_request"]) == (28610, 457760, 8192)


def test_a_pool_too_small_for_one_request_says_what_would_fit(kvcalc):
    asked = ("size", "llama-4-scout", "--ctx", "1000000", "--engine", "vllm", "--kv-cache-memory", "40GB")
    assert "it would not start" in kvcalc(*asked).out
    assert "the longest that fits is 740,048 tokens" in kvcalc(*asked).out
