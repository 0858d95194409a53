"""RWKV-6 time mixing."""

from typing import TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError
from kvcalc.reference.build import Build, Heads
from kvcalc.reference.scans import channel_decay_scan
from kvcalc.reference.stateful import Share, StatefulMixer, in_heads, out_of_heads

if TYPE_CHECKING:
    from torch import Tensor

    from kvcalc.reference.step import Step

MIXED = ("decay", "k", "v", "r", "gate")
NORM_EPSILON = 64e-5
"""RWKV-6 norms with 1e-5 times its head size divisor, 8, squared."""


class RwkvMixer(StatefulMixer):
    """The time mix of RWKV-6, arXiv 2404.05892; ranks of its low-rank matrices as RWKV-LM sets them.

    What blends a token with the one before it acts on the whole hidden width, on every rank alike.
    """

    def __init__(self, component: Any, build: Build) -> None:
        super().__init__(component, build)
        if component.hidden != build.hidden:
            raise KvcalcError(
                f"rwkv: hidden {component.hidden} in a model that is {build.hidden} wide",
                f"write hidden: {build.hidden}",
            )
        self.head_dim: int = component.head_dim
        self.heads = build.rank.split(component.heads, "state heads")
        # RWKV-LM, RWKV-v5/src/model.py, RWKV_Tmix_x060: twice the rank for its 4096 wide model.
        self.mix_rank, self.decay_rank = (64, 128) if build.hidden >= 4096 else (32, 64)
        self._add_blends()
        self._add_heads(component.heads)

    def _add_blends(self) -> None:
        hidden, everywhere = self.build.hidden, Heads(0, self.build.hidden)
        self._add_numbers(0.0, 1.0, *(Share(f"blend_{name}", hidden, everywhere) for name in ("x", *MIXED)))
        every_blend = 5 * self.mix_rank
        self._add_matrix("blend_down", hidden, Share("all", every_blend, Heads(0, every_blend)))
        self._add_matrix("blend_up", self.mix_rank, *(Share(name, hidden, everywhere) for name in MIXED))

    def _add_heads(self, heads: int) -> None:
        hidden = self.build.hidden
        share = Share("own", heads, self.heads, self.head_dim)
        for name in ("r", "k", "v", "gate"):
            self._add_matrix(name, hidden, share)
        self._add_matrix("decay_down", hidden, Share("all", self.decay_rank, Heads(0, self.decay_rank)))
        self._add_matrix("decay_up", self.decay_rank, share)
        self._add_numbers(-6.0, -1.0, share._replace(name="decay_shift"))
        self._add_numbers(-0.5, 0.5, share._replace(name="bonus"), share._replace(name="norm_shift"))
        self._add_numbers(0.5, 1.5, share._replace(name="norm"))
        self._add_transposed("out", hidden, share)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"shift": (2, self.build.hidden), "wkv": (self.heads.count, self.head_dim, self.head_dim)}

    def flops(self, tokens: int) -> int:
        """tokens * heads * head_dim * (6 * head_dim + 4): a state number decays, gains and is read; the bonus."""
        return tokens * self.heads.count * self.head_dim * (6 * self.head_dim + 4)

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor":
        from torch.nn.functional import group_norm, silu

        decay, k, v, r, gate = self._blended(x, states["shift"])
        r, k, v = (
            in_heads(self._exactly(self._project(name, one)), self.head_dim)
            for name, one in (("r", r), ("k", k), ("v", v))
        )
        low_rank = self._project("decay_up", self._project("decay_down", decay).tanh())
        log_decay = -in_heads((self._exactly(low_rank) + self.weights["decay_shift"]).exp(), self.head_dim)
        bonus = self.weights["bonus"].view(-1, 1, self.head_dim)
        y, after = channel_decay_scan(r, k, v, log_decay, bonus, self._exactly(states["wkv"]))
        states["wkv"].copy_(after)
        tokens = out_of_heads(y).flatten(0, 1)
        normed = group_norm(
            tokens, self.heads.count, self.weights["norm"], self.weights["norm_shift"], NORM_EPSILON
        ).view(*x.shape[:2], -1)
        return self._output(normed * silu(self._project("gate", gate)))

    def _blended(self, x: "Tensor", shift: "Tensor") -> "tuple[Tensor, ...]":
        """Five blends of each token with the one before it, (batch, tokens, hidden); keeps the last token."""
        import torch

        previous = torch.cat((shift[:, :1].to(x.dtype), x[:, :-1]), dim=1)
        # The second row is the channel mix's; here both mixers see the same last token.
        shift.copy_(x[:, -1:].expand(shift.shape))
        change = previous - x
        first = x + change * self.weights["blend_x"].to(x.dtype)
        low_rank = self._project("blend_down", first).tanh().view(*x.shape[:2], 5, -1)
        more = torch.einsum("btmr,mhr->mbth", low_rank, self.weights["blend_up"].view(5, -1, self.mix_rank))
        return tuple(
            x + change * (self.weights[f"blend_{name}"].to(x.dtype) + one)
            for name, one in zip(MIXED, more, strict=True)
        )
