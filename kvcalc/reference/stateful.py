"""What mixers with states have in common: one rank's share of the weights, convolutions, norms, the output."""

from typing import TYPE_CHECKING, NamedTuple

from kvcalc.reference.build import Heads
from kvcalc.reference.mixer import Mixer

if TYPE_CHECKING:
    from torch import Tensor


class Share(NamedTuple):
    """One rank's rows of one output: its own heads of all `heads`, each `width` wide."""

    name: str
    heads: int
    own: Heads
    width: int = 1

    @property
    def total_rows(self) -> int:
        """Rows over all ranks."""
        return self.heads * self.width

    @property
    def own_rows(self) -> int:
        """Rows on this rank."""
        return self.own.count * self.width

    @property
    def rows(self) -> slice:
        """Where this rank's rows lie among all."""
        return self.own.rows(self.width)


class StatefulMixer(Mixer):
    """A mixer whose weights are drawn whole on every rank and cut to the rank's share.

    Every matrix in `weights` is multiplied with once a token: projections, convolutions, gates.
    What `flops` counts comes on top.
    """

    def _add_matrix(self, name: str, inputs: int, *shares: Share) -> None:
        """One matrix (own rows of all shares, inputs)."""
        import torch

        drawn = (self.build.weight(f"{name}.{share.name}", share.total_rows, inputs)[share.rows] for share in shares)
        self.weights[name] = torch.cat(list(drawn))

    def _add_transposed(self, name: str, outputs: int, share: Share) -> None:
        """A matrix (outputs, own rows): each rank makes one summand of the output."""
        self.weights[name] = self.build.weight(name, outputs, share.total_rows)[:, share.rows].contiguous()

    def _add_numbers(self, low: float, high: float, *shares: Share) -> None:
        """A vector of its own for each share, in the precision of the recurrence."""
        for share in shares:
            whole = self.build.vector(share.name, share.total_rows, low, high)
            self.weights[share.name] = whole[share.rows].clone()

    def _add_bias(self, name: str, *shares: Share) -> None:
        """One vector (own rows of all shares) of small numbers in the model's dtype."""
        import torch

        drawn = (self.build.vector(f"{name}.{share.name}", share.total_rows, -0.1, 0.1)[share.rows] for share in shares)
        self.weights[name] = torch.cat(list(drawn)).to(self.build.dtype)

    def _project(self, name: str, x: "Tensor") -> "Tensor":
        from torch.nn.functional import linear

        return linear(x, self.weights[name], self.weights.get(f"{name}_bias"))

    def _split(self, x: "Tensor", *shares: Share) -> "tuple[Tensor, ...]":
        """x along its last dimension, cut into what each of `shares` owns."""
        return cut(x, *(share.own_rows for share in shares))

    def _convolve(self, x: "Tensor", state: "Tensor") -> "Tensor":
        """The causal convolution of x (batch, tokens, width); keeps the last kernel - 1 columns in `state`."""
        import torch
        from torch.nn.functional import conv1d

        weight, bias = self.weights["conv"], self.weights.get("conv_bias")
        columns = torch.cat((state.to(x.dtype), x.mT), dim=-1)
        state.copy_(columns[..., x.shape[1] :])
        if x.shape[1] == 1:
            y = (columns * weight).sum(-1)
            return (y if bias is None else y + bias).unsqueeze(1)
        return conv1d(columns, weight.unsqueeze(1), bias, groups=weight.shape[0]).mT

    def _exactly(self, x: "Tensor") -> "Tensor":
        """In the precision of recurrences and norms."""
        return x.to(self.build.state_math_dtype)

    def _sum_over_ranks(self, x: "Tensor") -> "Tensor":
        if self.build.rank.reduce is not None:
            self.build.rank.reduce(x)
        return x

    def _output(self, y: "Tensor") -> "Tensor":
        """The output projection of y (batch, tokens, own width)."""
        return self._sum_over_ranks(self._project("out", y.to(self.build.dtype)))


def cut(x: "Tensor", *widths: int) -> "tuple[Tensor, ...]":
    """x along its last dimension, cut into `widths`."""
    import torch

    return torch.split(x, list(widths), dim=-1)


def in_heads(x: "Tensor", width: int) -> "Tensor":
    """(batch, tokens, heads * width) -> (batch, heads, tokens, width)."""
    import torch

    return torch.unflatten(x, -1, (-1, width)).transpose(1, 2)


def out_of_heads(x: "Tensor") -> "Tensor":
    """(batch, heads, tokens, width) -> (batch, tokens, heads * width)."""
    return x.transpose(1, 2).flatten(2)


def in_groups(x: "Tensor", groups: int) -> "Tensor":
    """(batch, heads, ...) -> (batch, groups, heads of a group, ...)."""
    import torch

    return torch.unflatten(x, 1, (groups, -1))
