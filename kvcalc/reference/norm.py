"""Root mean square norms."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6


def rms_norm(x: "Tensor") -> "Tensor":
    """`x` scaled to a mean square of one along its last axis; statistics in fp32 or better."""
    wide = x if x.element_size() == 8 else x.float()
    return (wide * (wide.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt()).to(x.dtype)
