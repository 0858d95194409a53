"""Alike components of a model as one row: what each stores, and what a decode step reads of it."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.formats import EntryFormat
from kvcalc.cache.sharding import WHOLE
from kvcalc.cache.span import at_most
from kvcalc.model.spec import Layer, Read
from kvcalc.sizing.packing import Packer


class Row(msgspec.Struct, frozen=True):
    """`layers` alike components. Every figure is for one sequence and one logical copy, in bytes.

    `reads` counts the readers by the most entries that they take: `(None, 32)` is 32 layers that read all.
    """

    name: str
    component: Component
    layers: int
    format: str
    bytes_per_entry: int
    fixed_bytes_per_layer: int
    reads: tuple[tuple[int | None, int], ...]
    entry_format: EntryFormat | None = None
    states: tuple[str, ...] = ()
    """Each state as arithmetic."""

    def entries(self, tokens: Any) -> Any:
        """Entries that one layer keeps after `tokens` tokens (an array where `tokens` is one)."""
        return self.component.entries(tokens) if self.component.keeps_entries else tokens * 0

    def stored_bytes(self, tokens: Any) -> Any:
        """Bytes stored by all layers of the row."""
        return self.layers * (self.entries(tokens) * self.bytes_per_entry + self.fixed_bytes_per_layer)

    def read_bytes(self, tokens: Any) -> Any:
        """Bytes that all readers of the row take in one decode step; states are read once."""
        kept = self.entries(tokens)
        taken = sum(count * at_most(kept, limit) for limit, count in self.reads)
        return taken * self.bytes_per_entry + self.layers * self.fixed_bytes_per_layer

    @property
    def bytes_per_token(self) -> Fraction:
        """What one more token adds, averaged over the compression ratio, with windows full."""
        if not self.component.grows:
            return Fraction(0)
        return Fraction(self.layers * self.bytes_per_entry, self.component.span.ratio)

    @property
    def fixed_bytes(self) -> int:
        """What no longer grows: states, and windows once they are full."""
        full = 0 if self.component.grows else self.component.span.cap or 0
        return self.layers * (full * self.bytes_per_entry + self.fixed_bytes_per_layer)


def build_rows(layers: Sequence[Layer], reads: Sequence[Read], packer: Packer) -> tuple[Row, ...]:
    """The rows of a model in order of first appearance; a later row of a name is NAME-2."""
    groups: dict[Any, _Group] = {}
    of_component: dict[int, _Group | None] = {}
    for component in (one for layer in layers for one in layer.components):
        if id(component) not in of_component:
            key = _row_key(component, packer)
            of_component[id(component)] = None if key is None else groups.setdefault(key, _Group(component))
        group = of_component[id(component)]
        if group is not None:
            group.add_owner(component)
    for read in reads:
        if read.layer < len(layers):
            source = layers[read.owner_layer].components[read.owner]
            limit = layers[read.layer].components[read.reader].read_limit(source)
            of_component[id(source)].limits[limit] += 1  # type: ignore[union-attr]
    return tuple(group.row(name, packer) for group, name in zip(groups.values(), _names(groups), strict=True))


def rows_by_place(layers: Sequence[Layer], packer: Packer) -> dict[tuple[int, int], int]:
    """For each layer and position of a component that keeps something, which of the rows it belongs to."""
    order: dict[Any, int] = {}
    found = {}
    for index, layer in enumerate(layers):
        for position, component in enumerate(layer.components):
            key = _row_key(component, packer)
            if key is not None:
                found[index, position] = order.setdefault(key, len(order))
    return found


class _Group:
    """Alike components while they are being counted."""

    def __init__(self, first: Component) -> None:
        self.first, self.layers = first, 0
        self.limits: Counter[int | None] = Counter()

    def add_owner(self, component: Component) -> None:
        self.layers += 1
        if component.keeps_entries:
            self.limits[component.top_k] += 1

    def row(self, name: str, packer: Packer) -> Row:
        first = self.first
        return Row(
            name=name,
            component=first,
            layers=self.layers,
            format=packer.format_name(first),
            bytes_per_entry=packer.entry_bytes(first),
            fixed_bytes_per_layer=packer.state_bytes(first),
            reads=tuple(self.limits.items()),
            entry_format=packer.entry_format(first) if first.keeps_entries else None,
            states=tuple(packer.state_formula(state) for state in first.states(WHOLE)),
        )


def _row_key(component: Component, packer: Packer) -> Any:
    """What the alike components of one row share; None for one that keeps nothing."""
    parts, states = component.parts(WHOLE), component.states(WHOLE)
    if not parts and not states:
        return None
    return component.name, component.kind, parts, states, component.span, packer.format_name(component)


def _names(groups: dict[Any, Any]) -> list[str]:
    taken: dict[str, int] = dict.fromkeys((name for name, *_ in groups), 0)
    names = []
    for name, *_ in groups:
        taken[name] += 1
        while taken[name] > 1 and f"{name}-{taken[name]}" in taken:
            taken[name] += 1
        names.append(name if taken[name] == 1 else f"{name}-{taken[name]}")
    return names
