"""What ollama asks of llama.cpp: its own settings as llama-server's flags.

Read in ollama 0.33: startLlamaServer, appendBatchArgs and appendFlashAttentionArgs of llm/llama_server.go,
NewLlamaServer of llm/server.go, DefaultOptions of api/types.go, Serve of server/routes.go, envconfig/config.go. It runs
the model in a llama-server of its own, whose build may differ from the one that the rules of llama.cpp were read in.
"""

import msgspec

from kvcalc.engines.llama_cpp import LlamaCpp
from kvcalc.errors import KvcalcError

GIB = 2**30

CONTEXT_BY_VRAM = ((47 * GIB, 262144), (23 * GIB, 32768), (0, 4096))
"""Tokens of a request by the least VRAM of all devices, where neither OLLAMA_CONTEXT_LENGTH nor num_ctx says."""

NUM_BATCH = 512


class OllamaRun(msgspec.Struct, frozen=True, kw_only=True):
    """One llama-server: its flags, `-np` slots of `context_tokens` each, and the type of K and V (`-ctk`, `-ctv`)."""

    engine: LlamaCpp
    context_tokens: int
    slots: int
    cache_type: str


def default_context(vram_bytes: int) -> int:
    """Tokens of a request where nothing else says how many."""
    return next(tokens for least, tokens in CONTEXT_BY_VRAM if vram_bytes >= least)


def ollama_flags(
    num_ctx: int,
    num_parallel: int = 1,
    kv_cache_type: str = "",
    flash_attn: bool = True,
    *,
    num_batch: int = NUM_BATCH,
    max_context: int | None = None,
) -> OllamaRun:
    """The run that `num_ctx` (OLLAMA_CONTEXT_LENGTH), OLLAMA_NUM_PARALLEL and the rest of its settings start.

    A context past what the model was trained for is cut to it. `flash_attn` is what OLLAMA_FLASH_ATTENTION or, where it
    is not set, the devices allow. KvcalcError for a count below 1.
    """
    for name, count in (("num_ctx", num_ctx), ("OLLAMA_NUM_PARALLEL", num_parallel), ("num_batch", num_batch)):
        if count < 1:
            raise KvcalcError(f"{name} {count}: at least 1 is needed", "check the settings of ollama")
    context = min(num_ctx, max_context or num_ctx)
    engine = LlamaCpp(
        ctx_size=context * num_parallel, batch_size=num_batch, ubatch_size=num_batch, flash_attn=flash_attn
    )
    return OllamaRun(
        engine=engine, context_tokens=context, slots=num_parallel, cache_type=(kv_cache_type or "f16").lower()
    )
