"""Engines side by side: what each takes is its own answer, and the rules that differ are named."""

import json

import pytest

import kvcalc as api
from kvcalc.engines.engine import find_engine


def test_each_engine_answers_as_by_itself(kvcalc):
    """gemma-3-27b at 32K: the need of llama.cpp is its padded cells, vLLM's its blocks."""
    out = json.loads(
        kvcalc("compare", "gemma-3-27b", "--engine", "vllm,llama.cpp", "--ctx", "32K", "--format", "json").out
    )
    size = api.size("gemma-3-27b", 32768)
    taken = [find_engine(name).allocate(size).allocated_bytes for name in ("vllm", "llama.cpp")]
    assert [case["engine"]["allocated_bytes"] for case in out["cases"]] == taken
    assert [case["ratios"]["allocated_bytes"] for case in out["cases"]] == [1, taken[1] / taken[0]]


def test_the_rules_that_differ_are_named_and_the_same_ones_are_not(kvcalc):
    """A window in vLLM holds the tokens in flight; llama.cpp's a micro-batch."""
    out = json.loads(kvcalc("compare", "gemma-3-27b", "--engine", "vllm,llama.cpp", "--format", "json").out)
    (difference,) = out["differences"]
    assert any("16,384 in flight" in rule for rule in difference["only_first"])
    assert any("a batch of 512 (-ub)" in rule for rule in difference["only_other"])
    shown = kvcalc("compare", "llama-8b", "--engine", "vllm,vllm", "--quiet").out
    assert "by the same rules" in shown


def test_a_flag_goes_to_its_own_engine_alone(kvcalc):
    out = json.loads(
        kvcalc(
            "compare",
            "llama-8b",
            "--engine",
            "vllm,llama.cpp",
            "--ctx",
            "1000",
            "--block-size",
            "64",
            "--format",
            "json",
        ).out
    )
    # 1,000 tokens are 16 blocks of 64, and 4 x 256 cells.
    assert [case["engine"]["allocated_bytes"] for case in out["cases"]] == [1024 * 131072, 1024 * 131072]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engine", "vllm,lama.cpp"), "unknown engine 'lama.cpp'"),
        (("--engine", "vllm,"), "unknown engine ''"),
        (("--engine", "vllm", "--swa-full"), "--swa-full is a flag of llama.cpp"),
        (("--block-size", "32"), "--block-size is a flag of vllm"),
        (("--engine", "vllm,llama.cpp", "-c", "8192"), "-c is a flag of llama.cpp"),
    ],
)
def test_wrong_engines_and_flags_are_errors(kvcalc, arguments, said):
    answer = kvcalc("compare", "llama-8b", *arguments)
    assert answer.code == 2
    assert said in answer.err
