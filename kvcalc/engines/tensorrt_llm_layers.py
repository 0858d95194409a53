"""What the layers of a model weigh in TensorRT-LLM's pools: bytes of a token by attention window, states of a request.

Read in tensorrt_llm/_torch/pyexecutor/resource_manager.py, KVCacheManager (commit 001541bad83b, a candidate of 1.3, and
d2a5560abdad, of 1.1), and in mamba_cache_manager.py beside it. Whether TensorRT-LLM can load a model is not asked here.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kvcalc.cache.component import MODEL_FORMAT, Component
from kvcalc.cache.formats import find_format
from kvcalc.cache.span import State
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import components_of

NAME = "TensorRT-LLM"

FORMATS = {"fp32", "bf16", "fp16", "fp8", "int8", "nvfp4"}
"""Formats of a cache; FP4 has an FP8 scale for 16 values beside it (calculate_scaling_factor_size_bytes)."""

ONE_BYTE = {"fp8_ds_mla": "fp8"}
"""Formats of another engine that a spec may mean by the name that was asked for."""

INDEX_BLOCK = 128
"""Values of an index key that share an fp32 scale."""

_NEED = "leave --engine out for the need alone"


class Stage(msgspec.Struct, frozen=True):
    """One pipeline stage on one rank: bytes of a token by window, and bytes of the states of one request."""

    token_bytes: dict[int, int]
    state_bytes: int

    def fitted(self, pool_bytes: int) -> "Stage":
        """The same with windows made shorter until one sequence fits, where there are several and it does not.

        They grow together, the shortest first, until the bytes are spent; those that end alike become one
        (adjust_window_sizes_for_vswa).
        """
        if len(self.token_bytes) < 2 or sum(w * count for w, count in self.token_bytes.items()) < pool_bytes:
            return self
        left, reached, before = max(0, pool_bytes), 0, 0
        fitted: dict[int, int] = {}
        for window, token_bytes in sorted(self.token_bytes.items()):
            together = sum(count for other, count in self.token_bytes.items() if other >= window)
            step = min(left // together, window - before)
            reached, before = reached + step, window
            left = left - step * together if reached == window else 0
            fitted[reached] = fitted.get(reached, 0) + token_bytes
        return msgspec.structs.replace(self, token_bytes=fitted)


def stages_on_rank(size: CacheSize, windows: Sequence[int], keeps_state_dtype: bool) -> list[Stage]:
    """The stages of the model; `windows` stand for the layers with a cache in turn, again and again.

    KvcalcError for what those managers do not hold, or hold in a way that was not read.
    """
    _check(size)
    return [_stage(size, layers, windows, keeps_state_dtype) for layers in _split(size)]


def _check(size: CacheSize) -> None:
    if size.sharding.dcp > 1:
        raise KvcalcError(f"{NAME} has no decode-context parallelism here", "leave --dcp out")
    for component in components_of(size.layers):
        if component.is_encoder_fed or component.span.ratio > 1:
            what = "an encoder's tokens" if component.is_encoder_fed else "compressed entries"
            raise KvcalcError(f"what {NAME} does with {what} (`{component.name}`) is not known here", _NEED)
    parts = [part for component in components_of(size.layers) for part in component.parts(size.sharding)]
    shapes = sorted({part.width for part in parts if part.name in {"k", "v"}})
    if len(shapes) > 1:
        widths = " and ".join(map(str, shapes))
        raise KvcalcError(f"{NAME} holds heads of one width in this manager, and these are {widths}", _NEED)


def _split(size: CacheSize) -> Iterator[list[Component]]:
    """The components of each stage: as many layers each, the first stages one more; drafts on the last.

    Mapping.pp_layers and get_pp_layers.
    """
    pp, count = size.sharding.pp, len(size.spec.layers)
    each, rest = divmod(count, pp)
    for stage in range(pp):
        first = stage * each + min(stage, rest)
        end = len(size.layers) if stage == pp - 1 else first + each + (stage < rest)
        yield components_of(size.layers[first:end])


def _stage(size: CacheSize, held: Iterable[Component], windows: Sequence[int], keeps_state_dtype: bool) -> Stage:
    held = list(held)
    index = sum(_index_bytes(one, size) for one in held if one.selects)
    cached = [one for one in held if one.keeps_entries and not one.selects]
    token_bytes: dict[int, int] = {}
    for place, component in enumerate(cached):
        window = windows[place % len(windows)]
        token_bytes[window] = token_bytes.get(window, 0) + _entry_bytes(component, size)
    if index:
        token_bytes[windows[0]] = token_bytes.get(windows[0], 0) + index
    states = sum(_state_bytes(state, size, keeps_state_dtype) for one in held for state in one.states(size.sharding))
    return Stage(token_bytes, states)


def _entry_bytes(component: Component, size: CacheSize) -> int:
    """K and V of one token in one layer, or its latent, which has no V (kv_factor 1)."""
    name = size.packer.entry_format(component).name
    name = ONE_BYTE.get(name, name)
    if name not in FORMATS:
        raise KvcalcError(f"{NAME} has no cache in {name} (`{component.name}`)", f"it has {', '.join(sorted(FORMATS))}")
    return find_format(name).entry_bytes(component.parts(size.sharding), component.name)


def _index_bytes(component: Component, size: CacheSize) -> int:
    """An index key in FP8 and its scales, under every --kv-dtype (DSACacheManager.get_cache_bytes_per_token)."""
    (part,) = component.parts(size.sharding)
    return part.width + part.width // INDEX_BLOCK * 4


def _state_bytes(state: State, size: CacheSize, keeps_state_dtype: bool) -> int:
    """A convolution is in the model's format, a state in that of its own where the config names one.

    validate_and_set_mamba_ssm_cache_dtype; 1.1 knows the model's format alone.
    """
    packer = size.packer
    own = (packer.spec_state_dtype if keeps_state_dtype else None) or packer.dtype
    name = packer.dtype if state.format == MODEL_FORMAT else packer.asked_state_dtype or own
    return find_format(name).bulk_bytes(state.values, state.name)
