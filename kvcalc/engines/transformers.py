"""transformers: the caches that generate() makes, by the names that it gives them.

Read in transformers 5.24.0; each module beside this one names what it follows. The context counts the tokens that the
cache holds: a prompt and n new tokens leave one fewer, since the last is never fed back.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

from kvcalc.engines.engine import Allocation, Capacity, Card, Engine
from kvcalc.engines.held import held_capacity
from kvcalc.engines.overhead_rules import TRANSFORMERS, OverheadRules
from kvcalc.engines.ranges import COUNT, NOT_NEGATIVE, SHARE, Range
from kvcalc.engines.transformers_dynamic import DynamicHolder
from kvcalc.engines.transformers_paged import Pages, Paging, paged_bytes, paged_capacity, pages_of
from kvcalc.engines.transformers_quantized import Quantizing, quantized_bytes
from kvcalc.engines.transformers_static import StaticHolder
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize

MAX_MEMORY_PERCENT = 0.9


class Transformers(Engine, frozen=True, kw_only=True):
    """The rules of transformers 5.24; a flag that is None has the library's default."""

    cache_implementation: str = "dynamic"
    """`dynamic`, `static`, `quantized`, or `paged` for continuous batching."""
    max_cache_len: int | None = None
    """static: made for at least so many tokens."""
    max_new_tokens: int | None = None
    """quantized: how many of the context's tokens came one by one."""
    cache_backend: str | None = None
    """quantized: `quanto`, `hqq` or `fp8`; `backend` of cache_config."""
    nbits: int | None = None
    axis_key: int | None = None
    axis_value: int | None = None
    q_group_size: int | None = None
    residual_length: int | None = None
    page_size: int | None = None
    """paged: tokens of a block (256), and so on for all below."""
    num_blocks: int | None = None
    max_batch_tokens: int | None = None
    max_requests_per_batch: int | None = None
    max_blocks_per_request: int | None = None
    max_memory_percent: float | None = None
    """Share of the free memory: 0.9."""
    flash: bool | None = None
    """Whether attention is Flash Attention: it is by default."""

    name: ClassVar[str] = "transformers"
    step_flag: ClassVar[str] = "max_batch_tokens"
    versions: ClassVar[tuple[str, ...]] = ("5.24.0",)
    overheads: ClassVar[OverheadRules] = TRANSFORMERS
    ranges: ClassVar[Mapping[str, Range]] = {
        "max_cache_len": COUNT,
        "max_new_tokens": NOT_NEGATIVE,
        "q_group_size": COUNT,
        "residual_length": NOT_NEGATIVE,
        "page_size": COUNT,
        "num_blocks": COUNT,
        "max_batch_tokens": COUNT,
        "max_requests_per_batch": COUNT,
        "max_blocks_per_request": NOT_NEGATIVE,
        "max_memory_percent": SHARE,
    }
    kv_formats: ClassVar[tuple[str, ...]] = ()

    def allocate(self, size: CacheSize) -> Allocation:
        """What the cache holds, in bytes, for the whole batch on one device."""
        held, rules = self._cache(size).held(self, size)
        return Allocation(self.name, self.version, held, tuple(dict.fromkeys(rules)))

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """What fits into that memory: only continuous batching takes a pool."""
        return self._cache(size).capacity(self, size, pool_bytes)

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """All that is left, in bytes; continuous batching takes its share before anything has run."""
        return self._cache(size).pool_bytes(self, card)

    @property
    def pool_rule(self) -> str:
        """The share that continuous batching takes; the other caches take all that is left."""
        if self.cache_implementation != "paged":
            return ""
        return f"{self.max_memory_percent or MAX_MEMORY_PERCENT:.4g} of what was free (--max-memory-percent)"

    def given(self, flags: tuple[str, ...]) -> dict[str, Any]:
        """Those of `flags` that were given, by name."""
        return {flag: getattr(self, flag) for flag in flags if getattr(self, flag) is not None}

    def _known(self) -> "_Dynamic":
        if self.cache_implementation not in CACHES:
            message = (
                f"the bytes of --cache-implementation {self.cache_implementation} on the device are not known here"
            )
            raise KvcalcError(message, f"known are {', '.join(CACHES)}")
        return CACHES[self.cache_implementation]

    def _cache(self, size: CacheSize) -> "_Dynamic":
        """Which cache it is; KvcalcError for a flag of another one, for one that was not read, and for ranks."""
        cache = self._known()
        for owner, other in CACHES.items():
            for flag in self.given(other.flags):
                if flag not in cache.flags:
                    spelled = f"--{flag.replace('_', '-')}"
                    raise KvcalcError(f"{spelled} is of the {owner} cache", f"add --cache-implementation {owner}")
        if size.ranks > (size.sharding.tp if cache.takes_tp and size.sharding.dcp == 1 else 1):
            message = f"transformers holds a {self.cache_implementation} cache on one rank here"
            raise KvcalcError(message, f"leave {'' if cache.takes_tp else '--tp, '}--pp, --dp and --dcp out")
        return cache


class _Dynamic:
    """The cache that grows with its tokens."""

    flags: ClassVar[tuple[str, ...]] = ()
    takes_tp: ClassVar[bool] = False

    def held(self, engine: Transformers, size: CacheSize) -> tuple[int, list[str]]:
        """Bytes of the whole batch, and the rules behind them."""
        return _summed(DynamicHolder(size))

    def capacity(self, engine: Transformers, size: CacheSize, pool_bytes: int) -> Capacity:
        """What fits into so much memory."""
        return held_capacity(engine.held_bytes, size, pool_bytes)

    def pool_bytes(self, engine: Transformers, card: Card) -> int:
        """What it may fill, in bytes."""
        return card.left_bytes


class _Static(_Dynamic):
    flags = ("max_cache_len",)

    def held(self, engine: Transformers, size: CacheSize) -> tuple[int, list[str]]:
        return _summed(StaticHolder(size, engine.max_cache_len))


class _Quantized(_Dynamic):
    of_groups = ("nbits", "axis_key", "axis_value", "q_group_size", "residual_length")
    flags = (*of_groups, "cache_backend", "max_new_tokens")

    def held(self, engine: Transformers, size: CacheSize) -> tuple[int, list[str]]:
        given, backend = engine.given(self.of_groups), engine.cache_backend or "quanto"
        if backend == "fp8" and given:
            flag = f"--{next(iter(given)).replace('_', '-')}"
            raise KvcalcError(f"{flag}: the fp8 cache has one scale a tensor and no groups", "leave it out")
        tokens, generated = size.workload.context_tokens, engine.max_new_tokens or 0
        if generated >= tokens:
            message = f"--max-new-tokens {generated:,} leaves no prompt of {tokens:,} tokens"
            raise KvcalcError(message, "the context holds the prompt too")
        return quantized_bytes(size, Quantizing(backend=backend, **given), generated)


class _Paged(_Dynamic):
    of_pages = (
        "page_size",
        "num_blocks",
        "max_batch_tokens",
        "max_requests_per_batch",
        "max_blocks_per_request",
        "flash",
    )
    flags = (*of_pages, "max_memory_percent")
    takes_tp = True

    def held(self, engine: Transformers, size: CacheSize) -> tuple[int, list[str]]:
        return paged_bytes(size, self._pages(engine, size))

    def capacity(self, engine: Transformers, size: CacheSize, pool_bytes: int) -> Capacity:
        return paged_capacity(size, self._pages(engine, size), pool_bytes)

    def pool_bytes(self, engine: Transformers, card: Card) -> int:
        free = card.left_bytes + card.activation_bytes + card.graphs_bytes
        return int(free * Fraction(str(engine.max_memory_percent or MAX_MEMORY_PERCENT)))

    def _pages(self, engine: Transformers, size: CacheSize) -> Pages:
        return pages_of(size, Paging(**engine.given(self.of_pages)))


def _summed(holder: DynamicHolder) -> tuple[int, list[str]]:
    held = holder.held_bytes()
    return held, holder.rules


CACHES: dict[str, _Dynamic] = {
    "dynamic": _Dynamic(),
    "static": _Static(),
    "quantized": _Quantized(),
    "paged": _Paged(),
    # Names that generate() still takes for the static cache.
    "hybrid": _Static(),
    "hybrid_chunked": _Static(),
    "sliding_window": _Static(),
}
"""The caches by the names of `cache_implementation`; offloaded ones lie on the CPU in part."""
