"""SGLang: the pools that a launch makes, and what they carry.

`sglang_layers` weighs what its layers keep, `sglang_pools` and `sglang_compressed` size pools, `sglang_states` counts
the slots of recurrent states, `sglang_memory` knows what share of a card it takes, and `sglang_versions` what changed
between releases; each names the functions that it follows. Whether SGLang can load a model is not asked here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.sharding import WHOLE, Sharding
from kvcalc.engines.engine import Allocation, BlockPool, Capacity, Card, Engine
from kvcalc.engines.overhead_rules import SGLANG, OverheadRules
from kvcalc.engines.ranges import COUNT, SHARE, Range
from kvcalc.engines.sglang_blocks import TOKENS, shared_pages
from kvcalc.engines.sglang_compressed import PAGE_SIZE, CompressedPools
from kvcalc.engines.sglang_figures import figures, requests_taken
from kvcalc.engines.sglang_layers import Stage, is_latent, stages_of
from kvcalc.engines.sglang_memory import Launch, static_fraction
from kvcalc.engines.sglang_pools import Pools
from kvcalc.engines.sglang_setup import RUNNING_WITH_DRAFTS, Setup, Sizes, Strategy
from kvcalc.engines.sglang_states import state_slots
from kvcalc.engines.sglang_versions import RELEASES
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import components_of
from kvcalc.units import exact_bytes

INDEX_PAGE_SIZE = 64
"""The page that DeepSeek's index keys need (DSATokenToKVPool)."""

WINDOW_RATIO, INKLING_RATIO = 0.8, 0.1
STATE_RATIO = 0.9
PREFILL_TOKENS = 8192
"""--chunked-prefill-size on cards of 60 to 160 GiB."""

STRATEGIES = ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")
INKLING = {"inkling", "inkling_text", "inkling_mm_model"}


class Sglang(Engine, frozen=True, kw_only=True):
    """The rules of SGLang, with the flags of its own that were given; None leaves one to it."""

    page_size: int | None = None
    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int | None = None
    swa_full_tokens_ratio: float | None = None
    disable_hybrid_swa_memory: bool = False
    mamba_full_memory_ratio: float | None = None
    max_mamba_cache_size: int | None = None
    mamba_radix_cache_strategy: Strategy = "auto"
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    enable_dp_attention: bool = False
    speculative_num_draft_tokens: int | None = None

    name: ClassVar[str] = "sglang"
    step_flag: ClassVar[str] = "chunked_prefill_size"
    versions: ClassVar[tuple[str, ...]] = tuple(RELEASES)
    overheads: ClassVar[OverheadRules] = SGLANG
    attention_dp_flags: ClassVar[Mapping[str, bool]] = {"enable_dp_attention": True}
    batch_moves_capacity: ClassVar[bool] = False
    ranges: ClassVar[Mapping[str, Range]] = {
        "page_size": COUNT,
        "max_running_requests": COUNT,
        "max_total_tokens": COUNT,
        "chunked_prefill_size": COUNT,
        "swa_full_tokens_ratio": SHARE,
        "max_mamba_cache_size": COUNT,
        "speculative_num_draft_tokens": COUNT,
    }

    def allocate(self, size: CacheSize) -> Allocation:
        """The smallest pools that take the batch, in bytes on the fullest rank, spare pages and slots included."""
        setup, pools = self._plan(size)
        requests = -(-size.workload.batch // size.sharding.dp)
        sizes = pools.needed(size.workload.context_tokens, requests)
        parts = pools.parts(sizes)
        held = sum(part.bytes for part in parts)
        rules = tuple(self._rules(size, setup, pools, sizes))
        return Allocation(self.name, self.version, held, rules, tuple(parts))

    def allocated_bytes(self, size: CacheSize, batches: Sequence[int]) -> list[int]:
        """Bytes for each of `batches`, of the same pools in different sizes."""
        pools, context = self._plan(size)[1], size.workload.context_tokens
        needed = (pools.needed(context, -(-batch // size.sharding.dp)) for batch in batches)
        return [sum(part.bytes for part in pools.parts(sizes)) for sizes in needed]

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """The pools that so many bytes on each rank make, and what their log says; of one data-parallel rank."""
        setup, pools = self._plan(size)
        sizes, context = pools.sizes(pool_bytes), size.workload.context_tokens
        limits = dict(requests_taken(pools, sizes, context))
        limited_by = min(limits, key=lambda name: limits[name])
        tokens = sizes.tokens * setup.dcp
        # tp_worker.py: a request may have one token less than the pool, which means nothing where no layer keeps any.
        longest = tokens - 1 if pools.keeps_tokens else tokens
        sequences = limits[limited_by] if context <= longest else 0
        admits = all(count > 0 for name, count in limits.items() if name != TOKENS)
        return Capacity(
            pool_bytes=pool_bytes,
            tokens=tokens,
            sequences=sequences,
            max_concurrency=tokens / context,
            limited_by=limited_by,
            longest_request=max(0, min(context, longest)) if admits else 0,
            max_model_len=context,
            block_tokens=pools.block_tokens,
            figures=dict(figures(pools.parts(sizes), sizes, setup)),
            rules=tuple(self._rules(size, setup, pools, sizes)),
            log=f"max_total_num_tokens={tokens}, context_len={context}",
        )

    def blocks(self, size: CacheSize, pool_bytes: int) -> BlockPool:
        """Pages of the pool of all tokens, and what its other pools leave room for."""
        pools = self._plan(size)[1]
        sizes = pools.sizes(pool_bytes)
        return shared_pages(pools, sizes, dict(requests_taken(pools, sizes, size.workload.context_tokens)))

    @property
    def keeps_prefixes(self) -> bool:
        """Unless a flag says no."""
        return not self.disable_radix_cache

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """Its share of what is free before weights are loaded, less the weights, in bytes (_profile_available_bytes).

        Activations and graphs live in what it leaves. The ranks and the kind of cache shape its own choice of
        --mem-fraction-static.
        """
        self._check_fraction()
        before = card.total_bytes - card.non_torch_bytes - card.communication_bytes
        fraction = self.mem_fraction_static
        if fraction is None:
            fraction = max(0.0, static_fraction(card.total_bytes, self._launch(size)))
        left_out = max(0, before) / 2**30 * (1 - fraction)  # of a card that others fill, nothing can be
        rest_gib = (before - card.weights_bytes) / 2**30 - left_out
        return int(rest_gib * 2**30)

    @property
    def pool_rule(self) -> str:
        """The share that it may use of what was free."""
        if self.mem_fraction_static is None:
            return "by its own choice of --mem-fraction-static, for activations and graphs"
        return (
            f"{1 - self.mem_fraction_static:.4g} of what was free, for activations and graphs (--mem-fraction-static)"
        )

    def cards(self, sharding: Sharding) -> int:
        """Under --enable-dp-attention the data-parallel ranks are the tensor-parallel ones."""
        dp = 1 if self.enable_dp_attention else sharding.dp
        return sharding.stage_ranks * sharding.pp * dp

    def _launch(self, size: CacheSize) -> Launch:
        return Launch(
            prefill_tokens=self.chunked_prefill_size,
            max_running_requests=self.max_running_requests,
            tp=size.sharding.tp,
            pp=size.sharding.pp,
            attention_dp=size.sharding.dp if self.enable_dp_attention else None,
            keeps_latent=size.shape_memo.get("keeps a latent", lambda: _keeps_latent(size)),
        )

    def _plan(self, size: CacheSize) -> tuple[Setup, Pools | CompressedPools]:
        """The pools and what shapes them: worked out once for all bytes that are asked about."""
        return size.memo.get(self, lambda: self._make_plan(size))

    def _make_plan(self, size: CacheSize) -> tuple[Setup, Pools | CompressedPools]:
        setup, stages, window, sliding = size.shape_memo.get(("laid out", self), lambda: self._lay_out(size))
        setup = msgspec.structs.replace(setup, context_tokens=size.workload.context_tokens)
        if stages is None:
            return setup, CompressedPools(size, setup, self.swa_full_tokens_ratio)
        return setup, Pools(stages, setup, state_slots(stages, setup), window, sliding)

    def _lay_out(self, size: CacheSize) -> tuple[Setup, tuple[Stage, ...] | None, int, int]:
        """What no context moves: the setup, the stages (None under compression), the window, windows of drafts."""
        self._check(size)
        kept = components_of(size.spec.layers)
        is_compressed = any(one.span.ratio > 1 for one in kept if one.keeps_entries)
        setup = self._setup(size, kept, is_compressed)
        window = max((one.span.cap or 0 for one in kept if one.keeps_entries), default=0)
        # Drafts of SGLang have windows in one layer at most (get_hybrid_layer_ids: MiMoV2MTP, Step3p5MTP).
        drafts = components_of(size.spec.draft_layers[: setup.draft_layers])
        sliding = min(1, sum(one.keeps_entries and one.span.cap is not None for one in drafts))
        return setup, None if is_compressed else stages_of(size, setup), window, sliding

    def _setup(self, size: CacheSize, kept: list[Component], is_compressed: bool) -> Setup:
        attention_dp = size.sharding.dp if self.enable_dp_attention else 1
        drafts, asked = self._draft_tokens(size, kept, is_compressed), self.max_running_requests
        if drafts and asked is None:
            asked = RUNNING_WITH_DRAFTS
        return Setup(
            release=RELEASES[self.version],
            attention_tp=size.sharding.tp // attention_dp,
            attention_dp=attention_dp,
            dcp=size.sharding.dcp,
            page_size=self.page_size or _page_size(kept, is_compressed),
            context_tokens=size.workload.context_tokens,
            max_total_tokens=self.max_total_tokens,
            asked_requests=None if asked is None else max(1, asked // attention_dp),
            swa_ratio=self._window_ratio(size, kept),
            state_ratio=self.mamba_full_memory_ratio or (INKLING_RATIO if _is_inkling(size) else STATE_RATIO),
            asked_slots=self.max_mamba_cache_size,
            prefill_tokens=(self.chunked_prefill_size or PREFILL_TOKENS) // attention_dp,
            reuses_prefixes=not self.disable_radix_cache,
            overlaps=not self.disable_overlap_schedule,
            strategy=self.mamba_radix_cache_strategy,
            draft_layers=size.workload.draft_layers,
            draft_tokens=drafts,
        )

    def _window_ratio(self, size: CacheSize, kept: list[Component]) -> float | None:
        """Window tokens for every token of all layers; None where windows have no pool of their own."""
        has_windows = any(one.span.cap is not None for one in kept if one.keeps_entries)
        if not has_windows or self.disable_hybrid_swa_memory:
            return None
        if size.spec.model_type not in RELEASES[self.version].window_pools and not _is_inkling(size):
            return None
        return self.swa_full_tokens_ratio or (INKLING_RATIO if _is_inkling(size) else WINDOW_RATIO)

    def _draft_tokens(self, size: CacheSize, kept: list[Component], is_compressed: bool) -> int:
        needs = is_compressed or any(one.states(WHOLE) for one in kept)
        if size.workload.draft_layers and needs and self.speculative_num_draft_tokens is None:
            raise KvcalcError(
                "what drafts keep of this model depends on how many tokens they propose",
                "add --speculative-num-draft-tokens",
            )
        return self.speculative_num_draft_tokens or 0

    def _check_fraction(self) -> None:
        fraction = self.mem_fraction_static
        if fraction is not None and not 0 < fraction < 1:
            raise KvcalcError(f"--mem-fraction-static {fraction:g}: a share above 0 and below 1 is needed", "try 0.88")

    def _check(self, size: CacheSize) -> None:
        self._check_fraction()
        states = self.mamba_full_memory_ratio
        if states is not None and not states > 0:
            raise KvcalcError(f"--mamba-full-memory-ratio {states:g}: it is above 0", "leave it out for 0.9")
        if self.mamba_radix_cache_strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise KvcalcError(f"--mamba-radix-cache-strategy {self.mamba_radix_cache_strategy}", f"it is {known}")
        self._check_ranks(size)

    def _check_ranks(self, size: CacheSize) -> None:
        tp, dp, dcp = size.sharding.tp, size.sharding.dp, size.sharding.dcp
        if self.enable_dp_attention and tp % dp:
            raise KvcalcError(f"--dp {dp} does not divide --tp {tp}", "attention's data-parallel ranks are tp ranks")
        if (tp // dp if self.enable_dp_attention else tp) % dcp:
            raise KvcalcError(f"--dcp {dcp} does not divide the ranks of attention", "take a --dcp that does")
        if size.workload.draft_layers and not RELEASES[self.version].takes_drafts:
            newest = self.versions[0]
            raise KvcalcError(f"drafts are known for SGLang {newest}, not for {self.version}", "use --engine sglang")

    def _rules(self, size: CacheSize, setup: Setup, pools: Pools | CompressedPools, sizes: Sizes) -> Iterator[str]:
        """What an answer should say, most surprising first."""
        kept = [one for one in components_of(size.spec.layers) if one.keeps_entries]
        bounded = any(one.span.cap is not None for one in kept)
        if bounded and sizes.window_tokens is None:
            named = size.spec.model_type or "a spec without model_type"
            yield f"windows keep every token: SGLang has a window pool for some models, and not for {named}"
        elif sizes.window_tokens is not None and sizes.tokens:
            yield f"windows have a pool of their own, {sizes.window_tokens:,} tokens beside {sizes.tokens:,}"
        if sizes.slots is not None and pools.states is not None:
            each = pools.states.per_request
            yield f"a running request counts for {each} slots of states, {exact_bytes(pools.states.slot_bytes)} each"
            yield "the pool of states has one slot to spare"
        if any(one.selects for one in kept) and not any(one.span.ratio > 1 for one in kept):
            yield "index keys are FP8 with an fp32 scale per 128 values"
            yield "--kv-cache-dtype auto is fp8 on SM100 here, and the model's own before"
        page = setup.page_size
        yield f"a pool has {f'a page of {page:,} tokens' if page > 1 else 'one token'} more than it gives out"


def _keeps_latent(size: CacheSize) -> bool:
    kept = (one for one in components_of(size.layers) if one.keeps_entries and not one.selects)
    return any(is_latent(one) for one in kept)


def _page_size(kept: list[Component], is_compressed: bool) -> int:
    if is_compressed:
        return PAGE_SIZE
    return INDEX_PAGE_SIZE if any(one.selects for one in kept) else 1


def _is_inkling(size: CacheSize) -> bool:
    return size.spec.model_type in INKLING
