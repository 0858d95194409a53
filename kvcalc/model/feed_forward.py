"""Feed-forward parts of a layer: what they hold, and what a token is multiplied with."""

from typing import Annotated, Any, NamedTuple

import msgspec

from kvcalc.cache.component import Count, CountOrZero, ExtraParameters, Parameters, contradiction
from kvcalc.cache.matrix import Matrix
from kvcalc.cache.sharding import WHOLE, Sharding


class Routed(NamedTuple):
    """The routed experts on one rank: `held` of `experts`, of which a token passes `active`."""

    held: int
    experts: int
    active: int
    matrices: tuple[Matrix, ...]

    def touched(self, tokens: Any) -> Any:
        """How many of the held experts `tokens` tokens reach, on average, if each chooses evenly and alone."""
        return self.held * (1 - (1 - self.active / self.experts) ** tokens)


class Mlp(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """A feed-forward part; sizes may be left out where only the cache matters."""

    intermediate_size: Count | None = None
    gated: bool = True
    bias: bool = False
    parameters: Parameters | None = None
    extra_parameters: ExtraParameters = 0
    weights: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None = None

    def parameter_count(self, hidden: int, sharding: Sharding = WHOLE, experts: Sharding = WHOLE) -> int | None:
        """Its parameters on the fullest rank in a model `hidden` wide; None means unknown.

        Routed experts lie on the `ep` ranks of `experts`, each of them cut over its `tp`.
        """
        if self.parameters is not None:
            return sharding.share(self.parameters + self.extra_parameters)
        own = self._all(hidden, sharding, experts)
        return None if own is None else own + sharding.share(self.extra_parameters)

    def active_parameters(self, hidden: int) -> int | None:
        """The parameters that one token passes through."""
        return self.parameter_count(hidden)

    def token_width(self, hidden: int, sharding: Sharding = WHOLE) -> int | None:
        """Numbers that one token has on a rank while its widest step runs: what goes up, and their product."""
        inner = self.intermediate_size
        return None if inner is None else sharding.share(inner) * (3 if self.gated else 2)

    def workspace_width(self, hidden: int, sharding: Sharding = WHOLE) -> int:
        """Numbers a token that stay reserved from step to step, beside `token_width`."""
        return 0

    def adapted_widths(self, hidden: int, sharding: Sharding = WHOLE) -> int | None:
        """Numbers that go in and out of its linear layers on one rank, which a LoRA of rank 1 has a weight for each."""
        if self.intermediate_size is None:
            return None
        return (3 if self.gated else 2) * (hidden + sharding.share(self.intermediate_size))

    def router_parameters(self, hidden: int) -> int:
        """Parameters of what chooses among experts, whole on every rank."""
        return 0

    def matrices(self, hidden: int, sharding: Sharding) -> tuple[Matrix, ...]:
        """What every token is multiplied with on the fullest rank: up and gate in one matrix, and down."""
        if self.parameters is not None:
            inner = sharding.share(self.parameters + self.extra_parameters) // (2 * hidden)
            return Matrix(inner, hidden), Matrix(hidden, inner)
        own = self._pair(hidden, self._inner_for_all, sharding)
        extra = sharding.share(max(0, self.extra_parameters)) // hidden
        return (*own, Matrix(extra, hidden)) if extra else own

    def routed(self, hidden: int, experts: Sharding) -> Routed | None:
        """The experts that tokens choose among on the fullest rank, None where there are none."""
        return None

    @property
    def _inner_for_all(self) -> int:
        return self.intermediate_size or 0

    def _pair(self, hidden: int, inner: int, sharding: Sharding) -> tuple[Matrix, ...]:
        inner = sharding.share(inner)
        return (Matrix((2 if self.gated else 1) * inner, hidden), Matrix(hidden, inner)) if inner else ()

    @property
    def stated_parameters(self) -> int:
        """How many of its parameters a spec states as a number, without saying what they are."""
        return (self.parameters or 0) + abs(self.extra_parameters)

    def _all(self, hidden: int, sharding: Sharding, experts: Sharding) -> int | None:
        return self._projections(hidden, self.intermediate_size, sharding)

    def _projections(self, hidden: int, inner: int | None, sharding: Sharding = WHOLE) -> int | None:
        if inner is None:
            return None
        inner, matrices = sharding.share(inner), 3 if self.gated else 2
        return matrices * hidden * inner + ((matrices - 1) * inner + hidden if self.bias else 0)


class Dense(Mlp, frozen=True, kw_only=True, tag="dense"):
    """One network that every token passes."""


class Moe(Mlp, frozen=True, kw_only=True, tag="moe"):
    """Routed experts of `intermediate_size`, `active` of them a token, beside `shared` ones that all tokens pass."""

    experts: Count | None = None
    active: Count | None = None
    shared: CountOrZero = 0
    shared_intermediate_size: Count | None = None
    router: bool = True

    def __post_init__(self) -> None:
        if self.experts is not None and self.active is not None and self.active > self.experts:
            raise ValueError(contradiction(f"active {self.active} is more than experts {self.experts}", "swap them?"))

    def active_parameters(self, hidden: int) -> int | None:
        total, idle = self.parameter_count(hidden), self.idle_parameters(hidden)
        return None if total is None or idle is None else total - idle

    def idle_parameters(self, hidden: int) -> int | None:
        """Parameters of the experts that a token is not routed to."""
        expert = self._projections(hidden, self.intermediate_size)
        if self.experts is None or self.active is None or expert is None:
            return None
        return (self.experts - self.active) * expert

    def token_width(self, hidden: int, sharding: Sharding = WHOLE) -> int:
        """Of the shared experts; what routed ones need is `workspace_width`."""
        inner = self.shared_intermediate_size or self.intermediate_size or 0
        return sharding.share(self.shared * inner) * (3 if self.gated else 2)

    def workspace_width(self, hidden: int, sharding: Sharding = WHOLE) -> int:
        """Of fused experts: each of a token's experts has its product and its output in buffers of their own.

        vllm fused_moe/modular_kernel.py, workspace_shapes.
        """
        inner = sharding.share(self.intermediate_size or 0) * (3 if self.gated else 2)
        return (self.active or 1) * (inner + hidden)

    def adapted_widths(self, hidden: int, sharding: Sharding = WHOLE) -> None:
        """Unknown: engines adapt none, the shared or all of the experts."""

    def router_parameters(self, hidden: int) -> int:
        return (self.experts or 0) * (hidden + (1 if self.bias else 0)) if self.router else 0

    def matrices(self, hidden: int, sharding: Sharding) -> tuple[Matrix, ...]:
        router = (Matrix(self.experts, hidden),) if self.router and self.experts and self.parameters is None else ()
        return (*router, *super().matrices(hidden, sharding))

    def routed(self, hidden: int, experts: Sharding) -> Routed | None:
        if self.parameters is not None or not (self.experts and self.active and self.intermediate_size):
            return None
        one = self._pair(hidden, self.intermediate_size, experts)
        return Routed(-(-self.experts // experts.ep), self.experts, self.active, one)

    @property
    def _inner_for_all(self) -> int:
        return self.shared * (self.shared_intermediate_size or self.intermediate_size or 0)

    def _all(self, hidden: int, sharding: Sharding, experts: Sharding) -> int | None:
        expert = self._projections(hidden, self.intermediate_size, experts)
        if self.experts is None or expert is None:
            return None
        held = -(-self.experts // experts.ep) * expert
        shared = self._projections(hidden, self.shared_intermediate_size or self.intermediate_size, sharding) or 0
        return held + self.router_parameters(hidden) + self.shared * shared


AnyMlp = Dense | Moe
MLP_KINDS: dict[str, type[Mlp]] = {"dense": Dense, "moe": Moe}
