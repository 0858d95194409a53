"""A plan file: what is read, how it expands, and every mistake with its line."""

import json

import jsonschema
import pytest

from kvcalc.cli.plan_settings import all_flags, vocabulary
from kvcalc.plan.limits import LIMITS
from kvcalc.plan.reader import read_plan
from kvcalc.plan.schema import plan_schema
from kvcalc.plan.settings import Given

CASE = "cases:\n  - name: a\n    model: llama-8b\n"


@pytest.fixture
def cases(tmp_path):
    """Read a plan: cases("cases: ...", tp="4") -> its cases."""

    def read(text, **typed):
        path = tmp_path / "kvcalc.yaml"
        path.write_text(text)
        return read_plan(path, vocabulary(), {name: Given(value) for name, value in typed.items()})

    return read


def values(case):
    return {name: given.value for name, given in case.settings.items()}


def test_a_matrix_makes_a_case_of_every_combination_with_a_name_that_can_be_read(cases):
    found = cases(CASE + "    matrix: {kv_dtype: [bf16, fp8], tp: [1, 2]}\n")
    assert [case.name for case in found] == [
        "a [kv_dtype=bf16 tp=1]",
        "a [kv_dtype=bf16 tp=2]",
        "a [kv_dtype=fp8 tp=1]",
        "a [kv_dtype=fp8 tp=2]",
    ]
    assert values(found[2]) == {"model": "llama-8b", "kv_dtype": "fp8", "tp": 1}


def test_the_command_line_goes_before_a_case_and_a_case_before_the_defaults(cases):
    text = "defaults: {tp: 2, batch: 4, ctx: 8K, engine: vllm}\n" + CASE + "    batch: 8\n    ctx: 16K\n"
    [case] = cases(text, ctx="32K")
    assert values(case) == {"tp": 2, "batch": 8, "ctx": "32K", "engine": "vllm", "model": "llama-8b"}


def test_null_takes_a_default_away(cases):
    [case] = cases(
        "defaults: {tp: 2}\nlimits: {max_kv_cache: 1GiB}\n" + CASE + "    tp: null\n    limits: {max_kv_cache: null}\n"
    )
    assert values(case) == {"model": "llama-8b"} and not case.limits


def test_a_case_and_the_command_line_go_before_an_axis_of_the_defaults(cases):
    text = "defaults: {matrix: {tp: [1, 2]}}\n"
    assert [case.name for case in cases(text + CASE)] == ["a [tp=1]", "a [tp=2]"]
    assert [values(case)["tp"] for case in cases(text + CASE + "    tp: 4\n")] == [4]
    assert [case.name for case in cases(text + CASE + "    matrix: {tp: [8]}\n")] == ["a [tp=8]"]
    [case] = cases(text + CASE, tp="16")
    assert case.name == "a" and values(case)["tp"] == "16"


def test_a_spelling_of_an_engine_and_hyphens_are_the_same_setting(cases):
    [case] = cases(CASE + "    tensor-parallel-size: 2\n    kv_cache_dtype: fp8\n    gpu-memory-utilization: 0.9\n")
    assert values(case) == {"model": "llama-8b", "tp": 2, "kv_dtype": "fp8", "gpu_memory_utilization": 0.9}


WRONG = {
    "defaults: {bacth: 3}\n" + CASE: (":1: unknown key bacth", "batch"),
    CASE + "    bacth: 3\n": (":4: unknown key bacth", "batch"),
    "caes: []\n": (":1: unknown key caes", "cases"),
    CASE + "  - name: a\n    model: llama-8b\n": (":4: two cases are 'a' (first on line 2)", "its own"),
    "limits: {max_kv_cache: 40}\n" + CASE: (":1: max_kv_cache: 40 has no unit", "40GiB"),
    CASE + "    limits:\n      max_tpot: 30\n": (":5: max_tpot: 30 has no unit", "30ms"),
    CASE + "    limits: {max_bytes_per_token: 100}\n": (":4: max_bytes_per_token: 100 has no unit", "100KiB"),
    CASE + "    limits: {max_kv_cach: 1GiB}\n": (":4: unknown limit max_kv_cach", "max_kv_cache"),
    CASE + "    max_kv_cache: 1GiB\n": (":4: unknown key max_kv_cache", "under limits:"),
    CASE + "    limits: {tp: 2}\n": (":4: unknown limit tp", "setting"),
    CASE + "    limits: {must_fit: maybe}\n": (":4: must_fit: maybe is neither true nor false", "true"),
    CASE + "    limits: {min_tokens_per_second: 0}\n": (":4: min_tokens_per_second: 0 is no number", "2000"),
    CASE + "    matrix: {tp: []}\n": (":4: matrix: tp has no values", "[1, 2]"),
    CASE + "    matrix: {tp: 2}\n": (":4: matrix: tp has no values", "[1, 2]"),
    CASE + "    matrix: {tp: [1, [2]]}\n": (":4: tp: one value", "quote"),
    CASE + "    matrix: {tpp: [1]}\n": (":4: unknown key tpp", "tp"),
    CASE + "    matrix: {tp: [1, 1]}\n": (":2: two cases are 'a [tp=1]'", "its own"),
    CASE + "    tp: 2\n    matrix: {tp: [1, 2]}\n": (":5: tp stands in the matrix and beside it", "keep one"),
    CASE + "    tp: 2\n    tp: 4\n": (":5: tp: stands twice (first on line 4)", "keep one"),
    CASE + "    tp: 2\n    tensor_parallel_size: 4\n": (":5: tensor_parallel_size: tp is said already", "keep one"),
    CASE + "    tp: two\n": (":4: tp: 'two' is no whole number", "tp: 2"),
    CASE + "    served: 1\n": (":4: served: 1 is neither true nor false", "true"),
    CASE + "    ctx: true\n": (":4: ctx: one value is expected", "quote"),
    CASE + "    kv_cache_memory: 40\n": (":4: --kv-cache-memory '40'", "40GiB"),
    "cases:\n  - name: a\n": (":2: case a has no model", "model:"),
    "cases:\n  - model: llama-8b\n": (":2: a case has no name", "name:"),
    'cases:\n  - {name: "a\\u001b[2J", model: llama-8b}\n': (":2: name:", "words"),
    "cases:\n  - llama-8b\n": (":2: a case is a mapping", "name"),
    "cases: []\n": (":1: the plan has no cases", "cases:"),
    "defaults: {tp: 2}\n": ("kvcalc.yaml: the plan has no cases", "cases:"),
    "defaults: 3\n" + CASE: (":1: defaults: is no mapping", "engine"),
    "- a\n": ("a plan is a mapping", "cases:"),
    "": ("the file is empty", "cases:"),
    CASE + "---\n" + CASE: (":5: a second document", "one"),
    "cases: [\n": (":2: not YAML", ""),
    "cases:\n  chat: {model: llama-8b}\n": (":1: cases: is no list", "- name: chat"),
    CASE + "\tctx: 8K\n": (":4: not YAML", "indent with spaces"),
}


@pytest.mark.parametrize(
    ("text", "said"), WRONG.items(), ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
def test_every_mistake_has_its_line_and_what_would_work(kvcalc, tmp_path, text, said):
    path = tmp_path / "kvcalc.yaml"
    path.write_text(text)
    answer = kvcalc("check", path)
    assert answer.code == 2 and answer.out == ""
    error, hint = answer.err.splitlines()
    assert said[0] in error and said[1] in hint


def test_an_impossible_matrix_is_counted_and_refused_before_it_is_made(kvcalc, tmp_path):
    axes = ", ".join(f"{name}: {list(range(1, 1001))}" for name in ("tp", "pp", "batch"))
    path = tmp_path / "kvcalc.yaml"
    path.write_text(CASE + f"    matrix: {{{axes}}}\n")
    answer = kvcalc("check", path)
    assert answer.code == 2 and ":1: the plan expands to 1,000,000,000 cases" in answer.err


def test_binary_files_and_directories_are_no_plans(kvcalc, tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "binary file" in kvcalc("check", tmp_path / "binary").err
    assert "is a directory" in kvcalc("check", tmp_path).err
    assert "No such file" in kvcalc("check", tmp_path / "none.yaml").err


def test_the_plan_is_found_upwards_and_an_error_says_where_it_looked(kvcalc, tmp_path, monkeypatch):
    inner = tmp_path / "x" / "y"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    missing = kvcalc("check")
    assert missing.code == 2 and f"no kvcalc.yaml or kvcalc.yml in {inner}, {inner.parent}, " in missing.err
    (tmp_path / "kvcalc.yml").write_text(CASE)
    assert kvcalc("check", "--format", "json").json["plan"] == str(tmp_path / "kvcalc.yml")
    (tmp_path / "x" / "kvcalc.yaml").write_text(CASE)
    assert kvcalc("check", "--format", "json").json["plan"] == str(tmp_path / "x" / "kvcalc.yaml")


def test_the_schema_takes_what_the_reader_takes_and_refuses_what_it_refuses(kvcalc):
    schema = kvcalc("check", "--print-schema").json
    assert schema == json.loads(json.dumps(plan_schema(vocabulary())))
    valid = jsonschema.Draft202012Validator(schema).is_valid
    good = {"name": "a", "model": "llama-8b", "kv-cache-dtype": "fp8", "tp": 2, "matrix": {"ctx": ["8K", 4096]}}
    assert valid({"cases": [good], "limits": {"max_kv_cache": "40GiB", "must_fit": False}})
    for spoiled in ({**good, "bacth": 1}, {**good, "tp": [1]}, {**good, "matrix": {"tp": []}}, {"model": "x"}):
        assert not valid({"cases": [spoiled]})
    assert not valid({"cases": [good], "limits": {"max_kv_cache": 40}}) and not valid({"cases": []})


def test_every_flag_of_fit_and_throughput_is_a_setting_and_a_flag_of_check(kvcalc, monkeypatch):
    import re

    monkeypatch.setenv("TERMINAL_WIDTH", "240")
    shown = {
        verb: set(re.findall(r"(--[a-z][a-z-]+)", kvcalc(verb, "--help").out))
        for verb in ("fit", "throughput", "check")
    }
    of_the_verb = {"--format", "--out", "--force", "--quiet", "--help", "--strict", "--emit"}
    settings = {f"--{name.replace('_', '-')}" for flag in all_flags().values() for name in flag.spellings()}
    asked = {flag for flag in shown["fit"] | shown["throughput"] if not flag.startswith("--no-")} - of_the_verb
    assert asked - settings == set() and asked - shown["check"] == set()


def test_every_limit_is_called_like_its_class():
    assert list(LIMITS)[:4] == ["must_fit", "min_context", "min_sequences", "max_kv_cache"] and len(LIMITS) == 8
