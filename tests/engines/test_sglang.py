"""SGLang's pools, held against its own configurators (golden/sglang.json, tests/oracle/sglang.py) and against logs."""

import json

import pytest
import yaml
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

import kvcalc
from kvcalc.engines.engine import Card, find_engine
from kvcalc.engines.sglang_memory import Launch, default_prefill_tokens, static_fraction
from kvcalc.errors import KvcalcError

CASES = json.loads((GOLDEN / "sglang.json").read_text())
LOGS = yaml.safe_load((GOLDEN / "sglang_logs.yaml").read_text())
GIB = 2**30
ONE = kvcalc.size("llama-3.1-8b")


def sglang(**flags):
    return find_engine("sglang", flags)


def sized(asked):
    rest = dict(asked)
    return kvcalc.size(rest.pop("model"), rest.pop("ctx"), **rest)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_pools_are_those_of_its_own_code(case):
    held = sglang(**case["flags"]).capacity(sized(case["kvcalc"]), case["pool_bytes"])
    if "error" in case:
        assert held.sequences == held.longest_request == 0
        return
    names = {"tokens": "tokens_per_rank"}
    assert {name: held.figures[names.get(name, name)] for name in case["answer"]} == case["answer"]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["id"])
def test_a_log_says_what_is_computed(log, spec_file):
    model = spec_file(log["model"]) if "\n" in log["model"] else log["model"]
    size = kvcalc.size(str(model), log["ctx"], **log.get("kvcalc", {}))
    engine = sglang(**log.get("engine", {}))
    low, high = (engine.capacity(size, pool) for pool in _budgets(log, engine))
    for name, printed in log["log"].items():
        least, most = (_figure(held, name) for held in (low, high))
        if isinstance(printed, int):
            assert least <= printed <= most, name
        else:
            assert round(least / GIB, 2) <= printed <= round(most / GIB, 2), name


def _budgets(log, engine):
    """The least and the most bytes that the log's own two decimals allow; plenty where it states the tokens."""
    if "before_gb" not in log:
        return 10**12, 10**12
    before, after = (round(log[name] * 100) for name in ("before_gb", "after_gb"))
    # Half a hundredth either way: less before and more after is the most.
    spans = ((2 * before + 1, 2 * after - 1), (2 * before - 1, 2 * after + 1))
    return [
        engine.pool_bytes(Card(total_bytes=there * GIB // 200, weights_bytes=(there - here) * GIB // 200), ONE)
        for there, here in spans
    ]


def _figure(held, name):
    if name == "tokens":
        return held.tokens
    return sum(held.figures[one] for one in name.split("+"))


def test_weights_past_the_static_share_leave_no_pool():
    """DeepSeek-V4-Pro on 8 H200: 12.25 of 137.90 GB free after loading, refused at 0.88; 0.9113 was said to be the least.

    https://github.com/SemiAnalysisAI/InferenceX/issues/2128
    """
    card = Card(total_bytes=int(137.90 * GIB), weights_bytes=int(125.65 * GIB))
    assert sglang(mem_fraction_static=0.88).pool_bytes(card, ONE) < 0
    assert sglang(mem_fraction_static=0.9105).pool_bytes(card, ONE) < 0
    assert sglang(mem_fraction_static=0.9121).pool_bytes(card, ONE) > 0


def test_an_older_release_pays_for_no_spare_slot():
    """0.5.13: slots are budget // state, so that one more may come out of the same bytes; both allocate one to spare."""
    size = kvcalc.size("qwen3.5-27b", 262144)
    pool = 40 * GIB
    new, old = (find_engine(f"sglang@{version}").capacity(size, pool) for version in ("0.5.23", "0.5.13"))
    # A state is 48 x (48 x 128 x 128 x 4 + 10,240 x 3 x 2) B; 0.9 parts of memory are the states'.
    state = 48 * (48 * 128 * 128 * 4 + 10240 * 3 * 2)
    assert old.figures["mamba_slots"] == int(pool * 0.9 / 1.9 // state)
    assert new.figures["mamba_slots"] == old.figures["mamba_slots"] - 1
    # Since 0.5.17 a request counts for five slots, two of them tracking; before, for three.
    assert old.figures["max_running_requests"] == old.figures["mamba_slots"] // 3
    assert new.figures["max_running_requests"] == new.figures["mamba_slots"] // 5


def test_an_older_release_splits_whole_tokens_over_window_pools():
    """0.5.10: tokens of all layers alike first, then the split: 24 layers of 2,048 B, twelve of them windows."""
    size = kvcalc.size("gpt-oss-20b", 131072)
    held = find_engine("sglang@0.5.10").capacity(size, 12345678901)
    alike = 12345678901 // (24 * 2048)
    assert held.figures["full_tokens"] == int(alike * 24 * 2048 / (12 * 2048 + 0.8 * 12 * 2048))


def test_windows_of_models_that_it_does_not_list_keep_every_token():
    """gemma2_gemma3.py disables the window pool: all 62 layers keep 2 x 16 x 128 x 2 B of every token."""
    held = sglang().allocate(kvcalc.size("gemma-3-27b", 8192))
    assert held.allocated_bytes == (8192 + 1) * 62 * 2 * 16 * 128 * 2
    assert any("keep every token" in rule for rule in held.rules)


def test_an_older_release_lists_fewer_models():
    size = kvcalc.size("gemma-4-31b", 8192)
    old, new = (find_engine(f"sglang@{version}").capacity(size, 40 * GIB) for version in ("0.5.10", "0.5.13"))
    assert "swa_tokens" in new.figures
    assert "swa_tokens" not in old.figures


def test_deepseek_v4_of_an_older_release_weighs_what_its_log_says():
    """bytes_per_full_token=7705.45 for V4-Flash and 0.1: 43 x 584 / 10, 21 x (584 + 132) / 4, 20 x 584 / 128, and
    compressors' rows, 21 x 8 / 128 x (8,192 + 2,048) / 10. With pages of 256, as from 0.5.21 on, half of those rows."""
    size = kvcalc.size("deepseek-v4-flash", 1048576)
    flags = {"max_running_requests": 1}
    per_token = 43 * 58.4 + 21 * (584 + 132) / 4 + 20 * 584 / 128 + 21 * 8 / 128 * 10240 / 10
    assert round(per_token, 2) == 7705.45
    pools = [10**10, 2 * 10**10]
    held = [find_engine("sglang@0.5.17", flags).capacity(size, pool).tokens for pool in pools]
    assert abs(10**10 / (held[1] - held[0]) - per_token) < 3  # whole pages of 256


def test_stages_have_the_left_over_layers_at_the_end():
    """get_pp_indices: 61 layers over 4 are 15, 15, 15, 16; the fullest has 16 of 1,152 B a token."""
    held = sglang().allocate(kvcalc.size("deepseek-v3", 4096, pp=4))
    assert held.allocated_bytes == (4096 + 1) * 16 * 1152
    first = sglang().allocate(kvcalc.size("deepseek-v3", 4096, pp=3))
    assert first.allocated_bytes == (4096 + 1) * 21 * 1152


def test_states_are_charged_for_the_stage_that_keeps_the_most():
    """64 layers over 3 are 21, 21 and 22, every fourth of them attention: 16 of 48 layers of states on each."""
    held = sglang(max_total_tokens=1000).capacity(kvcalc.size("qwen3.5-27b", 4096, pp=3), 10 * GIB)
    state = 16 * (48 * 128 * 128 * 4 + 10240 * 3 * 2)
    assert held.figures["mamba_slots"] == int((10 * GIB * 0.9 / 1.9 - state) // state)


def test_a_request_is_shorter_than_the_pool():
    """tp_worker.py: max_req_len is the pool's tokens less one."""
    size, engine = kvcalc.size("llama-3.1-8b", 8192), sglang(max_total_tokens=8192)
    held = engine.capacity(size, 40 * GIB)
    assert (held.sequences, held.longest_request) == (0, 8191)
    held = sglang(max_total_tokens=8193).capacity(size, 40 * GIB)
    assert (held.sequences, held.longest_request) == (1, 8192)


def test_a_layer_without_attention_has_a_buffer_too(spec_file):
    """num_effective_layers counts every layer where none keeps a state (Nemotron-NAS): 3 x 2 x 8 x 128 x 2 B a token."""
    spec = "name: x\nlayers: [{repeat: 2, mixer: {kind: kv, kv_heads: 8, head_dim: 128}}, {mlp: {kind: dense}}]\n"
    held = sglang().allocate(kvcalc.size(str(spec_file(spec)), 100))
    assert held.allocated_bytes == 101 * 3 * 2 * 8 * 128 * 2


def test_every_layer_of_a_pool_has_a_buffer_even_if_it_reads_another():
    """memory_pool.py: layer_num buffers. Hunyuan-Large keeps 32 of 64 layers; SGLang makes 64 of 2 x 8 x 128 x 2 B."""
    size = kvcalc.size("hunyuan-large", 4096)
    kept = sum(one.keeps_entries for layer in size.layers for one in layer.components)
    assert sglang().allocate(size).allocated_bytes == (4096 + 1) * len(size.layers) * size.bytes_per_token / kept


def test_a_batch_over_data_parallel_attention_lies_on_each_rank():
    """8 requests over 4 ranks of attention are 2 on each, whose 8 KV heads are spread over 8 / 4 = 2 ranks."""
    size = kvcalc.size("llama-3.1-8b", 4096, 8, tp=8, dp=4)
    held = sglang(enable_dp_attention=True).allocate(size)
    assert held.allocated_bytes == (2 * 4096 + 1) * 32 * 2 * 4 * 128 * 2


def test_states_of_a_running_request_take_all_slots_that_count_for_it():
    """Two requests of five slots, and one to spare; a state of Qwen3.5-27B is 48 layers of it."""
    held = sglang().allocate(kvcalc.size("qwen3.5-27b", 4096, 2))
    states = next(part for part in held.parts if part.name == "states")
    assert (states.cells, states.layers) == (11, 48)
    assert states.tensors["ssm"] == 11 * 48 * 48 * 128 * 128 * 4


@pytest.mark.parametrize(
    ("gib", "launch", "reserved"),
    [
        # 512 + 8,192 x 1.5 + 128 + 256 x 2 decode + 58 sizes of prefill x 8, of which the list's last is 8,192
        (80, Launch(), 512 + 12288 + 128 + 512 + 58 * 8),
        (80, Launch(tp=8), 512 + 12288 + 1024 + 1024 + 58 * 8),
        (80, Launch(keeps_latent=True, max_running_requests=64), 512 + 12288 + 128 + 128 + 1536),
        (24, Launch(), 512 + 6144 + 128 + 96 + 50 * 8),
        (70, Launch(prefill_tokens=2048, keeps_latent=True), 10240),  # at least 10 GiB above 60
        (180, Launch(tp=8, attention_dp=8), 512 + 24576 + 1024 + 1024 + 512 * 8 * 4.5 + 74 * 8),
    ],
)
def test_the_share_that_it_chooses_by_itself(gib, launch, reserved):
    """memory_hook.py, by hand, in MiB; generate_prefill_cuda_graph_batch_sizes counts 50 sizes up to 4,096."""
    assert static_fraction(gib * GIB, launch) == round((gib * 1024 - reserved) / (gib * 1024), 3)


def test_prefill_chunks_follow_the_card():
    assert [default_prefill_tokens(gib * GIB) for gib in (16, 24, 48, 80, 141, 192)] == [
        2048,
        4096,
        4096,
        8192,
        8192,
        16384,
    ]


def test_a_pool_of_its_own_choice_asks_for_the_ranks():
    card = Card(total_bytes=80 * GIB, weights_bytes=16 * GIB, non_torch_bytes=GIB, communication_bytes=GIB)
    size = kvcalc.size("llama-3.1-8b", 8192, tp=8)
    fraction = static_fraction(80 * GIB, Launch(tp=8))
    assert abs(sglang().pool_bytes(card, size) - (78 * fraction - 16) * GIB) < 2
    assert sglang().pool_bytes(card, ONE) > sglang().pool_bytes(card, size)


MODELS = ("llama-3.1-8b", "deepseek-v3.2", "gpt-oss-20b", "qwen3.5-27b", "deepseek-v4-flash", "lfm2-1.2b")
HYBRIDS = {"qwen3.5-27b", "lfm2-1.2b"}


@given(st.sampled_from(MODELS), st.integers(0, 2 * 10**11), st.integers(1, 10**6), st.integers(0, 10**10))
def test_more_memory_never_carries_less_and_never_overflows(model, pool, context, more):
    size, engine = kvcalc.size(model, context), sglang()
    small, large = engine.capacity(size, pool), engine.capacity(size, pool + more)
    # With more bytes more requests may be planned for, whose compressors take some of the tokens: SGLang's own estimate.
    # A further slot of states takes its bytes from the tokens too.
    slot_tokens = size.fixed_bytes_per_sequence // size.bytes_per_token + 1 if model in HYBRIDS else 0
    if model != "deepseek-v4-flash":
        assert small.tokens <= large.tokens + slot_tokens
    if model != "deepseek-v4-flash" and model not in HYBRIDS:
        assert small.sequences <= large.sequences
        assert small.longest_request <= large.longest_request
    assert 0 <= small.longest_request <= context
    assert bool(small.sequences) <= (small.longest_request == context)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3.2", "gpt-oss-20b", "qwen3.5-27b"])
def test_what_a_batch_takes_is_what_carries_it(model):
    """The bytes of the smallest pools that take five requests, and a spare token a layer, carry five and not six."""
    engine = sglang(mamba_full_memory_ratio=1.0)
    size = kvcalc.size(model, 5000, 5)
    held = engine.allocate(size).allocated_bytes
    flags = {"max_mamba_cache_size": 25} if model == "qwen3.5-27b" else {}
    capacity = engine.with_flags(**flags).capacity(size, held)
    assert capacity.sequences == 5


@pytest.mark.parametrize(
    ("model", "asked", "flags", "said"),
    [
        ("llama-3.1-8b", {}, {"page_size": 0}, "--page-size 0"),
        ("llama-3.1-8b", {}, {"max_running_requests": 0}, "--max-running-requests 0"),
        ("llama-3.1-8b", {}, {"mem_fraction_static": 0}, "--mem-fraction-static 0"),
        ("llama-3.1-8b", {}, {"mem_fraction_static": 1.5}, "--mem-fraction-static 1.5"),
        ("gpt-oss-20b", {}, {"swa_full_tokens_ratio": 0}, "--swa-full-tokens-ratio 0"),
        ("gpt-oss-20b", {}, {"swa_full_tokens_ratio": 1.5}, "--swa-full-tokens-ratio 1.5"),
        ("qwen3.5-27b", {}, {"mamba_full_memory_ratio": 0}, "--mamba-full-memory-ratio 0"),
        ("qwen3.5-27b", {}, {"mamba_radix_cache_strategy": "most"}, "--mamba-radix-cache-strategy most"),
        (
            "qwen3.5-27b",
            {},
            {"mamba_radix_cache_strategy": "extra_buffer_lazy", "disable_overlap_schedule": True},
            "lazy",
        ),
        ("qwen3.5-27b", {"draft_layers": 1}, {}, "how many tokens they propose"),
        ("llama-3.1-8b", {"tp": 3}, {}, "--tp leaves 3 ranks to 8 KV heads"),
        ("qwen3.5-27b", {"tp": 5}, {}, "--tp leaves 5 ranks"),
        ("llama-3.1-8b", {"tp": 8, "dp": 3}, {"enable_dp_attention": True}, "--dp 3 does not divide --tp 8"),
        ("llama-3.1-8b", {"tp": 8, "dcp": 3}, {}, "--dcp 3 does not divide"),
        ("gpt-oss-20b", {"tp": 8, "dcp": 2}, {}, "--dcp shards no window pool"),
        ("deepseek-v4-flash", {"tp": 8, "dcp": 2}, {}, "--dcp shards no compressed entries"),
        ("deepseek-v4-flash", {}, {"page_size": 64}, "--page-size 64"),
        ("deepseek-v4-flash", {"kv_dtype": "bf16"}, {}, "a layout of its own"),
        ("llama-3.1-8b", {"kv_dtype": "q8_0"}, {}, "q8_0"),
        ("llama-3.1-8b", {"kv_dtype": "int8"}, {}, "int8"),
        ("deepseek-v3", {"kv_dtype": "mxfp8"}, {}, "no mxfp8 for the latent"),
        ("llama-3.1-8b", {"pp": 33}, {}, "only 32 layers"),
        ("rwkv6-7b", {}, {}, "the states shift and wkv"),
        ("whisper-large-v3", {}, {}, "the cross cache"),
        ("minimax-m3", {}, {}, "beside MLA alone"),
    ],
)
def test_what_it_refuses_or_nobody_knows_is_refused_by_name(model, asked, flags, said):
    with pytest.raises(KvcalcError, match=said):
        sglang(**flags).allocate(kvcalc.size(model, 4096, **asked))


@pytest.mark.parametrize(
    ("version", "asked", "said"),
    [
        ("0.5.13", {"model": "deepseek-v4-flash", "ctx": 4096}, "from SGLang 0.5.17 on"),
        ("0.5.20", {"model": "deepseek-v3", "ctx": 4096, "draft_layers": 1}, "drafts are known for SGLang 0.5.23"),
    ],
)
def test_what_was_not_read_of_an_older_release_is_refused(version, asked, said):
    with pytest.raises(KvcalcError, match=said):
        find_engine(f"sglang@{version}").allocate(sized(asked))
    with pytest.raises(KvcalcError, match=r"0\.5\.23, 0\.5\.20"):
        find_engine("sglang@0.4")
