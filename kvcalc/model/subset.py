"""A few layers of a model, in its order: every distinct layer occurs, and every source that one of them reads."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice, product

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec, Read


def keep_layers(spec: ModelSpec, count: int) -> ModelSpec:
    """`spec` with `count` of its layers; KvcalcError where it has fewer, or where so few cannot show them all.

    Beside one layer of each sort and their sources, sorts are kept in the proportions of the whole model.
    """
    total = len(spec.layers)
    if not 1 <= count <= total:
        raise KvcalcError(f"--layers {count}: {spec.name} has {total} layers", f"use --layers 1 to {total}")
    picker = _Picker(spec)
    least = picker.must_keep()
    if count < len(least):
        raise KvcalcError(
            f"--layers {count}: {spec.name} needs {len(least)} to show every distinct layer and every source read",
            f"use --layers {len(least)} or more",
        )
    return _cut(spec, picker.filled_up(least, count))


MOST_TRIED = 10_000
"""Combinations of sources that are weighed: far more than any model of the catalogue has."""


class _Picker:
    """Which layers to keep: their sorts, and what each reads."""

    def __init__(self, spec: ModelSpec) -> None:
        self.layers = spec.layers
        self.reads: dict[int, set[int]] = {}
        for read in spec.reads:
            if read.layer < len(spec.layers):
                self.reads.setdefault(read.layer, set()).add(read.owner_layer)
        first: dict[bytes, int] = {}
        encoded = {id(layer): msgspec.json.encode(layer) for layer in spec.layers}
        self.sorts = [first.setdefault(encoded[id(layer)], index) for index, layer in enumerate(spec.layers)]

    def must_keep(self) -> set[int]:
        """The fewest layers that show every sort with its sources: whatever readers leave unseen is one layer more."""
        choices = [self._choices(sort) for sort in sorted(set(self.sorts)) if sort in self.reads]
        tried = (set[int]().union(*chosen) for chosen in islice(product(*choices), MOST_TRIED))
        kept = min(tried, key=lambda some: (len(some) + len(self._unseen(some)), sorted(some)))
        return kept | self._unseen(kept)

    def _unseen(self, kept: set[int]) -> set[int]:
        """The first layer of each sort that is not among `kept`."""
        return set(self.sorts) - {self.sorts[index] for index in kept}

    def _choices(self, sort: int) -> list[set[int]]:
        """For each set of sources that layers of a sort read, the first such layer with them."""
        found: dict[frozenset[int], set[int]] = {}
        for index, other in enumerate(self.sorts):
            if other == sort:
                needed = self._with_sources(index)
                found.setdefault(frozenset(needed - {index}), needed)
        return list(found.values())

    def _with_sources(self, index: int) -> set[int]:
        found, waiting = set(), [index]
        while waiting:
            one = waiting.pop()
            found.add(one)
            waiting += self.reads.get(one, set()) - found
        return found

    def filled_up(self, kept: set[int], count: int) -> list[int]:
        """`count` layers: to those of `kept`, layers of the sorts that are furthest below their share."""
        whole = Counter(self.sorts)
        while len(kept) < count:
            have = Counter(self.sorts[index] for index in kept)
            free = [one for one in range(len(self.layers)) if one not in kept and self._fits(one, kept, count)]
            kept = kept | self._with_sources(
                min(free, key=lambda one: (have[self.sorts[one]] / whole[self.sorts[one]], one))
            )
        return sorted(kept)

    def _fits(self, index: int, kept: set[int], count: int) -> bool:
        return len(kept | self._with_sources(index)) <= count


def _cut(spec: ModelSpec, kept: list[int]) -> ModelSpec:
    place = {old: new for new, old in enumerate(kept)}
    below = spec.prefill_layers
    return msgspec.structs.replace(
        spec,
        layers=tuple(spec.layers[index] for index in kept),
        draft_layers=(),
        reads=tuple(_moved(spec.reads, place)),
        prefill_layers=None if below is None else sum(index < below for index in kept),
        checkpoint=None,
    )


def _moved(reads: Iterable[Read], place: dict[int, int]) -> Iterable[Read]:
    for read in reads:
        if read.layer in place:
            yield msgspec.structs.replace(read, layer=place[read.layer], owner_layer=place[read.owner_layer])
