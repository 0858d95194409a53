"""Sparse attention's index: scores of all entries by small keys, and the entries that the best scores choose.

DeepSeek-V3.2 (lightning indexer): a query's score of an entry is the weighted sum over index heads of
relu(q . k).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvcalc.reference.attend import QUERIES_AT_ONCE
from kvcalc.reference.build import Build
from kvcalc.reference.projections import Vector
from kvcalc.reference.rotary import rotate
from kvcalc.reference.seen import Choice, Seen
from kvcalc.reference.store import UNPACKED_AT_ONCE

if TYPE_CHECKING:
    from torch import Tensor


class Chooser:
    """Index queries of one layer, whole on every rank."""

    def __init__(self, build: Build, q_heads: int, key: Vector, q_rank: int | None) -> None:
        self.build, self.heads, self.key = build, q_heads, key
        inputs, self.weights = build.hidden, {}
        if q_rank is not None:
            inputs, self.weights["q down"] = q_rank, build.weight("q down", q_rank, build.hidden)
        self.weights["q"] = build.weight("q", q_heads * key.width, inputs)
        self.weights["head weights"] = build.weight("head weights", q_heads, build.hidden)

    def choices(
        self, x: "Tensor", seen: Seen, positions: "Tensor", mosts: Iterable[int], within: "Choice | None" = None
    ) -> "dict[int, Choice | None]":
        """For each of `mosts`, so many best entries of each of the last tokens `x`; None where that is all of them.

        With `within`, only those entries are scored. A few tokens' scores are held at once.
        """
        asked, weights = self._queries(x, positions)
        found: dict[int, list[Choice | None]] = {most: [] for most in mosts}
        for at in range(0, x.shape[1], QUERIES_AT_ONCE):
            cut = slice(at, at + QUERIES_AT_ONCE)
            part = _part(within, cut)
            scores = self._scores(asked[:, :, cut], weights[:, cut], seen, positions[cut], part)
            for most, choices in found.items():
                choices.append(choose(scores, most, part, is_single=x.shape[1] == 1))
        return {most: _joined(choices) for most, choices in found.items()}

    def _queries(self, x: "Tensor", positions: "Tensor") -> "tuple[Tensor, Tensor]":
        from torch.nn.functional import linear

        down = linear(x, self.weights["q down"]) if "q down" in self.weights else x
        asked = linear(down, self.weights["q"]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return rotate(asked, positions, self.key.rotated), linear(x, self.weights["head weights"])

    def _scores(
        self, asked: "Tensor", weights: "Tensor", seen: Seen, positions: "Tensor", within: "Choice | None"
    ) -> "Tensor":
        import torch

        (piece,) = seen.pieces
        if within is not None and within.places is not None:
            return self._dots(asked, weights, piece.gather(within.places)[0])
        columns = []
        for start in range(0, piece.count, UNPACKED_AT_ONCE):
            slots = slice(start, min(start + UNPACKED_AT_ONCE, piece.count))
            found = self._dots(asked, weights, piece.read(slots)[0])
            allowed = seen.rule.allowed(positions, piece.positions(slots))[None]
            if within is not None and within.allowed is not None:
                allowed = allowed & within.allowed[..., slots]
            columns.append(found.masked_fill(~allowed, float("-inf")))
        wide = self.build.state_math_dtype
        return torch.cat(columns, dim=-1) if columns else asked.new_zeros(*weights.shape[:2], 0, dtype=wide)

    def _dots(self, asked: "Tensor", weights: "Tensor", keys: "Tensor") -> "Tensor":
        """Weighted sums over index heads, (batch, tokens, entries), in the dtype of statistics."""
        wide = self.build.state_math_dtype
        dots = (asked.flatten(1, 2) @ keys[:, 0].transpose(-1, -2)).unflatten(1, asked.shape[1:3])
        return (dots.to(wide).relu_() * weights.to(wide).transpose(1, 2)[..., None]).sum(1)

    def flops(self, pairs: int) -> int:
        """Multiply-adds x 2 of `pairs` of a query token and a key."""
        return 2 * self.heads * pairs * (self.key.width + 1)


def _part(within: "Choice | None", cut: slice) -> "Choice | None":
    if within is None or within.allowed is None:
        return within
    return Choice(allowed=within.allowed[:, cut])


def _joined(choices: "list[Choice | None]") -> "Choice | None":
    """The choices of all tokens out of those of a few at a time."""
    import torch

    masks = [one.allowed for one in choices if one is not None and one.allowed is not None]
    return Choice(allowed=torch.cat(masks, dim=1)) if len(masks) > 1 else choices[0]


def choose(scores: "Tensor", most: int, within: "Choice | None", is_single: bool) -> "Choice | None":
    """The `most` best entries of each token by `scores` (batch, tokens, entries), or all of `within`.

    A single token is given their places, several are given a mask.
    """
    import torch

    has_places = within is not None and within.places is not None
    if scores.shape[-1] <= most:
        return within
    best = scores.topk(most, dim=-1)
    if is_single:
        index = best.indices[:, 0]
        return Choice(places=within.places.gather(1, index) if has_places else index)  # type: ignore[union-attr]
    allowed = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best.indices, best.values > float("-inf"))
    return Choice(allowed=allowed)
