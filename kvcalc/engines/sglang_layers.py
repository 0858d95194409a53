"""What SGLang keeps for the layers of a model: bytes of a token in a pool, and of a sequence in a slot.

Read in SGLang 0.5.23: srt/mem_cache/memory_pool.py for the buffers, srt/model_executor/pool_configurator.py
(DefaultPoolConfigurator._compute_cell_size, HybridSWAPoolConfigurator), srt/configs/mamba_utils.py for states.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.formats import Format, find_format
from kvcalc.cache.sharding import WHOLE
from kvcalc.engines.sglang_setup import Setup
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import Layer
from kvcalc.sizing.need import CacheSize

FORMATS = ("bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4")
"""What --kv-cache-dtype and the model's own dtype may come to, as kvcalc calls it."""

FP8 = {"fp8", "fp8_ds_mla"}
CONVOLUTION = "bf16"
"""SGLANG_MAMBA_CONV_DTYPE, whatever the model is in."""

STATES = {("conv", "ssm"), ("conv", "delta"), ("linear",), ("conv",)}
"""Mamba, gated delta rules, lightning attention, short convolutions."""

_NEED = "leave --engine out for the need alone"


class Row(NamedTuple):
    """Bytes of one token in one layer of a pool: K and V, or a latent as `k`; `index_key` the indexer's key."""

    k: int
    v: int = 0
    index_key: int = 0

    @property
    def bytes(self) -> int:
        return self.k + self.v + self.index_key


class Slot(NamedTuple):
    """Bytes of one sequence's states in one layer; `column_bytes` is one column of the convolution."""

    conv: int
    ssm: int
    column_bytes: int

    @property
    def bytes(self) -> int:
        return self.conv + self.ssm


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank of one pipeline stage keeps: rows of layers that see everything, of windows, and states."""

    full: tuple[Row, ...]
    windows: tuple[Row, ...]
    slots: tuple[Slot, ...]


def stages_of(size: CacheSize, setup: Setup) -> tuple[Stage, ...]:
    """The stages of a model, drafts left out; KvcalcError for what SGLang refuses or is not known here."""
    layers = size.spec.layers
    reader = _Reader(size, setup)
    return tuple(reader.stage(first, layers[first:end]) for first, end in cuts_of(size))


def cuts_of(size: CacheSize) -> list[tuple[int, int]]:
    """First and last-plus-one layer of each stage; left-over layers go to the last ones (get_pp_indices)."""
    layers, pp = len(size.spec.layers), size.sharding.pp
    if pp > layers:
        raise KvcalcError(f"--pp {pp}: there are only {layers} layers", f"use at most --pp {layers}")
    each, more = divmod(layers, pp)
    ends = [each * (stage + 1) + max(0, stage + 1 - (pp - more)) for stage in range(pp)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


class _Reader:
    """Layers of one model as rows and slots."""

    def __init__(self, size: CacheSize, setup: Setup) -> None:
        self.size, self.setup = size, setup
        self.sources = size.spec.source_of()
        kept = [one for layer in size.spec.layers for one in layer.components]
        self.has_states = any(one.states(WHOLE) for one in kept)
        self.has_index = any(one.selects for one in kept)
        self.attention = [one for one in kept if one.keeps_entries and not one.selects]
        self.splits_windows = setup.swa_ratio is not None
        _check(kept, setup)

    def stage(self, first: int, layers: Sequence[Layer]) -> Stage:
        """The rows and slots of one stage, which begins at layer `first`."""
        found = [self._rows(first + place, layer) for place, layer in enumerate(layers)]
        full = tuple(row for rows, _ in found for row in rows)
        windows = tuple(row for _, rows in found for row in rows)
        return Stage(full=full, windows=windows, slots=tuple(self._slots(layers)))

    def _rows(self, place: int, layer: Layer) -> tuple[list[Row], list[Row]]:
        """Rows of one layer in the pool of all tokens and in that of windows."""
        kept = [one for one in self._attention(place, layer) if not one.selects]
        index = sum(self._index_bytes(one) for one in layer.components if one.selects)
        rows = [self._row(one, index if number == 0 else 0) for number, one in enumerate(kept)]
        bounded = [self.splits_windows and one.span.cap is not None for one in kept]
        split = list(zip(rows, bounded, strict=True))
        return [row for row, is_window in split if not is_window], [row for row, is_window in split if is_window]

    def _attention(self, place: int, layer: Layer) -> list[Component]:
        """What the layer keeps; where it keeps nothing, what it reads elsewhere, or what others keep.

        A pool has buffers for every layer of its model (num_effective_layers), unless some of them keep states.
        """
        own = [one for one in layer.components if one.keeps_entries]
        if own or self.has_states:
            return own
        read = [self.sources.get((place, position)) for position in range(len(layer.components))]
        return [one for one in read if one is not None and one.keeps_entries] or self.attention[:1]

    def _row(self, component: Component, index: int) -> Row:
        parts = component.parts(self.setup.heads)
        form = self._format(component)
        if is_latent(component):
            # MLA's row under FP8 is plain; beside an indexer it has scales and a rotary part in bf16.
            packed = find_format("fp8_ds_mla") if self.has_index and form.name == "fp8" else form
            return Row(k=packed.entry_bytes(parts, component.name), index_key=index)
        k, v = (form.entry_bytes([part], component.name) for part in parts)
        return Row(k, v, index)

    def _format(self, component: Component) -> Format:
        form = self.size.packer.entry_format(component)
        name = "fp8" if form.name in FP8 else form.name
        if name not in FORMATS:
            known = "bf16, fp8, mxfp8 and nvfp4"
            raise KvcalcError(f"SGLang keeps no cache in {form.name} (`{component.name}`)", f"--kv-dtype takes {known}")
        if is_latent(component) and (name == "mxfp8" or (name == "nvfp4" and self.has_index)):
            raise KvcalcError(f"SGLang has no {name} for the latent `{component.name}`", "use --kv-dtype fp8 or bf16")
        return find_format(name)

    def _index_bytes(self, component: Component) -> int:
        """A key in FP8 with an fp32 scale for every 128 values, on every decode-context rank (DSATokenToKVPool)."""
        (part,) = component.parts(WHOLE)
        return (part.width + part.width // 128 * 4) * self.setup.dcp

    def _slots(self, layers: Iterable[Layer]) -> Iterable[Slot]:
        for component in (one for layer in layers for one in layer.components):
            states = component.states(self.setup.states)
            if not states:
                continue
            conv = [state for state in states if state.is_convolution]
            ssm = sum(
                find_format(self.size.packer.state_format(state)).bulk_bytes(prod(state.shape), state.name)
                for state in states
                if not state.is_convolution
            )
            width = find_format(CONVOLUTION).bulk_bytes(1, CONVOLUTION)
            yield Slot(
                conv=sum(state.values for state in conv) * width,
                ssm=ssm,
                column_bytes=sum(state.width for state in conv) * width,
            )


def is_latent(component: Component) -> bool:
    """Whether an entry is one vector, without a V of its own: MLA and its kin."""
    return "v" not in {part.name for part in component.parts(WHOLE)}


def _check(kept: Sequence[Component], setup: Setup) -> None:
    """KvcalcError, by name, for caches that are not known here and for heads that do not divide."""
    latent = any(is_latent(one) for one in kept if one.keeps_entries and not one.selects)
    for one in kept:
        names = tuple(state.name for state in one.states(WHOLE))
        if names and names not in STATES:
            raise KvcalcError(f"--engine sglang does not know the states {' and '.join(names)} of `{one.name}`", _NEED)
        if one.is_encoder_fed:
            raise KvcalcError(f"--engine sglang does not know the cross cache `{one.name}`", _NEED)
        if one.selects and not latent:
            raise KvcalcError(f"--engine sglang knows the index keys `{one.name}` beside MLA alone", _NEED)
        _check_heads(one, setup)


def _check_heads(component: Component, setup: Setup) -> None:
    tp = (setup.states if component.states(WHOLE) else setup.heads).tp
    for name, heads in component.shared_heads():
        if heads % tp and not (name in {"KV heads", "state groups"} and tp % heads == 0):
            raise KvcalcError(
                f"--tp leaves {tp} ranks to {heads} {name} of `{component.name}`", "take a --tp that divides"
            )
