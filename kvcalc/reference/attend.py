"""Attention over pieces of caches: one kernel where the cache is a view, else blocks merged by their softmax sums.

A group of query heads is folded into the query length, so that K and V are read once for all of them and
never repeated; on a CPU that takes half as long as torch's `enable_gqa`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvcalc.reference.seen import Piece, Seen
from kvcalc.reference.store import UNPACKED_AT_ONCE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

QUERIES_AT_ONCE = 256
"""Queries of a prefill whose scores are held together."""


def attend(q: "Tensor", seens: Sequence[Seen], past: int, scale: float, wide: "torch.dtype") -> "Tensor":
    """Attention of `q` (batch, heads, tokens, width) over one softmax of all `seens`: (batch, heads, tokens, V width).

    `past` is the position of the first query. Statistics are kept in `wide`.
    """
    single = _whole(seens, past, q.shape[2])
    if single is not None:
        out = _one_kernel(q, seens[0], single, past, scale, wide)
    else:
        out = _in_chunks(q, seens, past, scale, wide)
    # Entries that are K and V at once go through a kernel whole: it reads them once, and takes one width only.
    return out if seens[0].value_width is None else out[..., : seens[0].value_width]


def _in_chunks(q: "Tensor", seens: Sequence[Seen], past: int, scale: float, wide: "torch.dtype") -> "Tensor":
    import torch

    chunks = [
        _merged(q[:, :, at : at + QUERIES_AT_ONCE], seens, past + at, at, scale, wide)
        for at in range(0, q.shape[2], QUERIES_AT_ONCE)
    ]
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=2)


def _whole(seens: Sequence[Seen], past: int, tokens: int) -> "Piece | None":
    """The only piece, where one kernel can take it as it lies: with no mask, or with the plain causal one."""
    if len(seens) != 1 or seens[0].choice is not None or len(seens[0].pieces) != 1:
        return None
    piece, rule = seens[0].pieces[0], seens[0].rule
    if not piece.is_view or piece.count == 0:
        return None
    last = past + tokens - 1
    is_plain = piece.is_all_seen(rule, past) or (tokens > 1 and _is_causal_row(seens[0], past, last))
    return piece if is_plain else None


def _is_causal_row(seen: Seen, past: int, last: int) -> bool:
    """Whether the entries are tokens 0 to `last`, of which every query sees those up to its own."""
    piece, rule = seen.pieces[0], seen.rule
    return piece.count == last + 1 and piece.reach(rule, last, last) == slice(0, last + 1) and not rule.sinks


def _one_kernel(q: "Tensor", seen: Seen, piece: Piece, past: int, scale: float, wide: "torch.dtype") -> "Tensor":
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    values = piece.read(slice(0, piece.count))
    k, v = values[0], values[-1]
    tokens = q.shape[2]
    if tokens == 1 and k.shape[-1] != v.shape[-1] and not q.is_cuda:
        # torch's fused kernel on a CPU takes one width; the one it falls back to copies K for every step.
        merge = _Merge(wide)
        merge.add(_folded(q, k.shape[1]), k, v, None, scale)
        out = merge.result(q)
    elif tokens == 1 or piece.is_all_seen(seen.rule, past):
        out = sdpa(_folded(q, k.shape[1]), k, v, scale=scale).reshape(q.shape[0], q.shape[1], tokens, -1)
    else:
        # A square mask is causal by itself; over a cache that held tokens before, it must be aligned lower right.
        mask = {"is_causal": True} if piece.count == tokens else {"attn_mask": causal_lower_right(tokens, piece.count)}
        out = _by_group(q, k, v, scale, mask)
    return out


def _by_group(q: "Tensor", k: "Tensor", v: "Tensor", scale: float, mask: dict[str, Any]) -> "Tensor":
    """A prefill's attention; K and V are not repeated for a group of queries."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    if q.is_cuda:
        return sdpa(q, k, v, scale=scale, enable_gqa=True, **mask)
    members = q.unflatten(1, (k.shape[1], -1)).unbind(2)
    return torch.stack([sdpa(one, k, v, scale=scale, **mask) for one in members], dim=2).flatten(1, 2)


def _folded(q: "Tensor", kv_heads: int) -> "Tensor":
    """(batch, heads, tokens, width) as (batch, KV heads, group x tokens, width)."""
    batch, heads, tokens, width = q.shape
    return q.reshape(batch, kv_heads, heads // kv_heads * tokens, width)


def _merged(q: "Tensor", seens: Sequence[Seen], first: int, offset: int, scale: float, wide: "torch.dtype") -> "Tensor":
    """Attention of a few queries, the first at position `first`: by one masked kernel, or else block by block."""
    seen = _only_seen(seens, first, q.shape[2])
    if seen is not None:
        return _masked_kernel(q, seen, first, offset, scale)
    merge = _Merge(wide)
    for seen in seens:
        for k, v, allowed in _blocks(seen, first, offset, q.shape[2], q.device):
            merge.add(_folded(q, k.shape[1]), k, v, _spread(allowed, q, k), scale)
    return merge.result(q)


def _only_seen(seens: Sequence[Seen], first: int, tokens: int) -> "Seen | None":
    """The only cache and piece that these queries reach, where it is a view in which each finds its own token."""
    reached = []
    for seen in seens:
        for piece in seen.pieces:
            slots = piece.reach(seen.rule, first, first + tokens - 1)
            if slots.start < slots.stop:
                reached.append(seen._replace(pieces=(piece,)))
    if tokens == 1 or len(reached) != 1:
        return None
    piece = reached[0].pieces[0]
    return reached[0] if piece.is_view and piece.has_own_tokens else None


def _masked_kernel(q: "Tensor", seen: Seen, first: int, offset: int, scale: float) -> "Tensor":
    """Attention of a few queries over the slots that they reach, under an explicit mask."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    piece, tokens = seen.pieces[0], q.shape[2]
    slots = piece.reach(seen.rule, first, first + tokens - 1)
    allowed = _allowed(seen, piece, slots, torch.arange(first, first + tokens, device=q.device), offset)
    values = piece.read(slots)
    k, v = values[0], values[-1]
    out = sdpa(_folded(q, k.shape[1]), k, v, attn_mask=_spread(allowed, q, k), scale=scale)
    return out.reshape(q.shape[0], q.shape[1], tokens, -1)


def _allowed(seen: Seen, piece: Piece, slots: slice, queries: "Tensor", offset: int) -> "Tensor":
    """Which of the queries see which of the slots: bool (batch or 1, tokens, entries)."""
    allowed = seen.rule.allowed(queries, piece.positions(slots))[None]
    if seen.choice is None or seen.choice.allowed is None:
        return allowed
    return allowed & seen.choice.allowed[:, offset : offset + len(queries), slots]


def _blocks(
    seen: Seen, first: int, offset: int, tokens: int, device: "torch.device"
) -> "Iterator[tuple[Tensor, Tensor, Tensor | None]]":
    """K, V and who may see them (batch or 1, tokens, entries), None for everybody."""
    import torch

    queries = torch.arange(first, first + tokens, device=device)
    for piece in seen.pieces:
        if seen.choice is not None and seen.choice.places is not None:
            values = piece.gather(seen.choice.places)
            yield values[0], values[-1], None
            continue
        reach = piece.reach(seen.rule, first, first + tokens - 1)
        is_open = tokens == 1 and piece.is_all_seen(seen.rule, first) and seen.choice is None
        step = reach.stop - reach.start if piece.is_view and tokens == 1 else UNPACKED_AT_ONCE
        for start in range(reach.start, max(reach.stop, reach.start + 1), max(1, step)):
            slots = slice(start, min(start + step, reach.stop))
            allowed = None if is_open else _allowed(seen, piece, slots, queries, offset)
            values = piece.read(slots)
            yield values[0], values[-1], allowed


def _spread(allowed: "Tensor | None", q: "Tensor", k: "Tensor") -> "Tensor | None":
    """The mask for folded queries: (batch or 1, 1, group x tokens, entries)."""
    if allowed is None:
        return None
    group = q.shape[1] // k.shape[1]
    return allowed[:, None].expand(-1, group, -1, -1).flatten(1, 2)[:, None]


class _Merge:
    """A softmax over blocks that come one after another: running maximum, sum and weighted values.

    Online softmax: Milakov and Gimelshein, arXiv 1805.02867.
    """

    def __init__(self, wide: "torch.dtype") -> None:
        self.wide = wide
        self.top: Tensor | None = None
        self.total: Tensor
        self.values: Tensor

    def add(self, q: "Tensor", k: "Tensor", v: "Tensor", allowed: "Tensor | None", scale: float) -> None:
        top, total, values = self._block(q, k, v, allowed, scale)
        if self.top is not None:
            both = top.maximum(self.top)
            fresh, faded = (top - both).exp(), (self.top - both).exp()
            total, values = fresh * total + faded * self.total, fresh * values + faded * self.values
            top = both
        self.top, self.total, self.values = top, total, values

    def _block(
        self, q: "Tensor", k: "Tensor", v: "Tensor", allowed: "Tensor | None", scale: float
    ) -> "tuple[Tensor, Tensor, Tensor]":
        """Maximum, sum and weighted values of one block; a row that sees nothing of it weighs nothing."""
        if allowed is None and _has_fused_sums(q, k, v):
            return self._fused(q, k, v, scale)
        scores = (q @ k.transpose(-1, -2)).to(self.wide) * scale
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        if k.shape[2] == 0:
            nothing = scores.new_zeros(*q.shape[:3], 1)
            return nothing + _LOWEST, nothing, nothing.expand(-1, -1, -1, v.shape[-1])
        top = scores.amax(-1, keepdim=True).clamp(min=_LOWEST)
        weights = (scores - top).exp()
        return top, weights.sum(-1, keepdim=True), (weights.to(v.dtype) @ v).to(self.wide)

    def _fused(self, q: "Tensor", k: "Tensor", v: "Tensor", scale: float) -> "tuple[Tensor, Tensor, Tensor]":
        """The same of a block from one kernel: its logarithm of the sum stands for maximum and sum."""
        import torch

        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, log_sum = kernel(q, k, v, scale=scale)
        return log_sum[..., None].to(self.wide), torch.ones_like(log_sum[..., None], dtype=self.wide), out.to(self.wide)

    def result(self, q: "Tensor") -> "Tensor":
        """The attention of `q`; zero for a query that sees no entry at all."""
        out: Tensor = self.values / self.total.masked_fill(self.total == 0, 1)
        return out.to(q.dtype).reshape(q.shape[0], q.shape[1], q.shape[2], -1)


def _has_fused_sums(q: "Tensor", k: "Tensor", v: "Tensor") -> bool:
    """Whether torch has a kernel that gives a block's softmax sum beside its output: on a CPU, for one width.

    torch names none of these kernels in public; this one is what its attention dispatches to on a CPU.
    """
    return q.device.type == "cpu" and k.shape[2] > 0 and k.shape[-1] == v.shape[-1]


_LOWEST = -1e30
