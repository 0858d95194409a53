"""Ranks: how heads, tokens, layers and sequences are spread, and how many copies that makes."""

import pytest

import kvcalc
from kvcalc.errors import KvcalcError
from kvcalc.sizing.notes import notes_on
from kvcalc.sizing.stages import split_stages

LLAMA, V3 = kvcalc.load("llama-8b"), kvcalc.load("deepseek-v3")


def said(size):
    return " | ".join(note.text for note in notes_on(size))


def test_llama_at_tp_16_replicates_heads_and_says_so():
    sixteen, eight = (kvcalc.size(LLAMA, 8192, tp=tp) for tp in (16, 8))
    assert sixteen.bytes_per_rank == eight.bytes_per_rank == 134_217_728
    assert (sixteen.replication, eight.replication) == (2, 1)
    assert "8 KV heads on 16 ranks are replicated, 2 copies of each" in said(sixteen)
    assert "replicated" not in said(eight)


def test_a_latent_is_whole_on_every_rank_and_says_so():
    one, eight = (kvcalc.size(V3, 8192, tp=tp) for tp in (1, 8))
    assert one.bytes_per_rank == eight.bytes_per_rank == one.total_bytes
    assert eight.replication == 8
    assert "`latent` is whole on each of 8 ranks" in said(eight)


def test_decode_context_ranks_split_the_tokens_of_a_latent():
    size = kvcalc.size(V3, 8191, tp=8, dcp=8)
    assert size.bytes_per_rank == 61 * 576 * 2 * 1024
    assert "whole" not in said(size)
    assert "`latent` is whole on each of 2 ranks" in said(kvcalc.size(V3, 8192, tp=8, dcp=4))


def test_decode_context_ranks_never_lose_a_head():
    """8 heads on tp 8 with dcp 2: four groups of two heads, each group's tokens split in two."""
    size = kvcalc.size(LLAMA, 8192, tp=8, dcp=2)
    assert size.bytes_per_rank == 32 * 2 * 2 * 128 * 2 * 4096
    assert size.replication == 1


def test_windows_and_states_stay_whole_under_dcp(spec_file):
    text = "name: w\ndtype: bf16\nlayers: [{mixer: [{kind: kv, kv_heads: 4, head_dim: 64, window: 100}, {kind: rg_lru, width: 64, kernel: 4}]}]"
    spec = kvcalc.load(str(spec_file(text)))
    assert kvcalc.size(spec, 500, tp=4, dcp=4).bytes_per_rank == kvcalc.size(spec, 500, tp=4).bytes_per_rank


def test_dcp_that_does_not_divide_tp_takes_ranks_of_its_own():
    size = kvcalc.size(V3, 8192, dcp=4)
    assert size.sharding.stage_ranks == 4
    assert size.bytes_per_rank * 4 == size.total_bytes
    assert "does not divide --tp" in said(size)


def test_uneven_heads_are_counted_at_the_fullest_rank():
    size = kvcalc.size(LLAMA, 8192, tp=3)
    assert size.bytes_per_rank == 32 * 2 * 3 * 128 * 2 * 8192
    assert "engines refuse" in said(size)
    assert "engines refuse" in said(kvcalc.size(LLAMA, 8192, tp=12))
    assert "engines refuse" not in said(kvcalc.size(LLAMA, 8192, tp=4))


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        # vllm distributed/utils.py: left-over layers go before the last stage.
        (32, 4, [8, 8, 8, 8]),
        (61, 4, [15, 15, 16, 15]),
        (62, 4, [15, 16, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
        (5, 2, [3, 2]),
        (3, 1, [3]),
    ],
)
def test_stages(layers, pp, expected):
    assert [end - first for first, end in split_stages(layers, layers, pp)] == expected


def test_draft_layers_stand_on_the_last_stage():
    assert split_stages(40, 43, 2) == ((0, 20), (20, 43))


def test_the_worst_stage_counts():
    # A stack whose first half keeps nothing: all of it is on the second stage.
    size = kvcalc.size(kvcalc.load("phi-4-mini-flash"), 8192, pp=2)
    assert size.bytes_per_rank > size.total_bytes / 2


def test_a_source_on_another_stage_is_held_there_too(spec_file):
    text = """\
name: y
dtype: bf16
layers:
- {mixer: {kind: kv, kv_heads: 1, head_dim: 64}}
- {repeat: 3, mixer: {kind: shared, source: previous}}
"""
    size = kvcalc.size(kvcalc.load(str(spec_file(text))), 100, pp=2)
    assert size.total_bytes == 25_600
    assert size.all_ranks_bytes == 2 * 25_600
    assert size.replication == 2
    assert "counted on both" in said(size)


def test_sequences_are_spread_over_dp():
    size = kvcalc.size(LLAMA, 8192, 10, dp=4)
    assert size.bytes_per_rank == 3 * 2**30
    assert size.all_ranks_bytes == size.total_bytes == 10 * 2**30
    assert "does not divide the batch" in said(size)


def test_expert_parallel_leaves_the_cache_alone():
    assert kvcalc.size(V3, 8192, ep=32).all_ranks_bytes == kvcalc.size(V3, 8192).total_bytes
    assert "experts only" in said(kvcalc.size(V3, 8192, ep=32))


@pytest.mark.parametrize("spread", [{"tp": 0}, {"pp": -1}, {"dp": 10**9}, {"dcp": 0}, {"ep": 0}, {"pp": 33}])
def test_impossible_spreads(spread):
    with pytest.raises(KvcalcError) as caught:
        kvcalc.size(LLAMA, 8192, **spread)
    assert caught.value.hint
