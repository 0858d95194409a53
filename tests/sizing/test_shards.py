"""Weights on a rank: by hand, against what engines printed, and laws that hold for every model."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcalc
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import Checkpoint
from kvcalc.sizing.notes import basis
from kvcalc.sizing.shards import weights_per_rank
from kvcalc.sizing.weight_formats import find_weights

GIB = 2**30
DENSE = """\
name: d
hidden_size: 8
vocab_size: 10
dtype: bf16
layers:
- repeat: 4
  mixer: {kind: kv, q_heads: 4, kv_heads: 2, head_dim: 3}
  mlp: {kind: dense, intermediate_size: 16}
"""
NORMS, EMBEDDING, HEAD = 2 * 8, 10 * 8, 10 * 8 + 8


def layer(q_heads, kv_heads, inner):
    return 8 * 3 * (2 * q_heads + 2 * kv_heads) + 3 * 8 * inner + NORMS


def stages(spec_file, text, **sharding):
    attention_dp = sharding.pop("attention_dp", False)
    size = kvcalc.size(kvcalc.load(str(spec_file(text))), 16, **sharding)
    return weights_per_rank(size, attention_dp=attention_dp)


@pytest.mark.parametrize(
    ("sharding", "parameters"),
    [
        ({}, [4 * layer(4, 2, 16) + EMBEDDING + HEAD]),
        ({"tp": 2}, [4 * layer(2, 1, 8) + 5 * 8 + 5 * 8 + 8]),
        ({"tp": 4}, [4 * layer(1, 1, 4) + 3 * 8 + 3 * 8 + 8]),  # KV heads copied, the vocabulary rounded up
        ({"tp": 3}, [4 * layer(2, 1, 6) + 4 * 8 + 4 * 8 + 8]),
        ({"pp": 2}, [2 * layer(4, 2, 16) + EMBEDDING, 2 * layer(4, 2, 16) + HEAD]),
        ({"pp": 3}, [layer(4, 2, 16) + EMBEDDING, 2 * layer(4, 2, 16), layer(4, 2, 16) + HEAD]),
        ({"dp": 4}, [4 * layer(4, 2, 16) + EMBEDDING + HEAD]),
    ],
)
def test_a_dense_model_by_hand(spec_file, sharding, parameters):
    weights = stages(spec_file, DENSE, **sharding)
    assert [bytes_ // 2 for bytes_ in weights.stage_bytes] == parameters
    assert weights.fullest == 2 * max(parameters)
    assert weights.worst_stage == parameters.index(max(parameters))
    assert weights.basis == "exact"


def test_tied_tables_stand_on_both_ends_of_a_pipeline(spec_file):
    text = DENSE.replace("dtype: bf16", "dtype: bf16\ntie_embeddings: true")
    assert stages(spec_file, text).stage_bytes == (2 * (4 * layer(4, 2, 16) + HEAD),)
    assert stages(spec_file, text, pp=2).stage_bytes == stages(spec_file, DENSE, pp=2).stage_bytes


MOE = DENSE.replace(
    "{kind: dense, intermediate_size: 16}", "{kind: moe, experts: 6, active: 2, shared: 1, intermediate_size: 16}"
)
EXPERT = 3 * 8 * 16


@pytest.mark.parametrize(
    ("sharding", "experts", "shared"),
    [
        ({"tp": 2}, 6 * EXPERT // 2, EXPERT // 2),
        ({"tp": 2, "ep": 2}, 3 * EXPERT, EXPERT // 2),
        ({"tp": 4, "ep": 4}, 2 * EXPERT, EXPERT // 4),  # 6 experts on 4 ranks: the fullest has 2
        ({"tp": 4, "ep": 2}, 3 * EXPERT // 2, EXPERT // 4),
        ({"tp": 2, "dp": 2}, 6 * EXPERT // 2, EXPERT // 2),
    ],
)
def test_experts_are_spread_and_shared_ones_and_routers_are_not(spec_file, sharding, experts, shared):
    held = stages(spec_file, MOE, **sharding).fullest // 2
    tp = sharding["tp"]
    rest = 4 * layer(4 // tp, max(1, 2 // tp), 0) + 2 * -(-10 // tp) * 8 + 8
    assert held == rest + 4 * (experts + shared + 6 * 8)


@pytest.mark.parametrize(
    ("dp", "ep", "experts"), [(2, 1, 6 * EXPERT // 4), (4, 1, 6 * EXPERT // 4), (4, 4, 2 * EXPERT)]
)
def test_data_parallel_attention_takes_its_ranks_from_tp(spec_file, dp, ep, experts):
    """Of 4 ranks: heads and the embedding on 4 / dp, MLPs, experts and the LM head on all of them."""
    held = stages(spec_file, MOE, tp=4, dp=dp, ep=ep, attention_dp=True).fullest // 2
    tp = 4 // dp
    mixers = 4 * layer(4 // tp, 2 // tp, 0) + -(-10 // tp) * 8
    assert held == mixers + 3 * 8 + 8 + 4 * (experts + EXPERT // 4 + 6 * 8)


def test_mla_cuts_what_goes_up_and_copies_what_goes_down():
    """DeepSeek-V3, one layer: q_a 7168 x 1536, kv_a 7168 x 576 and their norms are whole on each of 8 ranks."""
    spec = kvcalc.load("deepseek-v3")
    latent = spec.layers[0].components[0]
    whole, eighth = (kvcalc.size(spec, 1024, tp=tp).sharding for tp in (1, 8))
    down = 7168 * 1536 + 1536 + 7168 * 576 + 512
    up = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    assert latent.projection_parameters(7168, None, whole) == down + up
    assert latent.projection_parameters(7168, None, eighth) == down + up // 8


def test_an_indexer_is_whole_on_every_rank():
    spec = kvcalc.load("deepseek-v3.2")
    index = next(one for one in spec.layers[0].components if one.selects)
    sharding = kvcalc.size(spec, 1024, tp=8).sharding
    assert index.parameter_count(7168, None, sharding) == index.parameter_count(7168)


def test_a_named_format_leaves_embeddings_norms_and_routers_unsaid(spec_file):
    weights = stages(spec_file, MOE, weights="fp8")
    kept = EMBEDDING + HEAD + 4 * (NORMS + 6 * 8)
    low = stages(spec_file, MOE).fullest // 2
    assert (weights.stages[0].low_bytes, weights.stages[0].high_bytes) == (low, low + kept)
    assert weights.basis == "assumed"
    assert "bf16 beside fp8" in weights.why


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("head_dim: 3", "head_dim: 3, parameters: 100", "stated as numbers"), ("dtype: bf16\n", "", "assumption")],
)
def test_what_is_not_exact_says_why(spec_file, old, new, said):
    weights = stages(spec_file, DENSE.replace(old, new), tp=2)
    assert weights.basis == "assumed"
    assert said in weights.why


def test_unknown_parameters_stay_unknown(spec_file):
    weights = stages(spec_file, DENSE.replace("q_heads: 4, ", ""), tp=2, pp=2)
    assert (weights.stage_bytes, weights.fullest, weights.worst_stage) == ((None, None), None, None)
    assert weights.basis == "unknown"
    assert "q_heads" in weights.why


@pytest.mark.parametrize("model", kvcalc.models())
def test_one_rank_holds_what_size_prints(model):
    size = kvcalc.size(model)
    assert weights_per_rank(size).stage_bytes == (size.weight_bytes,)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([one for one in kvcalc.models() if kvcalc.size(one).weight_bytes]),
    st.integers(1, 16),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4, 8]),
)
def test_ranks_together_hold_the_whole_and_none_more_than_it(model, tp, pp, ep):
    size = kvcalc.size(model, tp=tp, pp=pp, ep=ep)
    held = weights_per_rank(size).stage_bytes
    whole = weights_per_rank(kvcalc.size(model, pp=pp)).stage_bytes
    assert max(tp, ep) * sum(held) >= size.weight_bytes
    assert all(part <= all_ for part, all_ in zip(held, whole, strict=True))


def test_what_stands_outside_the_layers_is_on_the_first_stage(spec_file):
    text = DENSE.replace(
        "dtype: bf16", "dtype: bf16\nextra_parameters: 100\nlookup_parameters: 60\nposition_embeddings: 5"
    )
    plain, more = (stages(spec_file, one, tp=2, pp=2).stage_bytes for one in (DENSE, text))
    assert [(with_ - without) // 2 for with_, without in zip(more, plain, strict=True)] == [50 + 30 + 5 * 8, 0]


def test_bytes_of_files_are_divided_as_the_parameters_are(spec_file):
    spec = kvcalc.load(str(spec_file(DENSE)))
    held = msgspec.structs.replace(
        spec, checkpoint=Checkpoint(bytes=1_000_000, formats=("int4", "bf16"), source="a file")
    )
    assert weights_per_rank(kvcalc.size(held, 16)).stage_bytes == (1_000_000,)
    assert weights_per_rank(kvcalc.size(held, 16)).basis == "exact"
    two = weights_per_rank(kvcalc.size(held, 16, tp=2))
    whole, half = (stages(spec_file, DENSE, tp=tp).fullest for tp in (1, 2))
    assert two.fullest == -(-1_000_000 * half // whole)
    assert (two.basis, two.why) == ("assumed", "the bytes of the files are divided like the parameters")


def test_an_encoder_is_on_the_first_stage():
    first, last = weights_per_rank(kvcalc.size("whisper-large-v3", 448, pp=2)).stage_bytes
    assert first > 2 * last
    assert "encoder" in weights_per_rank(kvcalc.size("whisper-large-v3", 448, tp=2)).why


@pytest.mark.parametrize(
    ("model", "listed"),
    [("llama-3.1-8b", 4.92e9), ("qwen3-4b", 2.50e9)],
)
def test_a_recipe_of_llama_cpp_weighs_what_its_files_do(model, listed):
    """Q4_K_M as listed, to 5 MB: bartowski/Meta-Llama-3.1-8B-Instruct-GGUF, bartowski/Qwen_Qwen3-4B-GGUF (tied head)."""
    size = kvcalc.size(kvcalc.load(model), 1024, weights="q4_k_m")
    (weights,) = (found := weights_per_rank(size)).stages
    assert weights.low_bytes < listed < weights.high_bytes + 5e6
    assert weights.high_bytes < 1.05 * weights.low_bytes
    assert size.weight_bytes == weights.low_bytes
    assert found.basis == "assumed" and "q6_k beside q4_k_m" in found.why
    assert basis(size, "weights") == "assumed" and basis(size, "cache", "reads") == "exact"


@given(st.integers(1, 10**12))
def test_a_recipe_lies_between_its_block_types(values):
    """q4_k has 144 B and q6_k 210 B a block of 256 (ggml-common.h)."""
    held = find_weights("Q4_K_M ", "bf16").bulk.bulk_bytes(values, "weights")
    assert values * 144 <= 256 * held <= values * 210 + 256


def test_what_is_no_format_of_weights_is_refused():
    with pytest.raises(KvcalcError, match="q4_k_x"):
        kvcalc.size(kvcalc.load("llama-8b"), 1024, weights="q4_k_x")
