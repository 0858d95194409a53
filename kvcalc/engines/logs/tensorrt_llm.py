"""Lines of TensorRT-LLM's log.

Wordings: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp and tensorrt_llm/_torch/pyexecutor/_util.py, and logs of 0.8
to 1.2.
"""

from kvcalc.engines.logs.pattern import GIB, LogFormat, says

SETTINGS = {
    "model": "model",
    "dtype": "dtype",
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "max_seq_len": "ctx",
    "max_batch_size": "max_batch_size",
    "max_num_tokens": "max_num_tokens",
    "tokens_per_block": "tokens_per_block",
    "free_gpu_memory_fraction": "kv_cache_free_gpu_mem_fraction",
}
"""Names in the arguments that are printed: its own."""

_VERSION = r"TensorRT[- ]LLM version: (?P<version>\d[\w.]*)"
_LIMITS = r"max_seq_len=(?P<ctx>\d+), max_num_requests=\d+, max_num_tokens=(?P<max_num_tokens>\d+)"
_FREE = r"paged kv cache: total: (?P<total_bytes>NUM) GiB, available: (?P<free_bytes>NUM) GiB"
_ALLOCATED = r"Allocated (?P<kv_bytes>NUM) GiB for max tokens in paged KV cache \((?P<tokens>\d+)\)"
_WINDOW = (
    r"Max KV cache (?:blocks|pages) per sequence: (?P<sequence_blocks>\d+) \[window size=(?P<window>\d+)\]"
    r"(?:, tokens per block=(?P<tokens_per_block>\d+), primary blocks=(?P<blocks>\d+), secondary blocks=\d+, "
    r"max sequence length=(?P<ctx>\d+))?"
)
_PEAK = (
    r"\(torch \+ non-torch\): (?P<peak_bytes>NUM) GiB, available KV cache memory when calculating max tokens: "
    r"(?P<available_bytes>NUM) GiB, fraction is set (?P<kv_cache_free_gpu_mem_fraction>NUM), kv size (?:per token )?is "
    r"(?P<token_cost>NUM)\. device total memory (?P<total_bytes>NUM) GiB"
)
_PROFILED = "in memory usage profiling: (?P<{}>NUM) GiB"

FORMAT = LogFormat(
    "tensorrt-llm",
    (
        says("version", "LLM version: ", _VERSION),
        says("version", "Engine version", r"Engine version (?P<version>\d[\w.]*) found"),
        says("arguments", "LLM Args", names=SETTINGS),
        says("limits", "max_num_requests=", _LIMITS),
        says("free", "max tokens in paged kv cache", _FREE, unit=GIB),
        says("blocks", "KV cache primary pool", r"primary pool: (?P<blocks>\d+)"),
        says("window", "per sequence: ", _WINDOW),
        says(
            "sequence",
            "per sequence: ",
            r"Max KV cache (?:blocks|pages) per sequence: (?P<sequence_blocks>\d+)\b(?! \[)",
        ),
        says("block size", "tokens per block", r"Number of tokens per block: (?P<tokens_per_block>\d+)\."),
        says("tokens", "in paged KV cache", _ALLOCATED, unit=GIB),
        says("tokens", "in paged KV cache", r"Using (?P<tokens>\d+) tokens in paged KV cache"),
        says("allocated", "bytes for k/v cache", r"Allocate (?P<kv_bytes>\d+) bytes for k/v cache"),
        says("weights", "model weights (inside", _PROFILED.format("weights_bytes"), unit=GIB),
        says("outside", "model weights (outside", _PROFILED.format("non_torch_bytes"), unit=GIB),
        says("activation", "during inference (inside", _PROFILED.format("activation_bytes"), unit=GIB),
        says("peak", "Peak memory during", _PEAK, unit=GIB),
        says("pool", "max memory in KV cache", r"KV cache ?: (?P<available_bytes>NUM) GiB", unit=GIB),
    ),
    starts=("version",),
    figures=("tokens", "blocks", "window", "allocated"),
)
