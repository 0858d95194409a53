"""The reference of every kind, by the name that a spec gives it: what it keeps, who asks, who chooses.

A new kind is one class that answers the questions of `Reference`, and one line in the table at the foot.
"""

from functools import partial
from typing import Any

from kvcalc.errors import KvcalcError
from kvcalc.reference.build import Build
from kvcalc.reference.cache import Bounded, Encoded, EntryCache, Plan, Pooled
from kvcalc.reference.mixer import Mixer
from kvcalc.reference.projections import Asker, Keeper, LatentAsker, Vector
from kvcalc.reference.recurrent import RECURRENT
from kvcalc.reference.rotary import rotate
from kvcalc.reference.seen import Rule
from kvcalc.reference.select import Chooser


class Reference:
    """How one component runs. This base keeps nothing, asks nothing and chooses nothing."""

    def __init__(self, component: Any) -> None:
        self.component = component

    def vectors(self) -> tuple[Vector, ...]:
        """The vectors of an entry that it keeps."""
        return ()

    def rotary_part(self) -> int:
        """How many numbers of its vector a format may pack apart, as a rotary part."""
        return 0

    def cache(self, plan: Plan) -> EntryCache:
        """The cache of its entries: a ring under a window or chunk, pooled where one entry stands for many tokens."""
        one = self.component
        if one.window is not None or one.chunk is not None:
            return Bounded(plan, Rule(window=one.window, sinks=one.sinks, chunk=one.chunk))
        if (one.ratio or 1) > 1:
            turns = [partial(rotate, rotated=vector.rotated) for vector in self.vectors()]
            return Pooled(plan, one.ratio, one.overlap, turns)
        return EntryCache(plan)

    def keeper(self, build: Build) -> Keeper | None:
        """What projects new tokens to its vectors; None where it keeps none."""
        if not self.vectors():
            return None
        return Keeper(self.vectors(), build.named("keep"), is_pooled=(self.component.ratio or 1) > 1)

    def asker(self, build: Build, q_heads: int) -> Asker:
        """Query heads that read its entries."""
        k, *rest = self.vectors()
        return Asker(build.named("ask"), q_heads, k, rest[-1] if rest else k)

    def chooser(self, build: Build, source: "Reference") -> Chooser | None:
        """Index queries that it brings to the keys of `source` (itself, where it reads nobody else's)."""
        return None

    @property
    def encoder_tokens(self) -> int:
        """Tokens of an encoder that it keeps entries of; 0 where it keeps the context's own."""
        return 0

    @property
    def narrows_to(self) -> int | None:
        """The window that it sees of another component's entries, where it narrows them."""
        return None

    def mixer(self, build: Build) -> Mixer | None:
        """What mixes tokens through a state; None for attention."""
        return None


class KvReference(Reference):
    """K and V for every KV head."""

    def vectors(self) -> tuple[Vector, ...]:
        one = self.component
        k, v = one.widths
        return Vector("k", one.kv_heads, k, k, is_split=True), Vector("v", one.kv_heads, v, is_split=True)


class CrossReference(KvReference):
    """K and V of the encoder's tokens, which carry no position."""

    def vectors(self) -> tuple[Vector, ...]:
        return tuple(one._replace(rotated=0) for one in super().vectors())

    @property
    def encoder_tokens(self) -> int:
        tokens = self.component.encoder_tokens
        if tokens is None:
            raise KvcalcError(f"`{self.component.name}` keeps an encoder's tokens", "add --encoder-tokens N")
        return int(tokens)

    def cache(self, plan: Plan) -> EntryCache:
        return Encoded(plan._replace(tokens=self.encoder_tokens, page=None))


class LatentReference(Reference):
    """One vector for all heads: MLA where its up-projections are stated, else K and V at once."""

    def vectors(self) -> tuple[Vector, ...]:
        one = self.component
        return (Vector("latent", 1, one.latent_dim + one.rope_dim, one.rope_dim),)

    def rotary_part(self) -> int:
        return int(self.component.rope_dim)

    def asker(self, build: Build, q_heads: int) -> Asker:
        one = self.component
        if one.nope_head_dim is None or one.v_head_dim is None or q_heads != one.q_heads:
            return super().asker(build, q_heads)
        (latent,) = self.vectors()
        return LatentAsker(build.named("ask"), q_heads, latent, one.nope_head_dim, one.v_head_dim, one.q_rank)


class IndexReference(Reference):
    """One small key a token, and the queries that choose by it."""

    def vectors(self) -> tuple[Vector, ...]:
        return (Vector("index", 1, self.component.head_dim, self.component.head_dim),)

    def chooser(self, build: Build, source: Reference) -> Chooser | None:
        one = self.component
        if one.q_heads is None:
            raise KvcalcError(f"`{one.name}` (index) states no q_heads to choose with", "state q_heads: in the spec")
        (key,) = self.vectors()
        return Chooser(build.named("choose"), one.q_heads, key, one.q_rank)


class SharedReference(Reference):
    """A reader of another component's entries."""

    def chooser(self, build: Build, source: Reference) -> Chooser | None:
        return source.chooser(build, source)

    @property
    def narrows_to(self) -> int | None:
        return self.component.window


class StateReference(Reference):
    """A recurrence: its mixer holds the maths."""

    def mixer(self, build: Build) -> Mixer:
        return RECURRENT[self.component.kind](self.component, build.named("state"))


REFERENCES: dict[str, type[Reference]] = {
    "kv": KvReference,
    "cross": CrossReference,
    "latent": LatentReference,
    "index": IndexReference,
    "shared": SharedReference,
    **dict.fromkeys(RECURRENT, StateReference),
}


def reference_of(component: Any) -> Reference:
    """The reference of `component`; KvcalcError naming its kind where there is none yet."""
    found = REFERENCES.get(component.kind)
    if found is None:
        raise KvcalcError(
            f"`{component.name}` ({component.kind}) has no reference yet: it can be sized, not run",
            f"kinds that run: {', '.join(REFERENCES)}",
        )
    return found(component)
