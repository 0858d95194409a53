"""Engines by name: what each would hold for a workload, what a pool carries, and by which rules."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, cast

import msgspec

from kvcalc.cache.sharding import Sharding
from kvcalc.documents import EngineDocument, EnginePartDocument, PoolDocument
from kvcalc.engines.overhead_rules import ANY, OverheadRules
from kvcalc.engines.ranges import Range
from kvcalc.errors import KvcalcError, UnknownNameError, shorten
from kvcalc.sizing.blocks import Layout, layout_of
from kvcalc.sizing.need import CacheSize


class AllocationPart(msgspec.Struct, frozen=True):
    """One cache as an engine makes it: `cells` a stream in each of `layers`; `tensors` splits its bytes by name."""

    name: str
    layers: int
    cells: int
    streams: int
    bytes: int
    tensors: dict[str, int]
    devices: tuple[int, ...] = ()  # bytes on each, the host behind them; empty where they were not told apart

    def document(self) -> EnginePartDocument:
        """The same as machine formats carry it."""
        return cast("EnginePartDocument", msgspec.structs.asdict(self))


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One device as an engine finds it: bytes of one rank, all of them beside the cache but the total."""

    total_bytes: int
    """What the driver reports."""
    non_torch_bytes: int = 0
    """The CUDA context and libraries."""
    weights_bytes: int = 0
    """Of this rank, adapters and towers with them."""
    activation_bytes: int = 0
    graphs_bytes: int = 0
    communication_bytes: int = 0

    @property
    def left_bytes(self) -> int:
        """What is left where nothing is set aside."""
        taken = self.non_torch_bytes + self.weights_bytes + self.activation_bytes
        return self.total_bytes - taken - self.graphs_bytes - self.communication_bytes


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool of `pool_bytes` on each rank carries, for requests as long as the context of the workload.

    All figures are those of one data-parallel rank. `tokens` and `max_concurrency` are those of the engine's log.
    `sequences` are whole requests that run at once, 0 where not one fits; `longest_request` is the longest one in
    tokens that does, at most the context asked.
    """

    pool_bytes: int
    tokens: int | None
    sequences: int
    max_concurrency: float
    limited_by: str
    longest_request: int
    max_model_len: int
    block_tokens: tuple[int, ...] = ()
    """Tokens of a block, one of a kind of layers."""
    num_blocks: int | None = None
    bytes_per_block: int | None = None
    blocks_per_request: int | None = None
    figures: dict[str, int | float] = {}
    """Further figures as the log prints them."""
    log: str = ""
    """What the log says of it, in its own words; nothing where it says nothing."""
    rules: tuple[str, ...] = ()

    @property
    def takes_one_request(self) -> bool:
        """Whether one request of that length fits."""
        return self.sequences > 0

    def document(self) -> PoolDocument:
        """The same as machine formats carry it."""
        return {
            "memory_bytes": self.pool_bytes,
            "tokens": self.tokens,
            "sequences": self.sequences,
            "max_concurrency": self.max_concurrency,
            "limited_by": self.limited_by,
            "takes_one_request": self.takes_one_request,
            "longest_request": self.longest_request,
            "max_model_len": self.max_model_len,
            "block_sizes": list(self.block_tokens),
            "num_blocks": self.num_blocks,
            "bytes_per_block": self.bytes_per_block,
            "blocks_per_request": self.blocks_per_request,
            "figures": self.figures,
            "log": self.log or None,
        }


class BlockPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool on a rank as requests share it: what each holds as it grows, and `units` that can be given out.

    `most_sequences` else bounds the requests at once: slots for states or contexts, a pool of windows, a flag.
    """

    layout: Layout
    units: int
    most_sequences: int | None = None


class Allocation(msgspec.Struct, frozen=True):
    """What an engine holds for the whole batch on one rank, in bytes, and the rules that differ from the need.

    `parts` add up to `allocated_bytes` where the engine makes caches that differ.
    """

    name: str
    version: str
    allocated_bytes: int
    rules: tuple[str, ...]
    parts: tuple[AllocationPart, ...] = ()

    def document(self, pool: Capacity | None = None) -> EngineDocument:
        """The same as machine formats carry it, with what a pool that was given carries."""
        return {
            "name": self.name,
            "version": self.version,
            "allocated_bytes": self.allocated_bytes,
            "parts": [part.document() for part in self.parts],
            "rules": list(self.rules),
            "pool": None if pool is None else pool.document(),
        }


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: its fields are the flags of its own, with its names and defaults, beside the `version` followed."""

    version: str = ""
    """The release whose rules are followed; by default the newest that was read."""

    name: ClassVar[str]
    versions: ClassVar[tuple[str, ...]]
    """Releases whose code the rules were read in, newest first."""
    is_plain: ClassVar[bool] = False
    """Whether it stands for no engine at all."""
    spreads_layers: ClassVar[bool] = False
    """Whether it splits layers over the cards of a machine by itself, so that there are no ranks."""
    model_suffix: ClassVar[str] = ""
    """How the files of its models end, where it loads no hub ids."""
    kv_formats: ClassVar[tuple[str, ...]] = ("fp8", "nvfp4")
    """Smaller formats of the cache that may be tried where one does not fit, the largest first."""
    weight_formats: ClassVar[tuple[str, ...]] = ("fp8", "nvfp4")
    """The same for the weights."""
    attention_dp_flags: ClassVar[Mapping[str, bool] | None] = None
    """Its own flags for data-parallel ranks out of the tensor-parallel ones; None where it has no rules for them."""
    batch_moves_capacity: ClassVar[bool] = True
    """Whether what a card leaves and what that carries depend on the batch that is asked about."""
    overheads: ClassVar[OverheadRules] = ANY  # what it holds beside the cache
    step_flag: ClassVar[str] = ""
    """Its flag for the most tokens of a step."""
    sharing_flag: ClassVar[str] = ""
    """Its flag without which a running request has a whole context's room to itself; "" where none ever has."""
    ranges: ClassVar[Mapping[str, Range]] = {}
    """What its own flags may be, by name; KvcalcError where one is something else, wherever it was read."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "version", self.version or self.versions[0])
        for name, allowed in self.ranges.items():
            value = getattr(self, name)
            if value is not None and not allowed.has(value):
                flag = f"--{name.replace('_', '-')}"
                few = f" and at most {allowed.most:,.0f}" if value > allowed.most and allowed.least is not None else ""
                raise KvcalcError(f"{flag} {value:g}: {allowed.text}{few}", f"leave {flag} out for the default")

    @classmethod
    def flags(cls) -> tuple[str, ...]:
        """The names of its own flags."""
        return tuple(name for name in cls.__struct_fields__ if name != "version")

    @classmethod
    def release(cls, asked: str) -> str | None:
        """The release whose rules hold for the version that was asked for, None where they are not known."""
        return next((one for one in cls.versions if f"{one}.".startswith(f"{asked}.")), None)

    @classmethod
    def known_versions(cls) -> str:
        """What `release` knows, for an error."""
        return ", ".join(cls.versions)

    def with_flags(self, **flags: Any) -> Self:
        """The same engine under other flags."""
        return msgspec.structs.replace(self, **flags)

    def allocate(self, size: CacheSize) -> Allocation:
        """What it holds for the workload of `size`; KvcalcError for a request that it cannot take."""
        raise NotImplementedError

    @property
    def has_attention_dp(self) -> bool:
        """Whether those flags are set."""
        return any(getattr(self, name) == value for name, value in (self.attention_dp_flags or {}).items())

    def allocated_bytes(self, size: CacheSize, batches: Sequence[int]) -> list[int]:
        """Bytes that `allocate` holds for each of `batches`, all of the context of `size`."""
        return [self.held_bytes(size.at(size.workload.context_tokens, batch)) for batch in batches]

    def held_bytes(self, size: CacheSize) -> int:
        """Bytes of `allocate` alone, for searches that ask often."""
        return self.allocate(size).allocated_bytes

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """What a pool of so many bytes on each rank carries, for requests of the context of `size`."""
        raise NotImplementedError

    def blocks(self, size: CacheSize, pool_bytes: int) -> BlockPool:
        """How requests of any length share such a pool: here in places that each take the context of `size`."""
        layout = layout_of(size, 1)
        slots = self.capacity(size, pool_bytes).sequences
        return BlockPool(layout=layout, units=layout.pool_units(pool_bytes), most_sequences=slots)

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """Bytes of the pool that it takes on such a card for a launch of `size`; 0 or less where nothing is left."""
        raise NotImplementedError

    def cards(self, sharding: Sharding) -> int:
        """How many cards such ranks are."""
        return sharding.stage_ranks * sharding.pp * sharding.dp

    @property
    def keeps_prefixes(self) -> bool:
        """Whether it keeps prefixes of prompts for later requests, under its own flags."""
        return False

    @property
    def step_tokens(self) -> int | None:
        """The most tokens of prompts and answers that a step computes, None where nobody said."""
        return getattr(self, self.step_flag) if self.step_flag else None

    @property
    def named_cards(self) -> int | None:
        """Cards that its own flags tell apart, None where they name none."""
        return None

    @property
    def pool_rule(self) -> str:
        """How much of a card that is, in a few words; nothing where it takes all that is left."""
        return ""


def engine_classes() -> dict[str, type[Engine]]:
    """Every engine by name."""
    from kvcalc.engines.llama_cpp import LlamaCpp
    from kvcalc.engines.sglang import Sglang
    from kvcalc.engines.tensorrt_llm import TensorRtLlm
    from kvcalc.engines.transformers import Transformers
    from kvcalc.engines.vllm import Vllm

    return {engine.name: engine for engine in (Transformers, Vllm, TensorRtLlm, LlamaCpp, Sglang)}


def find_engine(text: str, flags: Mapping[str, Any] | None = None) -> Engine:
    """The engine called NAME or NAME@VERSION, with the values of its own flags.

    KvcalcError for a version whose rules are not known.
    """
    engines = engine_classes()
    name, at, version = text.strip().casefold().partition("@")
    if "," in text:
        raise KvcalcError(
            f"--engine {shorten(text)}: one is taken here", "kvcalc compare MODEL --engine A,B takes several"
        )
    if name not in engines:
        raise UnknownNameError("engine", name, engines, f"--engine takes {', '.join(engines)}")
    engine = engines[name]
    release = engine.release(version.removeprefix("v")) if at else engine.versions[0]
    if release is None:
        message = f"--engine {shorten(text)}: rules are known for {name} {engine.known_versions()}"
        raise KvcalcError(message, f"use --engine {name}")
    return engine(version=release, **(flags or {}))
