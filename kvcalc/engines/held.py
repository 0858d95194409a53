"""What fits into so much memory where an engine takes what a batch needs, and no pool: found by monotone search."""

from collections.abc import Callable

from kvcalc.engines.engine import Capacity
from kvcalc.sizing.need import MOST_BYTES, CacheSize

MOST_SEQUENCES = 2**20
"""Past it a cache is too small for the question to matter."""


def largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest count of 1 to `most` for which `holds` answers yes, 0 for none; where it holds, less holds too."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def held_capacity(
    allocated: Callable[[CacheSize], int],
    size: CacheSize,
    pool_bytes: int,
    most_sequences: int = MOST_SEQUENCES,
    linear_bytes: int | None = None,
) -> Capacity:
    """What `pool_bytes` on each rank carry where `allocated` says the bytes of each batch; of one data-parallel rank.

    Where every sequence takes as much, `linear_bytes` says how much, and nothing has to be searched for.
    """

    def taken(tokens: int, sequences: int) -> int:
        return allocated(size.at(tokens, sequences * size.sharding.dp))

    def holds(tokens: int, sequences: int) -> bool:
        return taken(tokens, sequences) <= pool_bytes

    tokens = size.workload.context_tokens
    one = max(1, taken(tokens, 1))
    most = min(most_sequences, MOST_BYTES // (one * size.sharding.dp))
    if linear_bytes is None:
        sequences = largest(lambda count: holds(tokens, count), most)
    else:
        sequences = min(pool_bytes // max(1, linear_bytes), most)
    return Capacity(
        pool_bytes=pool_bytes,
        tokens=None,
        sequences=sequences,
        max_concurrency=pool_bytes / one,
        limited_by="memory" if sequences < most_sequences else "slots",
        longest_request=tokens if sequences else largest(lambda length: holds(length, 1), tokens),
        max_model_len=tokens,
    )
