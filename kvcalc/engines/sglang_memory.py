"""The share of a card that SGLang takes for weights and pools where --mem-fraction-static is not given.

Read in SGLang 0.5.23, srt/arg_groups/memory_hook.py (handle_gpu_memory_settings, reserve_for_graph_mb) and
cuda_graph_hook.py: what is left over is an estimate of activations and CUDA graphs. In MiB, as there.
"""

import msgspec

GIB_IN_MIB = 1024

PREFILL_TOKENS = ((20, 2048), (60, 4096), (160, 8192))
"""--chunked-prefill-size on cards of less than so many GiB."""
MOST_PREFILL_TOKENS = 16384

GRAPH_BATCHES = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512))
"""The largest captured decode batch on such cards, with fewer than four tensor-parallel ranks and with more."""
MOST_GRAPH_BATCH = 512

CAPTURES = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
"""Prefill sizes that are captured, as ranges; above them every 512 (generate_prefill_cuda_graph_batch_sizes)."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimate asks of a launch."""

    tp: int = 1
    pp: int = 1
    attention_dp: int | None = None
    """Ranks of --enable-dp-attention, None without it."""
    keeps_latent: bool = False
    prefill_tokens: int | None = None
    max_running_requests: int | None = None


def default_prefill_tokens(total_bytes: int) -> int:
    """--chunked-prefill-size on a card of so many bytes."""
    gib = total_bytes / 2**30
    return next((tokens for below, tokens in PREFILL_TOKENS if gib < below), MOST_PREFILL_TOKENS)


def static_fraction(total_bytes: int, launch: Launch) -> float:
    """--mem-fraction-static on a card of so many bytes, to three digits as SGLang rounds it."""
    card = total_bytes / 2**20
    prefill = launch.prefill_tokens or default_prefill_tokens(total_bytes)
    reserved = 512 + max(prefill, 2048) * 1.5 + launch.tp * launch.pp / 8 * 1024 + _graphs(total_bytes, launch, prefill)
    if card > 60 * GIB_IN_MIB:
        reserved = max(reserved, 10 * GIB_IN_MIB)
    return round((card - reserved) / card, 3)


def _graphs(total_bytes: int, launch: Launch, prefill: int) -> float:
    """MiB of captured graphs: 2 for a sequence of decode, 8 for a size of prefill, or 1,536 for all beside MLA."""
    batch = _graph_batch(total_bytes, launch)
    decode = batch * 2.0
    if launch.attention_dp is not None:
        decode += batch * launch.attention_dp * (4.5 if batch > 300 else 3)
    return decode + (1.5 * 1024 if launch.keeps_latent else len(_captured(prefill)) * 8)


def _graph_batch(total_bytes: int, launch: Launch) -> int:
    gib = total_bytes / 2**30
    few, many = next(((few, many) for below, few, many in GRAPH_BATCHES if gib < below), (MOST_GRAPH_BATCH,) * 2)
    return min(few if launch.tp < 4 else many, launch.max_running_requests or MOST_GRAPH_BATCH)


def _captured(most: int) -> list[int]:
    sizes = [size for first, end, step in CAPTURES for size in range(first, end, step)]
    return [size for size in [*sizes, *range(4608, most + 1, 512)] if size <= most]
