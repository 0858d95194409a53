"""Feed-forward parts, run where they are asked for: dense networks, and experts of which a token takes a few."""

from typing import TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError
from kvcalc.model.feed_forward import Mlp
from kvcalc.reference.build import Build

if TYPE_CHECKING:
    from torch import Tensor


class Network:
    """One feed-forward network, `inner` wide, split over ranks by its inner width."""

    def __init__(self, build: Build, inner: int, gated: bool) -> None:
        share = build.rank.split(inner, "inner channels").rows(1)
        self.weights = {
            name: build.weight(name, inner, build.hidden, share) for name in (["gate"] if gated else []) + ["up"]
        }
        self.weights["down"] = build.weight("down", build.hidden, inner)[:, share].contiguous()

    def __call__(self, x: "Tensor") -> "Tensor":
        """`x` (tokens, hidden) through it, still to be summed over ranks."""
        from torch.nn.functional import gelu, linear, silu

        up = linear(x, self.weights["up"])
        inner = silu(linear(x, self.weights["gate"])) * up if "gate" in self.weights else gelu(up)
        return linear(inner, self.weights["down"])


class FeedForward:
    """The feed-forward part of a layer: its networks, and a router where there are experts."""

    def __init__(self, mlp: Mlp, build: Build) -> None:
        self.build, spec = build, _sizes(mlp)
        self.active, self.weights = spec["active"], {}
        named = [f"expert {i}" for i in range(spec["experts"])]
        self.experts = [Network(build.named(name), spec["inner"], mlp.gated) for name in named]
        self.always = [
            Network(build.named(f"shared {i}"), spec["shared_inner"], mlp.gated) for i in range(spec["shared"])
        ]
        if self.experts:
            self.weights["router"] = build.weight("router", len(self.experts), build.hidden)
        for place, network in enumerate([*self.experts, *self.always]):
            self.weights |= {f"{place} {name}": weight for name, weight in network.weights.items()}

    @property
    def flops_per_token(self) -> int:
        """Multiply-adds x 2 of one token: the router, its experts, and the networks that all pass."""
        taken = [*self.experts[: self.active], *self.always]
        matrices = [weight for network in taken for weight in network.weights.values()]
        router = [self.weights["router"]] if self.experts else []
        return sum(2 * weight.numel() for weight in [*matrices, *router])

    def read_bytes(self, tokens: int) -> int:
        """Bytes of weights that `tokens` tokens are expected to touch, each routed to experts at random."""
        untouched = (1 - self.active / len(self.experts)) ** tokens if self.experts else 0.0
        routed = sum(weight.nbytes for expert in self.experts for weight in expert.weights.values())
        return sum(weight.nbytes for weight in self.weights.values()) - int(routed * untouched)

    def __call__(self, x: "Tensor") -> "Tensor":
        """What it adds for `x` (batch, tokens, hidden)."""
        import torch

        flat = x.flatten(0, 1)
        out = torch.zeros_like(flat)
        for network in self.always:
            out += network(flat)
        if self.experts:
            self._route(flat, out)
        if self.build.rank.reduce is not None:
            self.build.rank.reduce(out)
        return out.view_as(x)

    def _route(self, flat: "Tensor", out: "Tensor") -> None:
        """Add what each token's experts make of it."""
        from torch.nn.functional import linear

        best = linear(flat, self.weights["router"]).float().topk(self.active, dim=-1)
        shares = best.values.softmax(-1).to(flat.dtype)
        for place in best.indices.unique().tolist():
            rows, ranks = (best.indices == place).nonzero(as_tuple=True)
            out.index_add_(0, rows, self.experts[place](flat[rows]) * shares[rows, ranks, None])


def _sizes(mlp: Mlp) -> dict[str, Any]:
    """The counts of a part: how many experts of which width, and networks that every token passes."""
    inner, experts = mlp.intermediate_size, getattr(mlp, "experts", None)
    if inner is None or (experts is None and hasattr(mlp, "experts")):
        raise KvcalcError("--with-mlp: the spec leaves the sizes of a feed-forward part out", "leave --with-mlp out")
    if experts is None:
        return {"experts": 0, "active": 0, "inner": inner, "shared": 1, "shared_inner": inner}
    shared_inner = getattr(mlp, "shared_intermediate_size", None) or inner
    return {
        "experts": experts,
        "active": getattr(mlp, "active", None) or 1,
        "inner": inner,
        "shared": getattr(mlp, "shared", 0),
        "shared_inner": shared_inner,
    }
