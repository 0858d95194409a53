"""Layers that read an earlier layer's K and V: which reads which, and how a spec says so."""

from collections.abc import Sequence
from typing import Any

from kvcalc.errors import SpecError
from kvcalc.model.importers.fields import Fields
from kvcalc.model.importers.layer_words import SHARED

Mixer = list[dict[str, Any]]
_KEPT = ("kv", "latent")


def shared_sources(fields: Fields, words: Sequence[str]) -> dict[int, int]:
    """For each layer that keeps no K and V of its own, the layer whose it reads."""
    for read in (_last_layers, _listed, _neighbours, _one_cache):
        sources = read(fields, words)
        if sources:
            return sources
    return {}


def _last_layers(fields: Fields, words: Sequence[str]) -> dict[int, int]:
    """Gemma 3n and 4: the last k layers read the last earlier layer of their own type."""
    count = fields.count("num_kv_shared_layers", least=0) or 0
    first = len(words) - count
    if count and first < 1:
        message = f"{fields.where}: num_kv_shared_layers {count} of {len(words)} layers"
        raise SpecError(message, "some layers must keep what others read")
    sources = {}
    for layer in range(first, len(words)) if count else ():
        owners = [index for index in range(first) if words[index] == words[layer]]
        if not owners:
            message = f"{fields.where}: layer {layer} shares K and V, and no earlier layer is a {words[layer]}"
            raise SpecError(message, "check num_kv_shared_layers and layer_types")
        sources[layer] = owners[-1]
    return sources


def _listed(fields: Fields, words: Sequence[str]) -> dict[int, int]:
    """Mistral Large 4: for each layer the one whose cache it reads, itself where it keeps one."""
    listed = fields.counts("kv_source_layers")
    if listed is None:
        return {}
    if len(listed) < len(words):
        message = f"{fields.where}: {len(listed)} kv_source_layers for {len(words)} layers"
        raise SpecError(message, "one is needed for each layer")
    for layer, source in enumerate(listed[: len(words)]):
        if source > layer or listed[source] != source:
            message = f"{fields.where}: kv_source_layers has layer {layer} read layer {source}, which keeps nothing"
            raise SpecError(message, "a source is an earlier layer that names itself")
    return {layer: source for layer, source in enumerate(listed[: len(words)]) if source != layer}


def _neighbours(fields: Fields, words: Sequence[str]) -> dict[int, int]:
    """Cross-layer attention: of every f neighbours the first keeps K and V for all."""
    factor = fields.count("cla_share_factor")
    if not fields.flag("use_cla") or factor is None:
        return {}
    return {layer: layer - layer % factor for layer in range(len(words)) if layer % factor}


def _one_cache(fields: Fields, words: Sequence[str]) -> dict[int, int]:
    """SambaY: the upper half reads the last full cache of the lower one."""
    readers = [layer for layer, word in enumerate(words) if word == SHARED]
    owners = [layer for layer, word in enumerate(words) if "full" in word]
    return {layer: max(owner for owner in owners if owner < layer) for layer in readers if owners}


def share(mixers: Sequence[Mixer], sources: dict[int, int]) -> list[Mixer]:
    """The same layers, with readers in place of the caches that they do not keep.

    An id means the nearest earlier component of that name; where that is another layer, the source gets one of its own.
    """
    shared = [list(mixer) for mixer in mixers]
    names = {layer: _label(mixer) for layer, mixer in enumerate(mixers) if layer not in sources}
    for layer, source in sources.items():
        nearest = max((owner for owner in names if owner < layer and names[owner] == names[source]), default=source)
        if nearest != source:
            names[source] = f"layer-{source}"
    for owner, name in names.items():
        shared[owner] = [{**part, "id": name} if part["kind"] in _KEPT else part for part in shared[owner]]
    for layer, source in sources.items():
        reader = {"kind": "shared", "source": names[source]}
        shared[layer] = [_reader(part, reader) for part in shared[layer]] or [reader]
    return shared


def _label(mixer: Mixer) -> str:
    kept = [part for part in mixer if part["kind"] in _KEPT]
    return "window" if kept and "window" in kept[0] else "global"


def _reader(part: dict[str, Any], reader: dict[str, Any]) -> dict[str, Any]:
    if part["kind"] not in (*_KEPT, "shared"):
        return part
    own = {key: part[key] for key in ("q_heads", "top_k") if part.get(key) is not None}
    return {**reader, **own}
