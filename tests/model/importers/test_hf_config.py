"""Configs as caches: every trap of a field's name, derived by hand from the code that each comment names.

Bytes are one sequence's in bf16, states in fp32, at the tokens given.
"""

import copy
from pathlib import Path

import coverage_table
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcalc.cache.sharding import WHOLE
from kvcalc.errors import SpecError
from kvcalc.model.importers.families import FAMILIES
from kvcalc.model.importers.hf_config import config_document
from kvcalc.model.importers.sources import Imported
from kvcalc.model.reader import read_imported
from kvcalc.sizing.need import Workload, size_workload

# Where transformers' own cache is no measure of what a model keeps: the import says what engines keep.
EXPECTED_DIFFERENCES = {
    "deepseek_v4": "a window layer holds its one vector twice, and open rows of the compressor stay, some in fp32",
    "dots3_note": "index keys in fp32",
    "dots3_note_text": "index keys in fp32",
    "falcon": "new_decoder_architecture: KV heads are repeated for every query head before they are cached",
    "glm5_next": "the index keeps key, gate and a mark of every token; engines keep one key for index_kpool tokens",
    "inkling2_loop_text": "convolution columns in fp32",
    "inkling2_text": "convolution columns in fp32",
    "inkling_text": "convolution columns in fp32",
    "mimo_v2_flash": "a window of 128 holds 128 entries, not 127: the config states 129",
    "minimax": "lightning states in the model's format",
    "openai-gpt": "keeps no cache at all",
    "qwen4_exp_text": "an index key of every token; engines keep one for indexer_compress_ratio tokens",
    "recurrent_gemma": "K - 1 convolution columns, where all other types keep K",
    "xlnet": "no K and V: hidden states of mem_len tokens; refused here",
    "xlstm": "states in the model's format after a prefill",
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 1000,
    "max_position_embeddings": 131072,
}
# 4 layers x K and V x 4 heads x 64 x 2 B
LLAMA_TOKEN = 4 * 2 * 4 * 64 * 2


def spec_of(fields, assume=False):
    document = config_document(fields, "config.json", "m", assume)
    return read_imported(Imported(document), Path("config.json"))


def size_of(fields, tokens=1000, encoder_tokens=None, draft_layers=0):
    work = Workload(tokens, kv_dtype="bf16", dtype="bf16", encoder_tokens=encoder_tokens, draft_layers=draft_layers)
    return size_workload(spec_of(fields), work, WHOLE).bytes_per_sequence


def llama(**more):
    return {**LLAMA, **more}


def kv(layers, heads, width, tokens=1000, v_width=None):
    return layers * heads * (width + (v_width or width)) * 2 * tokens


def test_plain_attention():
    assert size_of(LLAMA) == 1000 * LLAMA_TOKEN


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        # transformers: head_dim wins over hidden / heads, null and 0 do not.
        ({"head_dim": 128}, kv(4, 4, 128)),
        ({"head_dim": None}, kv(4, 4, 64)),
        ({"num_key_value_heads": None}, kv(4, 16, 64)),
        ({"num_hidden_layers": 4.0}, kv(4, 4, 64)),
        # qwen2: a window that is switched off is a number without a meaning.
        ({"sliding_window": 128, "use_sliding_window": False}, kv(4, 4, 64)),
        ({"sliding_window": None}, kv(4, 4, 64)),
        ({"sliding_window": 0}, kv(4, 4, 64)),
        ({"sliding_window": 128}, kv(4, 4, 64, 128)),
        ({"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 3}, kv(3, 4, 64) + kv(1, 4, 64, 128)),
        # phi-4-mini: a window as wide as the context never closes.
        ({"sliding_window": 262144}, kv(4, 4, 64)),
        ({"sliding_window": 128, "sliding_window_pattern": 2}, kv(2, 4, 64) + kv(2, 4, 64, 128)),
        # exaone4: the last layer is global whatever the letters say.
        ({"sliding_window": 128, "sliding_window_pattern": "LLLG", "num_hidden_layers": 5}, kv(2, 4, 64) + kv(3, 4, 64, 128)),
        ({"sliding_window": 128, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, kv(1, 4, 64) + kv(3, 4, 64, 128)),
        # step-3.7: the list goes on over the draft layers.
        ({"layer_types": ["full_attention"] * 6}, kv(4, 4, 64)),
        # hunyuan: of every two neighbours the first keeps K and V, if the switch is on.
        ({"use_cla": True, "cla_share_factor": 2}, kv(2, 4, 64)),
        ({"use_cla": True, "cla_share_factor": 3}, kv(2, 4, 64)),
        ({"use_cla": False, "cla_share_factor": 2}, kv(4, 4, 64)),
        # smollm3: layers without rotary positions keep as much.
        ({"no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4}, kv(4, 4, 64)),
        # DeepSeek-VL2: a switch for MLA.
        ({"use_mla": False, "kv_lora_rank": None, "qk_rope_head_dim": 0, "v_head_dim": 0}, kv(4, 4, 64)),
        ({"num_key_value_heads": [1, 2, 3, 4], "num_attention_heads": 12, "head_dim": 64}, kv(10, 1, 64)),
        ({"cross_attention_layers": [], "layer_types": None}, kv(4, 4, 64)),
    ],
)  # fmt: skip
def test_a_field_on_a_plain_config(more, expected):
    assert size_of(llama(**more)) == expected


def test_a_stated_null_is_not_overruled_by_the_type_s_default():
    # Mistral's configuration class has a window of 4,096; v0.3's config says null.
    mistral = llama(model_type="mistral")
    assert size_of(mistral, 9000) == kv(4, 4, 64, 4096)
    assert size_of({**mistral, "sliding_window": None}, 9000) == kv(4, 4, 64, 9000)


@pytest.mark.parametrize(
    ("fields", "tokens", "expected"),
    [
        # falcon modeling: 1 head for multi_query, unless the new architecture states num_kv_heads.
        ({"model_type": "falcon", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
          "multi_query": True, "num_kv_heads": 8}, 10, kv(2, 1, 32, 10)),
        ({"model_type": "falcon", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
          "multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 2}, 10, kv(2, 2, 32, 10)),
        ({"model_type": "gpt_bigcode", "n_embd": 256, "n_layer": 2, "n_head": 8, "n_positions": 64}, 10, kv(2, 1, 32, 10)),
        # chatglm3-6b
        ({"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
          "multi_query_attention": True, "multi_query_group_num": 2, "seq_length": 8192}, 10, 10 * 28672),
        ({"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
          "multi_query_attention": False, "multi_query_group_num": 2}, 10, kv(28, 32, 128, 10)),
        # internlm2-7b, qwen-7b, step3 (MFA: one head of 256)
        ({"model_type": "internlm2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
          "num_key_value_heads": 8}, 10, 10 * 131072),
        ({"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
          "kv_channels": 128, "seq_length": 8192}, 10, 10 * 524288),
        ({"model_type": "step3_vl", "text_config": {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64,
          "num_attention_groups": 1, "head_dim": 256, "share_q_dim": 2048}}, 10, 10 * 62464),
        # hunyuan-large
        ({"model_type": "hunyuan", "hidden_size": 6400, "num_hidden_layers": 64, "num_attention_heads": 80,
          "num_key_value_heads": 8, "use_cla": True, "cla_share_factor": 2}, 10, 10 * 81920),
        # OpenELM: heads of K and V by layer
        ({"model_type": "openelm", "model_dim": 128, "num_transformer_layers": 3, "head_dim": 32,
          "num_query_heads": [4, 4, 8], "num_kv_heads": [1, 1, 2], "max_context_length": 64}, 10, kv(4, 1, 32, 10)),
        ({"model_type": "mpt", "d_model": 256, "n_layers": 2, "n_heads": 8, "max_seq_len": 64,
          "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 2}}, 10, kv(2, 2, 32, 10)),
        # zamba2: heads are twice as wide as hidden / heads
        ({"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 64,
          "attention_types": [[["global", "local"], 2]], "window_size": 8}, 40, kv(4, 4, 16, 40)),
    ],
)  # fmt: skip
def test_heads_under_other_names(fields, tokens, expected):
    assert size_of(fields, tokens) == expected


def test_blocks_that_a_search_left_without_attention():
    # Nemotron-NAS: KV heads are query heads / n_heads_in_group, and num_key_value_heads is null.
    blocks = [{"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 2.6}}] * 49
    blocks += [{"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 1.0}}] * 31
    fields = {
        "model_type": "nemotron-nas", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": None, "intermediate_size": None, "block_configs": blocks,
    }  # fmt: skip
    assert size_of(fields, 10) == 10 * 200_704


MLA = llama(
    model_type="deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, head_dim=192,
    num_key_value_heads=16,
)  # fmt: skip
LATENT = 576 * 2 * 1000
KEY = 128 * 2 * 1000


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 4 * LATENT),
        ({"qk_rope_head_dim": 0, "model_type": "never_seen"}, 4 * 512 * 2 * 1000),
        ({"model_type": "glm_moe_dsa", "index_head_dim": 128, "index_n_heads": 4, "index_topk": 2048}, 4 * (LATENT + KEY)),
        ({"model_type": "never_seen", "index_head_dim": 128, "index_n_heads": 4}, 4 * (LATENT + KEY)),
        ({"model_type": "glm_moe_dsa", "index_head_dim": 128, "indexer_types": ["full", "shared", "shared", "full"]},
         4 * LATENT + 2 * KEY),
        # glm_moe_dsa: max(i - offset + 1, 0) % frequency
        ({"model_type": "glm_moe_dsa", "index_head_dim": 128, "index_topk_freq": 4}, 4 * LATENT + 2 * KEY),
        ({"model_type": "glm_moe_dsa", "index_head_dim": 128, "index_topk_pattern": "FSSF"}, 4 * LATENT + 2 * KEY),
        ({"model_type": "glm_moe_dsa", "index_head_dim": 128, "layer_types": ["deepseek_sparse_attention"] * 4},
         4 * (LATENT + KEY)),
        # LongCat: a layer attends twice
        ({"model_type": "longcat_flash", "num_hidden_layers": None, "num_layers": 4}, 8 * LATENT),
        # Mistral Large 4: a list of sources, and no rotary part in every fourth layer
        ({"model_type": "mistral_large4_text", "index_head_dim": 128, "kv_source_layers": [0, 0, 2, 2]},
         2 * LATENT + 4 * KEY),
        ({"model_type": "mistral_large4_text", "index_head_dim": 128}, 4 * (LATENT + KEY) - 64 * 2 * 1000),
        # Kimi-Linear counts layers from 1
        ({"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 4,
          "head_dim": 32, "short_conv_kernel_size": 4}}, LATENT + 3 * (4 * 32 * 32 * 4 + 3 * 4 * 32 * 3 * 2)),
    ],
)  # fmt: skip
def test_latents(more, expected):
    assert size_of({**MLA, **more}) == expected


def test_layers_with_another_shape():
    # MiMo-V2-Flash: K wider than V, twice the KV heads in windows of 128 earlier tokens, and nothing chunked.
    mimo = llama(
        model_type="mimo_v2_flash", head_dim=192, v_head_dim=128, swa_num_key_value_heads=8, swa_head_dim=192,
        swa_v_head_dim=128, sliding_window_size=128, attention_chunk_size=128, hybrid_layer_pattern=[0, 1, 1, 0],
    )  # fmt: skip
    assert size_of(mimo) == kv(2, 4, 192, v_width=128) + kv(2, 8, 192, 128, 128)
    # Gemma 4: global heads, of another count where K is V too.
    gemma = llama(
        model_type="gemma4_text", num_hidden_layers=6, head_dim=256, global_head_dim=512, sliding_window=512,
        num_global_key_value_heads=2, attention_k_eq_v=True,
    )  # fmt: skip
    assert size_of(gemma) == kv(5, 4, 256, 512) + kv(1, 2, 512)
    assert size_of({**gemma, "attention_k_eq_v": False}) == kv(5, 4, 256, 512) + kv(1, 4, 512)
    # dots3: a latent of its own for sliding layers, and twice the word full for what is indexed.
    dots = {
        **MLA, "model_type": "dots3_note_text", "index_head_dim": 128, "num_hidden_layers": 3, "sliding_window": 512,
    }  # fmt: skip
    assert size_of(dots) == 2 * (LATENT + KEY) + (1024 + 64) * 2 * 512


def test_shared_layers_read_the_last_of_their_type():
    # Gemma 3n: 10 layers in fives, the last 5 share.
    shared = llama(model_type="gemma3n_text", num_hidden_layers=10, sliding_window=512, num_kv_shared_layers=5)
    shared["intermediate_size"] = [2048] * 10
    assert size_of({**shared, "head_dim": 64}) == kv(4, 4, 64, 512) + kv(1, 4, 64)
    spec = spec_of({**shared, "head_dim": 64})
    assert [(read.layer, read.owner_layer) for read in spec.reads] == [(5, 3), (6, 3), (7, 3), (8, 3), (9, 4)]
    for count in (10, 11):
        with pytest.raises(SpecError, match="num_kv_shared_layers"):
            spec_of({**shared, "num_kv_shared_layers": count})


def test_a_source_that_is_not_the_nearest_keeps_its_name():
    spec = spec_of({**MLA, "model_type": "never_seen", "kv_source_layers": [0, 1, 0, 1]})
    assert {read.layer: read.owner_layer for read in spec.reads} == {2: 0, 3: 1}


def test_compressed_caches():
    # DeepSeek-V4: a window of 448 + 64 everywhere; 4 tokens an entry with an index, or 128 without.
    v4 = llama(
        model_type="deepseek_v4", head_dim=512, qk_rope_head_dim=64, num_key_value_heads=1, sliding_window=128,
        compress_ratios=[0, 4, 128, 4, 0], index_head_dim=128, index_n_heads=4, index_topk=512, q_lora_rank=256,
        num_nextn_predict_layers=1,
    )  # fmt: skip
    window = 512 * 2 * 128
    expected = 4 * window + 2 * (512 + 128) * 2 * 250 + 512 * 2 * 7
    assert size_of(v4) == expected
    assert size_of(v4, draft_layers=1) == expected + window
    words = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    named = {key: value for key, value in v4.items() if key != "compress_ratios"}
    named |= {"layer_types": [*words, words[1]], "compress_rates": {words[1]: 4, words[2]: 128}}
    assert size_of(named) == expected
    # V4.1: sources keep cache and keys, others read; ratio 1 keeps an entry for every token.
    v41 = {
        **v4, "model_type": "deepseek_v41", "compress_ratios": [0, 2, 2, 1, 0], "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3], "candidate_topk_blocks": 16, "candidate_block_size": 8,
    }  # fmt: skip
    assert size_of(v41) == 4 * window + (512 + 128) * 2 * (500 + 1000)
    # The layouts are the catalogue's: 584 B a vector, 68 B a key.
    auto = size_workload(spec_of(v4), Workload(1000), WHOLE).bytes_per_sequence
    assert auto == 584 * (4 * 128 + 2 * 250 + 7) + 68 * 2 * 250


SSM = 4


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # mamba-2: intermediate width is heads x width; conv over x, B and C, K - 1 columns
        (llama(model_type="mamba2", num_heads=32, head_dim=64, state_size=128, n_groups=8, conv_kernel=4, expand=2,
               num_attention_heads=None), 4 * (32 * 64 * 128 * SSM + (2048 + 2 * 8 * 128) * 3 * 2)),
        # nemotron-h: letters; what is only an MLP keeps nothing; channels are heads x width, whatever `expand` says
        ({**llama(model_type="nemotron_h", hybrid_override_pattern="M-*E", mamba_num_heads=8, mamba_head_dim=64,
                  ssm_state_size=16, n_groups=2, conv_kernel=4, expand=2, head_dim=64)},
         kv(1, 4, 64) + 8 * 64 * 16 * SSM + (512 + 2 * 2 * 16) * 3 * 2),
        # falcon-h1: attention and Mamba in every layer, d_ssm is not expand x hidden
        (llama(model_type="falcon_h1", mamba_d_ssm=512, mamba_n_heads=8, mamba_d_head=64, mamba_d_state=16, mamba_n_groups=1,
               mamba_d_conv=4, mamba_expand=2), kv(4, 4, 64) + 4 * (512 * 16 * SSM + (512 + 32) * 3 * 2)),
        # jamba: attention where i % period == offset
        (llama(model_type="jamba", attn_layer_period=4, attn_layer_offset=2, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2),
         kv(1, 4, 64) + 3 * 2048 * (16 * SSM + 3 * 2)),
        # qwen3-next: attention where (i + 1) % interval == 0
        (llama(model_type="qwen3_next", full_attention_interval=4, linear_num_key_heads=2, linear_num_value_heads=4,
               linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4, head_dim=64),
         kv(1, 4, 64) + 3 * (4 * 32 * 32 * SSM + (2 * 2 * 32 + 4 * 32) * 3 * 2)),
        # minimax-text-01 in its own words
        (llama(model_type="minimax_text_01", attn_type_list=[0, 0, 0, 1], head_dim=64),
         kv(1, 4, 64) + 3 * 16 * 64 * 64 * SSM),
        (llama(model_type="lfm2", full_attn_idxs=[1, 3], conv_L_cache=3), kv(2, 4, 64) + 2 * 1024 * 2 * 2),
        # recurrent_gemma: what it calls attention sees a window
        (llama(model_type="recurrent_gemma", block_types=["recurrent", "attention"], lru_width=1024, conv1d_width=4,
               attention_window_size=128), 2 * 1024 * (SSM + 3 * 2) + kv(2, 4, 64, 128)),
        # zamba2: the shared block's heads are twice as wide
        (llama(model_type="zamba2", hybrid_layer_ids=[1], mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_headdim=64,
               n_mamba_heads=32, mamba_ngroups=1, kv_channels=64),
         kv(1, 4, 128) + 4 * (2048 * 16 * SSM + (2048 + 32) * 3 * 2)),
        # phi4flash: Mamba and windows in turns, one full cache in the middle, nothing above it
        (llama(model_type="phi4flash", num_hidden_layers=8, sliding_window=128, mb_per_layer=2, mamba_d_state=16, mamba_d_conv=4,
               mamba_expand=2), 3 * 2048 * (16 * SSM + 3 * 2) + kv(2, 4, 64, 128) + kv(1, 4, 64)),
        ({"model_type": "rwkv6", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 64, "head_size": 64,
          "attention_hidden_size": 4096}, 2 * (2 * 4096 * 2 + 64 * 64 * 64 * SSM)),
    ],
)  # fmt: skip
def test_states(fields, expected):
    assert size_of(fields) == expected


def test_the_state_format_is_the_config_s():
    fields = llama(model_type="jamba", attn_layer_period=4, attn_layer_offset=2, mamba_d_state=16, mamba_d_conv=4)
    assert spec_of({**fields, "mamba_ssm_dtype": "bfloat16"}).state_dtype == "bf16"


def test_chunks_and_sparse_layers():
    # llama4: layers without rotary positions are the full ones
    chunks = llama(model_type="llama4_text", attention_chunk_size=512, no_rope_layers=[1, 1, 1, 0], head_dim=64)
    assert size_of(chunks) == kv(3, 4, 64, 512) + kv(1, 4, 64)
    # minimax-m3: an index key where the frequency list says so
    sparse = {"use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
              "sparse_attention_freq": [0, 1, 1, 1], "sparse_topk_blocks": 16, "sparse_block_size": 128}  # fmt: skip
    m3 = llama(model_type="minimax_m3_vl_text", head_dim=64, sparse_attention_config=sparse)
    assert size_of(m3) == kv(4, 4, 64) + 3 * KEY


def test_encoder_decoders():
    # t5: d_kv is explicit, cross K and V stand in the decoder's layers only
    t5 = {"model_type": "t5", "d_model": 64, "d_kv": 32, "num_heads": 4, "num_layers": 6, "num_decoder_layers": 2,
          "is_encoder_decoder": True, "d_ff": 128}  # fmt: skip
    assert size_of(t5, 100, encoder_tokens=40) == kv(2, 4, 32, 140)
    whisper = {"model_type": "whisper", "d_model": 64, "encoder_layers": 4, "decoder_layers": 2, "decoder_attention_heads": 4,
               "encoder_attention_heads": 2, "max_source_positions": 1500, "max_target_positions": 448,
               "is_encoder_decoder": True}  # fmt: skip
    assert size_of(whisper, 100) == kv(2, 4, 16, 1600)
    mllama = {"model_type": "mllama", "text_config": llama(model_type="mllama_text_model", cross_attention_layers=[1])}
    assert size_of(mllama, 100, encoder_tokens=1601) == kv(3, 4, 64, 100) + kv(1, 4, 64, 1601)


def test_the_text_tower_is_found():
    tower = {"num_hidden_layers": 99, "num_attention_heads": 3, "hidden_size": 96}
    for name in ("text_config", "llm_config", "language_config"):
        assert size_of({"model_type": "never_seen", "vision_config": tower, name: LLAMA, **tower}) == kv(4, 4, 64)
    thinker = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": LLAMA, "audio_config": tower}}
    assert size_of(thinker) == kv(4, 4, 64)
    assert spec_of({"model_type": "never_seen", "text_config": LLAMA, "torch_dtype": "bfloat16"}).dtype == "bf16"


def test_loops_keep_a_cache_for_each_pass():
    loop = llama(model_type="never_seen", loop_num_passes=3, loop_layer_index_start=1, loop_layer_index_end=3)
    assert size_of(loop) == kv(2 + 3 * 2, 4, 64)
    with pytest.raises(SpecError, match="run 3 times"):
        spec_of({**loop, "loop_layer_index_end": 9})


@pytest.mark.parametrize(
    ("more", "drafts", "expected"),
    [
        ({"num_nextn_predict_layers": 1}, 1, kv(5, 4, 64)),
        ({"num_nextn_predict_layers": 0}, 0, kv(4, 4, 64)),
        ({"mtp_num_hidden_layers": 2}, 2, kv(6, 4, 64)),
        # beyond the stack the list itself says what the draft layers are
        ({"num_nextn_predict_layers": 1, "sliding_window": 128, "layer_types": ["full_attention"] * 4 + ["sliding_attention"]},
         1, kv(4, 4, 64) + kv(1, 4, 64, 128)),
    ],
)  # fmt: skip
def test_draft_layers(more, drafts, expected):
    fields = llama(**more)
    assert len(spec_of(fields).draft_layers) == drafts
    assert size_of(fields, draft_layers=drafts) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"kv_compression_ratio": 4},
        {"cross_layer_kv_sharing": True},
        {"kv_share_layers": [1, 0, 1, 0]},
        {"latent_dim": 128},
        {"attention_window_pattern": "LLG"},
        {"num_memory_tokens": 16},
        {"ssm_state_dim": 16},
        {"mamba_d_state": 16, "mamba_d_conv": 4},
        {"window_size": 128},
        {"conv_L_cache": 3},
        {"num_sink_tokens": 4},
        {"global_attention_layers": [0]},
        {"kv_cache_config": {"evict": True}},
    ],
)
def test_what_may_touch_the_cache_and_is_not_known_is_refused(more):
    fields = llama(model_type="never_seen", **more)
    with pytest.raises(SpecError) as caught:
        spec_of(fields)
    assert next(iter(more)) in caught.value.message
    assert "--assume" in caught.value.hint
    spec = spec_of(fields, assume=True)
    assert any(next(iter(more)) in line for line in spec.assumed.cache)


@pytest.mark.parametrize(
    "more",
    [
        {"use_cache": True, "attention_dropout": 0.1, "attn_implementation": "eager", "initializer_range": 0.02},
        {"kv_compression_ratio": None, "share_kv": False, "num_memory_tokens": 0},
        {"image_token_index": 7, "vision_config": {"kv_heads": 3}, "quantization_config": {"kv_cache_scheme": None}},
        {
            "attention_bias": True,
            "rope_scaling": {"type": "yarn"},
            "attn_logit_softcapping": 50,
            "num_experts_per_tok": 2,
        },
    ],
)
def test_what_is_harmless_or_off_is_not_asked_about(more):
    assert size_of(llama(**more)) == kv(4, 4, 64)


def test_an_unknown_type_says_so():
    assert "never_seen" in spec_of(llama(model_type="never_seen")).assumed.cache[0]
    assert spec_of(LLAMA).assumed.cache == ()


def test_every_family_is_a_type_that_a_config_can_name():
    assert all(name == name.strip().replace(" ", "") for name in FAMILIES)
    for name in FAMILIES:
        spec_or_error({**LLAMA, "model_type": name})


def spec_or_error(fields, assume=False):
    """A model, or one line with a hint: anything else is a bug."""
    try:
        return spec_of(fields, assume)
    except SpecError as error:
        assert "\n" not in error.message
        assert error.hint
        assert len(error.message) < 600
        return None


REAL = sorted(coverage_table.configs())
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, -1, 1, 3, 7, 1.5, 2.0, 10**9, 10**9 + 1, 10**30, 10**4000, float("nan"), float("inf"), -(10**9)]
    ),
    st.sampled_from(["", "32", "full_attention", "x" * 5000, "\u202e\n\x00", "bfloat16"]),
    st.sampled_from(
        [[], [1], [1, "a"], [None], [-1, 2], [0] * 3, ["sliding_attention"] * 200, {}, {"a": 1}, {"x": {}}]
    ),
)


def somewhere(draw, config):
    """One mapping of a config, at any depth."""
    here = config
    while nested := [key for key, value in here.items() if isinstance(value, dict) and value]:
        key = draw(st.sampled_from([None, *nested]))
        if key is None:
            return here
        here = here[key]
    return here


@st.composite
def mutated_configs(draw):
    """A real config with some of its fields dropped, changed, renamed or borrowed from another."""
    config = copy.deepcopy(coverage_table.configs()[draw(st.sampled_from(REAL))])
    other = copy.deepcopy(coverage_table.configs()[draw(st.sampled_from(REAL))])
    for _ in range(draw(st.integers(1, 3))):
        part = somewhere(draw, config)
        if not part:
            continue
        key = draw(st.sampled_from(sorted(part)))
        way = draw(st.sampled_from(["drop", "change", "change", "double", "borrow", "null", "list"]))
        if way == "drop":
            del part[key]
        elif way == "double" and isinstance(part[key], int):
            part[key] *= draw(st.sampled_from([2, 3, 1000]))
        elif way == "borrow":
            part.update({name: other[name] for name in draw(st.lists(st.sampled_from(sorted(other)), max_size=3))})
        elif way == "list":
            part[key] = [part[key]] * draw(st.integers(1, 70))
        else:
            part[key] = None if way == "null" else copy.deepcopy(draw(ODD))
    return config


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(mutated_configs(), st.booleans())
def test_a_mutated_config_is_a_model_or_one_line(config, assume):
    spec = spec_or_error(config, assume)
    if spec is not None:
        needs = any(one.needs_encoder_tokens for layer in spec.layers for one in layer.components)
        size = size_workload(spec, Workload(777, dtype="bf16", encoder_tokens=10 if needs else None), WHOLE)
        assert size.bytes_per_sequence >= 0


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"model_type": "never_seen", "hidden_size": 64},
        {"text_config": {"text_config": {}}},
        {"model_type": ["llama"]},
        {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 1}}, "added_tokens": [{"id": 0}]},
        {"log_history": [{"loss": 1.0, "step": 1}], "global_step": 3, "max_steps": 10},
        {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"]},
        {"sampler": "x", "num_layers": -3},
        {7: 8},
        [1, 2],
        "config",
        None,
    ],
)
def test_json_of_another_sort(content):
    assert spec_or_error(content) is None


@pytest.mark.parametrize(
    ("model_type", "layers", "words"),
    [
        # What transformers' configuration classes make of a number of layers alone.
        ("gemma3_text", 7, "LLLLLFL"),
        ("gemma4_text", 7, "LLLLLFL"),
        ("beam", 7, "LLLLLFF"),
        ("muse_spark_text", 6, "LFLLLF"),
        ("laguna", 4, "FFFF"),
        ("mellum", 4, "FFFF"),
        ("cohere2_moe", 5, "LLLFL"),
        ("gpt_oss", 3, "LFL"),
        ("flint", 8, "FFLLLFLF"),
        ("modernbert-decoder", 5, "FLLFL"),
        ("recurrent_gemma", 4, "SSLS"),
    ],
)
def test_the_pattern_of_a_model_type(model_type, layers, words):
    # Only the type and its layers: everything else is the class's default.
    spec = spec_of({"model_type": model_type, "num_hidden_layers": layers})
    kinds = [layer.components[0] for layer in spec.layers]
    seen = ["S" if one.states(WHOLE) else "L" if getattr(one, "window", None) else "F" for one in kinds]
    assert "".join(seen) == words


def test_an_encoder_keeps_no_cache():
    bert = {key: LLAMA[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")}
    with pytest.raises(SpecError, match="encoder"):
        spec_of({"model_type": "bert", **bert})
    assert size_of({"model_type": "bert", "is_decoder": True, **bert}) == kv(4, 16, 64)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**LLAMA, "layer_types": ["full_attention"] * 3}, "3 layer types for 4 layers"),
        ({**LLAMA, "num_attention_heads": None}, "no num_attention_heads"),
        ({**LLAMA, "num_hidden_layers": None}, "no num_hidden_layers"),
        ({**LLAMA, "num_hidden_layers": 10**6}, "1,000,000 layers"),
        ({**LLAMA, "num_key_value_heads": 5}, "no multiple of kv_heads 5"),
        ({**LLAMA, "sliding_window": "4096"}, "sliding_window '4096'"),
        ({**LLAMA, "layer_types": ["sliding_attention"] * 4}, "no sliding_window"),
        ({**LLAMA, "layer_types": "full_attention"}, "is not a list"),
        ({**LLAMA, "kv_lora_rank": 512}, "without qk_rope_head_dim"),
        ({**LLAMA, "layer_types": ["linear_attention"] * 4}, "linear kind"),
        ({**LLAMA, "compress_ratios": [0, 4, 9, 4]}, "compress_ratios has a 9"),
        ({**LLAMA, "per_layer_config": {"a": 1}}, "per_layer_config"),
        ({**LLAMA, "kv_source_layers": [0, 0, 1, 3]}, "reads* layer 1"),
        ({**LLAMA, "num_key_value_heads": [4, 4]}, None),
        ({**LLAMA, "num_key_value_heads": [4, 2]}, None),
        ({**LLAMA, "model_type": "mamba2", "n_mamba_heads": 7, "mamba_headdim": 64}, "Mamba heads"),
    ],
)
def test_contradictions(fields, words):
    if words is None:
        spec_or_error(fields)
        return
    with pytest.raises(SpecError, match=words) as caught:
        spec_of(fields)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({}, ()),
        ({"vision_config": {"depth": 2}}, ("vision tower",)),
        ({"audio_config": {"depth": 2}}, ("audio tower",)),
    ],
)
def test_towers_beside_the_language_model_are_named(more, left):
    assert spec_of({**LLAMA, **more}).left_out == left
