"""In what the weights of a model lie: a number format, or a recipe of llama.cpp that mixes block types.

A recipe's shares of block types are those of the matrices of Llama-3-8B; other models differ by a percent or two,
since the rule counts layers (llama.cpp src/llama-quant.cpp: llama_tensor_get_type).
"""

from fractions import Fraction
from typing import NamedTuple, Protocol

from kvcalc.cache.formats import find_format
from kvcalc.errors import KvcalcError
from kvcalc.model.importers.ggml_types import BY_NAME


class Bulk(Protocol):
    """Numbers that many values lie in."""

    @property
    def name(self) -> str:
        """The format's name."""

    def bulk_bytes(self, values: int, what: str) -> int:
        """Bytes of so many values."""


class Mix(NamedTuple):
    """Values of which shares lie in several block types."""

    name: str
    shares: tuple[tuple[str, Fraction], ...]

    @property
    def bytes_per_value(self) -> Fraction:
        """Bytes of one value on average."""
        return sum(
            (share * Fraction(BY_NAME[kind].bytes, BY_NAME[kind].values) for kind, share in self.shares), Fraction()
        )

    def bulk_bytes(self, values: int, what: str) -> int:
        """Bytes of so many values, rounded up to whole ones."""
        return -(-values * self.bytes_per_value // 1)


class WeightFormat(NamedTuple):
    """What most weights lie in, and what embeddings, LM head, norms and routers may stay in beside it."""

    bulk: Bulk
    kept: Bulk
    note: str = ""
    """What is assumed of it."""

    @property
    def name(self) -> str:
        """The format's name."""
        return self.bulk.name


def find_weights(name: str, dtype: str) -> WeightFormat:
    """The format or recipe `name` of weights beside a model in `dtype`; UnknownNameError where it is neither."""
    try:
        return WeightFormat(find_format(name, "--weights"), find_format(dtype))
    except KvcalcError:
        if not is_recipe(name):
            raise
    blocks, head = RECIPES[name.strip().casefold()]
    return WeightFormat(blocks, head, f"{blocks.name} has the shares of block types that Llama-3-8B has")


def is_recipe(name: str | None) -> bool:
    """Whether `name` is one of llama.cpp's recipes, which say the type of every tensor."""
    return name is not None and name.strip().casefold() in RECIPES


_WHOLE = Fraction(1)
_Q8 = Mix("q8_0", (("q8_0", _WHOLE),))
_Q6 = Mix("q6_k", (("q6_k", _WHOLE),))
RECIPES: dict[str, tuple[Mix, Mix]] = {
    "q8_0": (_Q8, _Q8),
    "q4_0": (Mix("q4_0", (("q4_0", _WHOLE),)), _Q6),
    # llama.cpp src/llama-quant.cpp: V and down projections of half of the layers are q6_k: 0.144 of Llama-3-8B.
    "q4_k_m": (Mix("q4_k_m", (("q4_k", Fraction("0.856")), ("q6_k", Fraction("0.144")))), _Q6),
}
"""llama.cpp's recipes of tensor types: the blocks, then the LM head."""
