"""Kinds that keep states: constant per sequence, whatever the context.

Shapes: vllm model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator. A convolution
over `kernel` tokens keeps kernel - 1 columns.
"""

from typing import Annotated

import msgspec

from kvcalc.cache.component import MODEL_FORMAT, Component, Count, Label, check_format, contradiction
from kvcalc.cache.sharding import Sharding
from kvcalc.cache.span import State


def _convolution(width: int, kernel: int) -> State:
    return State("conv", (width, kernel - 1), MODEL_FORMAT, is_convolution=True)


class Mamba1(Component, frozen=True, kw_only=True, tag="mamba1"):
    """Mamba: a selective state of `state` numbers for each of `inner` channels."""

    inner: Count
    state: Count
    kernel: Count
    dt_rank: Count | None = None

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        inner = sharding.heads(self.inner)
        return _convolution(inner, self.kernel), State("ssm", (inner, self.state), None)

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return (("inner channels", self.inner),)

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int:
        """Input, convolution, dt / B / C, output, and the A and D of every channel."""
        rank = self.dt_rank or -(-hidden // 16)
        per_channel = (self.kernel + 1) + (rank + 2 * self.state) + (rank + 1) + self.state + 1
        return sharding.heads(self.inner) * (3 * hidden + per_channel)


class Mamba2(Component, frozen=True, kw_only=True, tag="mamba2"):
    """Mamba-2: one state of `head_dim` x `state` a head; B and C are shared by groups of heads."""

    heads: Count
    head_dim: Count
    state: Count
    groups: Count
    kernel: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.groups:
            message = f"heads {self.heads} is no multiple of groups {self.groups}"
            raise ValueError(contradiction(message, "each group serves as many heads"))

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        heads, groups = sharding.heads(self.heads), sharding.heads(self.groups)
        width = heads * self.head_dim + 2 * groups * self.state
        return _convolution(width, self.kernel), State("ssm", (heads, self.head_dim, self.state), None)

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return ("state heads", self.heads), ("state groups", self.groups)

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int:
        """Input (gate, x, B, C, dt), convolution, A, D and dt bias a head, a gated norm, output."""
        heads, groups = sharding.heads(self.heads), sharding.heads(self.groups)
        inner = heads * self.head_dim
        convolved = inner + 2 * groups * self.state
        project = hidden * (inner + convolved + heads)
        return project + convolved * (self.kernel + 1) + 3 * heads + inner + inner * hidden


class GatedDelta(Component, frozen=True, kw_only=True, tag="gated_delta"):
    """A gated delta rule: one k_dim x v_dim state a value head (Gated DeltaNet, Kimi Delta Attention)."""

    k_heads: Count
    v_heads: Count
    k_dim: Count
    v_dim: Count
    kernel: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.v_heads % self.k_heads:
            message = f"v_heads {self.v_heads} is no multiple of k_heads {self.k_heads}"
            raise ValueError(contradiction(message, "each key head serves as many value heads"))

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        k_heads, v_heads = sharding.heads(self.k_heads), sharding.heads(self.v_heads)
        width = 2 * k_heads * self.k_dim + v_heads * self.v_dim
        return _convolution(width, self.kernel), State("delta", (v_heads, self.v_dim, self.k_dim), None)

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return ("key heads", self.k_heads), ("value heads", self.v_heads)

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int:
        """Gated DeltaNet as in Qwen3-Next: q, k, v, gate, two numbers a head, convolution, norm, output."""
        v_heads = sharding.heads(self.v_heads)
        keys, values = sharding.heads(self.k_heads) * self.k_dim, v_heads * self.v_dim
        project = hidden * (2 * keys + 2 * values + 2 * v_heads) + values * hidden
        return project + (2 * keys + values) * self.kernel + 2 * v_heads + self.v_dim


class Linear(Component, frozen=True, kw_only=True, tag="linear"):
    """Linear attention with a k_dim x v_dim state a head: lightning attention, gated retention."""

    heads: Count
    k_dim: Count
    v_dim: Count

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        return (State("linear", (sharding.heads(self.heads), self.k_dim, self.v_dim), None),)

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return (("state heads", self.heads),)

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int:
        """Lightning attention as in MiniMax-Text-01: q, k, v, an output gate and its norm, output."""
        heads = sharding.heads(self.heads)
        keys, values = heads * self.k_dim, heads * self.v_dim
        return hidden * (2 * keys + 3 * values) + values


class ShortConv(Component, frozen=True, kw_only=True, tag="short_conv"):
    """A gated short convolution (LFM2): only its last columns are kept."""

    width: Count
    kernel: Count

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        return (_convolution(sharding.heads(self.width), self.kernel),)

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return (("channels", self.width),)

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int:
        """Two gates and the input, the convolution, output."""
        return sharding.heads(self.width) * (4 * hidden + self.kernel)


class RgLru(Component, frozen=True, kw_only=True, tag="rg_lru"):
    """A real-gated linear recurrent unit behind a convolution (RecurrentGemma)."""

    width: Count
    kernel: Count
    heads: Count | None = None

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        width = sharding.heads(self.width)
        return _convolution(width, self.kernel), State("lru", (width,), None)

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return (("channels", self.width),)

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int | None:
        """Two inputs and an output with biases, the convolution, two block-diagonal gates, one number a channel."""
        if self.heads is None:
            return None
        width = sharding.heads(self.width)
        project = 3 * hidden * width + 2 * width + hidden
        gates = 2 * (width * self.width // self.heads + width)
        return project + width * (self.kernel + 1) + gates + width


class Rwkv(Component, frozen=True, kw_only=True, tag="rwkv"):
    """RWKV-6: the last token of both mixers, and a head_dim x head_dim state a head."""

    hidden: Count
    heads: Count
    head_dim: Count

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        heads = sharding.heads(self.heads)
        shift = State("shift", (2, self.hidden), MODEL_FORMAT)
        return shift, State("wkv", (heads, self.head_dim, self.head_dim), None)

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return (("state heads", self.heads),)


class StateEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One state of a `recurrent` component, as a spec lists it."""

    name: Label
    heads: Count | None = None
    shape: tuple[Count, ...] = ()
    kernel: Count | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        if self.heads is None and not self.shape:
            raise ValueError(contradiction("a state needs heads, a shape or both", "add heads: or shape:"))
        if self.format not in (None, MODEL_FORMAT):
            check_format(self.format)

    def on_rank(self, sharding: Sharding) -> State:
        """The state as one rank holds it."""
        heads = (sharding.heads(self.heads),) if self.heads is not None else ()
        columns = (self.kernel - 1,) if self.kernel is not None else ()
        return State(self.name, (*heads, *self.shape, *columns), self.format, is_convolution=self.kernel is not None)


class Recurrent(Component, frozen=True, kw_only=True, tag="recurrent"):
    """Whatever states a spec lists: the kind for what has no kind of its own."""

    states_: Annotated[tuple[StateEntry, ...], msgspec.Meta(min_length=1)] = msgspec.field(name="states")

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        return tuple(state.on_rank(sharding) for state in self.states_)

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return tuple((f"{state.name} heads", state.heads) for state in self.states_ if state.heads is not None)
