"""From a layer's word to the components of its mixer."""

from collections.abc import Callable, Sequence
from typing import Any

from kvcalc.errors import SpecError, shorten
from kvcalc.model.importers import attention, compressed, states
from kvcalc.model.importers import layer_words as word
from kvcalc.model.importers.attention import Component
from kvcalc.model.importers.fields import Fields


def mixer_of(fields: Fields, kind: str) -> list[Component]:
    """The components of one layer of a kind, and the encoder's K and V where it reads these too."""
    if kind not in _MIXERS:
        raise SpecError(f"{fields.where}: layer type {shorten(kind)!r} is not known", f"known: {', '.join(_MIXERS)}")
    components = [*_MIXERS[kind](fields), *_prompt(fields)]
    crossed = any([fields.flag("is_encoder_decoder"), fields.flag("add_cross_attention")])
    return [*components, attention.cross(fields)] if crossed and components and kind != word.CROSS else components


def _prompt(fields: Fields) -> list[Component]:
    """Entries that every sequence has beside its own tokens'."""
    tokens = fields.count("~prompt_tokens")
    if tokens is None:
        return []
    kept = {key: value for key, value in attention.heads(fields).items() if key != "q_heads"}
    return [{**kept, "kind": "cross", "id": "prompt", "encoder_tokens": tokens, "parameters": 0}]


def draft_word(fields: Fields, words: Sequence[str]) -> str:
    """The kind of a draft layer that the config does not describe: that of the last full layer."""
    if compressed.is_compressed(fields):
        return word.SLIDING
    if (stated := fields.word("~draft_layer_type")) is not None:
        return stated
    full = [kind for kind in words if kind in (word.FULL, word.INDEXED, word.TWICE)]
    return full[-1] if full else words[-1]


def draft_mixer(fields: Fields, kind: str) -> list[Component]:
    """What one draft layer keeps; its attention is one, and its indexer its own."""
    if kind == word.TWICE:
        return [attention.full(fields)]
    if kind == word.INDEXED:
        return [{**attention.indexed(fields)[0]}, attention.index(fields)]
    return mixer_of(fields, kind)


def _full(fields: Fields) -> list[Component]:
    return [compressed.latent_window(fields) if compressed.is_compressed(fields) else attention.full(fields)]


def _sliding(fields: Fields) -> list[Component]:
    return [compressed.latent_window(fields) if compressed.is_compressed(fields) else attention.sliding(fields)]


def _hybrid(fields: Fields) -> list[Component]:
    attended = attention.full(fields)
    return [attended, states.beside(fields, attended)]


def _hybrid_sliding(fields: Fields) -> list[Component]:
    attended = attention.sliding(fields)
    return [attended, states.beside(fields, attended)]


def _shared(fields: Fields) -> list[Component]:
    return [{"kind": "shared", "source": "global", "q_heads": attention.query_heads(fields)}]


_MIXERS: dict[str, Callable[[Fields], list[Any]]] = {
    word.FULL: _full,
    word.SLIDING: _sliding,
    word.CHUNKED: lambda fields: [attention.chunked(fields)],
    word.INDEXED: attention.indexed,
    word.SPARSE_COMPRESSED: lambda fields: compressed.compressed(fields, word.SPARSE_COMPRESSED),
    word.HEAVILY_COMPRESSED: lambda fields: compressed.compressed(fields, word.HEAVILY_COMPRESSED),
    word.LINEAR: lambda fields: [states.linear(fields), *states.n_gram_convolution(fields)],
    word.CONV: lambda fields: [states.short_convolution(fields)],
    word.HYBRID: _hybrid,
    word.HYBRID_SLIDING: _hybrid_sliding,
    word.TWICE: lambda fields: [attention.full(fields), attention.full(fields)],
    word.CROSS: lambda fields: [attention.cross(fields)],
    word.SHARED: _shared,
    word.MEMORY: lambda fields: [{"kind": "gmu"}],
    "rwkv": lambda fields: [states.token_shift(fields)],
    "rwkv4": lambda fields: [states.token_average(fields)],
    word.NONE: lambda fields: [],
    word.MLP: lambda fields: [],
    word.MOE: lambda fields: [],
}
