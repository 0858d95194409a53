"""Lines of llama.cpp's log, and of ollama's around them; its MB are MiB.

Wordings: build b11549 (src/llama-context.cpp, llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp,
llama-model-loader.cpp) and logs since build 850.
"""

from collections.abc import Iterable

from kvcalc.engines.logs.pattern import MIB, LogFormat, says

_FLAGS = {
    "--model": "path",
    "--ctx-size": "n_ctx",
    "--parallel": "n_seq_max",
    "--batch-size": "n_batch",
    "--ubatch-size": "n_ubatch",
    "--kv-cache-type": "kv_type",
}

_METADATA = r"llama_model_loader: - kv +\d+: +(?P<key>\S+) +(?P<type>arr\[\w+,\d+\]|\w+) += (?P<text>.{0,200})"
_FILE = r"llama_model_loader: loaded meta data .{0,80}? from (?P<path>.{1,1000}?) \(version"
_SIZES = r"K \((?P<type_k>\w+)\): *(?P<k_bytes>NUM) MiB, V \((?P<type_v>\w+)\): *(?P<v_bytes>NUM) MiB"
_CELLS = (
    r"\( *(?P<cells>\d+) cells, *(?P<layers>\d+) layers(?:, *(?P<seqs>\d+)(?:/ *(?P<streams>\d+))? seqs)?"
    r"(?: +(?P<rs_seq>\d+) rs_seq)?[^)]{0,20}\)"
)
_CACHE = r"llama_kv_cache\w*: +size = *(?P<cache_bytes>NUM) MiB " + _CELLS + "(?:, +" + _SIZES + ")?"
_STATES = (
    r"llama_memory_recurrent: +size = *(?P<state_bytes>NUM) MiB "
    + _CELLS
    + r"(?:, +R \(\w+\): *(?P<r_bytes>NUM) MiB, S \(\w+\): *(?P<s_bytes>NUM) MiB)?"
)
_PART = r"creating +(?P<part>[\w-]+) KV cache, size = *(?P<cells>\d+) cells"


_LIST = r"\d+\b|\[[\d, ]{0,4000}\]"
_FACTS = ("n_layer", "n_head", "n_head_kv", "n_embd_head_k", "n_embd_head_v", "n_embd_k_gqa", "n_embd_v_gqa", "n_swa")
_SETTINGS = ("n_seq_max", "n_ctx", "n_batch", "n_ubatch", "flash_attn", "kv_unified", "n_rs_seq")
_BUFFERS = {"model": "weights", "compute": "activation", "output": "output", "KV": "kv_buffer", "RS": "state_buffer"}


def _one_of(forms: Iterable[str]) -> str:
    return f"(?:{'|'.join(forms)})"


# A list stands where layers differ.
_FACT = r"(?:print_info|print_meta): +" + _one_of(
    [*(rf"{name} +=\s*(?P<{name}>{_LIST})" for name in _FACTS), r"general\.name +=\s*(?P<name>\S.{0,200})"]
)
_SETTING = r"(?:llama_context|_with_model|_from_model): " + _one_of(
    [*(rf"{name} +=\s*(?P<{name}>\w+)" for name in _SETTINGS), "(?P<begin>constructing)"]
)
_BUFFER = r": +(?P<device>\S+) +" + _one_of(
    rf"{name} buffer size = *(?P<{key}_bytes>NUM) MiB" for name, key in _BUFFERS.items()
)

FORMAT = LogFormat(
    "llama.cpp",
    (
        says("version", "build", r"\b(?:build(?:_info)?: b?|build = )(?P<version>\d{3,})\b"),
        says("file", "loaded meta data", _FILE),
        says("metadata", "- kv ", _METADATA),
        says("model", "print_info: ", _FACT),
        says("model", "print_meta: ", _FACT),
        says("context", "llama_context: ", _SETTING),
        says("context", "_with_model: ", _SETTING),
        says("context", "_from_model: ", _SETTING),
        says("types", "type_k = ", r"type_k = '(?P<type_k>\w+)', type_v = '(?P<type_v>\w+)'"),
        says("draft", "creating MTP draft context"),
        says("swa full", "using full-size SWA cache", "using (?P<swa_full>full)-size SWA cache"),
        says("part", "KV cache, size =", _PART),
        says("cache", " cells, ", _CACHE, unit=MIB),
        says("cache", "KV self size", r"KV self size += *(?P<cache_bytes>NUM) MiB(?:, +" + _SIZES + ")?", unit=MIB),
        says("cache", "kv self size", r"kv self size += *(?P<cache_bytes>NUM) Mi?B", unit=MIB),
        says("states", "llama_memory_recurrent: ", _STATES, unit=MIB),
        says("buffer", "buffer size = ", _BUFFER, unit=MIB),
        says("command", "starting llama server", names=_FLAGS),
        says("command", "starting runner", names=_FLAGS),
    ),
    starts=("version", "command"),
    figures=("cache", "states"),
)
