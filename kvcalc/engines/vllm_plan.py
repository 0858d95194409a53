"""From per-layer specs and a byte budget to blocks, as vLLM plans them; and what its log then prints.

Read in vLLM 0.33.0, v1/core/kv_cache_planning.py (get_kv_cache_configs, _max_memory_usage_bytes_from_groups,
_estimate_max_model_len_from_groups) and v1/core/kv_cache_utils.py (get_kv_cache_capacity).
"""

from collections.abc import Sequence
from math import lcm

import msgspec

from kvcalc.engines.vllm_groups import Group
from kvcalc.engines.vllm_specs import Limits, aligned
from kvcalc.errors import KvcalcError


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of a pool, and what its log prints: tokens, and how many requests of `max_model_len` fit."""

    bytes_per_block: int
    """Of the first pipeline stage."""
    num_blocks: int
    request_blocks: int
    max_model_len: int

    @property
    def max_concurrency(self) -> float:
        """Requests of `max_model_len` tokens at once, the null block counted as if it could be used."""
        return self.num_blocks / self.request_blocks

    @property
    def tokens(self) -> int:
        """What the log calls the KV cache size: concurrency times the longest request, in that order."""
        return int(self.max_concurrency * self.max_model_len)


class Planner:
    """The groups of a model over its pipeline stages, and the limits of one request."""

    def __init__(self, groups: Sequence[Group], limits: Limits, stages: Sequence[tuple[int, int]] = ()) -> None:
        if not groups:
            raise KvcalcError("this model keeps no cache that vLLM would plan", "leave --engine out")
        self.groups, self.limits = tuple(groups), limits
        everything = [(0, 1 + max(layer for group in groups for layer in group.layers))]
        self.stages = [[group.on_stage(*stage) for group in groups] for stage in stages or everything]

    @property
    def block_bytes(self) -> list[int]:
        """Bytes of one block on a rank of each stage: those of its largest group (`_get_kv_cache_bytes_per_block`)."""
        return [
            aligned(max(group.block_bytes for group in held), lcm(*(group.stride_alignment for group in held)))
            for held in self.stages
        ]

    def request_blocks(self, max_model_len: int | None = None) -> int:
        """Blocks that one request may hold: every group claims its own from the pool."""
        limits = self.limits
        if max_model_len is not None:
            limits = msgspec.structs.replace(limits, max_model_len=max_model_len)
        return sum(group.request_blocks(limits) for group in self.groups)

    def needed_bytes(self) -> list[int]:
        """Bytes of one request of `max_model_len` tokens on a rank of each stage, padding and unused pages included."""
        return [self.request_blocks() * size for size in self.block_bytes]

    def pool(self, budgets: Sequence[int], num_blocks: int | None = None) -> Pool:
        """The pool that the budgets of the stages make: the least of their blocks; `num_blocks` overrides it."""
        blocks = [budget // size for budget, size in zip(budgets, self.block_bytes, strict=True)]
        return Pool(
            bytes_per_block=self.block_bytes[0],
            num_blocks=min(blocks) if num_blocks is None else num_blocks,
            request_blocks=self.request_blocks(),
            max_model_len=self.limits.max_model_len,
        )

    def takes_one_request(self, pool: Pool) -> bool:
        """Whether vLLM starts: one request fits beside the null block, which is never given out."""
        return pool.request_blocks <= pool.num_blocks - 1

    def longest_request(self, pool: Pool) -> int:
        """The longest request in tokens that fits beside the null block on every stage, as vLLM fits one by itself.

        At most the one asked for; 0 where not one token fits. Its error message names that of the first stage which
        is too small, the same unless stages have unequal pools.
        """
        low, high = 0, pool.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_blocks(middle) <= pool.num_blocks - 1 else (low, middle - 1)
        return low
