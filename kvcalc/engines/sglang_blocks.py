"""SGLang's pool of tokens as requests of any length share it; windows and states lie in pools beside it."""

from collections.abc import Mapping

from kvcalc.engines.engine import BlockPool
from kvcalc.engines.sglang_compressed import CompressedPools
from kvcalc.engines.sglang_pools import Pools
from kvcalc.engines.sglang_setup import Sizes
from kvcalc.sizing.blocks import Group, Layout

TOKENS = "full-attention tokens"
"""What a pool of tokens runs out of, as `Capacity.limited_by` calls it."""


def shared_pages(pools: Pools | CompressedPools, sizes: Sizes, limits: Mapping[str, int]) -> BlockPool:
    """Pages of all tokens; `limits` are the requests that every pool takes.

    Pools of windows and states bound the requests: each counts with a whole window there, as its admission does, even
    while it is shorter.
    """
    setup = pools.setup
    page_bytes = -int(-pools.token_bytes * setup.page_size // 1)
    group = Group(name="tokens", block_tokens=setup.page_size * setup.dcp, units=1)
    layout = Layout(groups=(group,), slot_units=0, bytes_per_unit=page_bytes)
    beside = [count for name, count in limits.items() if name != TOKENS]
    return BlockPool(layout=layout, units=sizes.tokens // setup.page_size, most_sequences=min(beside))
