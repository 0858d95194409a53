"""One deployment: a model, a workload, ranks, an engine and a card; and what comes of it."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import msgspec

from kvcalc.cache.sharding import Sharding
from kvcalc.engines.documents import EngineBasis
from kvcalc.engines.engine import Capacity, Card, Engine
from kvcalc.engines.overheads import SavedOverheads, Term, overhead_terms
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, Workload, size_workload

FIELDS = {
    "weights": "weights_bytes",
    "LoRA": "weights_bytes",
    "vision tower": "weights_bytes",
    "activations": "activation_bytes",
    "CUDA graphs": "graphs_bytes",
    "communication": "communication_bytes",
    "non-torch": "non_torch_bytes",
}
"""Where each term stands on a `Card`."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory comes from: cards of `total_bytes` as their driver reports it, or a pool that was given."""

    total_bytes: int | None = None
    gpu: str | None = None
    cards: int = 1
    """Cards that an engine spreads layers over by itself; ranks are counted by the sharding."""
    pool_bytes: int | None = None
    """Bytes of the pool on each rank; then nothing beside it is asked."""
    saved: SavedOverheads | None = None
    loras: int = 0
    lora_rank: int = 16

    @classmethod
    def of(cls, *, gpu: str | None, gpu_memory: int | None, kv_cache_memory: int | None, **beside: Any) -> "Budget":
        """Exactly one of a card and a pool; `beside` are other fields.

        A card is a name or `auto`, its memory in bytes, or both, where a card has another memory than usual.
        """
        ways = {"--gpu": gpu, "--gpu-memory": gpu_memory, "--kv-cache-memory": kv_cache_memory}
        if (gpu is None and gpu_memory is None) == (kv_cache_memory is None):
            given = [flag for flag, value in ways.items() if value is not None]
            hint = "say one of --gpu h100-sxm, --gpu-memory 79.6GiB, --kv-cache-memory 40GiB (a pool of that size)"
            raise KvcalcError(f"a card or a pool is needed, one of them: {' and '.join(given) or 'none'} given", hint)
        if gpu is None:
            return cls(total_bytes=gpu_memory, pool_bytes=kv_cache_memory, **beside)
        from kvcalc.hardware.detect import resolve_gpu

        found = resolve_gpu(gpu, gpu_memory)
        return cls(total_bytes=found.total_bytes, gpu=found.name, **beside)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to run where."""

    spec: ModelSpec
    workload: Workload
    sharding: Sharding
    engine: Engine
    budget: Budget

    def on(self, **sizes: int) -> "Plan":
        """The same on other ranks."""
        return msgspec.structs.replace(self, sharding=msgspec.structs.replace(self.sharding, **sizes))

    def asking(self, **changes: int | str) -> "Plan":
        """The same for another workload."""
        return msgspec.structs.replace(self, workload=msgspec.structs.replace(self.workload, **changes))

    @property
    def gpus(self) -> int:
        """Cards in all."""
        return self.engine.cards(self.sharding) * self.budget.cards

    def on_cards(self, count: int) -> Iterator["Plan"]:
        """The ways to put one data-parallel rank on `count` cards, the most tensor parallelism first."""
        if self.engine.spreads_layers:
            yield msgspec.structs.replace(self, budget=msgspec.structs.replace(self.budget, cards=count))
            return
        for stages in range(1, min(count, len(self.spec.layers)) + 1):
            if count % stages == 0:
                yield self.on(tp=count // stages, pp=stages, dcp=1)


End = Literal["low", "expected", "high"]
"""The ends of `Bounds`, and what lies between."""


class Bounds(msgspec.Struct, frozen=True):
    """Bytes at the least, as expected and at the most."""

    low: int
    expected: int
    high: int


class Outcome(msgspec.Struct, frozen=True, dict=True):
    """What comes of a plan; bytes are those of one rank, the worst one where they differ."""

    plan: Plan
    size: CacheSize

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """What lies beside the cache on a rank of the worst stage; nothing where the pool was given."""
        return () if self.plan.budget.pool_bytes is not None else self._stage_terms[self.worst_stage]

    @cached_property
    def _stage_terms(self) -> list[tuple[Term, ...]]:
        """What lies beside the cache on a rank of every stage."""
        plan, budget = self.plan, self.plan.budget
        beside = {"loras": budget.loras, "lora_rank": budget.lora_rank}
        stages = [
            overhead_terms(self.size, plan.engine, budget.gpu, budget.saved, stage=stage, **beside)
            for stage in range(plan.sharding.pp)
        ]
        return [tuple(_on_each(term, budget.cards) for term in terms) for terms in stages]

    @cached_property
    def pool(self) -> Bounds:
        """Bytes of the pool that every rank has: those of the worst stage."""
        low, high = (self._stage_pool(self.worst_stage, at) for at in _ENDS)
        return Bounds(low, self._expected_pools[self.worst_stage], high)

    @cached_property
    def worst_stage(self) -> int:
        """The pipeline stage with the smallest pool, by place."""
        return self._expected_pools.index(min(self._expected_pools))

    @cached_property
    def _expected_pools(self) -> list[int]:
        return [self._stage_pool(stage, "expected_bytes") for stage in range(self.plan.sharding.pp)]

    def _stage_pool(self, stage: int, at: str) -> int:
        """Bytes of the pool of a rank of that stage, with what lies beside it as `at` says."""
        given = self.plan.budget.pool_bytes
        return self.plan.engine.pool_bytes(self._card(stage, at), self.size) if given is None else given

    def _card(self, stage: int, at: str) -> Card:
        """A card of that stage, with what lies beside the cache as `at` says."""
        taken = dict.fromkeys(FIELDS.values(), 0)
        for term in self._stage_terms[stage]:
            taken[FIELDS[term.name]] += getattr(term, at)
        return Card(total_bytes=self.plan.budget.cards * (self.plan.budget.total_bytes or 0), **taken)

    @property
    def aside_bytes(self) -> int:
        """What the engine leaves free on a card of the worst stage; below 0 it counts on memory that is taken."""
        if self.plan.budget.pool_bytes is not None:
            return 0
        return self._card(self.worst_stage, "expected_bytes").left_bytes - self.pool.expected

    @property
    def basis(self) -> EngineBasis:
        """What the answer rests on: `exact`, `engine rule`, or `assumed` where a term is."""
        if {term.basis for term in self.terms} & {"assumed", "unknown"}:
            return "assumed"
        return "exact" if self.plan.engine.is_plain else "engine rule"

    @property
    def capacity(self) -> Capacity | None:
        """What the expected pool carries, None where nothing is left for one."""
        return self.capacity_at("expected")

    def capacity_at(self, end: End) -> Capacity | None:
        """What the pool carries at that end of its bounds, None where nothing is left for one."""
        is_known = end == "expected"  # what the other ends are costs as much again
        pool_bytes = self._expected_pools[self.worst_stage] if is_known else getattr(self.pool, end)
        if pool_bytes not in self._capacities:
            self._capacities[pool_bytes] = self.plan.engine.capacity(self.size, pool_bytes) if pool_bytes > 0 else None
        return self._capacities[pool_bytes]

    @cached_property
    def _capacities(self) -> dict[int, Capacity | None]:
        return {}

    @property
    def sequences(self) -> int:
        """Whole requests of the context that run at once, over all data-parallel ranks."""
        return self.sequences_at("expected")

    def sequences_at(self, end: End) -> int:
        """The same at an end of the pool's bounds."""
        capacity = self.capacity_at(end)
        return 0 if capacity is None else capacity.sequences * self.plan.sharding.dp

    @property
    def fits(self) -> bool:
        """Whether the batch runs at once in the expected pool."""
        return self.fits_at("expected")

    def fits_at(self, end: End) -> bool:
        """The same at an end of the pool's bounds."""
        capacity, dp = self.capacity_at(end), self.plan.sharding.dp
        return capacity is not None and capacity.sequences >= -(-self.plan.workload.batch // dp)

    @property
    def is_certain(self) -> bool:
        """Whether the answer is the same at both ends of what is not known exactly."""
        return self.fits_at("low") == self.fits == self.fits_at("high")


def _on_each(term: Term, cards: int) -> Term:
    """The term of all cards that layers are spread over: libraries lie on each of them, all else on one."""
    if FIELDS[term.name] != "non_torch_bytes" or cards == 1:
        return term
    high = None if term.high_bytes is None else cards * term.high_bytes
    why = f"on each of {cards:,} cards: {term.why}"
    return msgspec.structs.replace(term, low_bytes=cards * term.low_bytes, high_bytes=high, why=why)


_ENDS = ("most_bytes", "low_bytes")
"""Of what lies beside the pool: where the pool is smallest, and where it is largest."""


def evaluate(plan: Plan) -> Outcome:
    """What comes of `plan`; KvcalcError for what its engine refuses."""
    return Outcome(plan, size_workload(plan.spec, plan.workload, plan.sharding))
