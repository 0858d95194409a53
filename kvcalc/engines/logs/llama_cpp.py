"""Lines of llama.cpp's log, and of ollama's around them. Wordings: build b11549 (src/llama-context.cpp, llama-kv-cache.cpp,
llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp, llama-model-loader.cpp) and logs since build 850; its MB are MiB."""

from collections.abc import Iterator

from kvcalc.engines.logs.pattern import MIB, LogFormat, Pattern, says

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
    r"\( *(?P<cells>\d+) cells, *(?P<layers>\d+) layers, *(?P<seqs>\d+)(?:/ *(?P<streams>\d+))? seqs"
    r"(?: (?P<rs_seq>\d+) rs_seq)?\), +"
)
_CACHE = r"llama_kv_cache\w*: +size = *(?P<cache_bytes>NUM) MiB " + _CELLS + _SIZES
_STATES = (
    r"llama_memory_recurrent: +size = *(?P<state_bytes>NUM) MiB "
    + _CELLS
    + r"R \(\w+\): *(?P<r_bytes>NUM) MiB, S \(\w+\): *(?P<s_bytes>NUM) MiB"
)
_PART = r"creating +(?P<part>[\w-]+) KV cache, size = *(?P<cells>\d+) cells"


def _facts() -> Iterator[Pattern]:
    """`print_info:` of the model, a fact a line; a fact that differs by layer is a list."""
    for name in (
        "n_layer",
        "n_head",
        "n_head_kv",
        "n_embd_head_k",
        "n_embd_head_v",
        "n_embd_k_gqa",
        "n_embd_v_gqa",
        "n_swa",
    ):
        regex = rf"(?:print_info|llm_load_print_meta): +{name} +=\s*(?P<{name}>\d+\b|\[[\d, ]{{0,4000}}\])"
        yield says("model", f"{name} ", regex)
    yield says("model", "general.name", r"(?:print_info|llm_load_print_meta): general\.name +=\s*(?P<name>\S.{0,200})")


def _context() -> Iterator[Pattern]:
    """`llama_context:` a setting a line."""
    yield says("context", "constructing llama_context", r"(?P<begin>constructing llama_context)")
    for name in ("n_seq_max", "n_ctx", "n_batch", "n_ubatch", "flash_attn", "kv_unified", "n_rs_seq"):
        regex = rf"(?:llama_context|llama_new_context_with_model|llama_init_from_model): {name} +=\s*(?P<{name}>\w+)"
        yield says("context", f"{name} ", regex)


def _buffers() -> Iterator[Pattern]:
    """Buffers by device."""
    kinds = {"model": "weights", "compute": "activation", "output": "output", "KV": "kv_buffer", "RS": "state_buffer"}
    for name, key in kinds.items():
        regex = rf": +(?P<device>\S+) +{name} buffer size = *(?P<{key}_bytes>NUM) MiB"
        yield says(f"{name} buffer", f"{name} buffer size", regex, unit=MIB)


FORMAT = LogFormat(
    "llama.cpp",
    (
        says("version", "build", r"\b(?:build(?:_info)?: b?|build = )(?P<version>\d{3,})\b"),
        says("file", "loaded meta data", _FILE),
        says("metadata", "- kv ", _METADATA),
        *_facts(),
        *_context(),
        says("types", "type_k = ", r"type_k = '(?P<type_k>\w+)', type_v = '(?P<type_v>\w+)'"),
        says("part", "KV cache, size =", _PART),
        says("cache", "size = ", _CACHE, unit=MIB),
        says("cache", "KV self size", r"KV self size += *(?P<cache_bytes>NUM) MiB, " + _SIZES, unit=MIB),
        says("cache", "kv self size", r"kv self size += *(?P<cache_bytes>NUM) Mi?B", unit=MIB),
        says("states", "llama_memory_recurrent: size", _STATES, unit=MIB),
        *_buffers(),
        says("command", "starting llama server", names=_FLAGS),
        says("command", "starting runner", names=_FLAGS),
    ),
)
