"""What the flags of each engine mean to kvcalc, one table an engine.

Names and aliases as the parsers of flags.yaml have them. A flag that no table names and that is a field of the
engine's class is read into that field; all others change no memory.
"""

from collections.abc import Callable

import msgspec

from kvcalc.engines.commands.arguments import Dialect, Given
from kvcalc.errors import KvcalcError, shorten
from kvcalc.units import parse_tokens


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's flags by their first name."""

    dialect: Dialect
    engine: str
    """The engine whose rules count."""
    aliases: dict[str, str] = {}
    """Other spellings; a `!` turns the switch off."""
    model: tuple[str, ...] = ()
    takes_positional: bool = False
    """Whether a bare word is the model."""
    workload: dict[str, tuple[str, Callable[[Given], str | None]]] = {}
    """kvcalc's flag and how its text is read; None says nothing."""
    fields: dict[str, tuple[str, ...]] = {}
    """Names of the engine's field where it differs from the flag's; the first that the class has."""
    memory: frozenset[str] = frozenset()
    """What changes memory, and is not counted."""
    notes: dict[str, str] = {}
    """What to say where a flag was given."""
    env: dict[str, str] = {}
    """Variables that stand for a flag."""


def plain(given: Given) -> str | None:
    """The text itself; `auto` leaves the choice to the engine."""
    text = given.text()
    return None if text in ("auto", "None", "") else text


def count(given: Given) -> str | None:
    """A count, written out: vLLM reads `32k` as 32,000 and `32K` as 32,768; 0, -1 and auto leave it to the engine."""
    text = given.text().strip()
    return None if text in ("-1", "0", "auto") else str(parse_tokens(text, given.shown, "number"))


def memory(given: Given) -> str | None:
    """Bytes, as `--kv-cache-memory` takes them."""
    return f"{parse_tokens(given.text(), given.shown, 'number of bytes')}B"


def weights(given: Given) -> str | None:
    """The format that a quantisation brings the weights to; None where the checkpoint's files say it."""
    return _QUANTISED.get(given.text())


_QUANTISED = {
    "fp8": "fp8",
    "mxfp8": "mxfp8",
    "mxfp4": "mxfp4",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
}
"""Formats by what --quantization says: model_executor/layers/quantization of vLLM 0.33, server_args.py of SGLang."""

_QUANTISATION = "the weights' bytes are those of the checkpoint's files where they say their format"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _dashes(name: str) -> str:
    return name.replace("_", "-")


_VLLM = Table(
    dialect=Dialect("vllm", long_name=_dashes, abbreviates=True, negates=True, attached=frozenset({"O"})),
    engine="vllm",
    aliases={
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
        "dp": "data-parallel-size",
        "dcp": "decode-context-parallel-size",
        "pcp": "prefill-context-parallel-size",
        "ep": "enable-expert-parallel",
        "q": "quantization",
        "sc": "speculative-config",
        "cc": "compilation-config",
        "device-memory-utilization": "gpu-memory-utilization",
    },
    model=("model",),
    takes_positional=True,
    workload={
        "max-model-len": ("ctx", count),
        "kv-cache-dtype": ("kv_dtype", plain),
        "dtype": ("dtype", plain),
        "quantization": ("weights", weights),
        "tensor-parallel-size": ("tp", count),
        "pipeline-parallel-size": ("pp", count),
        "data-parallel-size": ("dp", count),
        "decode-context-parallel-size": ("dcp", count),
        "kv-cache-memory-bytes": ("kv_cache_memory", memory),
    },
    memory=_words(
        "quantization prefill-context-parallel-size cpu-offload-gb cpu-offload-params kv-transfer-config "
        "kv-offloading-backend "
        "kv-offloading-size kv-cache-dtype-skip-layers hf-overrides enable-lora max-loras max-lora-rank lora-modules "
        "kv-sharing-fast-prefill mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype "
        "speculative-model num-speculative-tokens disable-sliding-window language-model-only mm-encoder-only "
        "enable-dbo swap-space num-lookahead-slots "
        "enforce-eager max-cudagraph-capture-size cudagraph-capture-sizes max-seq-len-to-capture rope-scaling "
        "block-size num-gpu-blocks-override disable-hybrid-kv-cache-manager offload-group-size"
    ),
    notes={"quantization": _QUANTISATION},
)

_SGLANG = Table(
    dialect=Dialect("sglang", abbreviates=True),
    engine="sglang",
    aliases={
        "model": "model-path",
        "tensor-parallel-size": "tp-size",
        "pipeline-parallel-size": "pp-size",
        "data-parallel-size": "dp-size",
        "expert-parallel-size": "ep-size",
        "ep": "ep-size",
        "decode-context-parallel-size": "dcp-size",
        "attention-data-parallel-size": "attn-dp-size",
        "speculative-draft-model": "speculative-draft-model-path",
    },
    model=("model-path",),
    takes_positional=True,
    workload={
        "context-length": ("ctx", count),
        "kv-cache-dtype": ("kv_dtype", plain),
        "dtype": ("dtype", plain),
        "quantization": ("weights", weights),
        "tp-size": ("tp", count),
        "pp-size": ("pp", count),
        "dp-size": ("dp", count),
        "ep-size": ("ep", count),
        "dcp-size": ("dcp", count),
    },
    memory=_words(
        "quantization attn-dp-size attn-cp-size enable-hierarchical-cache enable-hicache hicache-ratio hicache-size "
        "cpu-offload-gb "
        "enable-lora lora-paths max-loras-per-batch max-lora-rank speculative-draft-kv-cache-dtype mamba-ssm-dtype "
        "enable-unified-memory enable-hisparse json-model-override-args disable-cuda-graph "
        "cuda-graph-max-bs cuda-graph-bs page-size mem-fraction-static max-running-requests max-total-tokens "
        "swa-full-tokens-ratio mamba-full-memory-ratio max-mamba-cache-size chunked-prefill-size disable-radix-cache "
        "disable-hybrid-swa-memory enable-dp-attention speculative-num-draft-tokens mamba-radix-cache-strategy "
        "disaggregation-mode enable-two-batch-overlap"
    ),
    notes={"quantization": _QUANTISATION},
)

_LLAMA_CPP = Table(
    dialect=Dialect(
        "llama.cpp", long_name=_dashes, equals=False, greedy=True, optional=frozenset({"fa", "flash-attn"})
    ),
    engine="llama.cpp",
    aliases={
        "m": "model",
        "hf": "hf-repo",
        "hfr": "hf-repo",
        "hff": "hf-file",
        "c": "ctx-size",
        "np": "parallel",
        "b": "batch-size",
        "ub": "ubatch-size",
        "ctk": "cache-type-k",
        "ctv": "cache-type-v",
        "fa": "flash-attn",
        "kvu": "kv-unified",
        "no-kvu": "!kv-unified",
        "no-kv-unified": "!kv-unified",
        "draft": "spec-draft-n-max",
        "draft-n": "spec-draft-n-max",
        "draft-max": "spec-draft-n-max",
        "md": "model-draft",
        "hfd": "hf-repo-draft",
        "hfrd": "hf-repo-draft",
        "ngl": "n-gpu-layers",
        "ts": "tensor-split",
        "gpu-layers": "n-gpu-layers",
        "nkvo": "no-kv-offload",
        "cmoe": "cpu-moe",
        "ncmoe": "n-cpu-moe",
        "ot": "override-tensor",
        "mm": "mmproj",
        "ctkd": "cache-type-k-draft",
        "ctvd": "cache-type-v-draft",
    },
    model=("model", "hf-repo"),
    memory=_words(
        "no-kv-offload cpu-moe n-cpu-moe override-tensor model-draft hf-repo-draft mmproj mmproj-url lora lora-scaled "
        "cache-type-k-draft cache-type-v-draft kv-unified-per-slot"
    ),
    notes={"hf-repo": "which file of it is taken says the weights' bytes; it is not fetched"},
)

_TENSORRT_LLM = Table(
    # `kv_cache_dtype` is newer than the source of flags.yaml: 1.3.0 lists it as [auto|fp8|nvfp4].
    dialect=Dialect("tensorrt-llm", own=frozenset({"kv_cache_dtype", "extra_llm_api_options"}), greedy=True),
    engine="tensorrt-llm",
    aliases={
        "tp_size": "tensor_parallel_size",
        "pp_size": "pipeline_parallel_size",
        "cp_size": "context_parallel_size",
        "ep_size": "moe_expert_parallel_size",
        "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
        "extra_llm_api_options": "config",
    },
    takes_positional=True,
    workload={
        "max_seq_len": ("ctx", count),
        "kv_cache_dtype": ("kv_dtype", plain),
        "tensor_parallel_size": ("tp", count),
        "pipeline_parallel_size": ("pp", count),
        "moe_expert_parallel_size": ("ep", count),
    },
    fields={"free_gpu_memory_fraction": ("kv_cache_free_gpu_mem_fraction", "free_gpu_memory_fraction")},
    memory=_words(
        "context_parallel_size max_beam_width max_batch_size max_num_tokens free_gpu_memory_fraction "
        "moe_cluster_parallel_size"
    ),
    notes={"config": "that file overrides flags, and it is not read: give what it sets yourself"},
)

_OLLAMA = Table(
    dialect=Dialect("ollama"),
    engine="llama.cpp",
    takes_positional=True,
    workload={
        "num_ctx": ("ctx", count),
        "num_parallel": ("batch", count),
        "kv_cache_type": ("kv_dtype", plain),
    },
    fields={"flash_attention": ("flash_attn",)},
    memory=frozenset({"num_batch", "num_gpu", "use_mmap", "adapter", "draft_num_predict"}),
    env={
        "OLLAMA_CONTEXT_LENGTH": "num_ctx",
        "OLLAMA_NUM_PARALLEL": "num_parallel",
        "OLLAMA_KV_CACHE_TYPE": "kv_cache_type",
        "OLLAMA_FLASH_ATTENTION": "flash_attention",
    },
)

TABLES = {
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "llama.cpp": _LLAMA_CPP,
    "tensorrt-llm": _TENSORRT_LLM,
    "ollama": _OLLAMA,
}
"""By the engine whose command it is."""


def table_of(engine: str) -> Table:
    """The table of an engine; KvcalcError for one that has no command."""
    if engine not in TABLES:
        raise KvcalcError(
            f"no command line is known that runs {shorten(engine)}",
            f"they are known for {', '.join(name for name, table in TABLES.items() if table.engine == name)}",
        )
    return TABLES[engine]
