"""One decoder layer: everything that its components keep, read and add, around one residual stream."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.cache.component import Component
from kvcalc.cache.sharding import WHOLE
from kvcalc.cache.span import State
from kvcalc.errors import KvcalcError
from kvcalc.model.feed_forward import Mlp
from kvcalc.reference.build import Build
from kvcalc.reference.kinds import Reference, reference_of
from kvcalc.reference.mixer import Mixer
from kvcalc.reference.mlp import FeedForward
from kvcalc.reference.norm import rms_norm
from kvcalc.reference.projections import Asker, Keeper
from kvcalc.reference.select import Chooser
from kvcalc.reference.step import Place, Step

if TYPE_CHECKING:
    from torch import Tensor

    from kvcalc.reference.cache import EntryCache


class Part(NamedTuple):
    """One component as it runs. `target` is the place whose entries it brings to the layer's attention."""

    place: Place
    name: str
    target: Place
    reference: Reference
    keeper: Keeper | None
    asker: Asker | None
    chooser: Chooser | None
    mixer: Mixer | None
    most_read: int | None
    candidates: tuple[int, ...]
    window: int | None

    @property
    def states(self) -> tuple[State, ...]:
        """The states that its component names, for their formats."""
        return self.reference.component.states(WHOLE)

    @property
    def is_chosen_for(self) -> bool:
        """Whether an index decides which of its entries are read."""
        return self.chooser is None and self.most_read is not None and self.window is None


class RunningLayer:
    """A layer with weights. Its caches are handed to it: one model serves many sessions."""

    def __init__(self, index: int, parts: list[Part], mlp: Mlp | None, build: Build) -> None:
        self.index, self.parts = index, parts
        self.attending = list(_attending(self.parts, index))
        self.mlp = None if mlp is None else FeedForward(mlp, build.named("mlp"))

    def weights(self) -> "Iterator[tuple[str, Tensor]]":
        """Every tensor that a pass multiplies with."""
        for part in self.parts:
            for holder in (part.keeper, part.asker, part.chooser, part.mixer):
                yield from holder.weights.items() if holder is not None else ()
        yield from self.mlp.weights.items() if self.mlp is not None else ()

    def keep(self, x: "Tensor", caches: "Mapping[Place, EntryCache]", step: Step) -> "Tensor":
        """Put what the layer keeps of `x` (batch, tokens, hidden) into its caches; returns `x` normalised."""
        normed = rms_norm(x)
        positions = step.positions(x)
        past = step.past + step.tokens - x.shape[1]
        for part in self.parts:
            if part.keeper is not None:
                cache = caches[part.place]
                step.seen[part.place] = cache.append(cache.values_of(part.keeper, normed, positions, step), past)
        return normed

    def run(self, x: "Tensor", normed: "Tensor", states: "Mapping[Place, dict[str, Tensor]]", step: Step) -> "Tensor":
        """`x` with everything added that the layer's mixers and its feed-forward part make of it."""
        self._choose(normed, step)
        for part in self.parts:
            if part.mixer is not None:
                added = part.mixer.mix(normed, states.get(part.place, {}), step)
                x = x if added is None else x + added
        for asker, targets in self.attending:
            x = x + self._attend(asker, targets, normed, step)
        return x if self.mlp is None else x + self.mlp(rms_norm(x))

    def _attend(self, asker: Asker, targets: list[Part], normed: "Tensor", step: Step) -> "Tensor":
        seens = []
        for part in targets:
            seen = step.seen[part.target]
            if part.is_chosen_for:
                choice = step.choices.get(part.target, step.latest_choice)
                seen = seen._replace(choice=None if choice is None else choice.last(normed.shape[1]))
            if part.window is not None:
                seen = seen._replace(rule=seen.rule._replace(window=min(part.window, seen.rule.window or part.window)))
            seens.append(seen)
        past = step.past + step.tokens - normed.shape[1]
        return asker.ask(normed, seens, step.positions(normed), past)

    def _choose(self, normed: "Tensor", step: Step) -> None:
        """Let the layer's index queries choose what its attention reads, and what later layers may choose among."""
        for part in self.parts:
            if part.chooser is None:
                continue
            seen, within = step.seen[part.target], step.candidates.get((part.target, part.most_read))
            within = None if within is None else within.last(normed.shape[1])
            chosen_for = [(other.target, other.most_read or 0) for other in self.parts if other.is_chosen_for]
            mosts = [*(most for _, most in chosen_for), *part.candidates]
            choices = part.chooser.choices(normed, seen, step.positions(normed), mosts, within)
            for target, most in chosen_for:
                step.choices[target] = step.latest_choice = choices[most]
            for most in part.candidates:
                step.candidates[part.place, most] = choices[most]


def make_part(
    place: Place, component: Component, target: Place, owner: Component, candidates: tuple[int, ...], build: Build
) -> Part:
    """The running part of `component`, which reads `owner` at `target` (itself, where it keeps its own entries).

    `candidates` says, for each later layer that chooses anew, among how many of the best entries of this index.
    """
    reference = reference_of(component)
    source = reference if target == place else reference_of(owner)
    asks = component.queries is not None and not owner.selects
    return Part(
        place=place,
        name=component.name,
        target=target,
        reference=reference,
        keeper=reference.keeper(build),
        asker=source.asker(build, component.queries or 1) if asks else None,
        chooser=reference.chooser(build, source),
        mixer=reference.mixer(build),
        most_read=component.top_k if target == place else component.read_limit(owner),
        candidates=candidates,
        window=reference.narrows_to,
    )


def _attending(parts: list[Part], index: int) -> "Iterator[tuple[Asker, list[Part]]]":
    """Who asks, and whose entries it reads: a part without queries joins the layer's first asker."""
    attended = [
        part for part in parts if part.chooser is None and (part.keeper is not None or part.target != part.place)
    ]
    askers = [(part, part.asker) for part in attended if part.asker is not None]
    if attended and not askers:
        raise KvcalcError(
            f"layer {index}: `{attended[0].name}` states no q_heads, so nothing asks for its entries",
            "state q_heads: in the spec, or vary it with --set mixer.q_heads=N",
        )
    for place, (part, asker) in enumerate(askers):
        joined = [other for other in attended if other.asker is None] if place == 0 else []
        yield asker, [part, *joined]
