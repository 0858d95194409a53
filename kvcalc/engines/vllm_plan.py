"""From per-layer specs and a byte budget to blocks, as vLLM plans them; and what its log then prints.

Read in vLLM 0.33.0, v1/core/kv_cache_planning.py (get_kv_cache_configs, _max_memory_usage_bytes_from_groups,
_estimate_max_model_len_from_groups) and v1/core/kv_cache_utils.py (get_kv_cache_capacity); for other releases as
`vllm_changes` says.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import lcm

import msgspec

from kvcalc.engines.vllm_groups import MIXED, Group, make_groups
from kvcalc.engines.vllm_rules import Rules
from kvcalc.engines.vllm_specs import Limits, PageSpec, aligned
from kvcalc.engines.vllm_versions import NEWEST
from kvcalc.errors import KvcalcError
from kvcalc.sizing.blocks import Layout


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of a pool, and what its log prints: tokens, and how many requests of `max_model_len` fit."""

    budgets: tuple[int, ...]
    """Bytes on a rank of each stage, as the check sees them."""
    bytes_per_block: int
    """Of the first pipeline stage."""
    num_blocks: int
    request_blocks: int
    max_model_len: int
    block_tokens: int
    """Tokens that the log counts for a block: of the smallest group, times decode-context ranks."""
    groups: int
    rules: Rules = NEWEST

    @property
    def max_concurrency(self) -> float:
        """Requests of `max_model_len` tokens at once, the null block counted as if it could be used."""
        if self.rules.concurrency == "tokens":
            return self.tokens / self.max_model_len
        return self.num_blocks / self.request_blocks

    @property
    def tokens(self) -> int:
        """What the log calls the KV cache size: concurrency times the longest request, or tokens of blocks."""
        if self.rules.tokens == "requests":
            return int(self.max_concurrency * self.max_model_len)
        return self.num_blocks // self.groups * self.block_tokens

    @property
    def free_blocks(self) -> int:
        """Blocks that can be given out: V1 keeps one back, the null block."""
        return max(0, self.num_blocks - (not self.rules.one_table))


class Planner:
    """The groups of a model over its pipeline stages, and the limits of one request.

    `layers` are the specs of its layers before windows and chunks were kept like full attention; the releases that add
    up layers need them, and those in which stages group their own.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        limits: Limits,
        stages: Sequence[tuple[int, int]] = (),
        *,
        rules: Rules = NEWEST,
        layers: Sequence[PageSpec] = (),
        hybrid: bool = True,
    ) -> None:
        if not groups:
            raise KvcalcError("this model keeps no cache that vLLM would plan", "leave --engine out")
        self.rules, self.limits = rules, limits
        self.cuts = list(stages) or [(0, 1 + max(layer for group in groups for layer in group.layers))]
        self.layers = tuple(layers)
        if rules.groups_stages_alone and len(self.cuts) > 1:
            self.stages = [list(make_groups(layers[slice(*cut)], hybrid=hybrid, rules=rules)) for cut in self.cuts]
            self.groups = tuple(self.stages[0])
            if len({len(held) for held in self.stages}) > 1:
                raise KvcalcError("vLLM needs as many groups on every pipeline stage", "change --pp, or use vllm@0.11")
        else:
            self.groups = tuple(groups)
            self.stages = [[self._projected(group, cut) for group in groups] for cut in self.cuts]

    def _projected(self, group: Group, cut: tuple[int, int]) -> Group:
        whole = group.name == MIXED and not self.rules.splits_mixed_groups
        return group if whole else group.on_stage(*cut)

    @cached_property
    def block_bytes(self) -> list[int]:
        """Bytes of one block on a rank of each stage: those of its largest group (`_get_kv_cache_bytes_per_block`)."""
        return [
            aligned(max(group.block_bytes for group in held), lcm(*(group.stride_alignment for group in held)))
            for held in self.stages
        ]

    def request_blocks(self, max_model_len: int | None = None) -> int:
        """Blocks that one request may hold: every group claims its own from the pool."""
        limits = self._limits_for(max_model_len)
        return sum(group.request_blocks(limits) for group in self.groups)

    def layout(self) -> Layout:
        """What one request holds as it grows; blocks of all groups are alike, so that one is the unit of the pool."""
        growth = [(group.growth(self.limits), group.request_blocks(self.limits)) for group in self.groups]
        return Layout(
            groups=tuple(grows for grows, _ in growth if grows is not None),
            slot_units=sum(count for grows, count in growth if grows is None),
            bytes_per_unit=max(self.block_bytes),
        )

    def needed_bytes(self, max_model_len: int | None = None) -> list[int]:
        """Bytes of one request on a rank of each stage, as the release that is followed checks them."""
        limits = self._limits_for(max_model_len)
        return [_CHECKS[self.rules.check](self, place, limits) for place in range(len(self.stages))]

    def pool(self, budgets: Sequence[int], num_blocks: int | None = None) -> Pool:
        """The pool that the budgets of the stages make: the least of their blocks; `num_blocks` overrides it."""
        blocks = [max(0, budget // size) for budget, size in zip(budgets, self.block_bytes, strict=True)]
        seen = tuple(budgets)
        if num_blocks is not None and self.rules.adjusts_pool_to_override:
            seen = tuple(num_blocks * size for size in self.block_bytes)
        return Pool(
            budgets=seen,
            bytes_per_block=self.block_bytes[0],
            num_blocks=min(blocks) if num_blocks is None else num_blocks,
            request_blocks=self.request_blocks(),
            max_model_len=self.limits.max_model_len,
            block_tokens=min(group.block_size for group in self.groups) * self.limits.dcp,
            groups=len(self.groups),
            rules=self.rules,
        )

    def short_stage(self, pool: Pool, max_model_len: int | None = None) -> int | None:
        """The first stage on which one request does not pass the check, with which vLLM stops; None where it starts."""
        needed = self.needed_bytes(max_model_len)
        return next((place for place, need in enumerate(needed) if need > self._checked_bytes(pool, place)), None)

    def estimated_length(self, pool: Pool, place: int) -> int:
        """The longest request in tokens that passes the check of a stage, at most the one asked for; 0 for none.

        What the error message calls the estimated maximum model length (`_estimate_max_model_len_from_groups`).
        """
        budget = self._checked_bytes(pool, place)
        return _longest(pool.max_model_len, lambda length: self.needed_bytes(length)[place] <= budget)

    def _checked_bytes(self, pool: Pool, place: int) -> int:
        """What a stage holds one request against."""
        budget = min(pool.budgets) if self.rules.checks_whole_model else pool.budgets[place]
        return budget - (self.block_bytes[place] if self.rules.counts_null_block else 0)

    def takes_one_request(self, pool: Pool) -> bool:
        """Whether one request of the longest length finds its blocks."""
        return pool.request_blocks <= pool.free_blocks

    def longest_request(self, pool: Pool) -> int:
        """The longest request in tokens that finds its blocks on every stage; 0 where not one token does."""
        return _longest(pool.max_model_len, lambda length: self.request_blocks(length) <= pool.free_blocks)

    def _limits_for(self, max_model_len: int | None) -> Limits:
        if max_model_len is None:
            return self.limits
        return msgspec.structs.replace(self.limits, max_model_len=max_model_len)

    def of_blocks(self, place: int, limits: Limits) -> int:
        """Blocks of all groups: V1 since 0.19, and V0, whose blocks have one table."""
        return self.block_bytes[place] * sum(group.request_blocks(limits) for group in self.stages[place])

    def of_first_group(self, place: int, limits: Limits) -> int:
        """Blocks of the first group, as if it were the only one; at first with the layers of all stages."""
        held = self.groups if self.rules.checks_whole_model else self.stages[place]
        if len(held) == 1 and held[0].name == MIXED:
            return held[0].block_bytes * held[0].request_blocks(limits)
        widest = max(len(group.layers) for group in held)
        return widest * held[0].specs[0].page_bytes * held[0].request_blocks(limits)

    def of_layers(self, place: int, limits: Limits) -> int:
        """Pages of the stage's layers, each by itself: no padding, and windows charged less than the pool keeps."""
        specs = self.layers[slice(*self.cuts[place])]
        return sum(spec.page_bytes * spec.request_pages(limits) for spec in specs)


def _longest(most: int, fits: Callable[[int], bool]) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


_CHECKS: dict[str, Callable[[Planner, int, Limits], int]] = {
    "tokens": Planner.of_blocks,
    "groups": Planner.of_blocks,
    "first group": Planner.of_first_group,
    "layers": Planner.of_layers,
}
"""What one request is held against, by `Rules.check`."""
