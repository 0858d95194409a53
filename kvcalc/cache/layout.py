"""How the values of one cache entry become bytes: the layouts that number formats are made of.

A layout answers for the parts of an entry, exactly and in integers. It refuses a width that its
blocks do not divide, and parts that it was not made for, with a `FormatError` that names them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kvcalc.errors import FormatError


class Part(NamedTuple):
    """One named vector of an entry: `heads` vectors of `width` values each.

    Names are `k`, `v`, `latent`, `rope` and `index`. A `rope` part continues the vector before it.
    """

    name: str
    heads: int
    width: int


class Layout(msgspec.Struct, frozen=True):
    """Bytes of one entry. Only plain blocks can hold what is no cache entry: states and weights."""

    def entry_bytes(self, parts: Sequence[Part], what: str) -> int:
        """Bytes of one entry made of `parts`; `what` names format and component in errors."""
        raise NotImplementedError

    def formula(self, parts: Sequence[Part]) -> str:
        """The arithmetic behind `entry_bytes`, with numbers put in."""
        raise NotImplementedError

    def value_bytes(self) -> str:
        """Bytes of one value as printed: `2 B`, or `9/16 B` where blocks are scaled; empty for whole entries."""
        return ""

    def bulk_bytes(self, values: int, what: str) -> int:
        """Bytes of `values` values in a row, a last incomplete block counted whole."""
        raise FormatError(f"{what}: this format lays out cache entries only", "use bf16, fp32 or fp8")


class Blocks(Layout, frozen=True):
    """`size` bytes for every `values` values: plain numbers (1 value) and block-scaled ones.

    Blocks run along a head; with `over_row` they run along all heads of a side together, as ggml does.
    """

    values: int
    size: int
    over_row: bool = False

    def entry_bytes(self, parts: Sequence[Part], what: str) -> int:
        return sum(part.heads * self.run_bytes(part, what) for part in self._vectors(parts))

    def bulk_bytes(self, values: int, what: str) -> int:
        return -(-values // self.values) * self.size

    def run_bytes(self, part: Part, what: str) -> int:
        """Bytes of one vector of `part`."""
        blocks, rest = divmod(part.width, self.values)
        if rest:
            raise FormatError(
                f"{what}: a width of {part.width} ({part.name}) is no whole number of {self.values}-value blocks",
                f"choose a format whose block divides {part.width}, such as bf16 or fp8",
            )
        return blocks * self.size

    def formula(self, parts: Sequence[Part]) -> str:
        runs = [f"{_times(part.heads)}{part.width} x {self.value_bytes()}" for part in joined(parts)]
        return _sum_of(runs)

    def value_bytes(self) -> str:
        return f"{self.size} B" if self.values == 1 else f"{self.size}/{self.values} B"

    def _vectors(self, parts: Sequence[Part]) -> Sequence[Part]:
        vectors = joined(parts)
        if not self.over_row:
            return vectors
        return [Part(part.name, 1, part.heads * part.width) for part in vectors]


class ScaledHead(Layout, frozen=True):
    """Blocks along a head and one scale of `scale` bytes behind every head."""

    blocks: Blocks
    scale: int

    def entry_bytes(self, parts: Sequence[Part], what: str) -> int:
        return sum(part.heads * (self.blocks.run_bytes(part, what) + self.scale) for part in joined(parts))

    def formula(self, parts: Sequence[Part]) -> str:
        value = self.blocks.value_bytes()
        return _sum_of([f"{_times(part.heads)}({part.width} x {value} + {self.scale} B)" for part in joined(parts)])


class LatentRow(Layout, frozen=True):
    """A latent and its rotary part in two different packings, the row padded to `multiple` bytes."""

    latent: Blocks
    rope: Blocks
    multiple: int = 1

    def entry_bytes(self, parts: Sequence[Part], what: str) -> int:
        bare = sum(part.heads * self._packing(part, what).run_bytes(part, what) for part in parts)
        return -(-bare // self.multiple) * self.multiple

    def formula(self, parts: Sequence[Part]) -> str:
        runs = [f"{part.width} x {self._packing(part, '').value_bytes()}" for part in parts]
        bare = sum(self._packing(part, "").run_bytes(part, "") for part in parts)
        padding = -bare % self.multiple
        return _sum_of([*runs, f"{padding} B"] if padding else runs)

    def _packing(self, part: Part, what: str) -> Blocks:
        packings = {"latent": self.latent, "rope": self.rope}
        if part.name not in packings:
            raise FormatError(
                f"{what}: this format packs a latent and its rotary part, and this component keeps `{part.name}`",
                "name another format for it, as in --kv-dtype COMPONENT=bf16",
            )
        return packings[part.name]


class HeadSlot(Layout, frozen=True):
    """K and V of a head packed into one slot of an even number of bytes: bits a value, then constants.

    `head_dim` limits it to the one width whose slot is documented.
    """

    k_bits: int
    v_bits: int
    k_extra: int
    v_extra: int
    head_dim: int | None = None

    def entry_bytes(self, parts: Sequence[Part], what: str) -> int:
        by_name = {part.name: part for part in parts}
        if set(by_name) != {"k", "v"} or by_name["k"].heads != by_name["v"].heads:
            raise FormatError(
                f"{what}: this format packs K and V of a head into one slot, and this component keeps "
                + " and ".join(f"`{name}`" for name in by_name),
                "name another format for it, as in --kv-dtype COMPONENT=bf16",
            )
        return by_name["k"].heads * self.slot_bytes(by_name["k"].width, by_name["v"].width, what)

    def slot_bytes(self, k_width: int, v_width: int, what: str) -> int:
        """Bytes of one head's slot, rounded up to even."""
        if self.head_dim is not None and {k_width, v_width} != {self.head_dim}:
            raise FormatError(
                f"{what}: only heads of {self.head_dim} have a documented layout, and these are {k_width}",
                "choose another format, such as nvfp4 or fp8",
            )
        bare = -(-k_width * self.k_bits // 8) + self.k_extra - (-v_width * self.v_bits // 8) + self.v_extra
        return bare + bare % 2

    def formula(self, parts: Sequence[Part]) -> str:
        k, v = parts
        return f"{_times(k.heads)}{self.slot_bytes(k.width, v.width, '')} B"


def joined(parts: Sequence[Part]) -> list[Part]:
    """The vectors as they lie in memory: a rotary part continues the vector before it."""
    vectors: list[Part] = []
    for part in parts:
        if part.name == "rope" and vectors:
            before = vectors.pop()
            vectors.append(Part(before.name, before.heads, before.width + part.width))
        else:
            vectors.append(part)
    return vectors


def _times(heads: int) -> str:
    return f"{heads} x " if heads > 1 else ""


def _sum_of(runs: list[str]) -> str:
    if len(runs) == 2 and runs[0] == runs[1]:
        return f"2 x {runs[0]}"
    return runs[0] if len(runs) == 1 else f"({' + '.join(runs)})"
