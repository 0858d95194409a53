"""Lines of vLLM's log, V0 and V1. Wordings: its code of 0.33 (v1/worker/gpu_worker.py, v1/core/kv_cache_utils.py and
kv_cache_planning.py, utils/mem_utils.py) and logs of 0.2 to 0.32."""

from kvcalc.engines.logs.pattern import GIB, LogFormat, says

SETTINGS = {
    "model": "model",
    "model_tag": "model",
    "dtype": "dtype",
    "max_seq_len": "ctx",
    "max_model_len": "ctx",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "decode_context_parallel_size": "dcp",
    "kv_cache_dtype": "kv_dtype",
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "chunked_prefill",
    "chunked_prefill_enabled": "chunked_prefill",
    "kv_cache_memory_bytes": "kv_cache_memory",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "swap_space": "swap_space",
    "async_scheduling": "async_scheduling",
    "num_speculative_tokens": "num_speculative_tokens",
    "num_spec_tokens": "num_speculative_tokens",
    "method": "draft_method",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
}
"""Names in `Namespace(...)`, in `non-default args: {...}` and in the config of the start."""

_COMMAND = {f"--{name.replace('_', '-')}": key for name, key in SETTINGS.items()}

_PROFILE = (
    r"Total non KV cache memory: (?P<non_kv_bytes>NUM) ?GiB; "
    r"torch peak memory increase: (?P<activation_bytes>NUM) ?GiB; "
    r"(?:non-torch forward increase memory: (?P<non_torch_bytes>NUM) ?GiB|"
    r"total consumed \(from mem_get_info\): (?P<consumed_bytes>NUM) ?GiB); weights memory: (?P<weights_bytes>NUM) ?GiB"
)
_USAGE = (
    r"Free memory on device (?:\S+ )?\((?P<free_bytes>NUM)/(?P<total_bytes>NUM) GiB\) on startup\. "
    r"Desired GPU memory utilization is \((?P<gpu_memory_utilization>NUM), (?P<requested_bytes>NUM) GiB\)\. "
    r"Actual usage is (?:(?P<consumed_bytes>NUM) GiB for consumed memory \(weights \+ non-torch\)|"
    r"(?P<weights_bytes>NUM) GiB for weight), ?(?P<activation_bytes>NUM) GiB for peak activation, "
    r"(?:(?P<non_torch_bytes>NUM) GiB for non-torch memory, )?and (?P<graphs_bytes>NUM) GiB for CUDAGraph memory"
)
_RESULTS = (
    r"total_gpu_memory=(?P<total_bytes>NUM)GiB .{0,100}?peak_torch_memory=(?P<peak_bytes>NUM)GiB .{0,100}?"
    r"non_torch_memory=(?P<non_torch_bytes>NUM)GiB kv_cache_size=(?P<available_bytes>NUM)GiB"
    r"(?: gpu_memory_utilization=(?P<rounded_share>NUM))?"
)
_REST = (
    r"model weights take (?P<weights_bytes>NUM)GiB; non_torch_memory takes (?P<non_torch_bytes>NUM)GiB; "
    r"PyTorch activation peak memory takes (?P<activation_bytes>NUM)GiB; "
    r"the rest of the memory reserved for KV Cache is (?P<available_bytes>NUM)GiB"
)
_BUDGET = (
    r"total_gpu_memory \((?P<total_bytes>NUM)GiB\) x gpu_memory_utilization \((?P<rounded_share>NUM)\) "
    r"= (?P<requested_bytes>NUM)GiB"
)
_LONGEST = r"estimated maximum model length is (?P<longest>\d[\d,]*\b)"
_LACKING = r"available KV cache memory \((?P<available_bytes>NUM) GiB\)(?:.{0,80}?" + _LONGEST + ")?"
_NEEDING = r"(?P<needed_bytes>NUM) GiB KV cache is needed(?:, which is larger than the " + _LACKING + ")?"
_NEEDED = r"max seq len \((?P<ctx>\d[\d,]*)\)(?:, \(?" + _NEEDING + r"|(?=,? *$))"
_STORED = (
    r"max seq len \((?P<ctx>\d+)\) is larger than the maximum number of tokens that can be stored in (?:the )?KV cache "
    r"\((?P<stored_tokens>\d+)\)"
)
_BLOCKS = (
    r"# (?:[A-Z]{3}|CUDA|cuda|gpu|rocm|xpu|hpu) blocks: (?P<blocks>NUM)(?:, # (?:CPU|cpu) blocks: (?P<cpu_blocks>NUM))?"
)
_BATCHED = r"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)"
_ESTIMATE = r"memory: (?P<graphs_estimate_bytes>NUM) GiB total"
_TOKENS = (
    r"(?:kv_cache_utils\.py:(?P<source_line>\d+)\] +)?[A-Z]{3,4}(?: \+ host)? KV cache size: (?P<tokens>NUM) tokens"
)
_CONCURRENCY = r"Maximum concurrency for (?P<ctx>[\d,]+) tokens per request: (?P<concurrency>NUM)x"

FORMAT = LogFormat(
    "vllm",
    (
        says(
            "start", "LLM engine (v", r"Initializing an? (?:V1 )?LLM engine \(v(?P<version>[^)\s]+)\)", names=SETTINGS
        ),
        says("start", "LLM engine with config", names=SETTINGS),
        says("config", "max_seq_len=", r"max_seq_len=\d+\b(?!, max_num_requests)", names=SETTINGS),
        says("config", "tensor_parallel_size=", r"(?<!')tensor_parallel_size=\d+", names=SETTINGS),
        says("arguments", "non-default args", names=SETTINGS),
        says("arguments", "Namespace(", names=SETTINGS),
        says("arguments", "vllm serve ", r"vllm serve(?: +(?P<model>[\w./][\w./-]*\b))?", names=_COMMAND),
        says("arguments", "vllm.entrypoints", names=_COMMAND),
        says("arguments", "vllm/vllm-openai", r"vllm-openai:v(?P<version>\d[\w.+-]*)", names=_COMMAND),
        says("arguments", "vllm/vllm-openai", names=_COMMAND),
        says("version", "vLLM API server version", r"vLLM API server version v?(?P<version>\d[\w.+-]*)"),
        says("context", "Using max model len", r"Using max model len (?P<ctx>\d+)"),
        says("batched", "max_num_batched_tokens=", _BATCHED),
        says("states", "Mamba cache mode", r"when prefix caching is (?P<enable_prefix_caching>enabled|disabled)"),
        says("async", "Asynchronous scheduling is", r"scheduling is (?P<async_scheduling>enabled|disabled)"),
        says("kv dtype", "to store kv cache", r"Using (?P<kv_dtype>\w+) data type to store kv cache"),
        says("attention block", "attention block size to", r"size to (?P<block_tokens>\d+) tokens"),
        says("pool", "Available KV cache memory", r"memory: (?P<available_bytes>NUM) ?GiB", unit=GIB, decimals=2),
        says("pool", "for KV Cache as", r"reserved (?P<available_bytes>NUM) GiB memory", unit=GIB, decimals=2),
        says("auto-fit", "Auto-fit max_model_len"),
        says("tokens", "KV cache size:", _TOKENS),
        says("blocks", "blocks: ", _BLOCKS),
        says("concurrency", "Maximum concurrency for", _CONCURRENCY),
        says("stored", "can be stored in", _STORED),
        # One sentence, which people break anywhere.
        says("needed", "max seq len (", _NEEDED, unit=GIB, decimals=2),
        says("needed", "KV cache is needed", _NEEDING, unit=GIB, decimals=2),
        says("needed", "available KV cache memory (", _LACKING, unit=GIB, decimals=2),
        says("needed", "estimated maximum model length", _LONGEST),
        says("kernel block", "kv cache block size to", r"size to (?P<kernel_block>\d+) for"),
        says("weights", "Model loading took", r"took (?P<weights_bytes>NUM) ?Gi?B", unit=GIB, decimals=2),
        says("weights", "model weights took", r"took (?P<weights_bytes>NUM) ?Gi?B", unit=GIB, decimals=2),
        says("graphs", "Graph capturing finished", r"took (?P<graphs_bytes>NUM) GiB", unit=GIB, decimals=2),
        says("graphs estimate", "Estimated CUDA graph memory", _ESTIMATE, unit=GIB, decimals=2),
        says("graphs profile", "CUDA graph memory profiling is", r"profiling is (?P<graphs_profile>enabled|disabled)"),
        says("budget", "x gpu_memory_utilization", _BUDGET, unit=GIB, decimals=2),
        says("profile", "non_torch_memory takes", _REST, unit=GIB, decimals=2),
        says("profile", "Total non KV cache memory", _PROFILE, unit=GIB, decimals=2),
        says("profile", "peak_torch_memory=", _RESULTS, unit=GIB, decimals=2),
        says("usage", "Free memory on device", _USAGE, unit=GIB, decimals=2),
    ),
    starts=("start",),
    figures=("pool", "tokens", "blocks", "needed", "concurrency"),
)
