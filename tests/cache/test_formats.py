"""Number formats against the layouts that papers and engines document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.cache.formats import SplitFormat, all_formats, find_format
from kvcalc.cache.layout import Part
from kvcalc.errors import FormatError, KvcalcError, UnknownNameError

LATENT_V3 = [Part("latent", 1, 512), Part("rope", 1, 64)]
LATENT_V4 = [Part("latent", 1, 448), Part("rope", 1, 64)]


def k_and_v(heads: int, width: int) -> list[Part]:
    return [Part("k", heads, width), Part("v", heads, width)]


DOCUMENTED = [
    # One latent row. 656: vllm flashmla_sparse.py; 352: vllm 0.33 nvfp4_ds_mla; 1152 and 576: plain.
    ("bf16", LATENT_V3, 1152),
    ("fp8", LATENT_V3, 576),
    ("fp8_ds_mla", LATENT_V3, 656),
    ("nvfp4_ds_mla", LATENT_V3, 352),
    # DeepSeek-V4 and V4.1 rows of 512 values: report section 2.4.4, sglang kv_layout.py.
    ("fp8_ds_v4", LATENT_V4, 584),
    ("mxfp8", LATENT_V4, 528),
    ("nvfp4", LATENT_V4, 288),
    ("bf16", LATENT_V4, 1024),
    # Index keys of 128 values.
    ("fp8_f32x128", [Part("index", 1, 128)], 132),
    ("mxfp4", [Part("index", 1, 128)], 68),
    ("bf16", [Part("index", 1, 128)], 256),
    # vLLM per-token-head scales: d + 4 and d/2 + 4 for each of K and V.
    ("int8_per_token_head", k_and_v(1, 64), 2 * (64 + 4)),
    ("fp8_per_token_head", k_and_v(1, 128), 2 * (128 + 4)),
    ("int4_per_token_head", k_and_v(1, 128), 2 * (64 + 4)),
    ("int4_per_token_head", k_and_v(8, 64), 8 * 2 * (32 + 4)),
    # vLLM turboquant and ultraquant: the slot of one head of 128.
    ("turboquant_k8v4", k_and_v(1, 128), 196),
    ("turboquant_4bit_nc", k_and_v(1, 128), 134),
    ("turboquant_k3v4_nc", k_and_v(1, 128), 118),
    ("turboquant_3bit_nc", k_and_v(1, 128), 102),
    ("ultraquant_4bit", k_and_v(1, 128), 136),
    # ggml blocks of 32 over the row.
    ("q8_0", k_and_v(1, 32), 2 * 34),
    ("q5_1", k_and_v(1, 32), 2 * 24),
    ("q5_0", k_and_v(1, 32), 2 * 22),
    ("q4_1", k_and_v(1, 32), 2 * 20),
    ("q4_0", k_and_v(1, 32), 2 * 18),
    ("iq4_nl", k_and_v(1, 32), 2 * 18),
    ("q8_0", k_and_v(8, 80), 2 * 640 // 32 * 34),
    # OCP MX and NVFP4: bits a value.
    ("mxfp8", k_and_v(1, 32), 2 * 33),
    ("mxint8", k_and_v(1, 32), 2 * 33),
    ("mxfp6", k_and_v(1, 32), 2 * 25),
    ("mxfp4", k_and_v(1, 32), 2 * 17),
    ("nvfp4", k_and_v(1, 16), 2 * 9),
    ("fp4_mx_block16", k_and_v(1, 16), 2 * 9),
    ("6bit", LATENT_V3, 432),
    ("int4", k_and_v(2, 64), 128),
    ("fp32", k_and_v(1, 2), 16),
]


@pytest.mark.parametrize(("name", "parts", "expected"), DOCUMENTED, ids=lambda value: str(value)[:40])
def test_documented_entry(name, parts, expected):
    assert find_format(name).entry_bytes(parts, "kv") == expected


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("fp8_e4m3", "fp8"),
        ("fp8_e5m2", "fp8"),
        ("fp8_inc", "fp8"),
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("f16", "fp16"),
        ("FP8", "fp8"),
        ("f32", "fp32"),
    ],
)
def test_engines_spell_it_differently(alias, name):
    assert find_format(alias) is find_format(name)


def test_no_name_is_claimed_twice():
    names = [name for form in all_formats() for name in (form.name, *form.aliases)]
    assert len(names) == len(set(names))
    assert all(form.source for form in all_formats())


def test_ambiguous_name_says_which_layouts_there_are():
    with pytest.raises(KvcalcError) as caught:
        find_format("fp4")
    assert "nvfp4" in caught.value.hint
    assert "mxfp4" in caught.value.hint


def test_unknown_name_offers_near_ones():
    with pytest.raises(UnknownNameError) as caught:
        find_format("nvpf4")
    assert "nvfp4" in caught.value.hint


def test_width_that_blocks_do_not_divide_names_width_block_and_component():
    with pytest.raises(FormatError) as caught:
        find_format("mxfp4").entry_bytes(k_and_v(1, 46), "kv")
    for word in ("46", "32", "`kv`", "mxfp4"):
        assert word in caught.value.message


def test_blocks_over_the_row_divide_where_blocks_over_a_head_do_not():
    parts = k_and_v(8, 80)
    assert find_format("q4_0").entry_bytes(parts, "kv") == 2 * 20 * 18
    with pytest.raises(FormatError):
        find_format("mxfp4").entry_bytes(parts, "kv")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fp8_ds_mla", k_and_v(8, 128)),
        ("turboquant_k8v4", LATENT_V3),
        ("ultraquant_4bit", k_and_v(8, 64)),
        ("fp8_ds_mla", [Part("index", 1, 128)]),
    ],
)
def test_format_refuses_parts_that_it_was_not_made_for(name, parts):
    with pytest.raises(FormatError) as caught:
        find_format(name).entry_bytes(parts, "global")
    assert "`global`" in caught.value.message
    assert caught.value.hint


def test_k_and_v_apart():
    split = SplitFormat({"k": find_format("q8_0"), "v": find_format("q4_0")})
    assert split.name == "k=q8_0,v=q4_0"
    assert split.entry_bytes(k_and_v(8, 128), "kv") == 1024 // 32 * (34 + 18)


@given(
    form=st.sampled_from(list(all_formats())),
    heads=st.integers(1, 128),
    blocks=st.integers(1, 8),
)
def test_bytes_are_whole_and_add_up_over_heads(form, heads, blocks):
    """Twice the heads take twice the bytes, whatever the packing."""
    width = 128 * blocks if form.name != "ultraquant_4bit" else 128
    parts = k_and_v
    if form.name.startswith(("fp8_ds", "nvfp4_ds")):
        one = form.entry_bytes([Part("latent", 1, width), Part("rope", 1, 64)], "latent")
        assert isinstance(one, int)
        assert one > width // 2
        return
    one, two = (form.entry_bytes(parts(count, width), "kv") for count in (heads, 2 * heads))
    assert isinstance(one, int)
    assert two == 2 * one


@given(form=st.sampled_from(list(all_formats())), width=st.integers(1, 600), heads=st.integers(1, 5))
def test_a_format_answers_exactly_or_refuses(form, width, heads):
    """Never a rounded number: a width is packed to the byte, or the error says why not."""
    try:
        packed = form.entry_bytes(k_and_v(heads, width), "kv")
    except FormatError as error:
        assert error.hint
    else:
        assert packed * 8 >= 2 * heads * width * 3


def test_weights_are_counted_in_whole_blocks():
    assert find_format("bf16").bulk_bytes(8_030_261_248, "weights") == 16_060_522_496
    assert find_format("nvfp4").bulk_bytes(17, "weights") == 18
    with pytest.raises(FormatError):
        find_format("fp8_ds_mla").bulk_bytes(576, "weights")
