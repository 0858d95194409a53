"""llama.cpp: what it allocates for the cache when a context is made, whatever is in it later.

Read in build b11549 and held against it; figures are those of the log's `size = ... MiB` lines, all devices together.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from kvcalc.cache.component import MODEL_FORMAT, Component
from kvcalc.cache.formats import Format, find_format
from kvcalc.cache.layout import Part
from kvcalc.cache.sharding import WHOLE
from kvcalc.engines.engine import Allocation, AllocationPart, Capacity, Card, Engine
from kvcalc.engines.held import held_capacity
from kvcalc.engines.llama_cpp_devices import Devices, check_spread
from kvcalc.engines.llama_cpp_types import (
    DEFAULT_TYPE,
    NAME,
    NEED,
    PAD,
    Types,
    is_from_gguf,
    kept_as,
    padded,
    row_of,
    sliding_window,
    v_width,
)
from kvcalc.engines.overhead_rules import LLAMA_CPP, OverheadRules
from kvcalc.engines.ranges import COUNT, NOT_NEGATIVE, Range
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import components_of
from kvcalc.units import memory

MOST_SLOTS = 256  # LLAMA_MAX_SEQ of llama-cparams.h
MOST_CELLS = 2**31 - 1  # -c is a 32-bit number
COMPRESSED = {4: "csa", 128: "hca"}  # caches of compressed entries by ratio: llama_kv_cache_dsv4 (DeepSeek-V4)
_ORDER = ("full", "window", "csa", "hca", "index")
_Placed = tuple[int, Component]  # behind the place of its layer in the model


class LlamaCpp(Engine, frozen=True, kw_only=True):
    """The rules of one build; `ctx_size` is the total over all slots, None for slots x context."""

    ctx_size: int | None = None
    batch_size: int = 2048
    ubatch_size: int = 512
    flash_attn: bool = True
    kv_unified: bool = False
    swa_full: bool = False
    mla: bool = True
    """Whether a latent is kept: not of a GGUF from before April 2025, which lacks MLA's own tensors."""
    spec_draft_n_max: int = 0
    tensor_split: tuple[float, ...] = ()
    """Shares of the devices; without them caches are not told apart by device."""
    n_gpu_layers: int | None = None

    name: ClassVar[str] = NAME
    step_flag: ClassVar[str] = "batch_size"
    sharing_flag: ClassVar[str] = "kv_unified"
    versions: ClassVar[tuple[str, ...]] = ("b11549",)
    overheads: ClassVar[OverheadRules] = LLAMA_CPP
    ranges: ClassVar[Mapping[str, Range]] = {
        **dict.fromkeys(("ctx_size", "batch_size", "ubatch_size"), COUNT),
        **dict.fromkeys(("spec_draft_n_max", "n_gpu_layers"), NOT_NEGATIVE),
    }
    spreads_layers: ClassVar[bool] = True
    model_suffix: ClassVar[str] = ".gguf"
    kv_formats: ClassVar[tuple[str, ...]] = ("q8_0", "q5_1", "q4_0")
    weight_formats: ClassVar[tuple[str, ...]] = ("q8_0", "q5_0", "q4_0")

    def allocate(self, size: CacheSize) -> Allocation:
        """What a context holds, in bytes, for all slots; KvcalcError for what llama.cpp refuses."""
        _check(size, self)
        slots = size.workload.batch
        context = _Context(size, self, slots)
        parts = tuple(context.parts())
        held = sum(part.bytes for part in parts)
        spread = context.devices.rules([part.devices for part in parts])
        rules = [*context.rules(), *spread, *_cheaper_with_more(size, self, held)]
        return Allocation(self.name, self.version, held, tuple(rules), parts)

    def held_bytes(self, size: CacheSize) -> int:
        """Bytes of all parts, without the rules."""
        _check(size, self)
        return sum(part.bytes for part in _Context(size, self, size.workload.batch).parts())

    def capacity(self, size: CacheSize, pool_bytes: int) -> Capacity:
        """What fits into that memory: a context takes all of its cells when it is made, and no pool beside."""
        slots = max(1, min(MOST_SLOTS, MOST_CELLS // size.workload.context_tokens))
        return held_capacity(self.held_bytes, size, pool_bytes, slots)

    def pool_bytes(self, card: Card, size: CacheSize) -> int:
        """All that is left, in bytes: it sets nothing aside. KvcalcError where cards do not share it alike."""
        check_spread(self.tensor_split, self.n_gpu_layers, len(size.layers))
        return card.left_bytes

    @property
    def named_cards(self) -> int | None:
        """Those that -ts has shares of."""
        return len(self.tensor_split) or None


def _check(size: CacheSize, flags: LlamaCpp) -> None:
    slots = size.workload.batch
    if size.ranks > 1:
        hint = "leave --tp, --pp, --dp and --dcp out: its figures are for all devices together"
        raise KvcalcError(f"{NAME} spreads layers over devices, not a cache over ranks", hint)
    if slots > MOST_SLOTS:
        raise KvcalcError(f"-np {slots:,}: {NAME} has at most {MOST_SLOTS} slots", f"use at most -np {MOST_SLOTS}")
    if _asked_cells(size, flags) > MOST_CELLS:
        raise KvcalcError(f"-c {_asked_cells(size, flags):,} is past 32 bits", f"{NAME} takes at most {MOST_CELLS:,}")
    for component in components_of(size.layers):
        if component.span.ratio not in {1, *COMPRESSED}:
            known = " and ".join(map(str, COMPRESSED))
            raise KvcalcError(f"{NAME} compresses by {known}, and `{component.name}` by {component.span.ratio}", NEED)


def _asked_cells(size: CacheSize, flags: LlamaCpp) -> int:
    """The total, where it is what the slots share; a context or a batch that was varied since counts by itself."""
    slots, context = size.workload.batch, size.workload.context_tokens
    if flags.ctx_size is not None and flags.ctx_size // slots == context:
        return flags.ctx_size
    return context * slots


def _cheaper_with_more(size: CacheSize, flags: LlamaCpp, held: int) -> Iterator[str]:
    """A rule that says so where the next power of two of slots takes less for the same -c."""
    slots, total = size.workload.batch, _asked_cells(size, flags)
    more = 1 << slots.bit_length()
    if flags.kv_unified or more > min(MOST_SLOTS, total):
        return
    fewer = sum(part.bytes for part in _Context(size, flags, more).parts())
    if fewer < held:
        yield (
            f"{slots} slots cost more than {more}: -np {more} takes {memory(fewer)} for the same {total:,} tokens, "
            "since less is padded"
        )


class _Context:
    """One llama_context: its cells, its caches, and the rules that were met."""

    def __init__(self, size: CacheSize, flags: LlamaCpp, slots: int) -> None:
        self.size, self.flags, self.slots = size, flags, slots
        self.types = Types(size, flags.flash_attn)
        self.asked = _asked_cells(size, flags)
        # llama_context::llama_context: the total is padded, then the share of a slot.
        self.cells = padded(padded(self.asked) // (1 if flags.kv_unified else slots))
        self.ubatch = min(self.asked, flags.batch_size, flags.ubatch_size)
        kept = [[kept_as(one, flags.mla) for one in layer.components] for layer in size.layers]
        self.placed = [(place, one) for place, components in enumerate(kept) for one in components]
        own = len(size.spec.layers)
        self.main, self.draft = ([one for layer in part for one in layer] for part in (kept[:own], kept[own:]))
        # A GGUF says which draft layers it holds; of others they are what was counted.
        drafts = size.spec.draft_layers if is_from_gguf(size.spec) else size.layers[own:]
        self.devices = Devices(flags.tensor_split, flags.n_gpu_layers, own + len(drafts))
        self.slides = sliding_window(size.spec, self.main)
        self.compressed = [one for one in self.main if one.span.ratio > 1]
        # llama_kv_cache_dsv4 keeps a stream a slot even where --kv-unified gives each of them all cells.
        self.is_shared = flags.kv_unified and not self.compressed
        self.streams = 1 if self.is_shared else slots

    def parts(self) -> Iterator[AllocationPart]:
        """Every cache of the context, in the order of the log."""
        own = len(self.main)
        yield from self._caches(self.placed[:own], "", (self.types.k, self.types.v))
        yield from self._compressors()
        yield from self._states()
        # The type of a draft context is -ctkd's, f16 by default.
        yield from self._caches(self.placed[own:], "draft ", (find_format(DEFAULT_TYPE),) * 2)

    def _caches(self, placed: Iterable[_Placed], prefix: str, forms: tuple[Format, Format]) -> Iterator[AllocationPart]:
        kept: dict[tuple[str, int], list[_Placed]] = {}
        for place, one in placed:
            if one.keeps_entries and not one.is_encoder_fed:
                kept.setdefault(self._cache_of(one), []).append((place, one))
        for (name, cells), alike in sorted(kept.items(), key=lambda item: _ORDER.index(item[0][0])):
            yield self._cache(prefix + name, alike, cells, forms)

    def _cache_of(self, component: Component) -> tuple[str, int]:
        """The cache that a component lies in, and its cells a stream."""
        ratio = component.span.ratio
        cells = self.cells if ratio == 1 else padded(-(-self.cells // ratio))
        if component.selects:
            return "index", cells
        if component.span.cap is not None and self.slides:
            return "window", self._window_cells()
        return "full" if ratio == 1 else COMPRESSED[ratio], cells

    def _cache(self, name: str, alike: list[_Placed], cells: int, forms: tuple[Format, Format]) -> AllocationPart:
        """llama_kv_cache::llama_kv_cache: a tensor for K and one for V a layer, cells x streams long."""
        rows = cells * self.streams
        distinct = {id(one): one for _, one in alike}
        of_k = {key: rows * self.types.row_bytes(one, "k", forms[0]) for key, one in distinct.items()}
        of_v = {key: rows * self._v_bytes(one, forms[1]) for key, one in distinct.items()}
        k, v = ([(place, of[id(one)]) for place, one in alike] for of in (of_k, of_v))
        return self._part(name, cells, self.streams, {"K": k, "V": v})

    def _part(self, name: str, cells: int, streams: int, tensors: dict[str, list[tuple[int, int]]]) -> AllocationPart:
        """One cache, of the bytes that each tensor has in each layer."""
        layers = {place for sizes in tensors.values() for place, _ in sizes}
        held = {tensor: sum(size for _, size in sizes) for tensor, sizes in tensors.items()}
        spread = self.devices.held(of_layer for sizes in tensors.values() for of_layer in sizes)
        return AllocationPart(name, len(layers), cells, streams, sum(held.values()), held, spread)

    def _v_bytes(self, component: Component, form: Format) -> int:
        """V of one cell: without flash attention as wide as the widest layer's (n_embd_v_gqa_max)."""
        own = self.types.row_bytes(component, "v", form)
        return own if self.flags.flash_attn or not own else form.entry_bytes([Part("v", 1, self._widest_v())], "v")

    def _widest_v(self) -> int:
        held = components_of(self.size.spec.layers + self.size.spec.draft_layers)
        return max(v_width(kept_as(one, self.flags.mla)) for one in held)

    def _window_cells(self) -> int:
        """llama_kv_cache_iswa: the window, of every slot where they share a stream, and a batch; at most all."""
        if self.flags.swa_full:
            return self.cells
        windows = self.slides * (self.slots if self.is_shared else 1)
        return padded(min(self.cells, windows + self.ubatch))

    def _compressors(self) -> Iterator[AllocationPart]:
        """llama_dsv4_comp_state: f32 rows of values and scores for an entry's tokens, or two entries' that overlap."""
        alike: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for place, one in self.placed[: len(self.main)]:
            if one.span.ratio == 1:
                continue
            twice = 2 if one.overlaps else 1
            rows, width = twice * one.span.ratio, twice * sum(part.width for part in one.parts(WHOLE))
            held = rows * width * 4 * self.slots * (1 + self.flags.spec_draft_n_max)
            alike.setdefault((f"{self._cache_of(one)[0]} state", rows), []).append((place, held))
        for (name, rows), sizes in alike.items():
            yield self._part(name, rows, self.slots, {"values": sizes, "scores": sizes})

    def _states(self) -> Iterator[AllocationPart]:
        """llama_memory_recurrent: R (convolutions and shifts) and S in f32, a row a slot and draft token."""
        row_bytes = 4 * self.slots * (1 + self.flags.spec_draft_n_max)
        tensors: dict[str, list[tuple[int, int]]] = {"R": [], "S": []}
        for place, one in self.placed[: len(self.main)]:
            for state in one.states(WHOLE):
                tensor = "R" if state.is_convolution or state.format == MODEL_FORMAT else "S"
                tensors[tensor].append((place, state.values * row_bytes))
        if any(tensors.values()):
            yield self._part("states", self.slots, 1, tensors)

    def rules(self) -> Iterator[str]:
        """What an answer should say, most surprising first."""
        kept = [one for one in self.main if one.keeps_entries and not one.is_encoder_fed]
        if kept:
            yield self._cells_rule()
        if self.size.packer.request.everywhere is None and not self.size.packer.request.by_name and kept:
            yield "K and V are f16 where -ctk and -ctv say nothing else"
        if any(one.span.cap is not None and not one.selects for one in kept):
            yield self._window_rule()
        if any(not row_of(one, "v") and not one.selects for one in kept):
            yield "a latent lies in K alone: there is no V, with flash attention or without"
        if not self.flags.flash_attn and len({v_width(one) for one in kept if row_of(one, "v")}) > 1:
            yield f"without flash attention V of every layer is as wide as the widest, {self._widest_v():,} values"
        if not self.flags.mla:
            yield "--no-mla: K and V of every head, as for a GGUF without MLA's own tensors (before April 2025)"
        if self.compressed:
            yield "every slot has streams of its own, and compressors keep the rows that they are filling in f32"
        yield from self._state_rules()
        if any(one.is_encoder_fed for one in self.main):
            yield "what the encoder leaves is no part of the cache"
        if self.draft:
            yield "draft layers have a context of their own, in f16"

    def _cells_rule(self) -> str:
        where = "in 1 slot" if self.slots == 1 else f"in each of {self.slots} slots"
        asked = self.asked // (1 if self.flags.kv_unified else self.slots)
        more = "" if self.cells == asked else f": padded to a multiple of {PAD} from {asked:,}"
        return f"{self.cells:,} cells {'shared by all slots' if self.is_shared and self.slots > 1 else where}{more}"

    def _window_rule(self) -> str:
        if not self.slides:
            return "the window is ignored: its architecture for such a model (llama, qwen2, phi3, starcoder2) has none"
        if self.flags.swa_full:
            return "--swa-full: windows keep everything"
        of_slots = f"{self.slots} x " if self.is_shared and self.slots > 1 else ""
        return (
            f"a window keeps {of_slots}{self.slides:,} tokens and a batch of {self.ubatch:,} (-ub), padded to {PAD}, "
            f"at most all: {self._window_cells():,} cells"
        )

    def _state_rules(self) -> Iterator[str]:
        recurrent, drafts = any(one.states(WHOLE) for one in self.main), self.flags.spec_draft_n_max
        if recurrent:
            yield "states and convolutions are f32, once for every slot"
        if drafts and (recurrent or self.compressed):
            yield f"{1 + drafts} rows of every state, for roll-back: Qwen3.5, Nemotron-H, DeepSeek-V4; others keep one"
        elif drafts:
            yield "--spec-draft-n-max changes nothing: there is no state to roll back"
