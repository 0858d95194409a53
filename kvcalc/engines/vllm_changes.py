"""What changed in how vLLM plans a pool, release by release: a rule, the first release that has it, and its source.

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


def change(since: str, what: str, source: str, **fields: Any) -> Change:
    """A change with the fields of `Rules` that it sets."""
    return Change(since, what, source, fields)


_UTILS, _SPECS, _WORKER = "v1/core/kv_cache_utils.py", "v1/kv_cache_interface.py", "v1/worker/gpu_worker.py"

PLANNING = (
    change(
        "0.2.0",
        "V0: one block table for all layers of attention, no null block; 4 GiB of blocks on the CPU",
        "worker/worker.py, worker/cache_engine.py",
        one_table=True,
    ),
    change(
        "0.2.0",
        "a request may be as long as blocks x tokens of a block",
        "engine/llm_engine.py, _init_cache",
        check="tokens",
    ),
    change(
        "0.2.0",
        "the share of the card is 0.9 by default, CUDA graphs come out of the rest",
        "config.py, CacheConfig",
        gpu_memory_utilization=0.9,
        profiles_graphs=False,
    ),
    change(
        "0.2.0", "the log's tokens: blocks x tokens of a block", "engine/llm_engine.py, _init_cache", tokens="blocks"
    ),
    change(
        "0.2.0",
        "windows and chunks are kept like full attention",
        "worker/cache_engine.py, get_cache_block_size",
        windows="kept",
        chunks="kept",
    ),
    change(
        "0.2.0",
        "maximum concurrency: blocks x tokens of a block / the longest request",
        "executor/gpu_executor.py, initialize_cache",
        concurrency="tokens",
    ),
    change(
        "0.6.3",
        "the log says the maximum concurrency",
        "executor/gpu_executor.py, initialize_cache",
        prints_concurrency=True,
    ),
    change("0.8.0", "V1: blocks on the GPU alone, one of them the null block", f"{_UTILS}", one_table=False),
    change(
        "0.8.0",
        "the check adds up the pages of a stage's layers; --num-gpu-blocks-override does not touch it",
        f"{_UTILS}, check_enough_kv_cache_memory",
        check="layers",
        adjusts_pool_to_override=False,
    ),
    change(
        "0.8.0",
        "every pipeline stage groups its own layers",
        f"{_UTILS}, get_kv_cache_configs",
        groups_stages_alone=True,
    ),
    change(
        "0.8.3",
        "the check charges a window W - 1 tokens and one step, the pool still keeps all",
        f"{_SPECS}, SlidingWindowSpec; {_UTILS}, unify_hybrid_kv_cache_specs",
        windows="checked",
    ),
    change(
        "0.9.1",
        "the hybrid manager: windows have blocks of their own; the log's tokens are blocks / groups x those of a block",
        f"{_UTILS}, _get_kv_cache_config_uniform_page_size",
        windows="grouped",
    ),
    change(
        "0.9.1",
        "groups as large as the rarest kind has layers",
        f"{_UTILS}, _get_kv_cache_config_uniform_page_size",
        group_slack=Fraction(1),
    ),
    change(
        "0.9.1",
        "layers whose type and page are equal share groups",
        f"{_SPECS}, AttentionSpec.type_id",
        merges_kinds=True,
    ),
    change(
        "0.9.1",
        "maximum concurrency: blocks / blocks of one request",
        f"{_UTILS}, get_max_concurrency_for_kv_cache_config",
        concurrency="requests",
    ),
    change(
        "0.10.0",
        "chunks have blocks of their own too",
        f"{_SPECS}, ChunkedLocalAttentionSpec",
        chunks="grouped",
    ),
    change(
        "0.10.1",
        "equal specs alone share groups",
        f"{_UTILS}, _get_kv_cache_config_uniform_page_size",
        merges_kinds=False,
    ),
    change(
        "0.10.1",
        "chunks beside full attention switch the hybrid manager off",
        "envs.py, VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE",
        chunks_in_groups=False,
    ),
    change(
        "0.11.0",
        "layers of one type and different widths make one group",
        f"{_SPECS}, UniformTypeKVCacheSpecs",
        knows_mixed_widths=True,
    ),
    change(
        "0.11.0",
        "pipeline stages share the groups of the whole model",
        f"{_UTILS}, get_kv_cache_configs",
        groups_stages_alone=False,
    ),
    change(
        "0.12.0",
        "the smaller page takes more tokens to become as large as the larger; where it cannot, vLLM stops",
        f"{_UTILS}, unify_kv_cache_spec_page_size",
        grows_pages=True,
    ),
    change(
        "0.12.0",
        "groups as large as the commonest kind where that is under 1.25 times the rarest",
        f"{_UTILS}, _get_kv_cache_groups_uniform_page_size",
        group_slack=Fraction(5, 4),
    ),
    change(
        "0.14.0",
        "the check counts the blocks of the first group alone",
        f"{_UTILS}, _max_memory_usage_bytes_from_groups",
        check="first group",
    ),
    change(
        "0.14.0",
        "the check holds the layers of all stages against the least pool",
        f"{_UTILS}, get_kv_cache_configs",
        checks_whole_model=True,
    ),
    change(
        "0.14.0",
        "the share of the card is rounded up",
        "v1/worker/utils.py, request_memory",
        rounds_share_up=True,
    ),
    change(
        "0.14.0",
        "the hybrid manager stays on beside chunks",
        "envs.py, VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE",
        chunks_in_groups=True,
    ),
    change(
        "0.17.0",
        "each pool is held against the layers of its own stage",
        f"{_UTILS}, _project_kv_cache_groups_to_worker",
        checks_whole_model=False,
    ),
    change(
        "0.17.0",
        "a group of unequal widths weighs the layers of its own stage; before, a block was as large as on one stage",
        f"{_UTILS}, _project_kv_cache_groups_to_worker",
        splits_mixed_groups=True,
    ),
    change(
        "0.18.0",
        "groups as large as the commonest kind where that is under 1.5 times the rarest",
        f"{_UTILS}, _get_kv_cache_groups_uniform_page_size",
        group_slack=Fraction(3, 2),
    ),
    change(
        "0.19.0",
        "the check counts all groups",
        f"{_UTILS}, _max_memory_usage_bytes_from_groups",
        check="groups",
    ),
    change(
        "0.20.0",
        "the share of the card is 0.92 by default, and CUDA graphs are profiled and taken off the pool",
        f"config/cache.py; envs.py, VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS; {_WORKER}",
        gpu_memory_utilization=0.92,
        profiles_graphs=True,
    ),
    change(
        "0.20.1",
        "the log's tokens: maximum concurrency x the longest request",
        f"{_UTILS}, _report_kv_cache_config",
        tokens="requests",
    ),
    change(
        "0.20.1",
        "--num-gpu-blocks-override is what the check sees",
        f"{_UTILS}, get_kv_cache_configs",
        adjusts_pool_to_override=True,
    ),
    change(
        "0.26.0",
        "windows and chunks hold the tokens of all batches that overlap: two with asynchronous scheduling",
        "config/vllm.py, VllmConfig.max_in_flight_tokens",
        counts_overlapping_batches=True,
    ),
    change(
        "0.26.0",
        "a state's page is padded to the largest",
        f"{_UTILS}, unify_kv_cache_spec_page_size",
        pads_states=True,
    ),
    change(
        "0.27.0",
        "unequal specs that merge share groups",
        f"{_UTILS}, _get_kv_cache_groups_uniform_page_size",
        merges_kinds=True,
    ),
    change(
        "0.27.0",
        "windows beside an MLA whose page they cannot meet are kept in full",
        f"{_UTILS}, _try_get_full_allocation_fallback_groups",
        keeps_windows_beside_latent=True,
    ),
    change(
        "0.29.0",
        "the null block is taken off before a request is held against the pool",
        f"{_UTILS}, get_kv_cache_configs",
        counts_null_block=True,
    ),
    change(
        "0.29.0",
        "a page of attention is padded where no whole number of its blocks fills the largest; MLA's cannot be",
        f"{_UTILS}, unify_kv_cache_spec_page_size",
        pads_attention=True,
    ),
)
