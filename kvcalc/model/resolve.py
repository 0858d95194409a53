"""From a document to a model: names looked up, patterns unrolled, readers paired with their caches."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from kvcalc.cache.component import Component
from kvcalc.errors import UnknownNameError, nearest
from kvcalc.model.feed_forward import Mlp
from kvcalc.model.spec import Document, Layer, LayerEntry, Mixer, ModelSpec, Read

MOST_LAYERS = 10_000
MOST_COMPONENTS = 64
MOST_NAMES_DEEP = 50
MOST_LEVELS = 150
_MOST_SPELLED_OUT = 10**36
PREVIOUS = "previous"

_Value = TypeVar("_Value")


class ResolveError(Exception):
    """A document that contradicts itself; `key` and `value` let the reader find its line."""

    def __init__(self, message: str, hint: str, key: str, value: object) -> None:
        super().__init__(message)
        self.message, self.hint, self.key, self.value = message, hint, key, value


def resolve(document: Document, overrides: Sequence[str] = ()) -> ModelSpec:
    """The model that `document` describes; ResolveError where names, sources or counts do not work out."""
    stack = _Unroller(document)
    layers, draft, encoder = (
        stack.unroll(items, key)
        for items, key in (
            (document.layers, "layers"),
            (document.draft_layers, "draft_layers"),
            (document.encoder, "encoder"),
        )
    )
    stack.check_unused()
    if document.prefill_layers is not None and document.prefill_layers > len(layers):
        raise ResolveError(
            f"prefill_layers {document.prefill_layers} is more than the {len(layers)} layers",
            "it counts the layers that see the whole prompt",
            "prefill_layers",
            document.prefill_layers,
        )
    kept = {key: getattr(document, key) for key in _PLAIN_KEYS}
    return ModelSpec(
        **kept,
        aliases=tuple(document.aliases),
        layers=layers,
        draft_layers=draft,
        encoder=encoder,
        reads=tuple(_pair_readers(layers + draft)),
        overrides=tuple(overrides),
    )


_SEQUENCES = {"aliases", "layers", "draft_layers", "encoder"}
_PLAIN_KEYS = [
    key for key in ModelSpec.__struct_fields__ if key in Document.__struct_fields__ and key not in _SEQUENCES
]


class _Unroller:
    """Unrolls entries into layers; equal entries become one Layer object."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.layers: dict[int, Layer] = {}
        self.counts: dict[str, int] = {}
        self.heights: dict[str, int] = {}
        self.deepest = 0
        self.mixers: dict[str, tuple[Component, ...]] = {}

    def unroll(self, items: Sequence[LayerEntry | str], key: str) -> tuple[Layer, ...]:
        """The layers of `items` in order, counted by multiplication before any is made."""
        total = self._count_all(items, (), 0)
        if total > MOST_LAYERS:
            counted = f"{total:,}" if total < _MOST_SPELLED_OUT else "more than 10^36"
            raise ResolveError(
                f"{key}: repeats multiply to {counted} layers",
                f"a model has at most {MOST_LAYERS:,}",
                key,
                None,
            )
        return tuple(self._flatten(items))

    def check_unused(self) -> None:
        """Blocks and mixers that no layer names must work out too: a spec is right or wrong as a whole."""
        for name in self.document.blocks:
            self._count_block(name, (), 0)
        for entry in self.document.blocks.values():
            self._components(entry.mixer, ())
            self._mlp(entry.mlp)
        for name in self.document.mixers:
            self._named_mixer(name, ())

    def _count_all(self, items: Iterable[LayerEntry | str], above: tuple[str, ...], depth: int) -> int:
        self.deepest = max(self.deepest, depth)
        if depth > MOST_LEVELS:
            raise ResolveError(f"patterns and blocks nest more than {MOST_LEVELS} deep", "flatten them", "blocks", None)
        return sum(self._count(item, above, depth) for item in items)

    def _count(self, item: LayerEntry | str, above: tuple[str, ...], depth: int) -> int:
        if isinstance(item, str):
            return self._count_block(item, above, depth)
        if item.pattern is None:
            return item.repeat
        return item.repeat * self._count_all(item.pattern, above, depth + 1)

    def _count_block(self, name: str, above: tuple[str, ...], depth: int) -> int:
        if name not in self.counts:
            _refuse_circle("blocks", name, above)
            block = _named("block", name, self.document.blocks, "pattern")
            before, self.deepest = self.deepest, depth
            self.counts[name] = self._count(block, (*above, name), depth + 1)
            self.heights[name] = self.deepest + 1 - depth
            self.deepest = max(before, self.deepest)
        if depth + self.heights[name] > MOST_LEVELS:
            raise ResolveError(f"patterns and blocks nest more than {MOST_LEVELS} deep", "flatten them", "blocks", None)
        self.deepest = max(self.deepest, depth + self.heights[name])
        return self.counts[name]

    def _flatten(self, items: Iterable[LayerEntry | str]) -> list[Layer]:
        layers: list[Layer] = []
        for item in items:
            entry = self.document.blocks[item] if isinstance(item, str) else item
            one = [self._layer(entry)] if entry.pattern is None else self._flatten(entry.pattern)
            layers.extend(one * entry.repeat)
        return layers

    def _layer(self, entry: LayerEntry) -> Layer:
        if id(entry) not in self.layers:
            self.layers[id(entry)] = Layer(
                components=self._components(entry.mixer, ()),
                mlp=self._mlp(entry.mlp),
                norm_vectors=entry.norm_vectors,
                extra_parameters=entry.extra_parameters,
            )
        return self.layers[id(entry)]

    def _mlp(self, mlp: Mlp | str | None) -> Mlp | None:
        return _named("mlp", mlp, self.document.mlps, "mlp") if isinstance(mlp, str) else mlp

    def _components(self, mixer: Mixer | None, above: tuple[str, ...]) -> tuple[Component, ...]:
        if mixer is None:
            return ()
        if isinstance(mixer, list):
            return _few([component for item in mixer for component in self._components(item, above)])
        return self._named_mixer(mixer, above) if isinstance(mixer, str) else (mixer,)

    def _named_mixer(self, name: str, above: tuple[str, ...]) -> tuple[Component, ...]:
        if name not in self.mixers:
            _refuse_circle("mixers", name, above)
            mixer = _named("mixer", name, self.document.mixers, "mixer")
            self.mixers[name] = self._components(mixer, (*above, name))
        return self.mixers[name]


def _few(components: list[Component]) -> tuple[Component, ...]:
    if len(components) > MOST_COMPONENTS:
        message = f"one layer mixes more than {MOST_COMPONENTS} components"
        raise ResolveError(message, "a layer keeps a handful of caches", "mixer", None)
    return tuple(components)


def _named(what: str, name: str, known: dict[str, _Value], key: str) -> _Value:
    if name not in known:
        raise ResolveError(*_as_unknown(what, name, known), key, name)
    return known[name]


def _as_unknown(what: str, name: str, known: Iterable[str]) -> tuple[str, str]:
    error = UnknownNameError(what, name, known)
    return error.message, error.hint or f"name it under {what}s:"


def _refuse_circle(section: str, name: str, above: tuple[str, ...]) -> None:
    if name in above:
        circle = " -> ".join([*above[above.index(name) :], name])
        raise ResolveError(f"{section} name each other in a circle: {circle}", "break the circle", section, None)
    if len(above) >= MOST_NAMES_DEEP:
        raise ResolveError(f"{section} name each other more than {MOST_NAMES_DEEP} deep", "flatten them", section, None)


def _pair_readers(layers: Sequence[Layer]) -> list[Read]:
    """Every reader of another layer's cache with the place that keeps it, nearest earlier one first."""
    reads: list[Read] = []
    labels: dict[str, tuple[int, int]] = {}
    previous: list[tuple[int, int]] = []
    for index, layer in enumerate(layers):
        for position, component in enumerate(layer.components):
            if component.source_label is not None:
                owner = _find_source(component.source_label, labels, previous, layers)
                _check_group(component, layers[owner[0]].components[owner[1]])
                reads.append(Read(layer=index, reader=position, owner_layer=owner[0], owner=owner[1]))
            elif component.id is not None:
                labels[component.id] = (index, position)
        previous = _default_sources(index, layer) or previous
    return reads


def _check_group(reader: Component, source: Component) -> None:
    if (reader.queries or 0) % source.query_group:
        message = f"q_heads {reader.queries} reads `{source.name}` with {source.query_group} KV heads: no multiple"
        raise ResolveError(message, "each KV head serves a whole group of query heads", "q_heads", reader.queries)


def _default_sources(index: int, layer: Layer) -> list[tuple[int, int]]:
    return [(index, position) for position, one in enumerate(layer.components) if one.is_default_source]


def _find_source(
    label: str, labels: dict[str, tuple[int, int]], previous: list[tuple[int, int]], layers: Sequence[Layer]
) -> tuple[int, int]:
    if label == PREVIOUS:
        return _only_previous(previous)
    if label not in labels:
        raise ResolveError(*_why_missing(label, labels, layers), "source", label)
    layer, position = labels[label]
    if not layers[layer].components[position].keeps_entries:
        raise ResolveError(f"source: {label} keeps no entries to read", "name a kv or latent cache", "source", label)
    return labels[label]


def _only_previous(previous: list[tuple[int, int]]) -> tuple[int, int]:
    if not previous:
        raise ResolveError(
            "source: previous, and no earlier layer keeps a kv or latent cache",
            "the layer that owns the cache stands before those that read it",
            "source",
            PREVIOUS,
        )
    if len(previous) > 1:
        raise ResolveError(
            f"source: previous, and layer {previous[0][0]} keeps {len(previous)} caches",
            "give the one that is meant an id: and name that",
            "source",
            PREVIOUS,
        )
    return previous[0]


def _why_missing(label: str, labels: Iterable[str], layers: Sequence[Layer]) -> tuple[str, str]:
    everywhere = {one.id: one for layer in layers for one in layer.components if one.id}
    if label in everywhere and everywhere[label].source_label is not None:
        return f"source: {label} is a reader itself and keeps nothing", "name the cache that it reads"
    if label in everywhere:
        return f"source: {label} stands in a later layer", "a layer reads caches that stand before it"
    near = nearest(label, everywhere)
    hint = f"did you mean {' or '.join(near)}?" if near else "give the cache that is meant an id:"
    return f"source: {label} names no component", hint
