"""A few layers of a model, in its order: every distinct layer occurs, and every source that one of them reads."""

from collections import Counter
from collections.abc import Iterable

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
        """One layer of each sort with its sources; readers prefer a source that is kept anyway."""
        kept: set[int] = set()
        for sort in sorted(set(self.sorts), key=lambda one: (one in self.reads, one)):
            alike = [index for index, other in enumerate(self.sorts) if other == sort]
            if not kept & set(alike):
                kept |= min((self._with_sources(index) for index in alike), key=lambda more: len(more - kept))
        return kept

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
