"""References of the kinds that keep states, by kind name.

Heads or channels are spread over ranks and only the output is summed, with the exceptions that the
classes name. Norms are taken a head, so that every rank norms what it holds.
"""

from typing import TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError
from kvcalc.reference.build import Build, Heads
from kvcalc.reference.mamba import GmuMixer, Mamba1Mixer, Mamba2Mixer
from kvcalc.reference.mixer import Mixer
from kvcalc.reference.norm import rms_norm
from kvcalc.reference.rwkv import RwkvMixer
from kvcalc.reference.scans import decay_scan, delta_scan, diagonal_scan
from kvcalc.reference.stateful import Share, StatefulMixer, cut, in_groups, in_heads, out_of_heads

if TYPE_CHECKING:
    from torch import Tensor

    from kvcalc.reference.step import Step


class GatedDeltaMixer(StatefulMixer):
    """Gated DeltaNet, arXiv 2412.06464, as transformers' Qwen3-Next lays it out."""

    def __init__(self, component: Any, build: Build) -> None:
        super().__init__(component, build)
        self.k_dim: int = component.k_dim
        self.v_dim: int = component.v_dim
        self.kernel: int = component.kernel
        self.keys = build.rank.heads(component.k_heads, "key heads")
        values = build.rank.split(component.v_heads, "value heads")
        self.q, self.k = (Share(name, component.k_heads, self.keys, self.k_dim) for name in ("q", "k"))
        self.v, self.z = (Share(name, component.v_heads, values, self.v_dim) for name in ("v", "z"))
        self.beta, self.decay = (Share(name, component.v_heads, values) for name in ("beta", "decay"))
        self._add_matrix("in", build.hidden, self.q, self.k, self.v, self.z, self.beta, self.decay)
        self._add_matrix("conv", self.kernel, self.q, self.k, self.v)
        self._add_numbers(0.0, 2.77, self.decay._replace(name="log_rate"))
        self._add_numbers(-6.9, -2.25, self.decay._replace(name="decay_shift"))
        self._add_numbers(0.5, 1.5, Share("norm", 1, Heads(0, 1), self.v_dim))
        self._add_transposed("out", build.hidden, self.v)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        convolved = self.q.own_rows + self.k.own_rows + self.v.own_rows
        return {"conv": (convolved, self.kernel - 1), "delta": (self.v.own.count, self.v_dim, self.k_dim)}

    def flops(self, tokens: int) -> int:
        """tokens * v_heads * k_dim * v_dim * 8: a state number decays, is corrected (read, written) and is read."""
        return tokens * self.v.own_rows * self.k_dim * 8

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor":
        from torch.nn.functional import silu

        projected = self._project("in", x)
        widths = (self.weights["conv"].shape[0], self.z.own_rows, self.beta.own_rows, self.decay.own_rows)
        convolved, z, beta, decay = cut(projected, *widths)
        convolved = self._exactly(silu(self._convolve(convolved, states["conv"])))
        y = self._scan(convolved, self._exactly(beta), self._exactly(decay), states["delta"])
        gate = silu(in_heads(self._exactly(z), self.v_dim))
        return self._output(out_of_heads(rms_norm(y) * self.weights["norm"] * gate))

    def _scan(self, convolved: "Tensor", beta: "Tensor", decay: "Tensor", state: "Tensor") -> "Tensor":
        """The delta rule, (batch, value heads, tokens, v_dim); updates `state`."""
        from torch.nn.functional import softplus

        q, k, v = self._split(convolved, self.q, self.k, self.v)
        q, k = (_unit_long(in_heads(part, self.k_dim)).unsqueeze(2) for part in (q, k))
        log_decay = -self.weights["log_rate"].exp() * softplus(decay + self.weights["decay_shift"])
        of_values = (in_heads(v, self.v_dim), in_heads(log_decay, 1), in_heads(beta.sigmoid(), 1))
        v, log_decay, beta = (in_groups(part, self.keys.count) for part in of_values)
        before = in_groups(self._exactly(state).mT, self.keys.count)
        y, after = delta_scan(q * self.k_dim**-0.5, k, v, log_decay, beta, before)
        state.copy_(after.flatten(1, 2).mT)
        return y.flatten(1, 2)


def _unit_long(x: "Tensor") -> "Tensor":
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class LinearMixer(StatefulMixer):
    """Gated retention, YOCO, arXiv 2405.05254, section 3.2, without its rotary embedding."""

    def __init__(self, component: Any, build: Build) -> None:
        super().__init__(component, build)
        self.k_dim: int = component.k_dim
        self.v_dim: int = component.v_dim
        heads = build.rank.split(component.heads, "state heads")
        self.q, self.k = (Share(name, component.heads, heads, self.k_dim) for name in ("q", "k"))
        self.v, self.gate = (Share(name, component.heads, heads, self.v_dim) for name in ("v", "gate"))
        self.decay = Share("decay", component.heads, heads)
        self._add_matrix("in", build.hidden, self.q, self.k, self.v, self.gate, self.decay)
        self._add_numbers(0.5, 1.5, self.v._replace(name="norm"))
        self._add_transposed("out", build.hidden, self.v)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"linear": (self.v.own.count, self.k_dim, self.v_dim)}

    def flops(self, tokens: int) -> int:
        """tokens * heads * k_dim * v_dim * 6: a state number decays, gains and is read."""
        return tokens * self.v.own_rows * self.k_dim * 6

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor":
        from torch.nn.functional import logsigmoid, silu

        projected = self._exactly(self._project("in", x))
        q, k, v, gate, decay = self._split(projected, self.q, self.k, self.v, self.gate, self.decay)
        q, k, v = in_heads(q, self.k_dim) * self.k_dim**-0.5, in_heads(k, self.k_dim), in_heads(v, self.v_dim)
        log_decay = in_heads(logsigmoid(decay) / 16, 1)
        y, after = decay_scan(q, k, v, log_decay, self._exactly(states["linear"]))
        states["linear"].copy_(after)
        return self._output(out_of_heads(rms_norm(y)) * self.weights["norm"] * silu(gate))


class ShortConvMixer(StatefulMixer):
    """The gated short convolution of LFM2, as transformers lays it out (Lfm2ShortConv, without biases)."""

    def __init__(self, component: Any, build: Build) -> None:
        super().__init__(component, build)
        self.kernel: int = component.kernel
        own = build.rank.split(component.width, "channels")
        self.b, self.c, self.x = (Share(name, component.width, own) for name in ("b", "c", "x"))
        self._add_matrix("in", build.hidden, self.b, self.c, self.x)
        self._add_matrix("conv", self.kernel, self.x)
        self._add_transposed("out", build.hidden, self.x)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"conv": (self.x.own_rows, self.kernel - 1)}

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor":
        b, c, x = self._split(self._project("in", x), self.b, self.c, self.x)
        return self._output(c * self._convolve(b * x, states["conv"]))


class RgLruMixer(StatefulMixer):
    """The recurrent block of Griffin, arXiv 2402.19427, section 2.4.

    Where the blocks of its gates do not divide over the ranks, each rank makes one summand of all gates.
    """

    def __init__(self, component: Any, build: Build) -> None:
        super().__init__(component, build)
        self.kernel: int = component.kernel
        blocks: int = component.heads or 1
        if component.width % blocks:
            raise KvcalcError(
                f"rg_lru: width {component.width} is no multiple of heads {blocks}", "each head has as many channels"
            )
        own = build.rank.split(component.width, "channels")
        self.x, self.y = (Share(name, component.width, own) for name in ("x", "y"))
        self._add_matrix("in", build.hidden, self.x, self.y)
        self._add_bias("in_bias", self.x, self.y)
        self._add_matrix("conv", self.kernel, self.x)
        self._add_bias("conv_bias", self.x)
        self._add_gates(blocks)
        # sigmoid of minus these, to the eighth, lies between 0.9 and 0.999: where section 2.4 starts.
        self._add_numbers(-9.0, -4.3, self.x._replace(name="rate"))
        self._add_transposed("out", build.hidden, self.x)
        self._add_bias("out_bias", Share("out", build.hidden, Heads(0, build.hidden)))
        # The output is a sum over ranks, so each adds its part of the bias.
        self.weights["out_bias"] /= build.rank.size

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"conv": (self.x.own_rows, self.kernel - 1), "lru": (self.x.own_rows,)}

    def flops(self, tokens: int) -> int:
        """tokens * width * 4: a channel decays and gains."""
        return tokens * self.x.own_rows * 4

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor":
        from torch.nn.functional import gelu, softplus

        x, y = self._split(self._project("in", x), self.x, self.y)
        x = self._convolve(x, states["conv"])
        recur, admit = self._gates(x)
        log_decay = -8 * softplus(self.weights["rate"]) * recur
        added = (-(2 * log_decay).expm1()).sqrt() * admit * self._exactly(x)
        hidden, after = diagonal_scan(log_decay, added, self._exactly(states["lru"]))
        states["lru"].copy_(after)
        return self._output(hidden.to(self.build.dtype) * gelu(y, approximate="tanh"))

    def _add_gates(self, blocks: int) -> None:
        """Recurrence and input gate: (2, own blocks, outputs, inputs), or (both gates of all channels, own inputs)."""
        rank, width = self.build.rank, self.x.total_rows
        self._add_numbers(-0.1, 0.1, *(self.x._replace(name=f"{gate}_shift") for gate in ("recur", "admit")))
        drawn = self.build.weight("gates", 2 * width, width // blocks).view(2, blocks, width // blocks, -1)
        self.has_whole_blocks = blocks % rank.size == 0
        if self.has_whole_blocks:
            self.weights["gates"] = drawn[:, rank.heads(blocks, "gate heads").rows(1)].clone()
        else:
            whole = drawn.new_zeros(2, blocks, width // blocks, blocks, width // blocks)
            whole.diagonal(dim1=1, dim2=3).copy_(drawn.permute(0, 2, 3, 1))
            self.weights["gates"] = whole.view(2 * width, width)[:, self.x.rows].contiguous()

    def _gates(self, x: "Tensor") -> "tuple[Tensor, Tensor]":
        """How much each channel recurs and admits, from 0 to 1, (batch, tokens, own channels)."""
        import torch

        if self.has_whole_blocks:
            gates = self.weights["gates"]
            summed = torch.einsum("bhti,ghoi->gbtho", in_heads(x, gates.shape[-1]), gates).flatten(-2)
        else:
            whole = self._sum_over_ranks(self._project("gates", x))
            summed = torch.stack([gate[..., self.x.rows] for gate in whole.chunk(2, dim=-1)])
        recur, admit = self._exactly(summed)
        return (recur + self.weights["recur_shift"]).sigmoid(), (admit + self.weights["admit_shift"]).sigmoid()


RECURRENT: dict[str, type[Mixer]] = {
    "mamba1": Mamba1Mixer,
    "mamba2": Mamba2Mixer,
    "gated_delta": GatedDeltaMixer,
    "linear": LinearMixer,
    "short_conv": ShortConvMixer,
    "rg_lru": RgLruMixer,
    "rwkv": RwkvMixer,
    "gmu": GmuMixer,
}
