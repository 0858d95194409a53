"""SGLang's pools in figures: what runs out first, and what its log prints of them."""

from collections.abc import Iterator

from kvcalc.engines.engine import AllocationPart
from kvcalc.engines.sglang_blocks import TOKENS
from kvcalc.engines.sglang_compressed import CompressedPools
from kvcalc.engines.sglang_pools import Pools
from kvcalc.engines.sglang_setup import Setup, Sizes


def requests_taken(pools: Pools | CompressedPools, sizes: Sizes, context: int) -> Iterator[tuple[str, int]]:
    """Requests of `context` tokens that each pool takes, by what would run out."""
    whole, window = pools.claim(context)
    if sizes.slots is not None and pools.states is not None:
        yield "state slots", max(0, sizes.slots) // pools.states.per_request
    yield TOKENS, sizes.tokens // whole
    if sizes.window_tokens is not None:
        yield "window tokens", sizes.window_tokens // window
    yield "running requests", sizes.requests


def figures(parts: list[AllocationPart], sizes: Sizes, setup: Setup) -> Iterator[tuple[str, int | float]]:
    """Figures of the log, in bytes and tokens of one rank; the log prints bytes in units of 2**30."""
    by_name = {part.name: part.tensors for part in parts}
    for pool, prefix in (("tokens", ""), ("full", "full_"), ("window", "swa_")):
        for side, name in (("K", "k_bytes"), ("V", "v_bytes"), ("KV", "kv_bytes"), ("index", "index_bytes")):
            if side in by_name.get(pool, {}):
                yield prefix + name, by_name[pool][side]
    if sizes.window_tokens is not None:
        yield "full_tokens", sizes.tokens
        yield "swa_tokens", sizes.window_tokens
    if sizes.slots is not None:
        yield "mamba_slots", max(0, sizes.slots)
    if "states" in by_name:  # the rank that holds the most may be one of attention alone
        yield "conv_bytes", by_name["states"]["conv"]
        yield "ssm_bytes", by_name["states"]["ssm"]
    if "draft states" in by_name:
        yield "intermediate_conv_bytes", by_name["draft states"]["conv"]
        yield "intermediate_ssm_bytes", by_name["draft states"]["ssm"]
    yield "allocated_bytes", sum(part.bytes for part in parts)
    yield "max_running_requests", sizes.requests
    yield "tokens_per_rank", sizes.tokens
