"""TensorRT-LLM: blocks of a pool that takes its share of what is free once the model has run.

Read in its PyTorch backend, tensorrt_llm/_torch/pyexecutor: resource_manager.py, KVCacheManager (commit 001541bad83b
for 1.3, d2a5560abdad for 1.1) and _util.py, KvCacheCreator (0004396720); and in cpp/tensorrt_llm/batch_manager/
kvCacheManager.cpp. Those commits lie between releases: 1.3 is their name here for what its candidates do. Logs from
0.8 to 1.3.0rc7 hold the figures (tests/golden/tensorrt_llm_logs.yaml).
"""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import ClassVar

from kvcalc.engines.engine import Allocation, Capacity, Card, Engine
from kvcalc.engines.ranges import COUNT, SHARE, Range
from kvcalc.engines.tensorrt_llm_layers import NAME, Stage, stages_on_rank
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.units import exact_bytes

ROUNDS_BLOCKS_UP = {"1.1"}
"""Round the tokens of a pool up to whole blocks; later ones round down."""


class TensorRtLlm(Engine, frozen=True, kw_only=True):
    """The rules of TensorRT-LLM's block manager (KVCacheManager), with its own flags."""

    kv_cache_free_gpu_mem_fraction: float = 0.9
    """Share of the free memory that the pool takes; `free_gpu_memory_fraction` of KvCacheConfig."""
    tokens_per_block: int = 32
    """64 by default before 0.18."""
    max_tokens_in_paged_kv_cache: int | None = None
    """Limits the pool; `max_tokens` of KvCacheConfig. Nothing where windows differ."""
    max_seq_len: int | None = None
    """The longest request; by default the context that is asked."""
    max_attention_window: tuple[int, ...] | None = None
    """A window for each layer in turn, again and again; without it every layer keeps all tokens, whatever the model."""
    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    """Tokens of one step, which windows hold beside their own."""
    enable_block_reuse: bool = True

    name: ClassVar[str] = "tensorrt-llm"
    step_flag: ClassVar[str] = "max_num_tokens"
    versions: ClassVar[tuple[str, ...]] = ("1.3", "1.1")
    batch_moves_capacity: ClassVar[bool] = False
    ranges: ClassVar[Mapping[str, Range]] = {
        "kv_cache_free_gpu_mem_fraction": SHARE,
        "tokens_per_block": COUNT,
        "max_tokens_in_paged_kv_cache": COUNT,
        "max_seq_len": COUNT,
        "max_batch_size": COUNT,
        "max_num_tokens": COUNT,
    }

    def allocate(self, size: CacheSize) -> Allocation:
        """The blocks that the batch may hold on the fullest rank, and the states that stand ready, in bytes."""
        stages, sequences = self._stages(size), -(-size.workload.batch // size.sharding.dp)
        if sequences > self.max_batch_size:
            raise KvcalcError(
                f"{sequences:,} requests at once: {NAME} runs at most {self.max_batch_size:,} (--max-batch-size)",
                "raise it, or lower --batch",
            )
        claims = self._claims(size, stages[0])
        held = max(sequences * self._blocks_bytes(stage, claims) + self._states_bytes(stage) for stage in stages)
        return Allocation(self.name, self.version, held, tuple(self._rules(size, stages, claims)))

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """The blocks of a pool of so many bytes on each rank, and what the log says of them."""
        asked = self._stages(size)
        if not all(stage.token_bytes for stage in asked):
            hint = "leave --kv-cache-memory and cards out: what its states take is known"
            raise KvcalcError(f"what {NAME}'s blocks are where no layer of a rank keeps tokens is not known here", hint)
        stages = [stage.fitted(self._left_bytes(stage, pool_bytes)) for stage in asked]
        _check_alike(stages)
        pools = [self._pools(stage, pool_bytes) for stage in stages]
        # All ranks agree on the least (allreduce with MIN).
        blocks = {window: min(pool[window] for pool in pools) for window in pools[0]}
        claims, windows = self._claims(size, stages[0]), list(blocks)
        fullest = min(windows, key=lambda window: Fraction(blocks[window], claims[window]))
        longest = self._longest(size, blocks, stages != asked)
        fitting = blocks[fullest] // claims[fullest]
        sequences = min(fitting, self.max_batch_size)
        limit = "blocks" if len(windows) == 1 else _kind(fullest, self._seq_len(size))
        return Capacity(
            pool_bytes=pool_bytes,
            tokens=sum(blocks.values()) * self.tokens_per_block,
            sequences=sequences,
            max_concurrency=blocks[fullest] / claims[fullest],
            limited_by=limit if sequences == fitting else "running requests",
            longest_request=min(longest, size.workload.context_tokens),
            max_model_len=self._seq_len(size),
            block_tokens=(self.tokens_per_block,),
            num_blocks=sum(blocks.values()),
            bytes_per_block=self._block_bytes(stages) if len(windows) == 1 else None,
            figures=self._figures(stages, blocks, longest) | {"blocks_per_request": sum(claims.values())},
            log=self._log(stages, blocks),
        )

    @property
    def keeps_prefixes(self) -> bool:
        """Unless a flag says no."""
        return self.enable_block_reuse

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """Its share of what weights, a dummy run and all else leave free (KvCacheCreator._cal_max_memory)."""
        return int(card.left_bytes * Fraction(str(self.kv_cache_free_gpu_mem_fraction)))

    @property
    def pool_rule(self) -> str:
        """The share that it takes of what is free."""
        share = f"{self.kv_cache_free_gpu_mem_fraction:.4g}"
        return f"{share} of what is free once the model has run (--kv-cache-free-gpu-mem-fraction)"

    def _seq_len(self, size: CacheSize) -> int:
        asked = size.workload.context_tokens
        if self.max_seq_len is not None and self.max_seq_len < asked:
            raise KvcalcError(
                f"a context of {asked:,} tokens is past --max-seq-len {self.max_seq_len:,}", "raise it, or lower --ctx"
            )
        return self.max_seq_len or asked

    def _stages(self, size: CacheSize) -> list[Stage]:
        """The layers of each stage: worked out once for all pools that are asked about."""
        return size.memo.get(self, lambda: self._make_stages(size))

    def _make_stages(self, size: CacheSize) -> list[Stage]:
        limit = self._seq_len(size)
        windows = tuple(min(limit, window) for window in self.max_attention_window or (limit,))
        stages = stages_on_rank(size, windows, self.version != "1.1")
        if any(stage.state_bytes for stage in stages) and self.enable_block_reuse:
            message = f"with block reuse {NAME} keeps states and blocks in one pool, whose rules are not known here"
            raise KvcalcError(message, "add --no-enable-block-reuse")
        _check_alike(stages)
        if len(stages[0].token_bytes) > 1 and "nvfp4" in {row.format for row in size.rows}:
            raise KvcalcError(f"how {NAME} sizes pools of several windows in nvfp4 is not known here", "use fp8")
        return stages

    def _claims(self, size: CacheSize, stage: Stage) -> dict[int, int]:
        """Blocks that one request reserves of each pool (KVCacheManager::getRemainingBlocksToCompletion).

        A window also holds the tokens of a step, as many as the longest prompt has past it
        (calculateTemporaryAttentionWindow).
        """
        longest_prompt = self._seq_len(size) - 1
        claims = {}
        for window in sorted(stage.token_bytes):
            step = min(self.max_num_tokens, max(0, longest_prompt - window))
            claims[window] = -(-min(size.workload.context_tokens, window + step) // self.tokens_per_block)
        return claims

    def _left_bytes(self, stage: Stage, pool_bytes: int) -> int:
        """What states leave of the pool: they are allocated first, and the share is taken of what they leave free."""
        return max(0, pool_bytes - int(self._states_bytes(stage) * Fraction(str(self.kv_cache_free_gpu_mem_fraction))))

    def _pools(self, stage: Stage, pool_bytes: int) -> dict[int, int]:
        """Blocks by window: an equal share of the bytes each (calculate_max_num_blocks_for_vswa)."""
        share = Fraction(self._left_bytes(stage, pool_bytes), len(stage.token_bytes))
        blocks = {}
        for window, token_bytes in sorted(stage.token_bytes.items()):
            tokens = int(share / token_bytes)
            if len(stage.token_bytes) == 1 and self.max_tokens_in_paged_kv_cache is not None:
                tokens = min(tokens, self.max_tokens_in_paged_kv_cache)
            whole = Fraction(tokens, self.tokens_per_block)
            blocks[window] = ceil(whole) if self.version in ROUNDS_BLOCKS_UP else int(whole)
        return blocks

    def _longest(self, size: CacheSize, blocks: Mapping[int, int], fitted: bool) -> int:
        """max_seq_len, lowered to the largest window that its pool holds (_validate_and_adjust_attention_windows)."""
        held = {window: min(window, count * self.tokens_per_block) for window, count in blocks.items()}
        lowered = fitted or any(window > tokens for window, tokens in held.items())
        return max(held.values()) if lowered else self._seq_len(size)

    def _slots(self) -> int:
        """Requests whose states stand ready; later releases keep one for the padding of CUDA graphs."""
        return self.max_batch_size + (0 if self.version == "1.1" else 1)

    def _states_bytes(self, stage: Stage) -> int:
        return stage.state_bytes * self._slots()

    def _blocks_bytes(self, stage: Stage, blocks: Mapping[int, int]) -> int:
        return sum(blocks[window] * count * self.tokens_per_block for window, count in stage.token_bytes.items())

    def _block_bytes(self, stages: list[Stage]) -> int:
        return max(self._blocks_bytes(stage, dict.fromkeys(stage.token_bytes, 1)) for stage in stages)

    def _figures(self, stages: list[Stage], blocks: Mapping[int, int], longest: int) -> dict[str, int | float]:
        figures: dict[str, int | float] = {
            "allocated_bytes": max(self._blocks_bytes(stage, blocks) for stage in stages),
            "max_blocks_per_sequence": -(-longest // self.tokens_per_block),
        }
        if len(blocks) > 1:
            figures |= {f"window_{window}_blocks": count for window, count in blocks.items()}
        if states := max(self._states_bytes(stage) for stage in stages):
            figures |= {"mamba_slots": self._slots(), "mamba_bytes": states}
        return figures

    def _log(self, stages: list[Stage], blocks: Mapping[int, int]) -> str:
        held = max(self._blocks_bytes(stage, blocks) for stage in stages) / 2**30
        tokens = sum(blocks.values()) * self.tokens_per_block
        return f"[MemUsageChange] Allocated {held:.2f} GiB for max tokens in paged KV cache ({tokens})."

    def _rules(self, size: CacheSize, stages: list[Stage], claims: Mapping[int, int]) -> list[str]:
        limit = self._seq_len(size)
        rules = [f"blocks of {self.tokens_per_block:,} tokens hold all layers of a window"]
        if any(row.component.span.cap is not None for row in size.rows) and not self.max_attention_window:
            rules.append("windows and chunks of the model are kept whole: --max-attention-window bounds them")
        rules += [
            f"a window of {window:,} reserves {count:,} blocks a request"
            for window, count in claims.items()
            if window < limit
        ]
        if states := max(self._states_bytes(stage) for stage in stages):
            rules.append(f"states of {self._slots():,} requests stand ready, {exact_bytes(states)} (--max-batch-size)")
        return rules


def _check_alike(stages: list[Stage]) -> None:
    if len({frozenset(stage.token_bytes) for stage in stages}) > 1:
        raise KvcalcError(f"{NAME} wants the same windows on every pipeline stage", "choose another --pp")


def _kind(window: int, limit: int) -> str:
    return "window tokens" if window < limit else "full-attention tokens"
