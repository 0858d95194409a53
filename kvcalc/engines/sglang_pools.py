"""SGLang's pools for everything but compressed entries: tokens of all layers, tokens of windows, slots of states.

Read in SGLang 0.5.23: srt/model_executor/pool_configurator.py (DefaultPoolConfigurator, HybridSWAPoolConfigurator,
SWARequestCapPoolConfigurator) for sizes, srt/mem_cache/memory_pool.py and swa_memory_pool.py for what is allocated:
a pool of N tokens has a page more, whose first slot takes what padding writes.
"""

from collections.abc import Iterator

from kvcalc.engines.engine import AllocationPart
from kvcalc.engines.sglang_layers import Row, Stage
from kvcalc.engines.sglang_setup import Setup, Sizes
from kvcalc.engines.sglang_states import StateSlots
from kvcalc.errors import KvcalcError

EVICTION_INTERVAL = 128
"""Decoded tokens between evictions from a window: SGLANG_SWA_EVICTION_INTERVAL."""


class Pools:
    """The pools of one model under one launch."""

    block_tokens: tuple[int, ...]

    def __init__(
        self, stages: tuple[Stage, ...], setup: Setup, states: StateSlots | None, window: int, draft_windows: int
    ) -> None:
        self.stages, self.setup, self.states, self.window = stages, setup, states, window
        self.draft_windows = draft_windows
        self.has_windows = any(stage.windows for stage in stages)
        self.has_full = any(stage.full for stage in stages)
        self.keeps_tokens = self.has_full or self.has_windows
        self.block_tokens = (setup.page_size,)
        if self.has_windows and setup.dcp > 1:
            raise KvcalcError(
                "--dcp shards no window pool of SGLang", "leave --dcp out, or --disable-hybrid-swa-memory"
            )

    def sizes(self, pool_bytes: int) -> Sizes:
        """The pools that so many bytes on each rank make; all stages take the fewest tokens of any."""
        slots, rest = (None, float(pool_bytes)) if self.states is None else self.states.solve(float(pool_bytes))
        found = [self._stage_sizes(stage, max(0, int(rest))) for stage in self.stages]
        tokens = min(tokens for tokens, _ in found)
        limited = self.setup.limited(tokens)
        windows = min((window for _, window in found if window is not None), default=None)
        if limited < tokens and windows is not None:
            windows = self._windows_for(self.setup.pages(limited), windows)
        if slots is not None and slots <= 0:
            limited = 0
        return self._with_requests(self.setup.pages(limited), windows, slots)

    def _with_requests(self, tokens: int, windows: int | None, slots: int | None) -> Sizes:
        requests = self.setup.running_requests(tokens)
        if slots is not None and self.states is not None:
            requests = min(requests, max(0, slots) // self.states.per_request)
        return Sizes(tokens=tokens, requests=requests, window_tokens=windows, slots=slots)

    def _stage_sizes(self, stage: Stage, rest: int) -> tuple[int, int | None]:
        """Tokens of one stage and those of its windows."""
        setup = self.setup
        if not self.has_windows:
            cell = self._default_cell(stage)
            return (setup.pages(rest // cell) if cell else self._unbounded()), None
        if self._is_capped:
            windows = setup.whole_pages(self._window_cap())
            cell = _bytes(stage.full) + self._draft_bytes(stage)
            return setup.pages(int((rest - windows * self._window_cell(stage)) // cell)), windows
        tokens = setup.pages(self._window_tokens(stage, rest))
        if not self.has_full:
            return tokens, tokens
        return tokens, self._windows_for(tokens, 0)

    def _unbounded(self) -> int:
        """Tokens where no layer keeps any: those of a request."""
        return self.setup.max_total_tokens or self.setup.context_tokens

    def _window_tokens(self, stage: Stage, rest: int) -> int:
        """Tokens of the pool of all tokens, which the window pool follows; of windows themselves without one."""
        full, windows = _bytes(stage.full) + self._draft_bytes(stage), self._window_cell(stage)
        if not self.has_full:
            return int(rest // (full + windows))
        ratio = self.setup.swa_ratio or 0
        if self.setup.release.splits_whole_tokens:
            return int(rest // (full + windows) * (full + windows) / (full + ratio * windows))
        return int(rest // (full + ratio * windows))

    def _windows_for(self, tokens: int, capped: int) -> int:
        """Window tokens beside so many of all layers."""
        if not self.has_full:
            return tokens
        if self._is_capped:
            return min(capped, tokens)
        return self.setup.pages(int(tokens * (self.setup.swa_ratio or 0)))

    @property
    def _is_capped(self) -> bool:
        setup = self.setup
        capped = setup.release.caps_windows and not setup.reuses_prefixes and setup.prefill_tokens > 0
        return capped and setup.asked_requests is not None and self.has_full

    def _window_cap(self) -> int:
        """Window tokens that running requests may hold at most (compute_swa_request_cap)."""
        return window_cap(self.setup, self.window)

    def _draft_layers(self) -> tuple[int, int]:
        """Draft layers that see everything and those with windows."""
        windows = min(self.draft_windows, self.setup.draft_layers) if self.has_windows else 0
        return self.setup.draft_layers - windows, windows

    def _draft_bytes(self, stage: Stage) -> int:
        """Bytes of a token in the drafts that follow the pool of all tokens, beside windows."""
        return self._draft_layers()[0] * (stage.full[0].bytes if stage.full else 0)

    def _window_cell(self, stage: Stage) -> int:
        drafts = self._draft_layers()[1]
        return _bytes(stage.windows) + drafts * (stage.windows[0].bytes if stage.windows else 0)

    def _default_cell(self, stage: Stage) -> int:
        """Bytes of a token in all layers and drafts: a draft layer weighs what a layer does, and has its own index."""
        kept = sum(row.k + row.v for row in stage.full)
        index = max((row.index_key for row in stage.full), default=0)
        drafts = self.setup.draft_layers
        if not stage.full or not drafts:
            return _bytes(stage.full)
        shared = self.setup.dcp if index else 1
        return _bytes(stage.full) + int(kept * drafts / len(stage.full)) * shared + drafts * index

    @property
    def token_bytes(self) -> float:
        """Bytes of one token in the pool of all tokens, else of windows, on the rank that keeps the most."""
        return max(_bytes(stage.full) + self._draft_bytes(stage) or self._window_cell(stage) for stage in self.stages)

    def claim(self, tokens: int) -> tuple[int, int]:
        """Tokens that one request takes of the pool of all tokens and of windows, whose admission adds a page."""
        whole = self.setup.whole_pages(-(-tokens // self.setup.dcp))
        return whole, self.setup.whole_pages(min(tokens, self.window)) + self.setup.page_size

    def needed(self, tokens: int, requests: int) -> Sizes:
        """The smallest pools that take so many requests at once."""
        whole, window = (requests * count for count in self.claim(tokens))
        slots = None if self.states is None else requests * self.states.per_request
        if not self.has_windows:
            return Sizes(tokens=whole, requests=requests, slots=slots)
        if not self.has_full or self._is_capped:
            return Sizes(
                tokens=whole if self.has_full else window, requests=requests, window_tokens=window, slots=slots
            )
        ratio = self.setup.swa_ratio or 1
        whole = max(whole, self.setup.whole_pages(-int(-window // ratio)))
        while self._windows_for(whole, 0) < window:
            whole += self.setup.page_size
        return Sizes(tokens=whole, requests=requests, window_tokens=self._windows_for(whole, 0), slots=slots)

    def parts(self, sizes: Sizes) -> list[AllocationPart]:
        """What is allocated for such pools on the rank that holds the most."""
        return max((list(self._stage_parts(stage, sizes)) for stage in self.stages), key=_total)

    def _stage_parts(self, stage: Stage, sizes: Sizes) -> Iterator[AllocationPart]:
        page, windows = self.setup.page_size, sizes.window_tokens
        if stage.full:
            yield _part("full" if self.has_windows else "tokens", stage.full, sizes.tokens + page)
        if stage.windows and windows is not None:
            yield _part("window", stage.windows, windows + page)
        yield from self._draft_parts(stage, sizes)
        if stage.slots and sizes.slots is not None:
            yield from self._slot_parts(stage, sizes, max(0, sizes.slots))

    def _draft_parts(self, stage: Stage, sizes: Sizes) -> Iterator[AllocationPart]:
        """Drafts have pools of their own with as many tokens, whole on every decode-context rank."""
        full, windows = self._draft_layers()
        cells = (sizes.tokens + self.setup.page_size) * self.setup.dcp
        if not self.has_windows and full and stage.full:
            held = self._default_cell(stage) - _bytes(stage.full)
            held = held * cells // self.setup.dcp
            yield AllocationPart("draft", full, cells, 1, held, {"KV": held})
        elif full and stage.full:
            yield _part("draft", (stage.full[0],) * full, cells)
        if windows and stage.windows and sizes.window_tokens is not None:
            yield _part("draft window", (stage.windows[0],) * windows, sizes.window_tokens + self.setup.page_size)

    def _slot_parts(self, stage: Stage, sizes: Sizes, slots: int) -> Iterator[AllocationPart]:
        """MambaPool: a slot more than there are, and for drafts a state a draft token and request, one more too.

        Windows of a convolution that drafts move through overlap, and are kept once.
        """
        conv, ssm = (sum(getattr(slot, name) for slot in stage.slots) for name in ("conv", "ssm"))
        tensors = {"conv": (slots + 1) * conv, "ssm": (slots + 1) * ssm}
        yield AllocationPart("states", len(stage.slots), slots + 1, 1, sum(tensors.values()), tensors)
        drafts, rows = self.setup.draft_tokens, sizes.requests + 1
        if drafts:
            columns = sum(slot.conv + (drafts - 1) * slot.column_bytes for slot in stage.slots)
            tensors = {"conv": rows * columns, "ssm": rows * drafts * ssm}
            yield AllocationPart("draft states", len(stage.slots), rows, 1, sum(tensors.values()), tensors)


def window_cap(setup: Setup, window: int) -> int:
    """Window tokens that the asked requests may hold at most, prefill chunks in flight included."""
    drafts = setup.draft_tokens
    trailing = window + EVICTION_INTERVAL * max(1, drafts) + setup.page_size
    decoding = 2 * drafts if drafts else setup.page_size
    chunks = 2 if setup.overlaps else 1
    return (trailing + decoding) * (setup.asked_requests or 1) + chunks * setup.prefill_tokens + setup.page_size


def _bytes(rows: tuple[Row, ...]) -> int:
    return sum(row.bytes for row in rows)


def _part(name: str, rows: tuple[Row, ...], cells: int) -> AllocationPart:
    sums = {
        "K": sum(row.k for row in rows),
        "V": sum(row.v for row in rows),
        "index": sum(row.index_key for row in rows),
    }
    if not sums["V"]:
        sums = {"KV": sums["K"], "index": sums["index"]}
    tensors = {side: count * cells for side, count in sums.items() if count}
    return AllocationPart(name, len(rows), cells, 1, sum(tensors.values()), tensors)


def _total(parts: list[AllocationPart]) -> int:
    return sum(part.bytes for part in parts)
