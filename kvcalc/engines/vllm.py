"""vLLM: the blocks that a workload takes, and what a pool of so many bytes holds.

Read in vLLM 0.2 to 0.33: `vllm_versions` says which release plans by which rules. `vllm_layers` builds the specs that
its layers would, `vllm_specs` weighs their pages, `vllm_groups` puts them into groups, `vllm_plan` counts blocks; each
names the functions that it follows.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import ClassVar

from kvcalc.engines.engine import Allocation, BlockPool, Capacity, Card, Engine
from kvcalc.engines.overhead_rules import VLLM, OverheadRules
from kvcalc.engines.ranges import COUNT, NOT_NEGATIVE, SHARE, Range
from kvcalc.engines.vllm_groups import Group, make_groups
from kvcalc.engines.vllm_layers import BLOCK_SIZE, Flags, Layers, layers_on_rank
from kvcalc.engines.vllm_plan import Planner, Pool
from kvcalc.engines.vllm_rules import Rules
from kvcalc.engines.vllm_sentences import block_rules, block_sizes, has_chunks, log_lines, release_rules
from kvcalc.engines.vllm_specs import Limits, cdiv
from kvcalc.engines.vllm_versions import VERSIONS, rules_of
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize

BATCHED_TOKENS = 8192
"""Tokens of a step where nothing is asked: `vllm serve` on cards of 70 to 160 GiB (EngineArgs.get_batch_defaults)."""

GIB = 2**30


class Vllm(Engine, frozen=True, kw_only=True):
    """The rules of a release of vLLM, with the flags of its own that were given."""

    block_size: int | None = None
    max_num_batched_tokens: int = BATCHED_TOKENS
    enable_prefix_caching: bool | None = None
    """Beside recurrent states; None leaves it to the release."""
    num_speculative_tokens: int = 0
    """Tokens that a step drafts; 0 beside draft layers leaves it to vLLM, one for each of them."""
    max_num_seqs: int | None = None
    """The most requests that run at once."""
    gpu_memory_utilization: float | None = None
    """Share of the card; None is the default of the release, 0.9 before 0.20 and 0.92 since."""
    disable_hybrid_kv_cache_manager: bool = False
    """Keeps windows and chunks like full attention."""
    num_gpu_blocks_override: int | None = None
    """Blocks of the pool, whatever its bytes."""
    swap_space: float = 4.0
    """GiB of blocks on the CPU for each rank, which V0 makes; V1 makes none."""

    name: ClassVar[str] = "vllm"
    step_flag: ClassVar[str] = "max_num_batched_tokens"
    versions: ClassVar[tuple[str, ...]] = VERSIONS
    overheads: ClassVar[OverheadRules] = VLLM
    batch_moves_capacity: ClassVar[bool] = False
    ranges: ClassVar[Mapping[str, Range]] = {
        "block_size": COUNT,
        "max_num_batched_tokens": COUNT,
        "num_speculative_tokens": NOT_NEGATIVE,
        "max_num_seqs": COUNT,
        "gpu_memory_utilization": SHARE,
        "num_gpu_blocks_override": COUNT,
        "swap_space": NOT_NEGATIVE,
    }

    @classmethod
    def known_versions(cls) -> str:
        """The range of releases that were read, and how a prefix is understood."""
        return f"{VERSIONS[-1]} to {VERSIONS[0]}"

    @property
    def release_rules(self) -> Rules:
        """The choices of the release that is followed."""
        return rules_of(self.version)

    def allocate(self, size: CacheSize) -> Allocation:
        """The blocks that the batch may hold on the fullest rank, in bytes."""
        layers, planner = self._plan(size)
        sequences = cdiv(size.workload.batch, size.sharding.dp)
        held = planner.request_blocks() * max(planner.block_bytes) * sequences
        rules = (*layers.rules, *release_rules(layers.specs, planner), *block_rules(planner))
        return Allocation(self.name, self.version, held, rules)

    def allocated_bytes(self, size: CacheSize, batches: Sequence[int]) -> list[int]:
        """Bytes for each of `batches`: every request of the fullest data-parallel rank takes as many blocks."""
        planner = self._plan(size)[1]
        held = planner.request_blocks() * max(planner.block_bytes)
        return [held * cdiv(batch, size.sharding.dp) for batch in batches]

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """The blocks of a pool of so many bytes on each rank, and what the log says of them."""
        planner = self._plan(size)[1]
        pool = planner.pool([pool_bytes] * len(planner.block_bytes), self.num_gpu_blocks_override)
        stopped, spare = self._stopped(planner, pool), self._cpu_blocks(planner)
        fitting = 0 if stopped else pool.free_blocks // pool.request_blocks
        sequences = fitting if self.max_num_seqs is None else min(fitting, self.max_num_seqs)
        return Capacity(
            pool_bytes=pool_bytes,
            tokens=pool.tokens,
            sequences=sequences,
            max_concurrency=pool.max_concurrency,
            limited_by="blocks" if sequences == fitting else "running requests",
            longest_request=min(
                planner.longest_request(pool), stopped.get("estimated_max_model_len", pool.max_model_len)
            ),
            max_model_len=pool.max_model_len,
            block_tokens=tuple(block_sizes(planner.groups)),
            num_blocks=pool.num_blocks,
            bytes_per_block=max(planner.block_bytes),
            blocks_per_request=pool.request_blocks,
            figures={"kv_cache_groups": len(planner.groups), **spare, **stopped},
            log=log_lines(pool, spare, stopped),
        )

    def blocks(self, size: CacheSize, pool_bytes: int) -> BlockPool:
        """Its blocks, and those that each group takes of them; all groups share one pool."""
        planner = self._plan(size)[1]
        pool = planner.pool([pool_bytes] * len(planner.block_bytes), self.num_gpu_blocks_override)
        return BlockPool(layout=planner.layout(), units=pool.free_blocks, most_sequences=self.max_num_seqs)

    def _cpu_blocks(self, planner: Planner) -> dict[str, int]:
        """What V0 logs beside the blocks on the GPU."""
        if not self.release_rules.one_table:
            return {}
        return {"cpu_blocks": int(self.swap_space * GIB) // max(planner.block_bytes)}

    def _stopped(self, planner: Planner, pool: Pool) -> dict[str, int]:
        """The figures of the error with which it does not start; none where it does."""
        short = planner.short_stage(pool)
        if short is None:
            return {}
        estimated = planner.estimated_length(pool, short)
        return {"needed_bytes": planner.needed_bytes()[short], "estimated_max_model_len": estimated}

    @property
    def keeps_prefixes(self) -> bool:
        """Unless a flag says no."""
        return self.enable_prefix_caching is not False

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """The share of the card that it may use, less all that is not cache, in bytes.

        Releases that do not profile CUDA graphs take them from what the share leaves (v1/worker/gpu_worker.py; before,
        worker/worker.py).
        """
        rules = self.release_rules
        asked = card.total_bytes * Fraction(str(self.share))
        taken = card.total_bytes - card.left_bytes - (0 if rules.profiles_graphs else card.graphs_bytes)
        return (ceil(asked) if rules.rounds_share_up else floor(asked)) - taken

    @property
    def share(self) -> float:
        """The share of the card that was asked, else the default of the release."""
        default = self.release_rules.gpu_memory_utilization
        return default if self.gpu_memory_utilization is None else self.gpu_memory_utilization

    @property
    def pool_rule(self) -> str:
        """The share that it may use of the card."""
        return f"{self.share:.4g} of the card is used at most (--gpu-memory-utilization)"

    def _plan(self, size: CacheSize) -> tuple[Layers, Planner]:
        """The specs of the layers, and how they are planned: worked out once for all pools that are asked about."""
        return size.memo.get(self, lambda: self._make_plan(size))

    def _make_plan(self, size: CacheSize) -> tuple[Layers, Planner]:
        if self.block_size is not None and self.block_size % BLOCK_SIZE:
            raise KvcalcError(f"--block-size {self.block_size}: vLLM takes multiples of {BLOCK_SIZE}", "use 16")
        rules = self.release_rules
        flags = Flags(
            block_size=self.block_size,
            prefix_caching=self.enable_prefix_caching,
            num_speculative_tokens=self.num_speculative_tokens,
            rules=rules,
            version=self.version,
        )
        is_on = not self.disable_hybrid_kv_cache_manager
        # A state that is not kept at the ends of blocks takes one as long as the context; nothing else knows of it.
        length = size.workload.context_tokens if any(row.states for row in size.rows) else None
        key = "groups", self, length
        layers, groups, hybrid = size.shape_memo.get(key, lambda: _grouped(size, flags, is_on))
        limits = self._limits(size, layers)
        planner = Planner(groups, limits, layers.stages, rules=rules, layers=layers.specs, hybrid=hybrid)
        return layers, planner

    def _in_flight_tokens(self, size: CacheSize) -> int:
        """Of one step; since 0.26 of all batches that overlap, one more than pipeline stages: asynchronous scheduling.

        VllmConfig.max_concurrent_batches and max_in_flight_tokens.
        """
        batches = size.sharding.pp + 1 if self.release_rules.counts_overlapping_batches else 1
        return self.max_num_batched_tokens * batches

    def _limits(self, size: CacheSize, layers: Layers) -> Limits:
        """Of one request as long as the context."""
        return Limits(
            max_model_len=size.workload.context_tokens,
            in_flight_tokens=self._in_flight_tokens(size),
            dcp=size.sharding.dcp,
            encoder_tokens=layers.encoder_tokens,
            aligned_states=layers.aligned_states,
        )


def _grouped(size: CacheSize, flags: Flags, is_on: bool) -> tuple[Layers, Sequence[Group], bool]:
    """The specs of the layers, their groups, and whether windows have groups of their own (the hybrid manager)."""
    rules, layers = flags.rules, layers_on_rank(size, flags)
    hybrid = is_on and (rules.chunks_in_groups or not has_chunks(layers.specs))
    return layers, make_groups(layers.specs, hybrid=hybrid, block_outermost=layers.block_outermost, rules=rules), hybrid
