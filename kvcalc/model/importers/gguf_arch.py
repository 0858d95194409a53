"""What llama.cpp knows about an architecture and no key of a GGUF file states.

Each row says where it is written: `load_arch_hparams` of src/models/NAME.cpp in
github.com/ggml-org/llama.cpp, read in 2026, and, before the files were split,
`llm_load_hparams` of src/llama-model.cpp.
"""

from typing import NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Slide(NamedTuple):
    """Which layers slide where the file says no pattern: all but every `period`-th (0: all, 1: none)."""

    period: int
    dense_first: bool = False
    default_window: int | None = None
    fixed_window: int | None = None
    span: str = "window"
    only_layers: int | None = None

    def slides(self, layer: int, period: int) -> bool:
        """Whether a layer slides under a pattern of `period`: set_swa_pattern of src/llama-hparams.cpp."""
        if self.dense_first:
            return period == 0 or layer % period != 0
        return period == 0 or layer % period < period - 1


SLIDING = {
    "afmoe": Slide(4),
    "cohere2": Slide(4),
    "cohere2moe": Slide(4, dense_first=True),
    "exaone-moe": Slide(4),
    # exaone4.cpp: only the 32B, which it knows by its 64 layers.
    "exaone4": Slide(4, default_window=4096, only_layers=64),
    "gemma-embedding": Slide(6),
    "gemma2": Slide(2, default_window=4096),
    "gemma3": Slide(6),
    "gemma3n": Slide(5),
    "gpt-oss": Slide(2),
    # kolibri1.cpp
    "kolibri1": Slide(5),
    # llama4.cpp: chunks of 8192, whatever the key says, and none where it says 0.
    "llama4": Slide(4, default_window=8192, fixed_window=8192, span="chunk"),
    "mellum": Slide(4),
    "modern-bert": Slide(3, dense_first=True),
    "olmo2": Slide(4),
    "plamo3": Slide(8),
    # smallthinker.cpp: 4096, whatever number the key says.
    "smallthinker": Slide(4, dense_first=True, fixed_window=4096),
}

NEVER_SLIDES = {"phi3"}
"""phi3.cpp turns a stated window off (pull request 13676): every layer keeps everything."""

KEPT_LAYERS = {"gemma3n": 20}
"""gemma3n.cpp: how many layers keep K and V where `attention.shared_kv_layers` is not stated."""

FULL_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4}
"""qwen3next.cpp, qwen35.cpp: every 4th layer attends where `full_attention_interval` is not stated."""

DELTA_RULE = frozenset(FULL_INTERVAL)
"""Architectures whose `ssm.*` keys size a gated delta rule: a state of inner_size x state_size, in value heads."""

PARALLEL = {"falcon-h1"}
"""falcon-h1.cpp: every layer attends and keeps a state."""

TWO_SHIFTS = 2
"""`token_shift_count` where it is not stated: src/llama-hparams.h."""

NO_CACHE = _words(
    "t5encoder bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert modern-bert gemma-embedding "
    "wavtokenizer-dec dream llada llada-moe rnd1"
)
"""Encoders and diffusion models: llama_model::create_memory makes no cache for them, and a run shows none."""

ENCODER_DECODER = {"t5"}

NOT_A_MODEL = {
    "clip": "the vision part of a model",
    "adapter": "an adapter",
    "mmproj": "the vision part of a model",
    "imatrix": "an importance matrix",
}

UNGATED = _words(
    "bloom mpt falcon gpt2 gptj gptneox starcoder starcoder2 phi2 nemotron nemotron_h nemotron_h_moe t5 codeshell "
    "jais2 apertus arcee bert nomic-bert jina-bert-v3 plm"
)
"""Feed-forward parts of two matrices, for files that hold no tensors to tell by."""

KNOWN = _words(
    "llama llama4 deci falcon baichuan grok gpt2 gptj gptneox mpt starcoder refact bert modern-bert nomic-bert "
    "nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3 "
    "qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe phi2 phi3 phimoe plamo plamo2 plamo3 codeshell orion "
    "internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma-embedding starcoder2 rwkv6 rwkv6qwen2 rwkv7 "
    "arwkv7 mamba mamba2 jamba xverse command-r cohere2 cohere2moe dbrx olmo olmo2 olmoe openelm arctic deepseek "
    "deepseek2 deepseek2-ocr deepseek32 deepseek4 chatglm glm4 glm4moe glm-dsa bitnet t5 t5encoder jais jais2 "
    "nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe granite granitemoe granitehybrid chameleon "
    "wavtokenizer-dec plm bailingmoe bailingmoe2 dots1 arcee afmoe laguna ernie4_5 ernie4_5-moe falcon-h1 "
    "hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe "
    "seed_oss grovemoe apertus minimax-m2 cogvlm rnd1 pangu-embedded mistral3 mistral4 paddleocr mimo2 step35 "
    "llama-embed maincoder kimi-linear talkie mellum"
)
"""LLM_ARCH_NAMES of src/llama-arch.cpp."""

CACHE_GROUPS = ("attention.", "ssm.", "wkv.", "kda.", "shortconv.")
UNDERSTOOD = _words(
    "attention.head_count attention.head_count_kv attention.key_length attention.value_length attention.key_length_mla "
    "attention.value_length_mla attention.key_length_swa attention.value_length_swa attention.q_lora_rank "
    "attention.kv_lora_rank attention.sliding_window attention.sliding_window_pattern attention.shared_kv_layers "
    "attention.recurrent_layers attention.layer_indices attention.causal attention.compress_ratios "
    "attention.indexer.head_count attention.indexer.key_length attention.indexer.top_k attention.indexer.types "
    "ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank ssm.group_count ssm.dt_b_c_rms kda.head_dim "
    "wkv.head_size shortconv.l_cache"
)
HARMLESS = _words(
    "attention.max_alibi_bias attention.clamp_kqv attention.layer_norm_epsilon attention.layer_norm_rms_epsilon "
    "attention.group_norm_epsilon attention.group_norm_groups attention.decay_lora_rank attention.iclr_lora_rank "
    "attention.value_residual_mix_lora_rank attention.gate_lora_rank attention.relative_buckets_count attention.scale "
    "attention.output_scale attention.value_scale attention.temperature_length attention.temperature_scale "
    "attention.output_group_count attention.output_lora_rank attention.compress_rope_freq_base attention.use_qk_norm "
    "attention.indexer.block_size attention.indexer.local_blocks"
)
"""Keys of these groups that change no size."""
