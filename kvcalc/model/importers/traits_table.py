"""Traits by model type, as transformers 5.24.0 builds them (its modeling_*.py files)."""

from typing import Any

from kvcalc.model.importers import traits_inkling as inkling
from kvcalc.model.importers import traits_latent as latent
from kvcalc.model.importers import traits_rules as rules
from kvcalc.model.importers import traits_special as special
from kvcalc.model.importers import traits_states as states
from kvcalc.model.importers.traits_encoder import ENCODER_DECODERS
from kvcalc.model.importers.traits_model import Trait, alike

_LAYER_NORM: dict[str, Any] = {"norms": 4, "final_norms": 2}
_PLAIN: dict[str, Any] = {"gated": False, "mlp_bias": True}
_GPT: dict[str, Any] = {**_LAYER_NORM, **_PLAIN, "bias": "all"}
_GATES = (rules.fused_gate, rules.shared_expert_gate)


_QUERY_NORMS: dict[str, Trait] = {
    **alike(
        Trait(qk_norm="head"),
        *("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text", "exaone4", "exaone_moe"),
        *("dots1", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "mellum", "hy_v3"),
        "lara_mini",
    ),
    **alike(Trait(qk_norm="full"), "olmo2", "olmo3", "olmoe", "flex_olmo", "minimax_m2", "olmo_hybrid"),
    **alike(Trait(qk_norm="head", norms=4), "gemma3_text", "kolibri1"),
    **alike(Trait(qk_norm="head", rules=_GATES), "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
    **alike(Trait(qk_norm="head", gated=False, rules=(rules.activation(2),)), "apertus", "apertus1p5_text"),
    "molmo2_text": Trait(switched_bias="qkv", qk_norm="head", rules=(special.molmo2,)),
    "minimax_m3_vl_text": Trait(qk_norm="head", rules=(rules.index_without_weights,)),
    "flint": Trait(qk_norm="head", rules=(rules.sinks,)),
    "laguna": Trait(qk_norm="head", rules=(rules.laguna_gate, rules.selection_bias)),
    "beam": Trait(qk_norm="head", norms=4, rules=(rules.output_gate, rules.sinks)),
    "afmoe": Trait(qk_norm="head", norms=4, rules=(rules.output_gate, rules.selection_bias)),
    "lfm2": Trait(qk_norm="head", rules=(special.lfm2, rules.convolution_bias)),
    "lfm2_moe": Trait(qk_norm="head", rules=(rules.convolution_bias,)),
    "lfm3": Trait(
        qk_norm="head",
        rules=(
            rules.norms_where("use_sandwich_norm", 4, 2),
            rules.gate_where("use_attention_gate"),
            rules.convolution_bias,
        ),
    ),
    **alike(Trait(qk_norm="head", rules=(rules.head_gate,)), "step3p5", "step3p7", "step3p7_text"),
    "gemma3n_text": Trait(qk_norm="head", norms=7, rules=(special.gemma3n,)),
    **alike(Trait(qk_norm="head", norms=4, rules=(special.gemma4,)), "gemma4_text", "gemma4_unified_text"),
    "doge": Trait(norms=4, rules=(special.doge,)),
    "persimmon": Trait(**_GPT, rules=(rules.norm_biases,)),
}

_GPTS: dict[str, Trait] = {
    **alike(Trait(**_GPT, positions="n_positions"), "gpt2", "gpt-sw3", "gpt_bigcode"),
    "openai-gpt": Trait(**{**_GPT, "final_norms": 0}, positions="n_positions"),
    "gpt_neo": Trait(**{**_GPT, "bias": "none"}, positions="max_position_embeddings", rules=(rules.output_bias,)),
    "gpt_neox": Trait(**_LAYER_NORM, **_PLAIN),
    "gpt_neox_japanese": Trait(**_LAYER_NORM, gated=False, rules=(rules.more_rows(1),)),
    **alike(Trait(norms=2, final_norms=2, **_PLAIN, head_bias=True), "gptj", "codegen"),
    "ctrl": Trait(**_GPT, head_bias=True),
    "bloom": Trait(**{**_GPT, "final_norms": 4}),
    "opt": Trait(norms=4, gated=False, positions="max_position_embeddings", position_offset=2, rules=(special.opt,)),
    "biogpt": Trait(**_GPT, positions="max_position_embeddings", position_offset=2),
    **alike(
        Trait(**{**_GPT, "final_norms": 4}, positions="max_position_embeddings", head_bias=True, rules=(special.bert,)),
        *("bert", "roberta", "camembert", "xlm-roberta", "data2vec-text"),
    ),
    "xglm": Trait(**_GPT),
    "mpt": Trait(gated=False),
    "falcon": Trait(**_LAYER_NORM, gated=False, rules=(special.falcon,)),
    "phi": Trait(**{**_GPT, "norms": 2}, head_bias=True, rules=(rules.norm_biases,)),
    "starcoder2": Trait(**_LAYER_NORM, gated=False),
    "nemotron": Trait(**_LAYER_NORM, gated=False),
    "jais2": Trait(**_LAYER_NORM, gated=False),
    "nanochat": Trait(norms=0, final_norms=0, gated=False),
    **alike(Trait(gated=False), "arcee", "cosmos3_edge_text"),
}

_OTHERS: dict[str, Trait] = {
    **alike(Trait(bias="qkv"), "qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"),
    "qwen2_moe": Trait(rules=(rules.shared_expert_gate,)),
    "olmo": Trait(norms=0, final_norms=0),
    **alike(Trait(norms=4), "gemma2", "glm_ocr_text"),
    "cohere": Trait(norms=1, switched_norm="full"),
    **alike(Trait(norms=1), "cohere2", "cohere2_moe", "cohere_compass_text"),
    **alike(Trait(switched_bias="qkv"), "glm", "glm4_moe", "glm4v_moe_text", "solar_open", "sarvam_moe"),
    **alike(Trait(bias="qkv", norms=4), "glm4v_text"),
    "glm4": Trait(switched_bias="qkv", norms=4),
    "seed_oss": Trait(switched_bias="qkv", rules=(rules.switched_output_bias,)),
    "gpt_oss": Trait(mlp_bias=True, rules=(rules.sinks,)),
    **alike(Trait(rules=(rules.sinks,)), "granite_swa", "granitemoe_swa"),
    "mimo_v2_flash": Trait(switched_bias="qkv", rules=(rules.window_sinks,)),
    "llama4_text": Trait(qk_norm="none", rules=(rules.one_shared_expert,)),
    "ernie4_5_moe": Trait(rules=(rules.selection_bias, rules.biased_head)),
    "ernie4_5_vl_moe_text": Trait(rules=(rules.selection_bias, rules.biased_head, special.ernie_vl)),
    "phimoe": Trait(**_LAYER_NORM),
    "stablelm": Trait(final_norms=2, switched_norm="full", rules=(special.stablelm,)),
    "hyperclovax": Trait(rules=(rules.norms_where("use_post_norm", 4, 2),)),
    "muse_glimmer_text": Trait(norms=4, rules=(rules.output_gate,)),
    "muse_spark_text": Trait(norms=5, rules=(rules.output_gate, special.muse_spark)),
    "helium": Trait(switched_bias="qkv"),
    "cpmant": Trait(tied=False, rules=(special.cpmant,)),
    "hrm_text": Trait(norms=0, final_norms=0, rules=(rules.fused_gate, rules.more_rows(1), special.hrm)),
    "bitnet": Trait(rules=(rules.answer_norm,)),
    "diffllama": Trait(rules=(rules.vectors_per_head(4),)),
    "dory": Trait(final_norms=0, rules=(rules.norm_a_part, special.dory)),
    "jetmoe": Trait(rules=(special.jetmoe,)),
    "mllama_text_model": Trait(rules=(special.mllama,)),
    "modernbert-decoder": Trait(final_norms=2, rules=(special.modernbert,)),
    "voxtral_realtime_text": Trait(rules=(special.voxtral,)),
    "moshi": Trait(rules=(rules.half_width, rules.more_rows(1))),
}

_LATENT: dict[str, Trait] = {
    **alike(Trait(mlp_switch=False), "deepseek_v3", "deepseek_v32", "glm_moe_dsa"),
    **alike(Trait(mlp_switch=False, rules=(rules.head_gate, latent.dots3)), "dots3_note", "dots3_note_text"),
    "axk1": Trait(rules=(rules.sparse_norms(3),)),
    "axk2": Trait(rules=(latent.axk2,)),
    "longcat_flash": Trait(rules=(latent.longcat,)),
    "bailing_hybrid": Trait(rules=(rules.head_gate, states.kimi_delta(low_rank=False))),
    "kimi_linear": Trait(rules=(states.kimi_delta(low_rank=True),)),
    "glm5_next_text": Trait(
        rules=(states.kimi_delta(low_rank=True), latent.hyper_connections(mixes=True), latent.glm5_index)
    ),
    "deepseek_v4": Trait(
        bias="none", rules=(latent.deepseek_v4, latent.hyper_connections(mixes=True), latent.hyper_head)
    ),
    "qwen4_exp_text": Trait(qk_norm="head", norms=0, final_norms=0, rules=(*_GATES, latent.qwen4_exp)),
    "mistral_large4_text": Trait(rules=(latent.mistral_large4,)),
    "hy_v4": Trait(rules=(rules.output_gate, rules.sinks, latent.hyper_connections(mixes=False), latent.hyper_head)),
    "hy_v4_vl_text": Trait(
        rules=(rules.output_gate, rules.sinks, latent.hyper_connections(mixes=False), latent.hyper_head)
    ),
}

_STATES: dict[str, Trait] = {
    "jamba": Trait(rules=(states.jamba, states.mamba_biases)),
    **alike(Trait(norms=1, rules=(rules.without_mlp, states.mamba_biases)), "mamba", "mamba2", "falcon_mamba"),
    "falcon_h1": Trait(rules=(states.no_gated_norm, states.mamba_biases)),
    "bamba": Trait(rules=(states.mamba_biases,)),
    "granitemoehybrid": Trait(rules=(states.mamba_biases,)),
    "nemotron_h": Trait(bias="none", gated=False, rules=(rules.norm_a_part, states.mamba_biases)),
    "recurrent_gemma": Trait(mlp_bias=True, rules=(rules.half_width, rules.output_bias)),
    **alike(Trait(rules=(states.zamba,)), "zamba", "zamba2"),
    "rwkv": Trait(**_LAYER_NORM, gated=False, rules=(states.rwkv4,)),
    "inkling_text": Trait(qk_norm="head", final_norms=2, rules=(inkling.inkling,)),
    **alike(Trait(final_norms=2, rules=(inkling.inkling2,)), "inkling2_text", "inkling2_loop_text"),
    "zaya": Trait(rules=(special.zaya,)),
    "xlstm": Trait(rules=(states.xlstm,)),
}

# Types with tables, heads or whole networks that are not counted: their caches are, their parameters are not known.
_UNCOUNTED = alike(
    Trait(rules=(rules.uncounted,)),
    *("bert-generation", "big_bird", "electra", "ernie", "megatron-bert", "rembert", "roberta-prelayernorm"),
    *(
        "roc_bert",
        "roformer",
        "xlm-roberta-xl",
        "xlnet",
        "xlm",
        "xmod",
        "reformer",
        "git",
        "blt",
        "blt_local_decoder",
        "trocr",
        "idefics",
    ),
    *("blip_text_model", "kyutai_speech_to_text", "encoder-decoder", "vision-encoder-decoder"),
    *("speech-encoder-decoder", "pix2struct_text_model", "kosmos_2_text_model", "kosmos_2_5_text_model"),
)

# Types that transformers does not build, by their own code on the Hub.
_ELSEWHERE: dict[str, Trait] = {
    "qwen": Trait(bias="qkv", rules=(rules.half_width,)),
    "mimo": Trait(switched_bias="qkv"),
    "orion": Trait(**_LAYER_NORM),
    "internlm": Trait(rules=(rules.attention_switch("bias"),)),
    "internlm2": Trait(rules=(rules.attention_switch("bias"),)),
    "phi4flash": Trait(bias="all", **_LAYER_NORM, rules=(special.phi4flash,)),
    "rwkv6": Trait(**_LAYER_NORM, gated=False, rules=(states.rwkv6,)),
}

TRAITS: dict[str, Trait] = {
    **_UNCOUNTED,
    **_QUERY_NORMS,
    **_GPTS,
    **_OTHERS,
    **_LATENT,
    **_STATES,
    **ENCODER_DECODERS,
    **_ELSEWHERE,
}
"""What is special about a model type; a type that is not here is built as Llama is."""
