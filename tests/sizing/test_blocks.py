"""A paged cache holds its need and less than a block more, for every model that is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import models

from kvcalc.cache.sharding import Sharding
from kvcalc.cache.span import Span
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import catalogue_names, load
from kvcalc.sizing.blocks import Group, Pinned, Window, layout_of
from kvcalc.sizing.need import Workload, size_workload

LENGTHS = np.array([1, 15, 16, 17, 511, 512, 513, 1024, 4095, 4096, 4097, 8191, 8192, 20_000, 131_072])


def layout(name_or_spec, block, context=8192, **spread):
    spec = load(name_or_spec) if isinstance(name_or_spec, str) else name_or_spec
    encoder = 1500 if any(one.needs_encoder_tokens for layer in spec.layers for one in layer.components) else None
    return layout_of(size_workload(spec, Workload(context, encoder_tokens=encoder), Sharding(**spread)), block)


def one_block_of_each(paged):
    """Bytes of a block of every group: for windows two, since one may begin inside a block and end inside another."""
    return sum(group.units * (2 if isinstance(group, Window) else 1) for group in paged.groups) * paged.bytes_per_unit


@pytest.mark.parametrize("name", catalogue_names())
def test_waste_is_less_than_a_block_of_every_group(name):
    paged = layout(name, 16)
    held, need = paged.held_bytes(LENGTHS), paged.written_bytes(LENGTHS)
    assert (held >= need).all()
    assert (held - need <= max(0, one_block_of_each(paged) - 1)).all()
    assert paged.units(17) == paged.units(np.array([17]))[0]
    assert all(paged.units(int(one)) <= paged.most_units(int(one)) for one in LENGTHS)
    assert (layout(name, 1).held_bytes(LENGTHS) == need).all(), "blocks of one entry waste nothing"


@given(models(), st.integers(1, 3000), st.integers(1, 40))
def test_the_need_is_that_of_a_sequence(spec, tokens, block):
    size = size_workload(spec, Workload(tokens), Sharding())
    paged = layout_of(size, block)
    assert paged.written_bytes(tokens) == size.bytes_per_sequence
    assert paged.held_bytes(tokens) >= paged.written_bytes(tokens)


@given(models(), st.integers(1, 30), st.integers(1, 40), st.integers(1, 4), st.integers(1, 4))
def test_whole_blocks_waste_nothing_where_nothing_slides(spec, blocks, block, tp, dcp):
    paged = layout(spec, block, tp=tp * dcp, dcp=dcp)
    for group in paged.groups:
        whole = blocks * group.block_tokens
        if group.cap is None:
            assert group.blocks(whole) == blocks < group.blocks(whole + group.ratio)
    if all(group.cap is None and group.block_tokens == paged.groups[0].block_tokens for group in paged.groups):
        whole = blocks * paged.groups[0].block_tokens if paged.groups else blocks
        assert paged.held_bytes(whole) == paged.written_bytes(whole)


@pytest.mark.parametrize("name", ["llama-8b", "deepseek-v3", "gemma-3-27b", "nemotron-h-8b"])
@pytest.mark.parametrize("spread", [{"tp": 4}, {"pp": 2}, {"tp": 8, "dcp": 2}])
def test_a_rank_holds_its_share(name, spread):
    size = size_workload(load(name), Workload(8192), Sharding(**spread))
    assert layout_of(size, 16).written_bytes(8192) == size.bytes_per_rank


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 200), st.integers(1, 30))
def test_a_window_holds_the_blocks_that_its_tokens_touch(width, block, tokens, step):
    """By brute force, as vLLM 0.33 does it: before a step of `step` tokens the W - 1 tokens computed last stay."""
    step = min(step, tokens)
    window = Window(name="window", block_tokens=block, units=1, cap=width)
    first_kept = max(0, tokens - step - (width - 1))
    touched = {place // block for place in range(first_kept, tokens)}
    assert window.blocks(tokens, step) == len(touched)
    assert window.dropped_blocks(tokens, step) == min(touched)
    assert window.most_blocks(tokens) == max(window.blocks(length) for length in range(1, tokens + 1))
    assert window.blocks(np.array([tokens]), step)[0] == len(touched)


def test_a_window_touches_a_block_more_than_it_fills():
    window = Window(name="window", block_tokens=16, units=1, cap=128)
    assert [window.blocks(tokens) for tokens in (128, 129, 143, 144, 145)] == [8, 9, 9, 8, 9]
    assert window.most_blocks(128) == 8
    assert window.most_blocks(4096) == 9


def test_entries_for_many_tokens_take_a_block_each_when_they_are_whole():
    group = Group(name="1 of 4 tokens", block_tokens=16, units=1, ratio=4)
    assert [group.blocks(tokens) for tokens in (3, 4, 16, 19, 20)] == [0, 1, 1, 1, 2]


def test_sinks_keep_blocks_of_their_own(spec_file):
    path = spec_file(
        "name: sinks\nlayers:\n  - {mixer: {kind: kv, q_heads: 1, kv_heads: 1, head_dim: 8, window: 32, sinks: 4}}\n"
    )
    paged = layout(str(path), 16)
    assert [(type(group), group.cap) for group in paged.groups] == [(Pinned, 4), (Window, 32)]
    assert [paged.units(tokens) // paged.units(1) for tokens in (1, 4, 5, 36, 37, 1000)] == [1, 1, 2, 3, 4, 4]
    assert paged.written_bytes(1000) == (32 + 4) * 2 * 8 * 2


def test_a_block_of_nothing_is_refused():
    with pytest.raises(KvcalcError, match="at least 1 token"):
        layout("llama-8b", 0)


def test_opt_holds_what_the_paper_of_paged_attention_counts():
    """arXiv 2309.06180, section 3: a token of OPT-13B takes 800 KB; 12 GB hold 15.7K of them (table 1)."""
    paged = layout("opt-13b", 16, context=2048)
    assert paged.bytes_per_unit == 16 * 819_200
    assert paged.pool_units(12 * 2**30) == 15_728 // 16
    assert paged.units(17) == 2


def test_spans_that_slide_differ_from_those_that_begin_anew():
    assert Span(cap=8) != Span(cap=8, slides=True)
