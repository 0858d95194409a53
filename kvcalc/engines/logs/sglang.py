"""Lines of SGLang's log; its GB are GiB. Wordings: its code of 0.5.23 (srt/mem_cache/memory_pool.py,
srt/model_executor/model_runner.py and pool_configurator.py, srt/managers/scheduler.py) and logs since 0.3."""

from kvcalc.engines.logs.pattern import GIB, LogFormat, says

SETTINGS = {
    "model_path": "model",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_dtype",
    "context_length": "ctx",
    "tp_size": "tp",
    "pp_size": "pp",
    "dp_size": "dp",
    "ep_size": "ep",
    "dcp_size": "dcp",
    "page_size": "page_size",
    "mem_fraction_static": "mem_fraction_static",
    "max_running_requests": "max_running_requests",
    "max_total_tokens": "max_total_tokens",
    "chunked_prefill_size": "chunked_prefill_size",
    "swa_full_tokens_ratio": "swa_full_tokens_ratio",
    "disable_radix_cache": "disable_radix_cache",
    "speculative_algorithm": "speculative_algorithm",
    "speculative_num_draft_tokens": "speculative_num_draft_tokens",
    "enable_dp_attention": "enable_dp_attention",
    "mamba_full_memory_ratio": "mamba_full_memory_ratio",
    "max_mamba_cache_size": "max_mamba_cache_size",
    "mamba_ssm_dtype": "state_dtype",
}
"""Names in `server_args=ServerArgs(...)`: its flags."""

_SHORT = {"--model": "model", "--tp": "tp", "--dp": "dp", "--pp": "pp"}
_COMMAND = {f"--{name.replace('_', '-')}": key for name, key in SETTINGS.items()} | _SHORT
_LIMITS = {"max_running_requests": "max_running_requests", "context_len": "ctx"}

_WEIGHTS = r"Load weight end\..{0,300}? avail mem=(?P<free_bytes>NUM) GB(?:, mem usage=(?P<weights_bytes>NUM) GB)?"
_STATES = (
    r"max_mamba_cache_size: (?P<mamba_slots>\d+), conv_state size: (?P<conv_bytes>NUM) ?GB, "
    r"ssm_state size: (?P<ssm_bytes>NUM) ?GB(?: intermediate_ssm_state_cache size: (?P<draft_ssm_bytes>NUM) ?GB)?"
    r"(?: intermediate_conv_window_cache size: (?P<draft_conv_bytes>NUM) ?GB)?"
)
_ALLOCATED = r"KV [Cc]ache (?:is )?allocated\. (?:dtype: (?:torch\.)?(?P<kv_dtype>\w+), )?#tokens: (?P<tokens>\d+), "
_K_AND_V = _ALLOCATED + r"K size: (?P<k_bytes>NUM) GB, V size: (?P<v_bytes>NUM) GB"
_ONE = _ALLOCATED + r"KV size: (?P<kv_bytes>NUM) GB"
_GRAPHS = r"(?i:cuda graph) end\..{0,60}? mem usage=(?P<graphs_bytes>NUM) GB"
_TORCH = r"Init torch distributed ends\..{0,60}?mem usage=(?P<communication_bytes>NUM) GB"

FORMAT = LogFormat(
    "sglang",
    (
        says("start", "server_args=", r"server_args=(?:ServerArgs)?[({]", names=SETTINGS),
        says("arguments", "sglang.launch_server", names=_COMMAND),
        says("version", "sglang", r"(?i:\bsglang)(?:==|:v?|[ _]version[:=]? ?)(?P<version>\d+\.\d+\.\d+\w*)"),
        says("kv dtype", "Using KV cache dtype", r"dtype: (?:torch\.)?(?P<kv_dtype>\w+)"),
        says("before", "Load weight begin", r"begin\. avail mem=(?P<free_bytes>NUM) GB", unit=GIB, decimals=2),
        says("weights", "Load weight end", _WEIGHTS, unit=GIB, decimals=2),
        says("states", "Mamba Cache is allocated", _STATES, unit=GIB, decimals=2),
        says("tokens", "#tokens:", _K_AND_V, unit=GIB, decimals=2),
        says("tokens", "#tokens:", _ONE, unit=GIB, decimals=2),
        says(
            "windows",
            "swa_layer_tokens=",
            r"full_layer_tokens=(?P<full_tokens>\d+), swa_layer_tokens=(?P<swa_tokens>\d+)",
        ),
        says("pool end", "Memory pool end", r"avail mem=(?P<free_bytes>NUM) GB", unit=GIB, decimals=2),
        says("graphs", "graph end.", _GRAPHS, unit=GIB, decimals=2),
        says("communication", "distributed ends", _TORCH, unit=GIB, decimals=2),
        says("limits", "max_total_num_tokens=", r"max_total_num_tokens=(?P<tokens>\d+),", names=_LIMITS),
    ),
    starts=("start",),
    figures=("tokens", "states", "limits"),
)
