"""The caches of generate() and of continuous batching against transformers itself: golden/transformers_caches.json."""

import json

import pytest
import transformers_cases as library
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

import kvcalc
from kvcalc.engines.engine import Card, find_engine
from kvcalc.errors import KvcalcError

CASES = json.loads((GOLDEN / "transformers_caches.json").read_text())
GIB = 2**30
STATIC = [case for case in CASES["static"] if "bytes" in case]
NOT_IN_THE_CACHE_OBJECT = {"recurrentgemma-2b", "recurrentgemma-9b"}
"""Keep their states in the modules: what the cache object holds is not all."""


def _engine(kind, **flags):
    return find_engine("transformers", {"cache_implementation": kind} | flags)


def _static(case):
    spec = kvcalc.load(case["model"])
    heard = 1500 if case["model"].startswith("whisper") else case["tokens"] if case["model"] == "t5-large" else None
    size = kvcalc.size(spec, case["tokens"], case["batch"], dtype="bf16", encoder_tokens=heard)
    return _engine("static", max_cache_len=case["max_cache_len"]).allocate(size)


def _quantized(case):
    size = _tiny(case, case["prompt"] + case["generated"])
    options = dict(case["cache"])
    flags = {"cache_backend": options.pop("backend"), "max_new_tokens": case["generated"]} | options
    return _engine("quantized", **flags).allocate(size)


def _tiny(case, tokens):
    spec = kvcalc.load(str(GOLDEN / "configs" / f"{case['config']}.json"))
    return kvcalc.size(spec, tokens, case["batch"], dtype="bf16")


def _paged(case):
    size = kvcalc.size(kvcalc.load(case["config"]), case["tokens"], tp=case["tp"])
    engine = _engine("paged", flash=case["flash"], **case["options"])
    return engine, size, engine.capacity(size, engine.pool_bytes(Card(total_bytes=case["gib"] * GIB), size))


@pytest.mark.parametrize("case", STATIC, ids=lambda case: f"{case['model']}-{case['max_cache_len']}")
def test_a_static_cache_is_made_whole(case):
    if case["model"] in NOT_IN_THE_CACHE_OBJECT:
        with pytest.raises(KvcalcError, match="no static cache"):
            _static(case)
    else:
        assert _static(case).allocated_bytes == case["bytes"]


@pytest.mark.parametrize("case", CASES["quantized"], ids=str)
def test_a_quantised_cache_is_packed_as_its_backend_packs(case):
    if "error" in case:
        with pytest.raises(KvcalcError):
            _quantized(case)
    else:
        assert _quantized(case).allocated_bytes == case["bytes"]


@pytest.mark.parametrize("case", CASES["paged"], ids=str)
def test_a_paged_cache_has_the_sectors_that_memory_gives(case):
    engine, size, pool = _paged(case)
    if "error" in case:
        assert (pool.num_blocks, pool.sequences, pool.longest_request) == (0, 0, 0)
        return
    assert pool.num_blocks == case["num_blocks"]
    assert pool.figures == {"num_sectors": case["num_sectors"], "bytes_per_sector": case["bytes_per_sector"]}
    assert pool.sequences == min(case["requests"], 1024)
    assert (case["num_sectors"] + 2) * case["bytes_per_sector"] == case["bytes"]
    if "num_blocks" in case["options"] and case["requests"]:
        assert engine.allocate(size).allocated_bytes == case["bytes"]


def test_the_library_still_makes_such_static_caches():
    pytest.importorskip("transformers")
    for name in ("tiny-gemma3-text", "tiny-qwen3-next"):
        config = json.loads((GOLDEN / "configs" / f"{name}.json").read_text())
        size = _tiny({"config": name, "batch": 2}, 24)
        held = _engine("static", max_cache_len=40).allocate(size).allocated_bytes
        assert held == library.static_bytes(config, 24, 2, 40)


def test_the_library_still_packs_so():
    pytest.importorskip("transformers")
    case = {"config": "tiny-llama", "batch": 2, "prompt": 20, "generated": 3, "cache": {"backend": "fp8"}}
    assert library.quantized_bytes(case) == {"bytes": _quantized(case).allocated_bytes}


@pytest.mark.parametrize("backend", ["quanto", "hqq"])
def test_the_packages_still_pack_so(backend):
    pytest.importorskip({"quanto": "optimum.quanto", "hqq": "hqq"}[backend])
    for case in CASES["quantized"]:
        if case["cache"]["backend"] == backend and case["config"] == "tiny-llama" and "bytes" in case:
            assert library.quantized_bytes(case) == {"bytes": case["bytes"]}


def test_the_library_still_cuts_such_sectors():
    pytest.importorskip("transformers")
    for case in CASES["paged"][::7]:
        found = library.paged_figures(case)
        assert found == {name: case[name] for name in found}


def test_continuous_batching_takes_its_share_before_anything_has_run():
    card = Card(total_bytes=80 * GIB, weights_bytes=10 * GIB, activation_bytes=5 * GIB, graphs_bytes=GIB)
    size, half = kvcalc.size(kvcalc.load("llama-3.1-8b"), 9), _engine("paged", max_memory_percent=0.5)
    assert _engine("paged").pool_bytes(card, size) == 63 * GIB
    assert half.pool_bytes(card, size) == 35 * GIB
    assert half.pool_rule == "0.5 of what was free (--max-memory-percent)"
    assert _engine("static", max_cache_len=9).pool_bytes(card, size) == 64 * GIB
    assert _engine("static").pool_rule == ""


def test_a_batch_takes_whole_sectors_and_two_for_padding():
    # gpt-oss-20b: 12 layers of each type, so that blocks and sectors are one: 6,291,456 B for 256 tokens.
    size = kvcalc.size(kvcalc.load("gpt-oss-20b"), 1000, 3)
    assert _engine("paged").allocate(size).allocated_bytes == (3 * 4 + 3 * 1 + 2) * 6_291_456


def test_tokens_wait_until_there_are_enough():
    def waiting(new):
        case = {"config": "tiny-llama", "batch": 1, "prompt": 64, "generated": new, "cache": {"backend": "quanto"}}
        return any("wait" in rule for rule in _quantized(case).rules)

    assert [waiting(new) for new in (0, 1, 127, 128, 129)] == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("llama-3.1-8b", {"cache_implementation": "offloaded"}, "offloaded on the device"),
        ("llama-3.1-8b", {"max_cache_len": 9}, "--max-cache-len is of the static cache"),
        ("llama-3.1-8b", {"cache_implementation": "static", "nbits": 4}, "--nbits is of the quantized cache"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_backend": "awq"}, "called awq"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "nbits": 3}, "quanto has no 3 bits"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "axis_key": 1}, "along axes"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_backend": "fp8", "nbits": 4}, "no groups"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "q_group_size": 1_000}, "no whole groups of 1000"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "max_new_tokens": 100}, "leaves no prompt"),
        ("gemma-3-27b", {"cache_implementation": "quantized"}, "full attention alone"),
        ("jamba-1.5-mini", {"cache_implementation": "quantized"}, "full attention alone"),
        ("deepseek-v4-flash", {"cache_implementation": "static"}, "no static cache"),
        ("qwen3-next-80b-a3b", {"cache_implementation": "paged"}, "KV heads of one shape"),
        ("llama-4-scout", {"cache_implementation": "paged"}, "KV heads of one shape"),
        ("deepseek-v3", {"cache_implementation": "paged"}, "KV heads of one shape"),
        ("gemma-3n-e4b", {"cache_implementation": "paged"}, "KV heads of one shape"),
        ("llama-3.1-8b", {"cache_implementation": "paged", "num_blocks": 1, "page_size": 32}, "the batch takes 4"),
    ],
)
def test_what_the_library_refuses_or_is_not_known_is_said(model, flags, message):
    with pytest.raises(KvcalcError, match=message):
        find_engine("transformers", flags).allocate(kvcalc.size(kvcalc.load(model), 100))


@pytest.mark.parametrize(
    ("kind", "sharding", "message"),
    [("static", {"tp": 2}, "one rank"), ("paged", {"pp": 2}, "one rank"), ("paged", {"tp": 3}, "does not divide")],
)
def test_only_continuous_batching_is_spread_and_by_whole_heads(kind, sharding, message):
    size = kvcalc.size(kvcalc.load("llama-3.1-8b"), 100, **sharding)
    with pytest.raises(KvcalcError, match=message):
        _engine(kind).allocate(size)


@given(st.integers(1, 20_000), st.integers(1, 64), st.integers(0, 200 * GIB))
def test_a_paged_pool_carries_what_it_says(tokens, batch, memory_bytes):
    size = kvcalc.size(kvcalc.load("gpt-oss-20b"), tokens, batch)
    engine = _engine("paged", max_requests_per_batch=64)
    pool = engine.capacity(size, memory_bytes)
    assert pool.longest_request <= tokens
    assert (pool.longest_request == tokens) == (pool.sequences > 0)
    fixed = engine.with_flags(num_blocks=max(1, pool.num_blocks))
    if batch <= pool.sequences:
        assert fixed.allocate(size).allocated_bytes <= memory_bytes
