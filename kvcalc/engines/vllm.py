"""vLLM: the blocks that a workload takes, and what a pool of so many bytes holds.

Read in vLLM 0.33.0. `vllm_layers` builds the specs that its layers would, `vllm_specs` weighs their pages,
`vllm_groups` puts them into groups, `vllm_plan` counts blocks; each names the functions that it follows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import ClassVar

from kvcalc.engines.engine import Allocation, Capacity, Card, Engine
from kvcalc.engines.vllm_groups import Group, make_groups
from kvcalc.engines.vllm_layers import BLOCK_SIZE, Flags, Layers, layers_on_rank
from kvcalc.engines.vllm_plan import Planner
from kvcalc.engines.vllm_specs import Limits, cdiv
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.units import exact_bytes

BATCHED_TOKENS = 8192
"""Tokens of a step where nothing is asked: `vllm serve` on cards of 70 to 160 GiB (EngineArgs.get_batch_defaults)."""


class Vllm(Engine, frozen=True, kw_only=True):
    """The rules of vLLM 0.33, with the flags of its own that were given."""

    block_size: int | None = None
    max_num_batched_tokens: int = BATCHED_TOKENS
    enable_prefix_caching: bool = True
    num_speculative_tokens: int = 0
    """Tokens that a step drafts; 0 beside draft layers leaves it to vLLM, one for each of them."""
    max_num_seqs: int | None = None
    """The most requests that run at once."""
    gpu_memory_utilization: float = 0.92

    name: ClassVar[str] = "vllm"
    versions: ClassVar[tuple[str, ...]] = ("0.33.0",)

    def allocate(self, size: CacheSize) -> Allocation:
        """The blocks that the batch may hold on the fullest rank, in bytes."""
        layers, planner = self._plan(size)
        sequences = cdiv(size.workload.batch, size.sharding.dp)
        held = planner.request_blocks() * max(planner.block_bytes) * sequences
        return Allocation(self.name, self.version, held, (*layers.rules, *_rules(planner.groups, planner)))

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """The blocks of a pool of so many bytes on each rank, and what the log says of them."""
        planner = self._plan(size)[1]
        pool = planner.pool([pool_bytes] * len(planner.block_bytes))
        # The null block is never given out.
        fitting = max(0, pool.num_blocks - 1) // pool.request_blocks
        sequences = fitting if self.max_num_seqs is None else min(fitting, self.max_num_seqs)
        return Capacity(
            pool_bytes=pool_bytes,
            tokens=pool.tokens,
            sequences=sequences,
            max_concurrency=pool.max_concurrency,
            limited_by="blocks" if sequences == fitting else "running requests",
            longest_request=planner.longest_request(pool),
            max_model_len=pool.max_model_len,
            block_tokens=tuple(_block_sizes(planner.groups)),
            num_blocks=pool.num_blocks,
            bytes_per_block=max(planner.block_bytes),
            blocks_per_request=pool.request_blocks,
            figures={"kv_cache_groups": len(planner.groups)},
            log=f"GPU KV cache size: {pool.tokens:,} tokens, Maximum concurrency for {pool.max_model_len:,} tokens per "
            f"request: {pool.max_concurrency:.2f}x",
        )

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """The share of the card that it may use, less all that is not cache, in bytes (gpu_worker.py)."""
        taken = card.total_bytes - card.left_bytes
        return ceil(card.total_bytes * Fraction(str(self.gpu_memory_utilization))) - taken

    @property
    def pool_rule(self) -> str:
        """The share that it may use of the card."""
        return f"{self.gpu_memory_utilization:.4g} of the card is used at most (--gpu-memory-utilization)"

    def _plan(self, size: CacheSize) -> tuple[Layers, Planner]:
        """The specs of the layers, and how they are planned."""
        if self.block_size is not None and self.block_size % BLOCK_SIZE:
            raise KvcalcError(f"--block-size {self.block_size}: vLLM takes multiples of {BLOCK_SIZE}", "use 16")
        flags = Flags(
            block_size=self.block_size,
            prefix_caching=self.enable_prefix_caching,
            in_flight_tokens=self._in_flight_tokens(size),
            num_speculative_tokens=self.num_speculative_tokens,
        )
        layers = layers_on_rank(size, flags)
        groups = make_groups(layers.specs, block_outermost=layers.block_outermost)
        return layers, Planner(groups, self._limits(size, layers), layers.stages)

    def _in_flight_tokens(self, size: CacheSize) -> int:
        """Of all batches that overlap: one more than pipeline stages, with asynchronous scheduling, the default.

        VllmConfig.max_concurrent_batches and max_in_flight_tokens.
        """
        return self.max_num_batched_tokens * (size.sharding.pp + 1)

    def _limits(self, size: CacheSize, layers: Layers) -> Limits:
        """Of one request as long as the context."""
        return Limits(
            max_model_len=size.workload.context_tokens,
            in_flight_tokens=self._in_flight_tokens(size),
            dcp=size.sharding.dcp,
            encoder_tokens=layers.encoder_tokens,
            aligned_states=layers.aligned_states,
        )


def _rules(groups: Sequence[Group], planner: Planner) -> Iterator[str]:
    """What makes blocks of the bytes: groups, their padding, and what one request claims of each."""
    count, widest = len(groups), max(len(group.layers) for group in groups)
    sizes = " and ".join(f"{tokens:,}" for tokens in _block_sizes(groups))
    yield (
        f"{f'{count} groups of up to {widest}' if count > 1 else widest} layers share a pool of blocks, "
        f"{exact_bytes(max(planner.block_bytes))} each{f', of {sizes} tokens' if sizes else ''}"
    )
    empty = count * widest - sum(len(group.layers) for group in groups)
    is_packed = any(len({spec.page_bytes for spec in group.specs}) > 1 for group in groups)
    if empty and not is_packed:
        yield f"{empty} of the {count * widest} places for a layer are padding and stay empty"
    if is_packed:
        yield "layers of one type and different widths lie side by side in a block"
    if is_packed and count > 1:
        least = min(group.block_bytes for group in groups)
        yield f"a block is as large as its widest group needs; the least takes {exact_bytes(least)} of it"
    claims = Counter(group.request_blocks(planner.limits) for group in groups)
    terms = " + ".join(f"{often} x {blocks:,}" if often > 1 else f"{blocks:,}" for blocks, often in claims.items())
    yield f"blocks that a request claims: {f'{terms} = ' if count > 1 else ''}{planner.request_blocks():,}"


def _block_sizes(groups: Sequence[Group]) -> list[int]:
    """Tokens of a block, of every group that counts in tokens."""
    return sorted({group.block_size for group in groups if group.specs[0].scales_with_block})
