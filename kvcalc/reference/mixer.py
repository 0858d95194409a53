"""What mixes tokens through a state, or through a memory: its weights, its states, and one pass over new tokens."""

from typing import TYPE_CHECKING

from kvcalc.cache.component import Component
from kvcalc.reference.build import Build

if TYPE_CHECKING:
    from torch import Tensor

    from kvcalc.reference.step import Step


class Mixer:
    """One such component of one layer. This base keeps nothing and adds nothing.

    `weights` holds every tensor that a pass multiplies with, by name; `memory_width` is how wide a memory it leaves
    on this rank for gated memory units, None where it leaves none.
    """

    def __init__(self, component: Component, build: Build) -> None:
        self.build = build
        self.memory_width: int | None = None
        self.weights: dict[str, Tensor] = {}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each state of one sequence on this rank, by the name that the component gives it."""
        return {}

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor | None":
        """What it adds for new tokens `x` (batch, tokens, hidden); updates `states` (batch, *shape) in place."""
        return None

    def flops(self, tokens: int) -> int:
        """Multiply-adds x 2 of a pass over `tokens` new tokens of one sequence, beyond its weight matrices."""
        return 0
