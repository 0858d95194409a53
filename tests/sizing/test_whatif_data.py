"""The data of a what-if panel: what is offered, what is told apart, and what JavaScript's numbers would round.

That its components give the engine's own bytes is tested where they are added up, in tests/render/test_whatif_panel.py.
"""

import json
import shlex

import pytest

import kvcalc as api
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import Workload, size_workload
from kvcalc.sizing.whatif import exact, whatif_case


def case_of(model="llama-3.1-8b", ranks=None, overrides=(), **workload):
    spec = api.load(model, overrides)
    return whatif_case(model, spec, Workload(**workload), Sharding(**(ranks or {})))


def names(case):
    return [form["names"] for form in case["formats"]]


def test_formats_that_come_to_the_same_stand_together():
    """llama-8b is a bf16 model; what was asked stands first, and is not offered twice."""
    assert names(case_of())[:2] == [["auto", "bf16"], ["fp8"]]
    assert names(case_of(kv_dtype="fp8"))[:2] == [["fp8"], ["auto", "bf16"]]
    assert names(case_of(kv_dtype="k=q8_0,v=q4_0"))[0] == ["k=q8_0,v=q4_0"]


def test_a_format_that_the_shapes_do_not_take_is_not_offered():
    """An mx block is 32 values of one head (OCP MX, 5.3), and hunyuan-large's heads are 80 wide."""
    assert ["mxfp8"] in names(case_of())
    assert ["mxfp8"] not in names(case_of("hunyuan-large"))


def test_a_tp_that_cuts_what_a_format_cannot_says_so():
    """ggml's blocks of 32 run over a row: 8 heads of 80 are 20 blocks, 2 heads are 5, and one head is none."""
    case = case_of("hunyuan-large", kv_dtype="q8_0")
    stages = case["formats"][names(case).index(["q8_0"])]["stages"]
    said = {one["tp"]: found for one, found in zip(case["ranks"], stages, strict=True) if isinstance(found, str)}
    assert sorted(said) == [8, 16]
    assert "a width of 80 (k) is no whole number of 32-value blocks" in said[8]


def test_sliders_stop_at_powers_of_two_at_the_limit_and_at_what_was_asked():
    case = case_of(context_tokens=5000, batch=5)
    assert {128, 192, 4096, 5000, 6144, 131072} <= set(case["contexts"])
    assert case["contexts"] == sorted(set(case["contexts"]))
    assert max(case["contexts"]) == api.load("llama-3.1-8b").max_context == 131072
    assert 5 in case["batches"]


def test_a_tp_that_was_asked_is_offered_and_other_ranks_stay():
    case = case_of(ranks={"tp": 3, "pp": 2, "dp": 4})
    assert [(one["tp"], one["ranks"]) for one in case["ranks"]] == [(tp, tp * 2 * 4) for tp in (1, 2, 3, 4, 8, 16)]


def test_the_command_carries_what_the_panel_does_not_move():
    case = case_of("t5-large", {"pp": 2}, overrides=("hidden_size=2048",), encoder_tokens=700, dtype="fp16")
    assert shlex.split(f"{case['command']} {case['flags']}") == [
        *("kvcalc", "size", "t5-large", "--set", "hidden_size=2048"),
        *("--dtype", "fp16", "--encoder-tokens", "700", "--pp", "2"),
    ]
    assert case["encoder_tokens"] == 700


def test_numbers_past_2_53_are_text():
    """Number.MAX_SAFE_INTEGER is 2^53 - 1 (ECMA-262, 21.1.2.6)."""
    assert (exact(2**53 - 1), exact(2**53)) == (2**53 - 1, str(2**53))
    assert json.loads(json.dumps(case_of()))["name"] == "llama-3.1-8b"


def test_a_workload_that_the_model_refuses_is_refused():
    with pytest.raises(KvcalcError, match="--pp 40"):
        case_of(ranks={"pp": 40})


def test_the_rows_are_those_of_the_need():
    """The sum by hand of one sequence, from the data alone."""
    (row,) = case_of()["formats"][0]["rows"]
    assert row["layers"] * 8192 * row["entry_bytes"] == 2**30
    spec = api.load("llama-3.1-8b")
    assert size_workload(spec, Workload(), Sharding()).bytes_per_sequence == 2**30
