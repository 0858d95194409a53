"""What changed in vLLM's planning, release by release: each rule with the first release that has it and its source.

Sources are files under vllm/ of that release; layers/ and models/ stand under model_executor/.
"""

from fractions import Fraction
from typing import Any, NamedTuple


class Change(NamedTuple):
    """What changed in a release, in one sentence, where that stands in its code, and the fields of `Rules` it sets."""

    since: str
    what: str
    source: str
    fields: dict[str, Any]


def _change(since: str, what: str, source: str, **fields: Any) -> Change:
    return Change(since, what, source, fields)


_UTILS, _SPECS, _WORKER = "v1/core/kv_cache_utils.py", "v1/kv_cache_interface.py", "v1/worker/gpu_worker.py"
_ENGINE = "worker/cache_engine.py"
_HYBRID = "models/config.py, HybridAttentionMambaModelConfig"

_INT4 = frozenset({"fp8", "fp8_ds_mla", "nvfp4", "int8_per_token_head", "int4_per_token_head"})

CHANGES = (
    _change(
        "0.2.0",
        "one block table for all layers; a request may be as long as blocks x 16 tokens; 4 GiB of blocks on the CPU",
        "worker/worker.py, worker/cache_engine.py, engine/llm_engine.py, _init_cache",
        one_table=True,
        check="tokens",
        windows="kept",
        tokens="blocks",
        gpu_memory_utilization=0.9,
        concurrency="unprinted",
        adjusts_pool_to_override=True,
    ),
    _change("0.3.0", "FP8", f"{_ENGINE}, get_cache_block_size", formats=frozenset({"fp8"})),
    _change(
        "0.6.3",
        "the log says the maximum concurrency: blocks x tokens of a block / the longest request",
        "executor/gpu_executor.py, initialize_cache",
        concurrency="tokens",
    ),
    _change(
        "0.7.1",
        "MLA keeps one latent a token; before, K and V of every head",
        f"{_ENGINE}, get_cache_block_size",
        knows_latent=True,
    ),
    _change(
        "0.7.2",
        "a latent is rounded up to 128 values, 256 B of bf16",
        f"{_ENGINE}, _align_cache",
        latent_values=128,
    ),
    _change(
        "0.8.0",
        "V1: layers of one type alone, windows and chunks kept like full attention; the check adds up pages of layers",
        f"{_UTILS}, get_kv_cache_configs, check_enough_kv_cache_memory",
        one_table=False,
        check="layers",
        adjusts_pool_to_override=False,
        groups_stages_alone=True,
    ),
    _change(
        "0.8.0",
        "a latent as it is, in blocks of 64 tokens (FlashMLA)",
        "platforms/cuda.py, check_and_update_config",
        latent_values=1,
        latent_block_size=64,
    ),
    _change(
        "0.8.3",
        "the check charges a window W - 1 tokens and one step, the pool still keeps all",
        f"{_SPECS}, SlidingWindowSpec; {_UTILS}, unify_hybrid_kv_cache_specs",
        windows="checked",
    ),
    _change(
        "0.9.1",
        "the hybrid manager: windows have blocks of their own, in groups as large as the rarest kind; tokens are "
        "blocks / groups x tokens of a block",
        f"{_UTILS}, _get_kv_cache_config_uniform_page_size",
        windows="grouped",
        group_slack=Fraction(1),
    ),
    _change(
        "0.9.1",
        "maximum concurrency: blocks / blocks of one request",
        f"{_UTILS}, get_max_concurrency_for_kv_cache_config",
        concurrency="requests",
    ),
    _change(
        "0.10.0",
        "chunks have blocks of their own too",
        f"{_SPECS}, ChunkedLocalAttentionSpec",
        chunks="grouped",
    ),
    _change(
        "0.10.1",
        "recurrent states beside attention, in their own format, else the model's: a block each; attention grows in "
        "steps of 16 tokens until its page holds one",
        f"{_HYBRID}; {_SPECS}, MambaSpec",
        knows_states=True,
        latent_state_step=16,
    ),
    _change(
        "0.10.1",
        "chunks beside full attention switch the hybrid manager off",
        "envs.py, VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE",
        chunks_in_groups=False,
    ),
    _change(
        "0.10.2",
        "--dcp: ranks share full attention, and the log's tokens are multiplied by it; the encoder's tokens",
        f"{_SPECS}, FullAttentionSpec.max_memory_usage_bytes, CrossAttentionSpec; {_UTILS}",
        knows_dcp=True,
        knows_encoder=True,
    ),
    _change(
        "0.11.0",
        "layers of one type and different widths make one group; pipeline stages share the groups of the whole model",
        f"{_SPECS}, UniformTypeKVCacheSpecs; {_UTILS}, get_kv_cache_configs",
        knows_mixed_widths=True,
        groups_stages_alone=False,
    ),
    _change(
        "0.11.0",
        "index keys, and latents in records of 656 B",
        f"models/deepseek_v2.py, DeepseekV32IndexerCache; {_SPECS}, MLAAttentionSpec",
        knows_index=True,
        formats=frozenset({"fp8", "fp8_ds_mla"}),
    ),
    _change("0.11.1", "attention beside states grows in steps of 64 where it is MLA", _HYBRID, latent_state_step=64),
    _change(
        "0.11.1",
        "--enable-prefix-caching keeps a state of Mamba for every block",
        f"{_SPECS}, MambaSpec.max_memory_usage_bytes",
        cached_mamba="all",
    ),
    _change(
        "0.12.0",
        "the smaller page takes more tokens to become as large as the larger, or vLLM stops; groups as large as the "
        "commonest kind where that is under 1.25 times the rarest",
        f"{_UTILS}, unify_kv_cache_spec_page_size, _get_kv_cache_groups_uniform_page_size",
        grows_pages=True,
        group_slack=Fraction(5, 4),
    ),
    _change(
        "0.13.0",
        "states of Nemotron-H in fp32, as its config says",
        "models/config.py, NemotronHForCausalLMConfig",
        fp32_states=frozenset({"kimi_linear", "kimi_k3", "nemotron_h"}),
    ),
    _change(
        "0.14.0",
        "the check counts the first group alone, and the layers of all stages",
        f"{_UTILS}, _max_memory_usage_bytes_from_groups, get_kv_cache_configs",
        check="first group",
        checks_whole_model=True,
    ),
    _change(
        "0.14.0",
        "the share of the card is rounded up",
        "v1/worker/utils.py, request_memory",
        rounds_share_up=True,
    ),
    _change(
        "0.14.0",
        "the hybrid manager stays on beside chunks",
        "envs.py, VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE",
        chunks_in_groups=True,
    ),
    _change(
        "0.15.0",
        "--enable-prefix-caching keeps a state at a block's end beside the running one: two blocks",
        f"{_SPECS}, MambaSpec.max_memory_usage_bytes (align)",
        cached_states="align",
    ),
    _change(
        "0.17.0",
        "each pool is held against the layers of its own stage",
        f"{_UTILS}, _project_kv_cache_groups_to_worker",
        checks_whole_model=False,
    ),
    _change(
        "0.18.0",
        "groups as large as the commonest kind where that is under 1.5 times the rarest",
        f"{_UTILS}, _get_kv_cache_groups_uniform_page_size",
        group_slack=Fraction(3, 2),
    ),
    _change(
        "0.19.0",
        "the check counts all groups",
        f"{_UTILS}, _max_memory_usage_bytes_from_groups",
        check="groups",
    ),
    _change(
        "0.20.0",
        "the share of the card is 0.92 by default, and CUDA graphs are profiled and taken off the pool",
        f"config/cache.py; envs.py, VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS; {_WORKER}",
        gpu_memory_utilization=0.92,
        profiles_graphs=True,
    ),
    _change(
        "0.20.0",
        "attention beside states grows in steps of --block-size",
        "platforms/interface.py, _align_hybrid_block_size",
        grows_in_block_size=True,
    ),
    _change(
        "0.20.0",
        "V narrower than K, in windows too",
        f"{_SPECS}, SlidingWindowSpec.real_page_size_bytes",
        knows_split_widths=True,
    ),
    _change(
        "0.20.0",
        "NVFP4, and INT8 with a scale a token and head",
        "config/cache.py, CacheDType",
        formats=_INT4 - {"int4_per_token_head"},
    ),
    _change(
        "0.21.0",
        "tokens: maximum concurrency x the longest request; --num-gpu-blocks-override is what the check sees",
        f"{_UTILS}, _report_kv_cache_config, get_kv_cache_configs",
        tokens="requests",
        adjusts_pool_to_override=True,
    ),
    _change("0.25.0", "INT4 with a scale a token and head", "config/cache.py, CacheDType", formats=_INT4),
    _change(
        "0.26.0",
        "windows and chunks hold the tokens of all batches that overlap: two with asynchronous scheduling",
        "config/vllm.py, VllmConfig.max_in_flight_tokens",
        counts_overlapping_batches=True,
    ),
    _change(
        "0.26.0",
        "a state's page is padded to the largest",
        f"{_UTILS}, unify_kv_cache_spec_page_size",
        pads_states=True,
    ),
    _change(
        "0.27.0",
        "unequal specs that merge share groups; windows beside an MLA whose page they cannot meet are kept in full",
        f"{_UTILS}, _get_kv_cache_groups_uniform_page_size, _try_get_full_allocation_fallback_groups",
        merges_kinds=True,
        keeps_windows_beside_latent=True,
    ),
    _change(
        "0.27.0",
        "attention beside states grows in steps of 128 where it is MLA",
        "platforms/interface.py, _align_hybrid_block_size",
        latent_state_step=128,
    ),
    _change(
        "0.28.0",
        "prefix caching is on by default beside recurrent states",
        "engine/arg_utils.py, _set_default_chunked_prefill_and_prefix_caching_args",
        caches_states_by_default=True,
    ),
    _change(
        "0.29.0",
        "the null block is taken off before a request is held against the pool",
        f"{_UTILS}, get_kv_cache_configs",
        counts_null_block=True,
    ),
    _change(
        "0.29.0",
        "a page of attention is padded where no whole number of its blocks fills the largest; MLA's cannot be",
        f"{_UTILS}, unify_kv_cache_spec_page_size",
        pads_attention=True,
    ),
    _change(
        "0.30.0",
        "latents in records of NVFP4",
        "config/cache.py, CacheDType",
        formats=_INT4 | {"nvfp4_ds_mla"},
    ),
    _change(
        "0.32.0",
        "Mamba keeps states at the ends of blocks like others, and Mamba-2 exports one more from inside a prefill",
        f"{_SPECS}, MambaSpec; layers/mamba/mamba_mixer2.py",
        cached_mamba="align",
        mamba_checkpoints=1,
    ),
    _change(
        "0.33.0",
        "the newest release: compressed entries, windows of latents, drafts",
        "v1/core/kv_cache_planning.py",
        knows_newest_kinds=True,
    ),
)
