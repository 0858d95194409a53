"""What vLLM came to know of kinds of layers and formats, release by release, as `vllm_changes` for its planning."""

from kvcalc.engines.vllm_changes import Change, change

_UTILS, _SPECS = "v1/core/kv_cache_utils.py", "v1/kv_cache_interface.py"
_ENGINE = "worker/cache_engine.py"
_HYBRID = "models/config.py, HybridAttentionMambaModelConfig"
_INT4 = frozenset({"fp8", "fp8_ds_mla", "nvfp4", "int8_per_token_head", "int4_per_token_head"})

KINDS: tuple[Change, ...] = (
    change("0.3.0", "FP8", f"{_ENGINE}, get_cache_block_size", formats=frozenset({"fp8"})),
    change(
        "0.7.1",
        "MLA keeps one latent a token; before, K and V of every head",
        f"{_ENGINE}, get_cache_block_size",
        knows_latent=True,
    ),
    change(
        "0.7.2",
        "a latent is rounded up to 128 values, 256 B of bf16",
        f"{_ENGINE}, _align_cache",
        latent_values=128,
    ),
    change(
        "0.8.0",
        "draft layers join the groups of the model's own; V0 gives them a pool of their own",
        "v1/worker/gpu_model_runner.py, get_kv_cache_spec",
        drafts="attention",
    ),
    change(
        "0.8.0",
        "a latent as it is, in blocks of 64 tokens (FlashMLA)",
        "platforms/cuda.py, check_and_update_config",
        latent_values=1,
        latent_block_size=64,
    ),
    change(
        "0.10.1",
        "recurrent states beside attention take a block each, in their own format, else the model's",
        f"{_HYBRID}; {_SPECS}, MambaSpec",
        knows_states=True,
    ),
    change(
        "0.10.1",
        "attention beside states grows in steps of 16 tokens until its page holds one",
        _HYBRID,
        grows_in_block_size=False,
    ),
    change(
        "0.10.2",
        "--dcp: ranks share full attention, and the log's tokens are multiplied by it; the encoder's tokens",
        f"{_SPECS}, FullAttentionSpec.max_memory_usage_bytes, CrossAttentionSpec; {_UTILS}",
        knows_dcp=True,
        knows_encoder=True,
    ),
    change(
        "0.10.2",
        "drafts beside the delta rule: its convolutions keep a column for each draft token",
        "layers/mamba/mamba_utils.py, gated_delta_net_state_shape; v1/worker/gpu_model_runner.py, get_kv_cache_spec",
        drafts="delta",
    ),
    change(
        "0.11.0",
        "index keys, and latents in records of 656 B",
        f"models/deepseek_v2.py, DeepseekV32IndexerCache; {_SPECS}, MLAAttentionSpec",
        knows_index=True,
        formats=frozenset({"fp8", "fp8_ds_mla"}),
    ),
    change("0.11.1", "attention beside states grows in steps of 64 where it is MLA", _HYBRID, latent_state_step=64),
    change(
        "0.11.1",
        "--enable-prefix-caching keeps a state of Mamba for every block",
        f"{_SPECS}, MambaSpec.max_memory_usage_bytes",
        cached_mamba="all",
    ),
    change(
        "0.13.0",
        "states of Nemotron-H in fp32, as its config says",
        "models/config.py, NemotronHForCausalLMConfig",
        fp32_states=frozenset({"kimi_linear", "kimi_k3", "nemotron_h"}),
    ),
    change(
        "0.15.0",
        "--enable-prefix-caching keeps a state at a block's end beside the running one: two blocks",
        f"{_SPECS}, MambaSpec.max_memory_usage_bytes (align)",
        cached_states="align",
    ),
    change(
        "0.15.0",
        "a state takes a block for every draft token, and they count among those of a request",
        f"{_SPECS}, MambaSpec.max_memory_usage_bytes",
        counts_draft_states=True,
    ),
    change(
        "0.17.0",
        "drafts beside Mamba's states too",
        "layers/mamba/abstract.py, get_kv_cache_spec; layers/mamba/mamba_utils.py, mamba2_state_shape",
        drafts="states",
    ),
    change(
        "0.20.0",
        "attention beside states grows in steps of --block-size",
        "platforms/interface.py, _align_hybrid_block_size",
        grows_in_block_size=True,
    ),
    change(
        "0.20.0",
        "V narrower than K, in windows too",
        f"{_SPECS}, SlidingWindowSpec.real_page_size_bytes",
        knows_split_widths=True,
    ),
    change(
        "0.20.0",
        "NVFP4, and INT8 with a scale a token and head",
        "config/cache.py, CacheDType",
        formats=_INT4 - {"int4_per_token_head"},
    ),
    change("0.25.0", "INT4 with a scale a token and head", "config/cache.py, CacheDType", formats=_INT4),
    change(
        "0.27.0",
        "attention beside states grows in steps of 128 where it is MLA",
        "platforms/interface.py, _align_hybrid_block_size",
        latent_state_step=128,
    ),
    change(
        "0.28.0",
        "prefix caching is on by default beside recurrent states",
        "engine/arg_utils.py, _set_default_chunked_prefill_and_prefix_caching_args",
        caches_states_by_default=True,
    ),
    change(
        "0.28.0",
        "a window keeps the tokens that several draft layers in a chain fill again",
        f"{_SPECS}, SlidingWindowSpec.extra_retained_tokens",
        retains_draft_tokens=True,
    ),
    change(
        "0.30.0",
        "latents in records of NVFP4",
        "config/cache.py, CacheDType",
        formats=_INT4 | {"nvfp4_ds_mla"},
    ),
    change(
        "0.32.0",
        "Mamba keeps states at the ends of blocks like others",
        f"{_SPECS}, MambaSpec.max_memory_usage_bytes",
        cached_mamba="align",
    ),
    change(
        "0.32.0",
        "Mamba-2 exports one state more from inside a prefill",
        "layers/mamba/mamba_mixer2.py, get_kv_cache_spec",
        mamba_checkpoints=1,
    ),
    change(
        "0.33.0",
        "the newest release: compressed entries, windows of latents",
        "v1/core/kv_cache_planning.py",
        knows_newest_kinds=True,
    ),
)
