"""Mamba, Mamba-2, and the gated memory unit that reads what either computed."""

from typing import TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError
from kvcalc.reference.build import Build
from kvcalc.reference.norm import rms_norm
from kvcalc.reference.scans import decay_scan, selective_scan
from kvcalc.reference.stateful import Share, StatefulMixer, cut, in_groups, in_heads, out_of_heads

if TYPE_CHECKING:
    from torch import Tensor

    from kvcalc.reference.step import Step

LOG_RATES = (0.0, 2.77)
"""Rates from 1 to 16, as Mamba initialises them."""
STEP_BIASES = (-6.9, -2.25)
"""softplus of these is a step from 0.001 to 0.1, as Mamba initialises it."""


class Mamba1Mixer(StatefulMixer):
    """A selective state-space model, arXiv 2312.00752, figure 3; dt, B and C are summed over the ranks' channels."""

    def __init__(self, component: Any, build: Build) -> None:
        super().__init__(component, build)
        self.state: int = component.state
        self.kernel: int = component.kernel
        self.dt_rank: int = component.dt_rank or -(-build.hidden // 16)
        own = build.rank.split(component.inner, "inner channels")
        self.x, self.z = (Share(name, component.inner, own) for name in ("x", "z"))
        self.memory_width = self.x.own_rows
        self._add_matrix("in", build.hidden, self.x, self.z)
        self._add_matrix("conv", self.kernel, self.x)
        self._add_bias("conv_bias", self.x)
        self._add_transposed("select", self.dt_rank + 2 * self.state, self.x)
        self._add_matrix("dt", self.dt_rank, self.x)
        self._add_numbers(*STEP_BIASES, Share("dt_shift", component.inner, own))
        self._add_numbers(*LOG_RATES, Share("log_rate", component.inner, own, self.state))
        self._add_numbers(0.5, 1.5, Share("skip", component.inner, own))
        self._add_transposed("out", build.hidden, self.x)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        inner = self.x.own_rows
        return {"conv": (inner, self.kernel - 1), "ssm": (inner, self.state)}

    def flops(self, tokens: int) -> int:
        """tokens * inner * (6 * state + 2): a state number decays, gains and is read; the skip."""
        return tokens * self.x.own_rows * (6 * self.state + 2)

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor":
        from torch.nn.functional import silu, softplus

        x, z = self._split(self._project("in", x), self.x, self.z)
        x = silu(self._convolve(x, states["conv"]))
        selected = self._sum_over_ranks(self._project("select", x))
        dt, b, c = cut(selected, self.dt_rank, self.state, self.state)
        dt = softplus(self._exactly(self._project("dt", dt)) + self.weights["dt_shift"])
        rate = -self.weights["log_rate"].view(-1, self.state).exp()
        before = self._exactly(states["ssm"])
        y, after = selective_scan(self._exactly(x), dt, self._exactly(b), self._exactly(c), rate, before)
        states["ssm"].copy_(after)
        step.memory = (y + self.weights["skip"] * x).to(self.build.dtype)
        return self._output(step.memory * silu(z))


class Mamba2Mixer(StatefulMixer):
    """Mamba-2, arXiv 2405.21060, section 7. Its gated norm is taken a head, so that ranks need not meet for it."""

    def __init__(self, component: Any, build: Build) -> None:
        super().__init__(component, build)
        self.head_dim: int = component.head_dim
        self.state: int = component.state
        self.kernel: int = component.kernel
        heads = build.rank.split(component.heads, "state heads")
        self.groups = build.rank.heads(component.groups, "state groups")
        self.z, self.x = (Share(name, component.heads, heads, self.head_dim) for name in ("z", "x"))
        self.memory_width = self.x.own_rows
        self.b, self.c = (Share(name, component.groups, self.groups, self.state) for name in ("b", "c"))
        self.dt = Share("dt", component.heads, heads)
        self._add_matrix("in", build.hidden, self.z, self.x, self.b, self.c, self.dt)
        self._add_matrix("conv", self.kernel, self.x, self.b, self.c)
        self._add_bias("conv_bias", self.x, self.b, self.c)
        self._add_numbers(*STEP_BIASES, self.dt._replace(name="dt_shift"))
        self._add_numbers(*LOG_RATES, self.dt._replace(name="log_rate"))
        self._add_numbers(0.5, 1.5, self.dt._replace(name="skip"), self.x._replace(name="norm"))
        self._add_transposed("out", build.hidden, self.x)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        convolved = self.x.own_rows + self.b.own_rows + self.c.own_rows
        return {"conv": (convolved, self.kernel - 1), "ssm": (self.x.own.count, self.head_dim, self.state)}

    def flops(self, tokens: int) -> int:
        """tokens * heads * head_dim * (6 * state + 2): a state number decays, gains and is read; the skip."""
        return tokens * self.x.own_rows * (6 * self.state + 2)

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor":
        from torch.nn.functional import silu

        convolved_rows = self.weights["conv"].shape[0]
        z, convolved, dt = cut(self._project("in", x), self.z.own_rows, convolved_rows, self.dt.own_rows)
        convolved = self._exactly(silu(self._convolve(convolved, states["conv"])))
        x, b, c = self._split(convolved, self.x, self.b, self.c)
        y = out_of_heads(self._scan(x, b, c, self._exactly(dt), states["ssm"]))
        step.memory = y.to(self.build.dtype)
        gated = in_heads(y * silu(self._exactly(z)), self.head_dim)
        return self._output(out_of_heads(rms_norm(gated)) * self.weights["norm"])

    def _scan(self, x: "Tensor", b: "Tensor", c: "Tensor", dt: "Tensor", state: "Tensor") -> "Tensor":
        """The recurrence and the skip, (batch, heads, tokens, head_dim); updates `state`."""
        from torch.nn.functional import softplus

        groups = self.groups.count
        dt = in_heads(softplus(dt + self.weights["dt_shift"]), 1)
        log_decay = -dt * self.weights["log_rate"].exp().view(-1, 1, 1)
        x = in_heads(x, self.head_dim)
        # B and C are the keys and queries; their groups broadcast over the heads of a group.
        k, q = (in_heads(part, self.state).unsqueeze(2) for part in (b, c))
        before = in_groups(self._exactly(state).mT, groups)
        y, after = decay_scan(q, k, in_groups(dt * x, groups), in_groups(log_decay, groups), before)
        state.copy_(after.flatten(1, 2).mT)
        return y.flatten(1, 2) + self.weights["skip"].view(-1, 1, 1) * x


class GmuMixer(StatefulMixer):
    """A gated memory unit, SambaY, arXiv 2507.06607: the latest Mamba output under a gate of its own.

    It is as wide as the memory that it is handed.
    """

    def __init__(self, component: Any, build: Build) -> None:
        super().__init__(component, build)
        if build.memory_width is not None:
            self._add_weights(build.memory_width)

    def mix(self, x: "Tensor", states: "dict[str, Tensor]", step: "Step") -> "Tensor":
        from torch.nn.functional import silu

        if step.memory is None:
            raise KvcalcError("gmu: no layer before it leaves a memory", "put a mamba1 or mamba2 mixer before it")
        if not self.weights:
            self._add_weights(step.memory.shape[-1])
        return self._output(step.memory[:, -x.shape[1] :] * silu(self._project("in", x)))

    def _add_weights(self, own_width: int) -> None:
        rank, hidden = self.build.rank, self.build.hidden
        width = own_width * rank.size
        share = Share("memory", width, rank.split(width, "memory channels"))
        self._add_matrix("in", hidden, share)
        self._add_transposed("out", hidden, share)
