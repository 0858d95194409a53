"""SGLang's pools for compressed entries: DeepSeek-V4 and V4.1.

Read in SGLang 0.5.23: srt/model_executor/pool_configurator.py (DSV4PoolConfigurator) for sizes and
srt/mem_cache/deepseek_v4_memory_pool.py, deepseek_v4_compress_state.py for what is allocated. Its layouts are bytes of
their own: --kv-dtype is not asked. What is not modelled: the layouts of SM100 alone, ROCm's unified pool, and bounded
replay of the encoder.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from kvcalc.cache.component import Component
from kvcalc.cache.sharding import WHOLE
from kvcalc.engines.engine import AllocationPart
from kvcalc.engines.sglang_layers import cuts_of
from kvcalc.engines.sglang_pools import window_cap
from kvcalc.engines.sglang_setup import Setup, Sizes
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import components_of

PAGE_SIZE = 256
PAGE_ALIGNMENT = 576
"""A page of entries is rounded up to it: what FlashMLA strides by (KVLayout.page_align)."""

WINDOW_RATIO = 0.1
"""--swa-full-tokens-ratio where nothing is asked."""

RINGS = {2: (2, 2), 4: (8, 16), 128: (128, 256)}
"""Rows of a compressor a request or window page, without drafts and with them (get_compress_state_ring_size)."""

TAILS_A_REQUEST = 4
"""Prefix tails that V4.1's window pool keeps room for, a request (_resolve_swa_prefix_tails)."""

FP32 = 4


class Owner:
    """The layers of one compression ratio on a stage, and the widths of what they keep."""

    def __init__(self, ratio: int, entries: Sequence[Component], keys: Sequence[Component]) -> None:
        self.ratio, self.layers = ratio, len(entries)
        self.key_width = sum(part.width for part in keys[0].parts(WHOLE)) if keys else 0

    @property
    def key_bytes(self) -> int:
        """One index key: FP8 with an fp32 scale a 128 at ratio 4, FP4 with one byte a 32 in V4.1."""
        if self.ratio in {1, 2}:
            return self.key_width // 2 + self.key_width // 32
        return self.key_width + self.key_width // 128 * 4


class CompressedPools:
    """The pools of a model that keeps compressed entries beside a window in every layer."""

    states: ClassVar[None] = None
    """It keeps no states in slots."""
    keeps_tokens: ClassVar[bool] = True

    def __init__(self, size: CacheSize, setup: Setup, asked_ratio: float | None) -> None:
        _check(size, setup)
        self.setup = setup
        self.layers = [_stage(size, first, end) for first, end in cuts_of(size)]
        self.windows = [end - first for first, end in cuts_of(size)]
        latent = next(one for one in components_of(size.spec.layers) if one.keeps_entries)
        widths = {part.name: part.width for part in latent.parts(WHOLE)}
        self.head = sum(widths.values())
        # 448 in FP8, 64 in bf16, seven scales and a byte of padding (KVLayout.V4).
        self.entry_bytes = widths["latent"] + 2 * widths.get("rope", 0) + 8
        self.window = next(one.span.cap or 0 for one in components_of(size.spec.layers) if one.span.cap)
        self.is_low_ratio = any(owner.ratio in {1, 2} for owners in self.layers for owner in owners)
        self.cap = self._cap() if self.is_low_ratio and asked_ratio is None else None
        self.ratio = WINDOW_RATIO if asked_ratio is None else asked_ratio
        self.block_tokens = (setup.page_size,)

    def sizes(self, pool_bytes: int) -> Sizes:
        """The pools that so many bytes on each rank make; all stages take the fewest tokens of any."""
        setup = self.setup
        tokens = min(self._stage_tokens(stage, pool_bytes) for stage in range(len(self.layers)))
        tokens = setup.pages(setup.limited(tokens))
        requests = setup.running_requests(tokens)
        return Sizes(tokens=tokens, requests=requests, window_tokens=self._window_tokens(tokens))

    def _stage_tokens(self, stage: int, pool_bytes: int) -> int:
        per_token = self.bytes_per_token(stage)
        requests = self.setup.asked_requests
        if requests is None:
            requests = self.setup.running_requests(int(pool_bytes / per_token))
        left = max(pool_bytes - self._fixed_bytes(stage, requests), 0)
        tokens = self.setup.pages(int(left / per_token))
        while tokens > 0 and tokens * per_token + self._reserved_bytes(stage, tokens) > left:
            tokens -= self.setup.page_size
        return tokens

    def bytes_per_token(self, stage: int) -> float:
        """What one more token costs a stage, its share of windows included (bytes_per_full_token)."""
        shared = 0 if self.cap is not None else self.ratio * self._window_cell(stage)
        cell = shared + sum(self._entry_cell(owner) * owner.layers for owner in self.layers[stage])
        return cell * self._draft_share(stage)

    @property
    def token_bytes(self) -> float:
        """The same on the stage that keeps the most."""
        return max(self.bytes_per_token(stage) for stage in range(len(self.layers)))

    def _draft_share(self, stage: int) -> float:
        """A draft is taken for one layer more, whatever its own (_spec_infl)."""
        return (self.windows[stage] + 1) / self.windows[stage] if self.setup.draft_tokens else 1

    def _slot_bytes(self, ratio: int) -> float:
        """Bytes of one entry, the padding of its page shared out."""
        if not self.setup.release.pads_pages:
            return self.entry_bytes
        page = self.setup.page_size // max(1, ratio)
        return self._page_bytes(page) / page

    def _page_bytes(self, entries: int) -> int:
        return -(-entries * self.entry_bytes // PAGE_ALIGNMENT) * PAGE_ALIGNMENT

    def _entry_cell(self, owner: Owner) -> float:
        if owner.ratio in {1, 2}:
            return (self._slot_bytes(owner.ratio) + owner.key_bytes) / owner.ratio
        return self._slot_bytes(owner.ratio) / owner.ratio + owner.key_bytes / owner.ratio

    def _window_cell(self, stage: int) -> float:
        """One token of a window in all layers, and the rows of compressors that go with its page."""
        rows = 0.0
        for owner in self.layers[stage]:
            if owner.ratio == 4:
                rows += self._ring(4) / self._state_page * self._row_bytes(owner) * owner.layers
        return self._slot_bytes(0) * self.windows[stage] + rows

    @property
    def _state_page(self) -> int:
        return self.setup.release.state_page or self.setup.page_size

    def _row_bytes(self, owner: Owner) -> int:
        """A compressor's row: value and score in fp32, of two entries where they overlap, and of its index key."""
        return 4 * (self.head + owner.key_width) * FP32 if owner.ratio == 4 else 2 * self.head * FP32

    def _ring(self, ratio: int) -> int:
        drafts = self.setup.draft_tokens
        if ratio == 2 and drafts:
            return 1 << (drafts + 1).bit_length()
        return RINGS[ratio][1 if drafts else 0]

    def _ring_rows(self, ratio: int, slots: int) -> int:
        """Rows that are allocated for so many rings: one ring and a row more, in whole entries (CompressStatePool)."""
        return -(-(slots * self._ring(ratio) + self._ring(ratio) + 1) // ratio) * ratio

    def _fixed_bytes(self, stage: int, requests: int) -> float:
        """What requests take whatever their tokens: rings of compressors, and V4.1's windows."""
        held = sum(
            self._ring_rows(owner.ratio, requests + 1) * self._row_bytes(owner) * owner.layers
            for owner in self.layers[stage]
            if owner.ratio in {2, 128}
        )
        if self.cap is None:
            return held
        return held + self.cap * self._window_cell(stage) * self._draft_share(stage)

    def _reserved_bytes(self, stage: int, tokens: int) -> float:
        """Pages of V4.1's entries and keys beyond those of the tokens (_get_low_ratio_kv_padding_bytes)."""
        page, held = self.setup.page_size, 0.0
        for owner in self.layers[stage]:
            if owner.ratio in {1, 2}:
                keys = (self._key_slots(owner.ratio, tokens) - tokens // owner.ratio) * owner.key_bytes
                held += (page * self._slot_bytes(owner.ratio) + keys) * owner.layers
        return held

    def _key_slots(self, ratio: int, tokens: int, page: int = 64) -> int:
        """Index keys of V4.1, in pages of 64 and one more."""
        return -(-((tokens + self.setup.page_size) // ratio + page) // page) * page

    def _cap(self) -> int | None:
        """V4.1's window tokens where the number of requests is known, tails of cached prefixes included."""
        setup = self.setup
        if setup.asked_requests is None or setup.prefill_tokens <= 0:
            return None
        tails = TAILS_A_REQUEST * setup.asked_requests if setup.reuses_prefixes else 0
        return setup.whole_pages(window_cap(setup, self.window) + tails * (self.window + setup.page_size))

    def _window_tokens(self, tokens: int) -> int:
        return self.setup.pages(int(tokens * self.ratio)) if self.cap is None else self.cap

    def claim(self, tokens: int) -> tuple[int, int]:
        """Tokens that one request takes of the pool of all tokens and of windows."""
        return self.setup.whole_pages(tokens), self.setup.whole_pages(min(tokens, self.window)) + self.setup.page_size

    def needed(self, tokens: int, requests: int) -> Sizes:
        """The smallest pools that take so many requests at once."""
        whole, window = (requests * count for count in self.claim(tokens))
        if self.cap is None:
            whole = max(whole, self.setup.whole_pages(int(window / self.ratio)))
            while self._window_tokens(whole) < window:
                whole += self.setup.page_size
        return Sizes(tokens=whole, requests=requests, window_tokens=self._window_tokens(whole))

    def parts(self, sizes: Sizes) -> list[AllocationPart]:
        """What is allocated for such pools on the rank that holds the most."""
        held = [list(self._stage_parts(stage, sizes)) for stage in range(len(self.layers))]
        return max(held, key=lambda parts: sum(part.bytes for part in parts))

    def _stage_parts(self, stage: int, sizes: Sizes) -> Iterator[AllocationPart]:
        page, windows = self.setup.page_size, sizes.window_tokens or 0
        yield self._pages("window", self.windows[stage], windows, page)
        for owner in self.layers[stage]:
            ratio = owner.ratio
            yield self._pages(
                f"1 of {ratio}" if ratio > 1 else "every", owner.layers, sizes.tokens // ratio, page // ratio
            )
            if owner.key_width:
                yield self._keys(owner, sizes.tokens)
            if ratio > 1:
                slots = windows // self._state_page if ratio == 4 else sizes.requests + 1
                rows = self._ring_rows(ratio, slots)
                held = rows * self._row_bytes(owner) * owner.layers
                yield AllocationPart(f"1 of {ratio} state", owner.layers, rows, 1, held, {"rows": held})

    def _pages(self, name: str, layers: int, entries: int, page: int) -> AllocationPart:
        """Whole pages, one more for the allocator's dummy page (_num_dsv4_physical_kv_pages)."""
        pages = -(-(entries + self.setup.page_size) // page)
        held = pages * self._page_bytes(page) * layers
        return AllocationPart(name, layers, pages * page, 1, held, {"KV": held})

    def _keys(self, owner: Owner, tokens: int) -> AllocationPart:
        ratio, page = owner.ratio, self.setup.page_size
        cells = self._key_slots(ratio, tokens)
        if ratio == 4:
            cells = -(-(tokens // 128 * 32 + page) // (page // 4)) * (page // 4)
        held = cells * owner.key_bytes * owner.layers
        return AllocationPart(f"keys, 1 of {ratio}", owner.layers, cells, 1, held, {"index": held})


def _stage(size: CacheSize, first: int, end: int) -> list[Owner]:
    """The owners of one stage, by ratio; a layer that shares another's entries owns none."""
    entries: dict[int, list[Component]] = {}
    keys: dict[int, list[Component]] = {}
    for component in components_of(size.spec.layers[first:end]):
        if component.keeps_entries and component.span.cap is None:
            (keys if component.selects else entries).setdefault(component.span.ratio, []).append(component)
    return [Owner(ratio, entries[ratio], keys.get(ratio, ())) for ratio in (4, 128, 1, 2) if ratio in entries]


def _check(size: CacheSize, setup: Setup) -> None:
    kept = [one for one in components_of(size.spec.layers) if one.keeps_entries]
    unknown = sorted({one.span.ratio for one in kept} - {1, 2, 4, 128})
    if unknown:
        raise KvcalcError(f"SGLang compresses by 1, 2, 4 and 128, and this model by {unknown[0]}", "leave --engine out")
    if not setup.release.takes_compressed:
        raise KvcalcError("the rules for compressed entries are known from SGLang 0.5.17 on", "use --engine sglang")
    if setup.page_size != PAGE_SIZE:
        raise KvcalcError(
            f"--page-size {setup.page_size}: SGLang takes {PAGE_SIZE} beside compressed entries",
            "leave --page-size out",
        )
    asked = size.packer.request.everywhere
    if asked not in {None, "fp8", "fp8_ds_mla"} or size.packer.request.by_name:
        raise KvcalcError("SGLang keeps compressed entries in a layout of its own", "leave --kv-dtype out")
    if setup.dcp > 1:
        raise KvcalcError("--dcp shards no compressed entries of SGLang", "leave --dcp out")
