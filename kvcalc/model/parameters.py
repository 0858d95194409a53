"""Parameter counts from a spec: all of them, those that one token passes through, and those of one rank."""

from collections.abc import Iterable

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.sharding import WHOLE, Sharding
from kvcalc.errors import KvcalcError
from kvcalc.model.feed_forward import Mlp
from kvcalc.model.spec import Layer, ModelSpec


class ParameterCount(msgspec.Struct, frozen=True):
    """`total` parameters held and `active` ones a token is multiplied with, None where unknown, with the reason.

    Active leaves out the experts that a token is not routed to, and tables of which it reads a row:
    positions, `lookup_parameters`, and the input embedding unless it is the LM head too.
    """

    total: int | None
    active: int | None
    unknown: str = ""


class StageCount(msgspec.Struct, frozen=True):
    """Parameters on the fullest rank of one pipeline stage.

    `kept` are those that quantisers leave in the model's format: embeddings, the LM head, norms and routers.
    `stated` are those that the spec gives as a number, without saying what they are.
    """

    total: int
    kept: int
    stated: int


class Spread(msgspec.Struct, frozen=True):
    """How the parts of a model lie on ranks: mixers and the embedding, the rest, and routed experts.

    Routed experts are as in `Mlp.parameter_count`.
    """

    attention: Sharding = WHOLE
    rest: Sharding = WHOLE
    experts: Sharding = WHOLE


ONE_RANK = Spread()


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


def count_stage(spec: ModelSpec, layers: tuple[int, int], spread: Spread) -> StageCount | None:
    """The parameters of the stage that holds `layers` (first, last plus one), None where the spec lacks a size.

    The first stage has the embedding, the last one the LM head and the norm before it; a table that is both stands
    on either of two stages. Tables are cut by rows of the vocabulary, positions and norms are whole on every rank.
    """
    first, end = layers[0], min(layers[1], len(spec.layers))
    held = spec.layers[first:end] + (spec.encoder if first == 0 else ())
    try:
        tally = _Tally(spec, active=False, spread=spread)
        inside = tally.count_layers(first, end)
        tables = tally.tables(first == 0, end == len(spec.layers))
    except _UnknownError:
        return None
    ends = spread.rest.share(spec.extra_parameters) if first == 0 else 0
    stated = sum(spread.rest.share(layer.stated_parameters) for layer in held) + abs(ends)
    return StageCount(inside + tables + ends, tally.kept(held) + tables, stated)


class _Tally:
    """One pass over a model, counting a block that several layers share once."""

    def __init__(self, spec: ModelSpec, active: bool, spread: Spread = ONE_RANK) -> None:
        self.spec, self.active, self.spread = spec, active, spread
        if spec.hidden_size is None:
            raise _UnknownError("the spec states no hidden_size")
        self.hidden = spec.hidden_size
        self.sources = spec.source_of()
        self.counted: set[str] = set()
        self.seen: dict[tuple[int, tuple[int, ...]], int] = {}

    def count(self) -> int:
        return self.count_layers(0, len(self.spec.layers)) + self._outside()

    def count_layers(self, first: int, end: int) -> int:
        """Those of some layers; the encoder stands before the first one."""
        encoder = sum(self._layer(-1, layer) for layer in self.spec.encoder) if first == 0 else 0
        return encoder + sum(self._layer(index, self.spec.layers[index]) for index in range(first, end))

    def kept(self, layers: Iterable[Layer]) -> int:
        """Norms and routers of `layers`, which no rank shares with another."""
        routers = sum(layer.mlp.router_parameters(self.hidden) for layer in layers if layer.mlp)
        return routers + sum(self._norms(layer) for layer in layers)

    def tables(self, is_first: bool, is_last: bool) -> int:
        """Embeddings, positions, looked-up rows and the LM head with its norm, on one rank of a stage."""
        spec, attention = self.spec, self.spread.attention
        reads = is_first * (attention.share(self._vocabulary()) + spec.position_embeddings) * self.hidden
        looked_up = is_first * attention.share(spec.lookup_parameters)
        has_own_head = is_last and not (spec.tie_embeddings and is_first)
        head = has_own_head * self.spread.rest.share(self._vocabulary()) + is_last * spec.final_norm_vectors
        return reads + looked_up + head * self.hidden

    def _vocabulary(self) -> int:
        if self.spec.vocab_size is None:
            raise _UnknownError("the spec states no vocab_size")
        return self.spec.vocab_size

    def _outside(self) -> int:
        spec, rows = self.spec, self._vocabulary()
        multiplied = (rows + spec.final_norm_vectors) * self.hidden + spec.extra_parameters
        input_rows = spec.position_embeddings + (0 if spec.tie_embeddings else rows)
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
        _refuse_without_queries(layer.components)
        mixers = sum(
            self._component(one, self.sources.get((index, position))) for position, one in enumerate(layer.components)
        )
        return mixers + self._mlp(layer.mlp) + self._norms(layer) + self.spread.rest.share(layer.extra_parameters)

    def _norms(self, layer: Layer) -> int:
        return self.hidden * (self.spec.norm_vectors if layer.norm_vectors is None else layer.norm_vectors)

    def _component(self, component: Component, source: Component | None) -> int:
        if self._is_repeat(component.weights):
            return 0
        return _known(
            component.parameter_count(self.hidden, source, self.spread.attention),
            f"`{component.name}` ({component.kind})",
        )

    def _mlp(self, mlp: Mlp | None) -> int:
        if mlp is None or self._is_repeat(mlp.weights):
            return 0
        held = mlp.parameter_count(self.hidden, self.spread.rest, self.spread.experts)
        count = mlp.active_parameters(self.hidden) if self.active else held
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
