"""A planning question as vLLM's own code was asked it, in the words of kvcalc: layers, limits, budgets."""

from kvcalc.engines.vllm_groups import make_groups
from kvcalc.engines.vllm_plan import Planner
from kvcalc.engines.vllm_specs import Chunked, Full, Latent, Limits, Sliding, SlidingLatent
from kvcalc.engines.vllm_states import Encoder, Ring, States

KINDS = {
    "full": Full,
    "mla": Latent,
    "sw": Sliding,
    "sw_mla": SlidingLatent,
    "chunked": Chunked,
    "cross": Encoder,
    "circular": Ring,
    "mamba": States,
}
FIELDS = {
    "num_kv_heads": "kv_heads",
    "head_size": "head_size",
    "head_size_v": "head_size_v",
    "dtype": "dtype",
    "sliding_window": "window",
    "attention_chunk_size": "chunk",
    "state_content_bytes": "state_bytes",
    "num_head_slots": "head_slots",
    "tokens_per_state": "tokens_per_state",
    "alignment": "alignment",
    "page_size_padded": "padded_bytes",
    "cache_dtype_str": "layout",
    "dcp_sharded": "dcp_sharded",
    "num_speculative_blocks": "speculative_blocks",
    "num_prefill_checkpoint_blocks": "checkpoint_blocks",
    "block_stride_alignment": "stride_alignment",
}
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1}


def layer_specs(case):
    """The spec of every layer, in the order of the model."""
    kinds = {layer.get("key", str(place)): layer for place, layer in enumerate(case["layers"])}
    order = case.get("pattern") or [key for key, layer in kinds.items() for _ in range(layer.get("count", 1))]
    built = {key: _spec(layer) for key, layer in kinds.items()}
    retained = max(0, case.get("num_prefill_lookahead_tokens", 0) - 1)
    return [built[key].retaining(retained) for key in order]


def _spec(layer):
    fields = {FIELDS[key]: value for key, value in layer.items() if key in FIELDS and value is not None}
    if layer["type"] == "mamba":
        shapes = tuple(tuple(shape) for shape in layer["shapes"])
        fields |= {"shapes": shapes, "values_bytes": _state_bytes(shapes, layer["dtypes"])}
    return KINDS[layer["type"]](block_size=layer.get("block_size", 16), **fields)


def _state_bytes(shapes, dtypes):
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        values = 1
        for size in shape:
            values *= size
        total += values * BYTES[dtype]
    return total


def limits_of(case):
    overlapping = case.get("max_concurrent_batches", 2 if case.get("async_scheduling", True) else 1)
    return Limits(
        max_model_len=case["max_model_len"],
        in_flight_tokens=case.get("max_num_batched_tokens", 8192) * overlapping,
        dcp=case.get("dcp", 1),
        encoder_tokens=case.get("max_encoder_len", 0),
        aligned_states=case.get("mamba_cache_mode") == "align",
    )


def groups_of(case):
    return make_groups(
        layer_specs(case),
        hybrid=not case.get("disable_hybrid", False),
        block_outermost=case.get("layout", "LBNHC").startswith("B"),
    )


def budgets_of(case):
    return case["available_bytes"] if isinstance(case["available_bytes"], list) else [case["available_bytes"]]


def stages_of(case):
    """As the question put them: layers that are left over go to the first stages."""
    layers, count = len(layer_specs(case)), len(budgets_of(case))
    sizes = [layers // count + (stage < layers % count) for stage in range(count)]
    return [(sum(sizes[:stage]), sum(sizes[: stage + 1])) for stage in range(count)]


def answer(case):
    """What kvcalc plans, in the words of the question's answer."""
    limits, groups = limits_of(case), groups_of(case)
    planner = Planner(groups, limits, stages_of(case))
    pool = planner.pool(budgets_of(case), case.get("num_gpu_blocks_override"))
    longest = planner.longest_request(pool)
    if case.get("original_max_model_len") == -1 and longest:
        return answer({**case, "max_model_len": longest, "original_max_model_len": None})
    whole = Planner(groups, limits)
    (block_bytes,) = whole.block_bytes
    (needed,) = whole.needed_bytes()
    if not planner.takes_one_request(pool):
        return {
            "longest": longest,
            "needed_bytes_one_request": needed,
            "groups": [[group.name, len(group.layers)] for group in groups],
        }
    return {
        "num_blocks": pool.num_blocks,
        "bytes_per_block": block_bytes,
        "usable_blocks": pool.num_blocks - 1,
        "groups": [
            {
                "kind": group.name,
                "layers": len(group.layers),
                "block_size": group.block_size,
                "page_size_bytes": _page_bytes(group),
                "max_memory_usage_bytes": group.request_blocks(limits) * _page_bytes(group),
            }
            for group in groups
        ],
        "needed_bytes_one_request": needed,
        "kv_cache_size_tokens": pool.tokens,
        "max_concurrency": pool.max_concurrency,
        "page_sizes": sorted({spec.page_bytes for spec in layer_specs(case)}),
        "total_pool_bytes": block_bytes * pool.num_blocks,
        "max_model_len_after_autofit": limits.max_model_len,
    }


def _page_bytes(group):
    """vLLM's page of a group: of one layer where all are alike, of all of them together where they are not."""
    return group.block_bytes if group.name == "UniformTypeKVCacheSpecs" else group.specs[0].page_bytes
