"""Which format each part of a model takes, and what is said where it cannot."""

import pytest

import kvcalc
from kvcalc.errors import FormatError, KvcalcError, UnknownNameError
from kvcalc.sizing.notes import notes_on

LLAMA = kvcalc.load("llama-8b")


@pytest.mark.parametrize(
    ("kv_dtype", "expected"),
    [
        ("auto", 131_072),
        ("bf16", 131_072),
        ("fp16", 131_072),
        ("fp8", 65_536),
        ("fp8_e5m2", 65_536),
        ("q8_0", 69_632),
        ("nvfp4", 36_864),
        ("int8_per_token_head", 67_584),
        ("k=q8_0,v=q4_0", 32 * 1024 * (34 + 18) // 32),
        ("k=fp8", 32 * 1024 * 3),
        ("fp8,v=bf16", 32 * 1024 * 3),
        ("kv=fp8", 65_536),
        ("turboquant_k8v4", 32 * 8 * 196),
    ],
)
def test_llama_under_a_requested_format(kv_dtype, expected):
    assert kvcalc.size(LLAMA, kv_dtype=kv_dtype).bytes_per_token == expected


def test_dtype_is_the_models_own_and_a_pin_stands_before_it():
    assert kvcalc.size(LLAMA, dtype="fp32").bytes_per_token == 262_144
    v41 = kvcalc.load("deepseek-v4.1-flash")
    assert kvcalc.size(v41, dtype="fp32").bytes_per_token == 890
    assert kvcalc.size(LLAMA, dtype="fp8").weight_bytes == 8_030_261_248
    assert kvcalc.size(LLAMA, weights="fp8").weight_bytes == 8_030_261_248
    assert kvcalc.size(LLAMA, weights="fp8").bytes_per_token == 131_072


def test_a_name_reaches_all_rows_of_that_name():
    v41 = kvcalc.load("deepseek-v4.1-flash")
    size = kvcalc.size(v41, kv_dtype="global=bf16")
    assert {row.name: row.bytes_per_entry for row in size.rows} == {
        "window": 528, "global": 1024, "keys": 68, "global-2": 1024, "keys-2": 68,
    }  # fmt: skip


def test_a_requested_name_means_what_the_model_says():
    v32 = kvcalc.load("deepseek-v3.2")
    by_name = {row.name: row.bytes_per_entry for row in kvcalc.size(v32, kv_dtype="latent=fp8").rows}
    assert by_name == {"latent": 656, "index": 256}
    assert {row.bytes_per_entry for row in kvcalc.size(v32, kv_dtype="fp8_e4m3").rows} == {656, 132}


def test_states_follow_their_own_flag():
    qwen = kvcalc.load("qwen3-next-80b-a3b")
    fixed = {flag: kvcalc.size(qwen, **flags).fixed_bytes_per_sequence for flag, flags in {
        "none": {}, "kv": {"kv_dtype": "fp8"}, "state": {"state_dtype": "bf16"}, "dtype": {"dtype": "fp32"},
    }.items()}  # fmt: skip
    # vllm mamba_utils.py, shapes of the published config: 77,266,944 with fp32 states and bf16 convolutions, 39,518,208 with both in bf16.
    assert fixed["none"] == fixed["kv"] == 77_266_944
    assert fixed["state"] == 39_518_208
    assert fixed["dtype"] == 77_266_944 + 36 * 8192 * 3 * 2


def test_pins_of_states_yield_to_the_flag(spec_file):
    text = "name: r\ndtype: bf16\nstate_dtype: fp16\nlayers: [{mixer: {kind: recurrent, states: [{name: a, heads: 8, format: fp8}, {name: b, heads: 8}, {name: c, heads: 8, format: model}]}}]"
    spec = kvcalc.load(str(spec_file(text)))
    assert kvcalc.size(spec).fixed_bytes_per_sequence == 8 * 1 + 8 * 2 + 8 * 2
    assert kvcalc.size(spec, state_dtype="fp32").fixed_bytes_per_sequence == 8 * 4 + 8 * 4 + 8 * 2


@pytest.mark.parametrize(
    ("kv_dtype", "error", "words"),
    [
        ("fp9", UnknownNameError, "fp9"),
        ("", KvcalcError, "cannot be read"),
        ("k=", KvcalcError, "cannot be read"),
        ("=fp8", KvcalcError, "cannot be read"),
        ("fp8,fp16", KvcalcError, "cannot be read"),
        ("k=fp8,k=bf16", KvcalcError, "cannot be read"),
        ("index=fp8", UnknownNameError, "index"),
        ("fp8_ds_mla", FormatError, "`kv`"),
        ("v=turboquant_k8v4", FormatError, "one slot"),
    ],
)
def test_requests_that_do_not_fit(kv_dtype, error, words):
    with pytest.raises(error, match=words):
        kvcalc.size(LLAMA, kv_dtype=kv_dtype)


def test_a_row_that_blocks_do_not_divide_names_width_block_and_component():
    toy = kvcalc.load("textbook-toy")
    with pytest.raises(FormatError) as caught:
        kvcalc.size(toy, 3, kv_dtype="q8_0")
    assert all(word in caught.value.message for word in ("q8_0", "`kv`", "2", "32"))


def test_what_a_format_leaves_to_an_engine_is_said():
    notes = [note.text for note in notes_on(kvcalc.size(LLAMA, kv_dtype="turboquant_k8v4"))]
    assert any("first and last two layers" in text for text in notes)
