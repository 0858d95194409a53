"""One pass over new tokens, as the layers see it."""

from typing import TYPE_CHECKING

from kvcalc.reference.seen import Choice, Seen

if TYPE_CHECKING:
    from torch import Tensor

Place = tuple[int, int]
"""Layer and position of a component."""


class Step:
    """Tokens `past` to `past + tokens` pass the layers; what one layer leaves for later ones stands here."""

    def __init__(self, past: int, tokens: int, encoded: "Tensor | None" = None) -> None:
        self.past, self.tokens, self.encoded = past, tokens, encoded
        self.seen: dict[Place, Seen] = {}
        self.choices: dict[Place, Choice | None] = {}
        self.latest_choice: Choice | None = None
        self.candidates: dict[tuple[Place, int | None], Choice | None] = {}
        self.memory: Tensor | None = None

    def positions(self, x: "Tensor") -> "Tensor":
        """Absolute positions of the tokens of `x` (batch, tokens, hidden), the last of the pass."""
        import torch

        end = self.past + self.tokens
        return torch.arange(end - x.shape[1], end, device=x.device)
