"""Bytes against papers, reports and configs: golden/figures.yaml names the source of each."""

from fractions import Fraction

import pytest
import yaml
from conftest import GOLDEN

import kvcalc

SECTIONS = yaml.safe_load((GOLDEN / "figures.yaml").read_text())
CASES = [
    pytest.param(section.get("kv", "auto"), model, figures, id=f"{model}-{section.get('kv', 'auto')}")
    for section in SECTIONS
    for model, figures in section["models"].items()
]


@pytest.mark.parametrize(("kv_dtype", "model", "figures"), CASES)
def test_published_figure(kv_dtype, model, figures):
    spec = kvcalc.load(model)
    size = kvcalc.size(spec, kv_dtype=kv_dtype)
    if "growth" in figures:
        assert size.bytes_per_token == Fraction(figures["growth"])
    if "fixed" in figures:
        assert size.fixed_bytes_per_sequence == figures["fixed"]
    for context, expected in figures.get("at", {}).items():
        assert kvcalc.size(spec, context, kv_dtype=kv_dtype).bytes_per_sequence == expected
    for context, expected in figures.get("read", {}).items():
        assert kvcalc.size(spec, context, kv_dtype=kv_dtype).read_bytes_per_step == expected


def test_thirty_two_sequences_of_llama_8b_are_32_gib():
    size = kvcalc.size(kvcalc.load("llama-8b"), 8192, 32)
    assert size.total_bytes == 32 * 2**30
    assert size.parameters.total == 8_030_261_248
    assert size.weight_bytes == 16_060_522_496


def test_mqa_keeps_32_times_less_than_mha_and_cla_reads_what_it_does_not_store():
    mha, mqa, cla = (kvcalc.size(kvcalc.load(name)) for name in ("textbook-mha", "textbook-mqa", "textbook-cla2"))
    assert mha.bytes_per_token == 32 * mqa.bytes_per_token == 2 * cla.bytes_per_token
    # arXiv 2405.12981, section 2: CLA does not change the bytes that a decode step reads.
    assert cla.read_bytes_per_step == mha.read_bytes_per_step


def test_cla_keeps_one_cache_for_each_group_even_where_the_factor_does_not_divide():
    # 20 layers under CLA3: 7 caches (arXiv 2405.12981).
    (row,) = kvcalc.size(kvcalc.load("h128-mqa-cla3")).rows
    assert row.layers == 7
    assert sum(count for _, count in row.reads) == 20


def test_yoco_3b_keeps_26_times_less_a_token_than_a_transformer_of_its_shape():
    yoco = kvcalc.load("yoco-3b")
    transformer_bytes = 26 * 2 * 8 * 128 * 2
    assert transformer_bytes == 106_496
    assert len(yoco.layers) == 26
    assert transformer_bytes == 26 * kvcalc.size(yoco).bytes_per_token


@pytest.mark.parametrize("layers", [24, 32, 40, 64, 80])
def test_yoco_ratio_is_the_layer_count_at_every_size_of_the_paper(spec_file, layers):
    """arXiv 2405.05254: 24x at 1.2B, 32x, 40x, 64x, 80x at 65B, each the number of layers."""
    shape = "kind: kv, q_heads: 32, kv_heads: 8, head_dim: 128"
    yoco = spec_file(
        f"name: yoco\nlayers:\n- {{repeat: {layers // 2}, mixer: {{{shape}, window: 1024}}}}\n"
        f"- {{mixer: {{{shape}, id: global}}}}\n"
        f"- {{repeat: {layers // 2 - 1}, mixer: {{kind: shared, source: global, q_heads: 32}}}}\n",
        "yoco.yaml",
    )
    plain = spec_file(f"name: plain\nlayers:\n- {{repeat: {layers}, mixer: {{{shape}}}}}\n", "plain.yaml")
    sizes = [kvcalc.size(kvcalc.load(str(path))) for path in (plain, yoco)]
    assert sizes[0].bytes_per_token == layers * sizes[1].bytes_per_token
    # O((N + C L) D): the constant is L/2 full windows.
    assert sizes[1].fixed_bytes_per_sequence == layers // 2 * 1024 * 4096


def test_published_ratios():
    growth = {name: kvcalc.size(kvcalc.load(name)).bytes_per_token for name in ("deepseek-67b", "deepseek-v4.1-flash")}
    v4 = kvcalc.size(kvcalc.load("deepseek-v4-flash")).bytes_per_token
    assert round(growth["deepseek-67b"] / growth["deepseek-v4.1-flash"]) == 437
    assert round(float(growth["deepseek-v4.1-flash"] / v4), 2) == 0.25


def test_hunyuan_large_saves_95_percent_against_mha():
    # Hunyuan-Large report: 4 n_h d l against 2 n_g d l bytes.
    gqa_cla = kvcalc.size(kvcalc.load("hunyuan-large")).bytes_per_token
    assert 1 - gqa_cla / (4 * 80 * 80 * 64) == Fraction(95, 100)


def test_draft_layers_of_v41_add_their_windows():
    size = kvcalc.size(kvcalc.load("deepseek-v4.1-flash"), draft_layers=3)
    assert size.fixed_bytes_per_sequence == 2_906_112
