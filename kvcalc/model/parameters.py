"""Parameter counts from a spec: all of them, and those that one token passes through."""

from collections.abc import Iterable

import msgspec

from kvcalc.cache.component import Component
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import Layer, Mlp, ModelSpec


class ParameterCount(msgspec.Struct, frozen=True):
    """`total` parameters held and `active` ones a token is multiplied with, None where unknown, with the reason.

    Active leaves out the experts that a token is not routed to, and tables of which it reads a row:
    positions, `lookup_parameters`, and the input embedding unless it is the LM head too.
    """

    total: int | None
    active: int | None
    unknown: str = ""


class _UnknownError(Exception):
    """A size that the spec does not state."""


def count_parameters(spec: ModelSpec) -> ParameterCount:
    """The parameters of `spec`, draft layers left out; unknown where the spec lacks a size, never a guess."""
    try:
        total = _Tally(spec, active=False).count()
    except _UnknownError as missing:
        return ParameterCount(None, None, str(missing))
    if total < 0:
        raise KvcalcError(f"{spec.name}: extra_parameters make {total:,} parameters", "check their sign and digits")
    try:
        return ParameterCount(total, _Tally(spec, active=True).count())
    except _UnknownError as missing:
        return ParameterCount(total, None, str(missing))


class _Tally:
    """One pass over a model, counting a block that several layers share once."""

    def __init__(self, spec: ModelSpec, active: bool) -> None:
        self.spec, self.active = spec, active
        if spec.hidden_size is None:
            raise _UnknownError("the spec states no hidden_size")
        self.hidden = spec.hidden_size
        self.sources = spec.source_of()
        self.counted: set[str] = set()
        self.seen: dict[tuple[int, tuple[int, ...]], int] = {}

    def count(self) -> int:
        layers = sum(self._layer(index, layer) for index, layer in enumerate(self.spec.layers))
        encoder = sum(self._layer(-1, layer) for layer in self.spec.encoder)
        return layers + encoder + self._outside()

    def _outside(self) -> int:
        spec = self.spec
        if spec.vocab_size is None:
            raise _UnknownError("the spec states no vocab_size")
        multiplied = (spec.vocab_size + spec.final_norm_vectors) * self.hidden + spec.extra_parameters
        input_rows = spec.position_embeddings + (0 if spec.tie_embeddings else spec.vocab_size)
        return multiplied + (0 if self.active else input_rows * self.hidden + spec.lookup_parameters)

    def _layer(self, index: int, layer: Layer) -> int:
        """Parameters of one layer; equal layers are one object, so most are counted already."""
        if layer.shares_weights:
            return self._count_layer(index, layer)
        sources = tuple(id(self.sources.get((index, position))) for position in range(len(layer.components)))
        key = id(layer), sources
        if key not in self.seen:
            self.seen[key] = self._count_layer(index, layer)
        return self.seen[key]

    def _count_layer(self, index: int, layer: Layer) -> int:
        norms = self.spec.norm_vectors if layer.norm_vectors is None else layer.norm_vectors
        _refuse_without_queries(layer.components)
        mixers = sum(
            self._component(one, self.sources.get((index, position))) for position, one in enumerate(layer.components)
        )
        return mixers + self._mlp(layer.mlp) + norms * self.hidden + layer.extra_parameters

    def _component(self, component: Component, source: Component | None) -> int:
        if self._is_repeat(component.weights):
            return 0
        return _known(component.parameter_count(self.hidden, source), f"`{component.name}` ({component.kind})")

    def _mlp(self, mlp: Mlp | None) -> int:
        if mlp is None or self._is_repeat(mlp.weights):
            return 0
        count = mlp.active_parameters(self.hidden) if self.active else mlp.parameter_count(self.hidden)
        return _known(count, "an mlp")

    def _is_repeat(self, weights: str | None) -> bool:
        if weights is None:
            return False
        seen = weights in self.counted
        self.counted.add(weights)
        return seen


def _known(count: int | None, what: str) -> int:
    if count is None:
        raise _UnknownError(f"{what} states too little to count its parameters")
    return count


def _refuse_without_queries(components: Iterable[Component]) -> None:
    """A layer that attends to its own entries asks with someone's queries; without them a count would be short."""
    components = tuple(components)
    attended = [one for one in components if one.is_default_source and one.parameters is None]
    if attended and not any(one.queries for one in components):
        raise _UnknownError(f"`{attended[0].name}` states no q_heads")
