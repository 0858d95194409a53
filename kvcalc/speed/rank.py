"""What the fullest rank multiplies and reads, layer by layer, with alike things counted once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.matrix import Matrix
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.model.feed_forward import Routed
from kvcalc.model.spec import Layer
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.shards import spread_of


class Attending(NamedTuple):
    """`q_heads` query heads of a rank that read a cache, at most `limit` entries a query."""

    owner: Component
    limit: int | None
    q_heads: int
    entry_bytes: float
    selects: bool
    starts_kernel: bool
    """Whether it is the first cache that its layer's attention reads: caches beside it are read by the same kernel."""


class Stack(msgspec.Struct, frozen=True):
    """Some of a model's layers on one rank; each mapping counts alike things over the layers."""

    layers: int
    mixer: dict[Matrix, int]
    feed_forward: dict[Matrix, int]
    experts: dict[Routed, int]
    attending: tuple[tuple[Attending, int], ...]
    kept: tuple[tuple[Component, float, int], ...]
    """Every component that keeps entries, the bytes of one on this rank, and in how many layers."""
    state_bytes: dict[int, int]
    state_values: int
    written_bytes: float
    """Bytes that one token adds to the caches."""
    mixers: int
    """Layers whose mixer ends in a sum over the ranks."""

    def stored_bytes(self, tokens: Any) -> Any:
        """Bytes that one sequence of `tokens` tokens keeps in these layers."""
        entries = sum(count * size * component.entries(tokens) for component, size, count in self.kept)
        return entries + sum(count * size for size, count in self.state_bytes.items())


class RankModel(msgspec.Struct, frozen=True):
    """A model on one rank: layers that see a whole prompt, those that see its end only, and the LM head."""

    size: CacheSize
    lower: Stack
    upper: Stack
    replay: int
    """The last tokens of a prompt that the upper layers see."""
    head: Matrix
    hidden: int
    attention_dp: bool
    encoder: Stack | None
    encoder_tokens: int
    drafts: Stack | None
    """The draft layers, where a step has any."""
    stage_shares: tuple[float, ...]
    """The share of the layers that each pipeline stage holds."""

    @property
    def sharding(self) -> Sharding:
        """How it is spread."""
        return self.size.sharding

    @property
    def gathered(self) -> int:
        """How many times the tokens of a rank's attention pass its other matrices: attention-DP gathers them."""
        return self.sharding.dp if self.attention_dp else 1

    @property
    def attention_ranks(self) -> int:
        """Ranks that one mixer is cut over."""
        return self.sharding.tp // self.gathered

    @property
    def has_experts(self) -> bool:
        """Whether tokens are routed anywhere."""
        return bool(self.lower.experts or self.upper.experts)


def rank_model(size: CacheSize, attention_dp: bool = False) -> RankModel:
    """`size` as one rank sees it; KvcalcError where the spec states too little to count the weights."""
    spec = size.spec
    if spec.hidden_size is None or size.parameters.total is None:
        raise KvcalcError(f"{spec.name}: {size.parameters.unknown or 'its weights are unknown'}", "complete its spec")
    builder = _Builder(size, attention_dp, spec.hidden_size)
    own = len(spec.layers)
    cut = spec.prefill_layers or own
    tokens = _encoder_tokens(size)
    return RankModel(
        size=size,
        lower=builder.stack(0, cut),
        upper=builder.stack(cut, own),
        replay=_replay(spec.layers[cut:]),
        head=Matrix(size.sharding.share(spec.vocab_size or 0), spec.hidden_size),
        hidden=spec.hidden_size,
        attention_dp=attention_dp,
        encoder=builder.stack_of(spec.encoder) if spec.encoder and tokens else None,
        encoder_tokens=tokens,
        drafts=builder.stack(own, len(size.layers)) if len(size.layers) > own else None,
        stage_shares=tuple((end - first) / len(size.layers) for first, end in size.stages),
    )


def _encoder_tokens(size: CacheSize) -> int:
    components = (one for layer in size.layers for one in layer.components)
    return max((one.span.cap or 0 for one in components if one.is_encoder_fed), default=0)


def _replay(layers: Sequence[Layer]) -> int:
    """The last tokens of a prompt that the upper layers see: those of their longest window, or the last one."""
    return max([1, *(one.span.cap for layer in layers for one in layer.components if one.span.cap)])


class _Builder:
    """One pass over the layers of a size."""

    def __init__(self, size: CacheSize, attention_dp: bool, hidden: int) -> None:
        spread = spread_of(size.sharding, attention_dp)
        self.size, self.hidden = size, hidden
        self.sharding, self.rest, self.experts = spread.attention, spread.rest, spread.experts
        self.sources = size.spec.source_of()

    def stack(self, first: int, end: int) -> Stack:
        return self.stack_of(self.size.layers[first:end], first)

    def stack_of(self, layers: Sequence[Layer], first: int = -1_000_000) -> Stack:
        mixer: Counter[Matrix] = Counter()
        feed_forward: Counter[Matrix] = Counter()
        experts: Counter[Routed] = Counter()
        attending: dict[tuple[object, ...], tuple[Attending, int]] = {}
        states: Counter[int] = Counter()
        values = 0
        for index, layer in enumerate(layers, first):
            mixer.update(self._mixer(index, layer))
            if layer.mlp is not None:
                feed_forward.update(layer.mlp.matrices(self.hidden, self.rest))
                routed = layer.mlp.routed(self.hidden, self.experts)
                experts.update([routed] if routed else [])
            for one in self._attending(index, layer):
                # A component is no key: what it translates formats to is a dictionary.
                key = id(one.owner), *one[1:]
                attending[key] = one, attending.get(key, (one, 0))[1] + 1
            states.update(filter(None, map(self._state_bytes, layer.components)))
            values += sum(state.values for one in layer.components for state in one.states(self.sharding))
        components = [one for layer in layers for one in layer.components]
        kept: dict[int, tuple[Component, float, int]] = {}
        for keeper in components:
            if keeper.keeps_entries:
                kept[id(keeper)] = keeper, self._entry_bytes(keeper), kept.get(id(keeper), (keeper, 0, 0))[2] + 1
        return Stack(
            layers=len(layers),
            mixer=dict(mixer),
            feed_forward=dict(feed_forward),
            experts=dict(experts),
            attending=tuple(attending.values()),
            kept=tuple(kept.values()),
            state_bytes=dict(states),
            state_values=values,
            written_bytes=sum(self._entry_bytes(one) for one in components if not one.is_encoder_fed),
            mixers=sum(bool(layer.components) for layer in layers),
        )

    def _mixer(self, index: int, layer: Layer) -> Iterator[Matrix]:
        for position, one in enumerate(layer.components):
            yield from one.matrices(self.hidden, self.sources.get((index, position)), self.sharding)
        extra = self.sharding.share(max(0, layer.extra_parameters)) // self.hidden
        if extra:
            yield Matrix(extra, self.hidden)

    def _attending(self, index: int, layer: Layer) -> Iterator[Attending]:
        """Every cache that a step of the layer reads: its own ones, and those of its `shared` components."""
        asked = next((one.queries for one in layer.components if one.queries and not one.selects), 0)
        is_first = True
        for position, one in enumerate(layer.components):
            owner, limit = one, one.top_k
            source = self.sources.get((index, position))
            if source is not None:
                owner, limit = source, one.read_limit(source)
            if not owner.keeps_entries:
                continue
            heads = self.sharding.heads(one.queries or asked or 1)
            starts = is_first or owner.selects
            is_first = is_first and owner.selects
            yield Attending(owner, limit, heads, self._entry_bytes(owner), owner.selects, starts)

    def _entry_bytes(self, component: Component) -> float:
        """Bytes of an entry on a rank, a share of them where decode-context ranks keep every so many-th one."""
        size = self.size.packer.entry_bytes(component, self.sharding)
        return size / self.sharding.dcp if component.grows else size

    def _state_bytes(self, component: Component) -> int:
        return self.size.packer.state_bytes(component, self.sharding)
