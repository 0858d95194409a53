"""A model that runs: every layer of a spec with random weights, and one pass of new tokens through them."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from kvcalc.cache.sharding import WHOLE
from kvcalc.cache.span import Span
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.reference.build import Build, Rank
from kvcalc.reference.cache import EntryCache
from kvcalc.reference.layer import Part, RunningLayer, make_part
from kvcalc.reference.norm import rms_norm
from kvcalc.reference.numbers import torch_dtype
from kvcalc.reference.step import Place, Step
from kvcalc.sizing.need import Workload, layers_of, make_packer
from kvcalc.sizing.packing import Packer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EMBEDDED_TOKENS = 1024
"""Rows of the stand-in for the embedding: the real one, and the LM head, are left out."""


class RunOptions(msgspec.Struct, frozen=True):
    """How a model is built: where, on which rank, with what beside its mixers."""

    device: str = "cpu"
    rank: Rank = Rank()
    with_mlp: bool = False
    seed: int = 0
    exact: "torch.dtype | None" = None


PLAIN = RunOptions()
"""On a CPU, on one rank, mixers alone."""


class ReferenceModel:
    """The layers of `spec` as torch runs them; KvcalcError where one of its kinds or formats has no reference."""

    def __init__(self, spec: ModelSpec, workload: Workload, options: RunOptions = PLAIN) -> None:
        if spec.hidden_size is None:
            raise KvcalcError(
                f"{spec.name} states no hidden_size, so nothing can run", "state hidden_size: in the spec"
            )
        self.spec, self.options = spec, options
        self.packer: Packer = make_packer(spec, workload)
        self.dtype = options.exact or torch_dtype(self.packer.dtype, "--dtype")
        self.spec_layers = layers_of(spec, workload)
        self.build = Build(
            hidden=spec.hidden_size,
            packer=self.packer,
            dtype=self.dtype,
            device=options.device,
            rank=options.rank,
            seed=options.seed,
            exact=options.exact,
        )
        self.layers: list[RunningLayer] = []
        for index in range(len(self.spec_layers)):
            self.layers.append(self._layer(index))
        self.embedding = self.build.weight("embedding", EMBEDDED_TOKENS, spec.hidden_size)
        _check_choices(self.layers, self._span)
        self.lower = len(self.layers) if spec.prefill_layers is None else spec.prefill_layers
        self.replay = _replay(self.layers[self.lower :])
        _check_upper(self.layers[self.lower + 1 :])

    def _layer(self, index: int) -> RunningLayer:
        layer, build = self.spec_layers[index], self._with_memory().named(str(index))
        owners = {(read.layer, read.reader): (read.owner_layer, read.owner) for read in self.spec.reads}
        limits = _candidate_limits(self.spec)
        parts = []
        for at, component in enumerate(layer.components):
            target = owners.get((index, at), (index, at))
            owner = self.spec_layers[target[0]].components[target[1]]
            parts.append(
                make_part((index, at), component, target, owner, limits.get((index, at), ()), build.named(str(at)))
            )
        return RunningLayer(index, parts, layer.mlp if self.options.with_mlp else None, build)

    def _span(self, place: Place) -> Span:
        return self.spec_layers[place[0]].components[place[1]].span

    def _with_memory(self) -> Build:
        """The build for the next layer, which knows what memory those before it leave."""
        widths = [part.mixer.memory_width for part in self.parts if part.mixer is not None]
        left = [width for width in widths if width is not None]
        return msgspec.structs.replace(self.build, memory_width=left[-1] if left else None)

    @property
    def parts(self) -> list[Part]:
        """Every component as it runs, in order."""
        return [part for layer in self.layers for part in layer.parts]

    def weights(self) -> "Iterator[Tensor]":
        """Every tensor that a decode step multiplies with."""
        for layer in self.layers:
            for _, weight in layer.weights():
                yield weight

    def mixer_weights(self) -> "Iterator[Tensor]":
        """Those of them that every decode step of every token takes: no feed-forward part, no encoder's keys."""
        for part in self.parts:
            keeper = None if part.reference.encoder_tokens else part.keeper
            for holder in (keeper, part.asker, part.chooser, part.mixer):
                yield from holder.weights.values() if holder is not None else ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all layers' weights on this rank, the stand-in embedding left out."""
        return sum(weight.numel() * weight.element_size() for weight in self.weights())

    @property
    def routes_experts(self) -> bool:
        """Whether a pass decides on the host which experts its tokens take."""
        return any(layer.mlp is not None and layer.mlp.experts for layer in self.layers)

    def step_weight_bytes(self, batch: int) -> int:
        """Bytes of weights that a decode step of `batch` sequences reads.

        Left out are experts that nobody takes, and what an encoder's tokens were projected with, once.
        """
        idle = sum(
            sum(weight.nbytes for weight in layer.mlp.weights.values()) - layer.mlp.read_bytes(batch)
            for layer in self.layers
            if layer.mlp is not None
        )
        encoder_fed = [part.keeper for part in self.parts if part.keeper is not None and part.reference.encoder_tokens]
        return self.weight_bytes - idle - sum(one.nbytes for keeper in encoder_fed for one in keeper.weights.values())

    def embed(self, tokens: "Tensor") -> "Tensor":
        """Hidden states (batch, tokens, hidden) of token ids; ids share the rows of a small table."""
        return self.embedding[tokens % EMBEDDED_TOKENS]

    def forward(
        self,
        tokens: "Tensor",
        caches: Mapping[Place, EntryCache],
        states: "Mapping[Place, dict[str, Tensor]]",
        step: Step,
        upper_tokens: int,
    ) -> "Tensor":
        """Pass `tokens` (batch, tokens) through the layers: hidden states of the last ones, normalised.

        Layers from `lower` on see the last `upper_tokens` alone; the first of them still keeps what all leave.
        """
        x = self.embed(tokens)
        for layer in self.layers[: self.lower]:
            x = layer.run(x, layer.keep(x, caches, step), states, step)
        for layer in self.layers[self.lower :]:
            normed = layer.keep(x, caches, step)
            if upper_tokens == 0:
                break
            x = layer.run(x[:, -upper_tokens:], normed[:, -upper_tokens:], states, step)
        return rms_norm(x)


def _candidate_limits(spec: ModelSpec) -> dict[Place, tuple[int, ...]]:
    """For each index, among how many of its best entries later layers choose."""
    limits: dict[Place, tuple[int, ...]] = {}
    for read in spec.reads:
        owner = spec.component(read.owner_layer, read.owner)
        limit = spec.component(read.layer, read.reader).read_limit(owner)
        place = read.owner_layer, read.owner
        if owner.selects and limit is not None and limit not in limits.get(place, ()):
            limits[place] = (*limits.get(place, ()), limit)
    return limits


def _check_choices(layers: list[RunningLayer], span: Callable[[Place], Span]) -> None:
    """What is read in part needs an index, here or earlier, that chooses as many of entries for the same tokens."""
    made: dict[Place, tuple[Span, int | None]] = {}
    latest: tuple[Span, int | None] | None = None
    for layer in layers:
        spans = [span(part.target) for part in layer.parts if part.chooser is not None]
        for part in layer.parts:
            if part.is_chosen_for:
                if spans:
                    made[part.target] = latest = spans[-1], part.most_read
                needed = span(part.target)
                if made.get(part.target, latest) != (needed, part.most_read) or needed.cap is not None:
                    raise KvcalcError(
                        f"layer {layer.index}: `{part.name}` reads {part.most_read} entries that no index chooses",
                        "add an index to its layer or an earlier one, with the same ratio and top_k and no window",
                    )
        if any(one.cap is not None for one in spans):
            raise KvcalcError(f"layer {layer.index}: an index keeps a window only", "remove its window: or chunk:")


def _replay(upper: list[RunningLayer]) -> int:
    """Tokens at the end of a prompt that the upper layers see: their widest window, or the last token alone."""
    kept = [part.reference for layer in upper for part in layer.parts if part.keeper is not None]
    spans = [one.component.span.cap for one in kept if not one.encoder_tokens]
    return max([1, *(cap for cap in spans if cap is not None)])


def _check_upper(layers: list[RunningLayer]) -> None:
    """Layers that a prompt does not pass cannot keep what every token must leave."""
    for layer in layers:
        for part in layer.parts:
            if part.reference.component.grows or part.reference.component.states(WHOLE):
                raise KvcalcError(
                    f"layer {layer.index}: `{part.name}` keeps something of every token above prefill_layers",
                    "raise prefill_layers: in the spec",
                )
