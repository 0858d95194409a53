"""Rotary positions: applied to keys before they are cached, and to queries.

RoFormer, arXiv 2104.09864, section 3.2.2, with the halves of a vector paired as in Llama's released code.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BASE = 10_000.0


def rotate(vectors: "Tensor", positions: "Tensor", rotated: int) -> "Tensor":
    """`vectors` (batch, heads, tokens, width) with their last `rotated` numbers turned by `positions` (tokens,)."""
    import torch

    half = rotated // 2
    if half == 0:
        return vectors
    wide = torch.float64 if vectors.dtype is torch.float64 else torch.float32
    rates = BASE ** (-torch.arange(half, dtype=wide, device=vectors.device) / half)
    angles = positions.to(wide)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    start = vectors.shape[-1] - 2 * half
    kept, first, second = vectors.split([start, half, half], dim=-1)
    first, second = first.to(wide), second.to(wide)
    turned = [first * cos - second * sin, first * sin + second * cos]
    return torch.cat([kept, *(one.to(vectors.dtype) for one in turned)], dim=-1)
