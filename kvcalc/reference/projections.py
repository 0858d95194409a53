"""From hidden states to what is cached, and from queries back to hidden states."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.reference.attend import attend
from kvcalc.reference.build import Build
from kvcalc.reference.codecs import VectorShape
from kvcalc.reference.rotary import rotate
from kvcalc.reference.seen import Piece, Rule, Seen

if TYPE_CHECKING:
    from torch import Tensor


class Vector(NamedTuple):
    """One vector of an entry: `total` heads in the model, `rotated` last numbers that carry the position."""

    name: str
    total: int
    width: int
    rotated: int = 0
    is_split: bool = False
    """Whether its heads are spread over ranks; otherwise it is whole on every rank."""


class Keeper:
    """Projects new tokens to the vectors that a component keeps, with a gate beside each where entries are pooled."""

    def __init__(self, vectors: Sequence[Vector], build: Build, is_pooled: bool) -> None:
        self.vectors = vectors
        self.weights: dict[str, Tensor] = {}
        self.heads = [build.rank.heads(one.total, "KV heads").count if one.is_split else one.total for one in vectors]
        for one in vectors:
            for name in (one.name, *([f"{one.name} gate"] if is_pooled else [])):
                share = build.rank.heads(one.total, "KV heads").rows(one.width) if one.is_split else None
                self.weights[name] = build.weight(name, one.total * one.width, build.hidden, share)

    def shapes(self, rope: int = 0) -> list[VectorShape]:
        """The vectors as this rank keeps them; `rope` numbers of a latent are its rotary part."""
        return [
            VectorShape(one.name, heads, one.width, rope) for one, heads in zip(self.vectors, self.heads, strict=True)
        ]

    def project(self, x: "Tensor", name: str, heads: int) -> "Tensor":
        """`x` (batch, tokens, hidden) under the weight called `name`: (batch, heads, tokens, width)."""
        from torch.nn.functional import linear

        return linear(x, self.weights[name]).unflatten(-1, (heads, -1)).transpose(1, 2)

    def turned(self, x: "Tensor", positions: "Tensor") -> "list[Tensor]":
        """The vectors of new tokens with their positions in them."""
        return [
            rotate(self.project(x, one.name, heads), positions, one.rotated)
            for one, heads in zip(self.vectors, self.heads, strict=True)
        ]

    def with_gates(self, x: "Tensor") -> "list[Tensor]":
        """The vectors of new tokens before any position, each with its gate behind it."""
        import torch

        return [
            torch.cat([self.project(x, name, heads) for name in (one.name, f"{one.name} gate")], dim=-1)
            for one, heads in zip(self.vectors, self.heads, strict=True)
        ]


class Asker:
    """Query heads over entries with `kv_heads` heads: MHA, GQA, MQA, and latents that are K and V at once."""

    def __init__(self, build: Build, q_heads: int, k: Vector, v: Vector) -> None:
        self.build, self.k, self.v, self.attend = build, k, v, attend
        mine = build.rank.split(q_heads, "query heads")
        self.heads = mine.count
        self.weights = {
            "q": build.weight("q", q_heads * k.width, build.hidden, mine.rows(k.width)),
            "o": build.weight("o", build.hidden, q_heads * v.width)[:, mine.rows(v.width)].contiguous(),
        }

    def ask(self, x: "Tensor", seens: Sequence[Seen], positions: "Tensor", past: int) -> "Tensor":
        """What attention adds for the tokens of `x` (batch, tokens, hidden), the first at position `past`."""
        from torch.nn.functional import linear

        q = linear(x, self.weights["q"]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = rotate(q, positions, self.k.rotated)
        out = self.attend(q, seens, past, self.k.width**-0.5, self.build.state_math_dtype)
        return self.answer(out)

    def answer(self, out: "Tensor") -> "Tensor":
        """`out` (batch, heads, tokens, width) through the output projection, summed over ranks."""
        from torch.nn.functional import linear

        added = linear(out.transpose(1, 2).flatten(2), self.weights["o"])
        if self.build.rank.reduce is not None:
            self.build.rank.reduce(added)
        return added

    def flops(self, pairs: int, spells_out: bool) -> int:
        """Multiply-adds x 2 of `pairs` of a query and an entry, for one sequence and this rank's heads.

        `spells_out` says that an asker which can spell entries out does so.
        """
        return 2 * self.heads * pairs * (self.k.width + self.v.width)


class SpelledOut(Piece):
    """Latents as the keys and values of every head."""

    is_view = True

    def __init__(self, latents: Piece, asker: "LatentAsker") -> None:
        self.latents, self.asker, self.count = latents, asker, latents.count
        self.has_own_tokens = latents.has_own_tokens

    def positions(self, slots: slice) -> "Tensor":
        return self.latents.positions(slots)

    def reach(self, rule: Rule, first_query: int, last_query: int) -> slice:
        return self.latents.reach(rule, first_query, last_query)

    def read(self, slots: slice) -> "tuple[Tensor, Tensor]":
        (entries,) = self.latents.read(slots)
        return self.asker.spell_out(entries)


class LatentAsker(Asker):
    """MLA: queries meet the latents themselves in decode, and keys and values spelled out of them in prefill.

    DeepSeek-V2, arXiv 2405.04434, section 2.1: the up-projections of K and V are absorbed into those of the
    queries and of the output.
    """

    def __init__(self, build: Build, q_heads: int, latent: Vector, nope: int, v_width: int, q_rank: int | None) -> None:
        self.build, self.k, self.attend = build, latent, attend
        self.rope, self.nope, self.latent_width = latent.rotated, nope, latent.width - latent.rotated
        mine = build.rank.split(q_heads, "query heads")
        self.heads = mine.count
        inputs, self.weights = build.hidden, {}
        if q_rank is not None:
            inputs, self.weights["q down"] = q_rank, build.weight("q down", q_rank, build.hidden)
        width = nope + self.rope
        self.weights |= {
            "q": build.weight("q", q_heads * width, inputs, mine.rows(width)),
            "k up": build.weight("k up", q_heads * nope, self.latent_width, mine.rows(nope)),
            "v up": build.weight("v up", q_heads * v_width, self.latent_width, mine.rows(v_width)),
            "o": build.weight("o", build.hidden, q_heads * v_width)[:, mine.rows(v_width)].contiguous(),
        }
        self.v = Vector("v", q_heads, v_width)

    def ask(self, x: "Tensor", seens: Sequence[Seen], positions: "Tensor", past: int) -> "Tensor":
        from torch.nn.functional import linear

        down = linear(x, self.weights["q down"]) if "q down" in self.weights else x
        q = linear(down, self.weights["q"]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = rotate(q, positions, self.rope)
        if x.shape[1] > 1 and self._can_spell_out(seens):
            return self.answer(self._spelled_out(q, seens[0], past))
        return self.answer(self._absorbed(q, seens, past))

    def _can_spell_out(self, seens: Sequence[Seen]) -> bool:
        return len(seens) == 1 and seens[0].choice is None and all(piece.is_view for piece in seens[0].pieces)

    def _absorbed(self, q: "Tensor", seens: Sequence[Seen], past: int) -> "Tensor":
        import torch

        nope, rope = q.split([self.nope, self.rope], dim=-1)
        up = self.weights["k up"].unflatten(0, (self.heads, -1))
        asked = torch.cat([torch.einsum("bhtn,hnl->bhtl", nope, up), rope], dim=-1)
        narrow = [seen._replace(value_width=self.latent_width) for seen in seens]
        out = self.attend(asked, narrow, past, self._scale, self.build.state_math_dtype)
        return torch.einsum("bhtl,hvl->bhtv", out, self.weights["v up"].unflatten(0, (self.heads, -1)))

    def _spelled_out(self, q: "Tensor", seen: Seen, past: int) -> "Tensor":
        pieces = tuple(SpelledOut(piece, self) for piece in seen.pieces)
        out = self.attend(q, [seen._replace(pieces=pieces)], past, self._scale, self.build.state_math_dtype)
        return out[..., : self.v.width]

    @property
    def _scale(self) -> float:
        return float((self.nope + self.rope) ** -0.5)

    def spell_out(self, entries: "Tensor") -> "tuple[Tensor, Tensor]":
        """K and V of every head out of latents (batch, 1, entries, width), V padded to the width of K."""
        import torch
        from torch.nn.functional import linear, pad

        latent, rope = entries[:, 0].split([self.latent_width, self.rope], dim=-1)
        k, v = (
            linear(latent, self.weights[name]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("k up", "v up")
        )
        k = torch.cat([k, rope[:, None].expand(-1, self.heads, -1, -1)], dim=-1)
        return k, pad(v, (0, max(0, k.shape[-1] - v.shape[-1])))

    def flops(self, pairs: int, spells_out: bool) -> int:
        spelled_out = self.nope + self.rope + self.v.width
        return 2 * self.heads * pairs * (spelled_out if spells_out else self.k.width + self.latent_width)
