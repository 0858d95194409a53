"""How vLLM groups layers of several page sizes where a block holds all layers side by side (block-outermost layouts).

Read in vLLM 0.33.0, v1/core/kv_cache_planning.py, _get_packed_kv_cache_groups.
"""

from collections.abc import Callable, Sequence

import msgspec

from kvcalc.engines.vllm_specs import PageSpec, Sliding, cdiv
from kvcalc.engines.vllm_states import Ring, States


class _Bucket(msgspec.Struct, frozen=True):
    """Layers of one type; `by_page` lists them by the size of their page."""

    first: PageSpec
    by_page: dict[int, list[int]]

    @property
    def layers(self) -> list[int]:
        return sorted(layer for layers in self.by_page.values() for layer in layers)

    @property
    def repeats(self) -> int:
        """The most layers of one page size: how often the pattern repeats where all have as many."""
        return max(map(len, self.by_page.values()))

    @property
    def balanced(self) -> bool:
        return len(set(map(len, self.by_page.values()))) == 1

    def widest_bytes(self, groups: int) -> int:
        """Page bytes of the largest of so many groups."""
        return sum(cdiv(len(layers), groups) * page for page, layers in self.by_page.items())

    def split(self, groups: int) -> list[list[int]]:
        """Its layers in so many groups, each with as many of every page size."""
        if groups == 1:
            return [self.layers]
        repeats = list(zip(*self.by_page.values(), strict=False))
        return [[layer for repeat in repeats[first::groups] for layer in repeat] for first in range(groups)]


def pack(specs: Sequence[PageSpec], is_one_type: Callable[[Sequence[PageSpec]], bool]) -> list[list[int]] | None:
    """Layers of each group, None where all pages are equal and nothing needs packing."""
    if len({spec.page_bytes for spec in specs}) <= 1:
        return None
    buckets = _buckets(specs, is_one_type)
    floor = max((one.repeats for one in buckets if one.balanced and len(one.by_page) > 1), default=0)
    per_group = _least_padding([one.repeats for one in buckets if one.balanced], floor) if floor else None
    counts = [cdiv(one.repeats, per_group) if one.balanced and per_group else 1 for one in buckets]
    is_state = [_is_state(one.first, per_group) for one in buckets]
    block_bytes = max(
        one.widest_bytes(len(one.layers) if state else count)
        for one, count, state in zip(buckets, counts, is_state, strict=True)
    )
    groups: list[list[int]] = []
    for one, count, state in zip(buckets, counts, is_state, strict=True):
        fitting = max(block_bytes // one.first.page_bytes, 1)
        groups += one.split(max(count, cdiv(len(one.layers), fitting)) if state else count)
    return groups


def _buckets(specs: Sequence[PageSpec], is_one_type: Callable[[Sequence[PageSpec]], bool]) -> list[_Bucket]:
    members: list[list[int]] = []
    for place, spec in enumerate(specs):
        for layers in members:
            if is_one_type([*(specs[layer] for layer in layers), spec]):
                layers.append(place)
                break
        else:
            members.append([place])
    return [_Bucket(specs[layers[0]], _by_page(layers, specs)) for layers in members]


def _by_page(layers: Sequence[int], specs: Sequence[PageSpec]) -> dict[int, list[int]]:
    by_page: dict[int, list[int]] = {}
    for layer in layers:
        by_page.setdefault(specs[layer].page_bytes, []).append(layer)
    return by_page


def _is_state(first: PageSpec, per_group: int | None) -> bool:
    """Whether a bucket may go down to one layer a group rather than widen the block."""
    return isinstance(first, States | Ring) or (per_group is None and isinstance(first, Sliding))


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The size of at least `least` to whose multiples the counts are padded least (`_approximate_gcd`)."""
    sizes = range(least, max([*counts, least]) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))
