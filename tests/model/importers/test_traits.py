"""Parameter counts of imported configs, derived by hand from the tensors that a model type's own code makes."""

import msgspec
import pytest

from kvcalc.model.importers.hf_config import config_document
from kvcalc.model.parameters import count_parameters
from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document

H, V, LAYERS, HEADS, KV, WIDTH, INNER = 8, 10, 3, 4, 2, 2, 16
Q, K = HEADS * WIDTH, KV * WIDTH
BASE = {
    "hidden_size": H,
    "vocab_size": V,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": WIDTH,
    "intermediate_size": INNER,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
ATTENTION = H * (Q + 2 * K) + Q * H
PLAIN = LAYERS * (ATTENTION + 3 * H * INNER + 2 * H) + 2 * V * H + H


def spec_of(fields):
    return resolve(msgspec.convert(config_document(fields, "config.json", "m"), Document))


def total(**fields):
    return count_parameters(spec_of({**BASE, **fields})).total


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({"model_type": "llama"}, 0),
        ({"model_type": "llama", "tie_word_embeddings": True}, -V * H),
        ({"model_type": "llama", "attention_bias": True}, LAYERS * (Q + 2 * K + H)),
        ({"model_type": "llama", "mlp_bias": True}, LAYERS * (2 * INNER + H)),
        ({"model_type": "qwen2"}, LAYERS * (Q + 2 * K)),
        ({"model_type": "qwen3"}, LAYERS * 2 * WIDTH),
        ({"model_type": "olmo2"}, LAYERS * (Q + K)),
        ({"model_type": "olmo"}, -H * (2 * LAYERS + 1)),
        ({"model_type": "gemma2"}, LAYERS * 2 * H),
        ({"model_type": "gemma3_text"}, LAYERS * (2 * H + 2 * WIDTH)),
        ({"model_type": "glm", "attention_bias": True}, LAYERS * (Q + 2 * K)),
        ({"model_type": "cohere"}, -LAYERS * H),
        ({"model_type": "cohere", "use_qk_norm": True}, LAYERS * (Q + K - H)),
        ({"model_type": "arcee"}, -LAYERS * H * INNER),
        ({"model_type": "nemotron"}, LAYERS * (2 * H - H * INNER) + H),
        ({"model_type": "diffllama"}, LAYERS * 4 * WIDTH),
        ({"model_type": "bitnet"}, LAYERS * (Q + INNER)),
        ({"model_type": "seed_oss", "attention_bias": True, "attention_out_bias": True}, LAYERS * (Q + 2 * K + H)),
        ({"model_type": "hyperclovax", "use_post_norm": True}, LAYERS * 2 * H),
        ({"model_type": "nanochat"}, -LAYERS * H * (INNER + 2) - H),
    ],
)
def test_a_dense_model_is_a_llama_with_its_types_own_norms_biases_and_gates(fields, more):
    assert total(**fields) == PLAIN + more


def test_a_type_that_nobody_knows_is_built_as_its_fields_say():
    assert total(model_type="never_seen", qkv_bias=True) == PLAIN + LAYERS * (Q + 2 * K)


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
SPARSE = PLAIN + LAYERS * (4 * (3 * H * 6 + H) - 3 * H * INNER)


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({"model_type": "qwen3_moe"}, 2 * WIDTH),
        # biases of Q, K and V; a shared expert of 5 with a gate of its own
        (
            {"model_type": "qwen2_moe", "qkv_bias": True, "shared_expert_intermediate_size": 5},
            Q + 2 * K + 3 * H * 5 + H,
        ),
    ],
)
def test_experts(fields, more):
    assert total(**EXPERTS, **fields) == SPARSE + LAYERS * more


def test_gpt2_has_biases_layer_norms_and_positions():
    fields = {"model_type": "gpt2", "n_positions": 7, "n_embd": H, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": V}
    layer = 4 * H * H + 4 * H + 2 * H * 4 * H + 4 * H + H + 4 * H
    spec = spec_of({**fields, "tie_word_embeddings": True})
    assert count_parameters(spec).total == LAYERS * layer + V * H + 7 * H + 2 * H


def test_opt_may_embed_narrower_than_it_is():
    fields = {"model_type": "opt", "ffn_dim": INNER, "num_key_value_heads": None, "head_dim": None}
    wide = total(**fields, word_embed_proj_dim=H)
    assert total(**fields, word_embed_proj_dim=6) == wide - 2 * V * (H - 6) + 2 * 6 * H
    assert total(**fields, do_layer_norm_before=False) == wide - 2 * H


def test_mamba_is_a_mixer_and_a_norm():
    fields = {"model_type": "mamba", "state_size": 4, "conv_kernel": 3, "expand": 2, "time_step_rank": 2}
    inner = 2 * H
    mixer = H * 2 * inner + inner * (3 + 1) + inner * (2 + 2 * 4) + 2 * inner + inner + inner * 4 + inner + inner * H
    fields |= {"hidden_size": H, "vocab_size": V, "num_hidden_layers": LAYERS, "intermediate_size": inner}
    tied = count_parameters(spec_of({**fields, "tie_word_embeddings": True})).total
    assert tied == LAYERS * (mixer + H) + V * H + H


def test_an_encoder_is_counted_and_keeps_no_cache():
    fields = {
        "model_type": "t5",
        "d_model": H,
        "d_kv": WIDTH,
        "d_ff": INNER,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "vocab_size": V,
        "is_encoder_decoder": True,
        "relative_attention_num_buckets": 3,
        "feed_forward_proj": "relu",
    }
    attention, ffn = 4 * H * Q, 2 * H * INNER
    encoder, decoder = attention + ffn + 2 * H, 2 * attention + ffn + 3 * H
    spec = spec_of(fields)
    assert count_parameters(spec).total == LAYERS * (encoder + decoder) + V * H + 2 * H + 2 * 3 * HEADS
    assert len(spec.layers) == len(spec.encoder) == LAYERS


def test_an_encoder_whose_type_nobody_knows_makes_the_count_unknown():
    assert total(model_type="never_seen", is_encoder_decoder=True) is None
