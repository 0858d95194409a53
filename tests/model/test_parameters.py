"""Parameter counts that no running model answers for: by hand, and unknown where they must be."""

import pytest

import kvcalc
from kvcalc.model.parameters import count_parameters

DENSE = """\
name: d
hidden_size: 8
vocab_size: 10
dtype: bf16
layers:
- repeat: 2
  mixer: {kind: kv, q_heads: 4, kv_heads: 2, head_dim: 3}
  mlp: {kind: dense, intermediate_size: 16}
"""
ATTENTION = 8 * (4 + 2 + 2 + 4) * 3
LAYER = ATTENTION + 3 * 8 * 16 + 2 * 8
WHOLE = 2 * LAYER + 2 * 10 * 8 + 8


def count(spec_file, text):
    return count_parameters(kvcalc.load(str(spec_file(text))))


@pytest.mark.parametrize(
    ("old", "new", "more"),
    [
        ("", "", 0),
        ("dtype: bf16", "tie_embeddings: true", -10 * 8),
        ("dtype: bf16", "position_embeddings: 5", 5 * 8),
        ("dtype: bf16", "norm_vectors: 4", 2 * 2 * 8),
        ("dtype: bf16", "final_norm_vectors: 2", 8),
        ("dtype: bf16", "extra_parameters: 7", 7),
        ("dtype: bf16", "lookup_parameters: 9", 9),
        ("head_dim: 3", "head_dim: 3, bias: qkv", 2 * 8 * 3),
        ("head_dim: 3", "head_dim: 3, bias: all", 2 * (8 * 3 + 8)),
        ("head_dim: 3", "head_dim: 3, qk_norm: head", 2 * 2 * 3),
        ("head_dim: 3", "head_dim: 3, qk_norm: full", 2 * 6 * 3),
        ("head_dim: 3", "head_dim: 3, extra_parameters: -5", -10),
        ("head_dim: 3", "head_dim: 3, parameters: 100", 2 * (100 - ATTENTION)),
        ("head_dim: 3", "head_dim: 3, v_head_dim: 5", 2 * 8 * (2 + 4) * 2),
        ("head_dim: 3", "head_dim: 3, weights: w", -ATTENTION),
        ("size: 16", "size: 16, gated: false", -2 * 8 * 16),
        ("size: 16", "size: 16, bias: true", 2 * (2 * 16 + 8)),
        ("size: 16", "size: 16, weights: w", -3 * 8 * 16),
        ("  mlp:", "  norm_vectors: 0\n  mlp:", -2 * 2 * 8),
        ("  mlp:", "  extra_parameters: 3\n  mlp:", 2 * 3),
        (
            "dense, intermediate_size: 16",
            "moe, experts: 4, active: 1, intermediate_size: 16",
            2 * (3 * 3 * 128 + 4 * 8),
        ),
        (
            "dense, intermediate_size: 16",
            "moe, experts: 1, active: 1, shared: 2, intermediate_size: 16, router: false",
            2 * 2 * 384,
        ),
    ],
)
def test_every_key_counts_what_it_says(spec_file, old, new, more):
    assert count(spec_file, DENSE.replace(old, new) if old else DENSE).total == WHOLE + more


def test_active_leaves_out_idle_experts_and_tables_of_which_a_row_is_read(spec_file):
    text = DENSE.replace("dense, intermediate_size: 16", "moe, experts: 4, active: 1, intermediate_size: 16")
    counted = count(spec_file, text.replace("dtype: bf16", "lookup_parameters: 1000"))
    assert counted.total - counted.active == 2 * 3 * (3 * 8 * 16) + 10 * 8 + 1000


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        # What the models' own pages state, to the digits they state.
        ("gpt-oss-20b", "3.61"),
        ("gpt-oss-120b", "5.13"),
        ("qwen3-235b-a22b", "22"),
        ("qwen3-30b-a3b", "3"),
        ("deepseek-v3", "37"),
        ("kimi-k2", "32"),
    ],
)
def test_active_parameters_as_published(model, billions):
    digits = len(billions.partition(".")[2])
    assert f"{count_parameters(kvcalc.load(model)).active / 1e9:.{digits}f}" == billions


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("hidden_size: 8\n", "", "hidden_size"),
        ("vocab_size: 10\n", "", "vocab_size"),
        ("q_heads: 4, ", "", "q_heads"),
        (", intermediate_size: 16", "", "mlp"),
        ("kind: kv, q_heads: 4, kv_heads: 2, head_dim: 3", "kind: latent, q_heads: 4, latent_dim: 8", "latent"),
        ("kind: kv, q_heads: 4, kv_heads: 2, head_dim: 3", "kind: gmu", "gmu"),
    ],
)
def test_what_is_not_stated_is_unknown_and_said(spec_file, old, new, reason):
    counted = count(spec_file, DENSE.replace(old, new))
    assert counted.total is None
    assert reason in counted.unknown


def test_a_reader_owns_its_queries_over_the_heads_of_its_source(spec_file):
    text = DENSE.replace("- repeat: 2\n  mixer", "- mixer") + "- mixer: {kind: shared, source: previous, q_heads: 4}\n"
    assert count(spec_file, text).total == LAYER + 8 * 4 * 3 * 2 + 2 * 8 + 2 * 10 * 8 + 8
