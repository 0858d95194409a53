"""Older releases of vLLM, held against their own planning code (golden/vllm_versions.jsonl, asked by ask_vllm.py)."""

import json

import pytest
from conftest import GOLDEN
from vllm_cases import layer_specs

import kvcalc
from kvcalc.engines.engine import Card, find_engine
from kvcalc.engines.vllm_changes import PLANNING
from kvcalc.engines.vllm_changes_of_kinds import KINDS
from kvcalc.engines.vllm_groups import make_groups
from kvcalc.engines.vllm_plan import Planner
from kvcalc.engines.vllm_rules import Rules
from kvcalc.engines.vllm_specs import Full, Limits, Sliding
from kvcalc.engines.vllm_versions import VERSIONS, rules_of
from kvcalc.errors import KvcalcError

ASKED = [json.loads(line) for line in (GOLDEN / "vllm_versions.jsonl").read_text().splitlines()]
GIB = 2**30


def planned(version, case):
    """What kvcalc plans by the rules of that release, in the words of its answers."""
    rules = rules_of(version)
    limits = Limits(
        max_model_len=case["max_model_len"],
        in_flight_tokens=case["max_num_batched_tokens"] * (2 if rules.counts_overlapping_batches else 1),
        aligned_states=case["mamba_cache_mode"] == "align" and rules.cached_states == "align",
    )
    hybrid = not case["disable_hybrid"]
    specs = layer_specs(case)
    try:
        groups = make_groups(specs, hybrid=hybrid, rules=rules)
        planner = Planner(groups, limits, case["stages"], rules=rules, layers=specs, hybrid=hybrid)
    except KvcalcError:
        return {"refused": True}
    pool = planner.pool(case["available_bytes"])
    short = planner.short_stage(pool)
    if short is not None:
        needed = planner.needed_bytes()[short] / GIB
        return {"needed_gib": round(needed, 2), "longest": planner.estimated_length(pool, short)}
    return {
        "num_blocks": pool.num_blocks,
        "groups": [len(groups), max(len(group.on_stage(*case["stages"][0]).layers) for group in planner.groups)],
        "tokens": pool.tokens,
        "concurrency": f"{pool.max_concurrency:.2f}",
    }


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked["version"])
def test_a_release_plans_what_its_own_code_planned(asked):
    answer, expected = planned(asked["version"], asked["case"]), dict(asked["answer"])
    if answer == {"refused": True} and rules_of(asked["version"]).check == "layers" and "needed_gib" in expected:
        return  # it would stop for want of a common page next
    if expected == {"empty": True}:  # not one block beside the null block
        assert answer["longest"] == 0
        return
    if expected.get("longest", 0) is None:  # where not one token fits; up to 0.9.1 the message leaves the length out
        assert answer["longest"] == 0 or asked["version"] in {"0.8.5", "0.9.1"}
        expected["longest"] = answer["longest"]
    assert answer == expected


@pytest.mark.parametrize(
    ("asked", "release"),
    [
        ("vllm", "0.33.0"),
        ("vllm@0.24", "0.24.0"),
        ("vllm@0.19", "0.19.1"),
        ("vllm@0.8", "0.8.5"),
        ("vllm@0.6.3", "0.6.3"),
    ],
)
def test_a_prefix_is_its_newest_release(asked, release):
    assert find_engine(asked).version == release


@pytest.mark.parametrize("changes", [PLANNING, KINDS], ids=["planning", "kinds"])
def test_changes_are_of_releases_that_were_read_and_follow_each_other(changes):
    places = [VERSIONS.index(change.since) for change in changes]
    assert places == sorted(places, reverse=True)
    assert all(change.fields.keys() <= set(Rules.__struct_fields__) for change in changes)


@pytest.mark.parametrize(
    ("version", "pool"),
    [
        # 0.9 x 80 GiB is 77309411328 B; weights, activations and what is not torch's take 20 GiB, graphs 1.
        ("0.6.6", 77309411328 - 20 * GIB),  # worker/worker.py, determine_num_available_blocks
        ("0.19.1", 77309411328 - 20 * GIB),  # envs.py: graphs are estimated and not taken off
        # 0.92 x 80 GiB is 79027398246.4 B, rounded up.
        ("0.20.0", 79027398247 - 21 * GIB),  # v1/worker/utils.py, request_memory; gpu_worker.py
    ],
)
def test_a_card_leaves_what_the_release_takes(version, pool):
    card = Card(
        total_bytes=80 * GIB, non_torch_bytes=GIB, weights_bytes=16 * GIB, activation_bytes=3 * GIB, graphs_bytes=GIB
    )
    size = kvcalc.size("llama-3.1-8b", 8192)
    assert find_engine(f"vllm@{version}").pool_bytes(card, size) == pool


@pytest.mark.parametrize(
    ("version", "ctx", "said"),
    [
        ("0.6.2", 4096, "# GPU blocks: 512, # CPU blocks: 2048"),
        (
            "0.6.3",
            4096,
            "# GPU blocks: 512, # CPU blocks: 2048, Maximum concurrency for 4,096 tokens per request: 2.00x",
        ),
        (
            "0.6.2",
            16384,
            "# GPU blocks: 512, # CPU blocks: 2048, the maximum number of tokens that can be stored in KV cache (8192)",
        ),
        ("0.8.0", 4096, "GPU KV cache size: 8,192 tokens, Maximum concurrency for 4,096 tokens per request: 2.00x"),
        ("0.8.0", 16384, "2.00 GiB KV cache is needed, 1.00 GiB are available, estimated maximum model length is 8192"),
        (
            "0.29.0",
            16384,
            "2.00 GiB KV cache is needed, 1.00 GiB are available, estimated maximum model length is 8176",
        ),
    ],
)
def test_the_log_is_worded_as_the_release_words_it(version, ctx, said):
    assert find_engine(f"vllm@{version}").capacity(kvcalc.size("llama-3.1-8b", ctx), GIB).log == said


def test_a_share_of_ones_own_is_rounded_as_the_release_rounds():
    """0.3 x 101 B is 30.3: int() of what is left before 0.14, ceil() of the share since."""
    card, size = Card(total_bytes=101), kvcalc.size("llama-3.1-8b", 8192)
    pools = [
        find_engine(f"vllm@{one}", {"gpu_memory_utilization": 0.3}).pool_bytes(card, size) for one in ("0.13", "0.14")
    ]
    assert pools == [30, 31]


def test_swap_space_is_blocks_on_the_cpu_of_v0():
    """A block of 16 tokens is 2 MiB; V1 makes none."""
    size = kvcalc.size("llama-3.1-8b", 8192)
    assert find_engine("vllm@0.5", {"swap_space": 1.0}).capacity(size, GIB).figures["cpu_blocks"] == 512
    assert "cpu_blocks" not in find_engine("vllm@0.8").capacity(size, GIB).figures


def test_an_override_is_seen_by_the_check_since_0_20_1():
    """8,192 tokens need 512 blocks of 2 MiB; the pool has half."""
    size, flags = kvcalc.size("llama-3.1-8b", 8192), {"num_gpu_blocks_override": 600}
    old, new = (find_engine(f"vllm@{one}", flags).capacity(size, GIB // 2) for one in ("0.20.0", "0.20.1"))
    assert (old.num_blocks, old.sequences, old.figures["estimated_max_model_len"]) == (600, 0, 4096)
    assert (new.num_blocks, new.sequences) == (600, 1)


@pytest.mark.parametrize(
    ("version", "flags", "blocks"),
    [
        # 10 full layers and 52 windows of 1,024 in groups of 10: 6 x (577 + 4,096 / 6) of 65,536 tokens, in one step ...
        ("0.25.1", {}, 6 * 577 + 4096),
        ("0.26.0", {}, 6 * 1089 + 4096),  # ... and in two, (1,023 + 16,384) / 16 + 1
        ("0.25.1", {"disable_hybrid_kv_cache_manager": True}, 4096),
        ("0.9.0", {}, 4096),
        ("0.5.5", {}, 4096),
    ],
)
def test_a_window_takes_what_its_release_gives_it(version, flags, blocks):
    size = kvcalc.size("gemma-3-27b", 65536)
    capacity = find_engine(f"vllm@{version}", flags).capacity(size, 100 * GIB)
    assert capacity.blocks_per_request == blocks


@pytest.mark.parametrize(
    ("version", "flags", "said"),
    [
        ("0.25.1", {}, "8,192 in flight: one step of --max-num-batched-tokens; since 0.26"),
        ("0.26.0", {}, "16,384 in flight: all steps of --max-num-batched-tokens that overlap"),
        ("0.9.0", {}, "keep the whole context"),
        ("0.8.0", {}, "keep the whole context"),
        ("0.17.1", {}, "checked by the blocks of the first group alone"),
        ("0.12.0", {}, "checked by the pages of layers"),
        ("0.5.5", {}, "V0: one block table"),
        ("0.33.0", {"disable_hybrid_kv_cache_manager": True}, "the hybrid manager is off"),
    ],
)
def test_the_rule_that_makes_the_difference_is_named(version, flags, said):
    held = find_engine(f"vllm@{version}", flags).allocate(kvcalc.size("gemma-3-27b", 65536))
    assert any(said in rule for rule in held.rules)


def test_a_release_that_checks_too_little_starts_and_runs_none():
    """0.17 counts the first group, a window's 577 blocks; a request takes 7,558 of 6,866."""
    capacity = find_engine("vllm@0.17").capacity(kvcalc.size("gemma-3-27b", 65536), 9 * 10**9)
    assert (capacity.num_blocks, capacity.sequences) == (6866, 0)
    assert "needed_bytes" not in capacity.figures


def test_the_tokens_of_a_log_are_those_of_requests_since_0_20_1():
    """1,487 blocks of 784 tokens in 4 groups; a request of 32,768 takes 42 and a state in 3 (vllm issue 40691)."""
    size, flags = kvcalc.size("Qwen/Qwen3.5-27B", 32768), {"num_gpu_blocks_override": 1487}
    tokens = [find_engine(f"vllm@{one}", flags).capacity(size, 10**11).tokens for one in ("0.20.0", "0.20.1")]
    assert tokens == [1487 // 4 * 784, int(1487 / 45 * 32768)]


@pytest.mark.parametrize(
    ("kv_dtype", "before", "since"),
    [
        ("fp8", "0.2.7", "0.3.0"),
        ("nvfp4", "0.19.1", "0.20.0"),
        ("int8_per_token_head", "0.19.1", "0.20.0"),
        ("int4_per_token_head", "0.24.0", "0.25.0"),
    ],
)
def test_a_format_comes_with_its_release(kv_dtype, before, since):
    size = kvcalc.size("llama-3.1-8b", 8192, kv_dtype=kv_dtype)
    assert find_engine(f"vllm@{since}").allocate(size).allocated_bytes >= size.bytes_per_rank
    with pytest.raises(KvcalcError, match=f"does not know --kv-dtype {kv_dtype}"):
        find_engine(f"vllm@{before}").allocate(size)


@pytest.mark.parametrize(("version", "sizes"), [("0.9.1", [3, 3]), ("0.10.1", [1] * 6), ("0.27.0", [3, 3])])
def test_specs_of_one_type_share_groups_in_some_releases(version, sizes):
    """One full layer, two that keep a window in full, three windows: by type_id, by equality, by what merges."""
    plain = {"block_size": 16, "kv_heads": 8, "head_size": 128}
    specs = [Full(**plain), *2 * [Full(window=512, **plain)], *3 * [Sliding(window=128, **plain)]]
    groups = make_groups(specs, rules=rules_of(version))
    assert sorted(len(group.layers) for group in groups) == sorted(sizes)


def test_chunks_beside_full_attention_had_no_blocks_of_their_own_for_a_while():
    """From 0.10.1 to 0.13 unless an environment variable asks (envs.py)."""
    size = kvcalc.size("llama-4-scout", 65536)
    groups = {
        version: find_engine(f"vllm@{version}").capacity(size, 10**10).figures["kv_cache_groups"]
        for version in ("0.10.0", "0.10.1", "0.13.0", "0.14.0")
    }
    assert groups == {"0.10.0": 4, "0.10.1": 1, "0.13.0": 1, "0.14.0": 4}


def test_a_latent_is_rounded_up_where_its_release_does():
    """576 values x 2 B; in 0.7.2 and 0.7.3 640 (worker/cache_engine.py, _align_cache). 61 layers of 16 tokens, then 64."""
    size = kvcalc.size("deepseek-v3", 4096)
    blocks = [find_engine(f"vllm@{one}").capacity(size, 10**10).bytes_per_block for one in ("0.7.1", "0.7.3", "0.8")]
    assert blocks == [61 * 16 * 576 * 2, 61 * 16 * 640 * 2, 61 * 64 * 576 * 2]


@pytest.mark.parametrize(
    ("version", "flags", "states", "block"),
    [
        # A state is 48 x 128 x 128 x 4 + 3 x 10,240 x 2 = 3,207,168 B, a token 4,096 B: 783, in steps of 16.
        ("0.19.0", {}, 1, 784),
        ("0.19.0", {"enable_prefix_caching": True}, 2, 784),
        ("0.28.0", {}, 2, 784),
        ("0.12.0", {"enable_prefix_caching": True}, 1, 784),  # switched off again: models/config.py, MambaModelConfig
        ("0.19.0", {"block_size": 32}, 1, 784),  # in steps of 16 whatever --block-size says
        ("0.20.0", {"block_size": 32}, 1, 800),
    ],
)
def test_states_beside_attention_by_release(version, flags, states, block):
    size = kvcalc.size("Qwen/Qwen3.5-27B", 32768)
    capacity = find_engine(f"vllm@{version}", flags).capacity(size, 10**11)
    assert capacity.block_tokens == (block,)
    assert capacity.blocks_per_request == 3 * states + -(-32768 // block)


@pytest.mark.parametrize(("version", "block"), [("0.11.0", 944), ("0.19.1", 960), ("0.26.0", 960), ("0.27.0", 1024)])
def test_mla_beside_states_grows_in_the_steps_of_its_release(version, block):
    """A state on one of two ranks is 1,085,440 B, a token of MLA 1,152: 943 tokens."""
    size = kvcalc.size("kimi-linear-48b-a3b", 32768, tp=2)
    flags = {"enable_prefix_caching": False, "block_size": 16}
    assert find_engine(f"vllm@{version}", flags).capacity(size, 10**10).block_tokens == (block,)


@pytest.mark.parametrize(("version", "block"), [("0.12.0", 672), ("0.13.0", 1312)])
def test_states_of_nemotron_h_follow_its_config_since_0_13(version, block, spec_file):
    """bf16: 2,695,168 B of 4,096 a token, 658 in steps of 16; fp32: 128 x 80 x 128 x 4 + 73,728 B, 1,298."""
    spec = """
name: nemotron-nano
model_type: nemotron_h
layers:
  - {repeat: 27, mixer: {kind: mamba2, heads: 128, head_dim: 80, state: 128, groups: 8, kernel: 4}}
  - {repeat: 4, mixer: {kind: kv, kv_heads: 8, head_dim: 128}}
"""
    size = kvcalc.size(str(spec_file(spec)), 8192)
    assert find_engine(f"vllm@{version}").capacity(size, 10**10).block_tokens == (block,)


def test_up_to_0_9_0_the_check_asks_less_than_the_pool_keeps():
    """52 windows of 577 pages and 10 layers of 4,096, 131,072 B each, though the pool keeps all 62 in full."""
    size = kvcalc.size("gemma-3-27b", 65536)
    needed = [
        find_engine(f"vllm@{one}").capacity(size, GIB).figures["needed_bytes"] for one in ("0.8.2", "0.8.3", "0.9.1")
    ]
    assert needed == [62 * 4096 * 131072, *2 * [(52 * 577 + 10 * 4096) * 131072]]


@pytest.mark.parametrize(
    ("version", "model", "asked", "flags", "said"),
    [
        ("0.7.0", "deepseek-v3", {}, {}, "MLA's latents"),
        ("0.10.0", "qwen3.5-35b-a3b", {}, {}, "recurrent states"),
        ("0.10.2", "deepseek-v3.2", {}, {}, "index keys"),
        ("0.19.1", "mimo-v2-flash", {}, {}, "a V narrower than its K"),
        ("0.10.1", "whisper-large-v3", {}, {}, "the encoder's tokens"),
        ("0.10.1", "llama-3.1-8b", {"tp": 16, "dcp": 2}, {}, "decode-context ranks"),
        ("0.2.7", "llama-3.1-8b", {"kv_dtype": "fp8"}, {}, "does not know --kv-dtype fp8"),
        ("0.19.1", "llama-3.1-8b", {"kv_dtype": "nvfp4"}, {}, "does not know --kv-dtype nvfp4"),
        ("0.29.0", "nemotron-3-nano-30b-a3b", {}, {}, "Mamba's states for every block"),
        ("0.32.0", "deepseek-v4-flash", {}, {}, "compressed entries"),
        ("0.7.3", "llama-3.1-8b", {}, {"num_speculative_tokens": 2}, "drafts beside these layers"),
        ("0.10.1", "qwen3-next-80b-a3b", {}, {"num_speculative_tokens": 2}, "drafts beside these layers"),
        ("0.16.0", "nemotron-3-nano-30b-a3b", {}, {"num_speculative_tokens": 2}, "drafts beside these layers"),
        ("0.6.6", "mistral-7b-v0.1", {}, {}, "lets them reuse their blocks"),
        ("0.9.0", "gemma-4-31b", {}, {}, "cannot keep the layers"),
        ("0.11.0", "gemma-4-31b", {}, {}, "no common page size"),
    ],
)
def test_what_a_release_does_not_have_is_refused_by_name(version, model, asked, flags, said):
    size, engine = kvcalc.size(model, 4096, **asked), find_engine(f"vllm@{version}", flags)
    with pytest.raises(KvcalcError, match=said):
        engine.allocate(size)
