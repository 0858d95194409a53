"""How vLLM splits layers into groups that share a block table, and brings their pages to one size.

Read in vLLM 0.33.0, v1/core/kv_cache_planning.py, get_kv_cache_groups and the functions that it calls; each is named.
In earlier releases they stand in v1/core/kv_cache_utils.py; `vllm_changes` says in what they differ.
"""

from collections.abc import Sequence
from math import lcm

import msgspec

from kvcalc.engines.vllm_packing import pack
from kvcalc.engines.vllm_rules import Rules
from kvcalc.engines.vllm_specs import Attention, Chunked, Full, Latent, Limits, PageSpec, Sliding, SlidingLatent, cdiv
from kvcalc.engines.vllm_versions import NEWEST
from kvcalc.errors import KvcalcError
from kvcalc.sizing import blocks

MIXED = "UniformTypeKVCacheSpecs"
"""vLLM's name of a group whose layers differ in the size of a page alone."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Layers, by their place in the model, that share a block table; each holds a page of every block."""

    name: str
    layers: tuple[int, ...]
    specs: tuple[PageSpec, ...]
    """Of each layer where they differ, else one for all."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of the group."""
        if len(self.specs) != len(self.layers):
            return len(self.layers) * self.specs[0].page_bytes
        return sum(spec.page_bytes for spec in self.specs)

    @property
    def stride_alignment(self) -> int:
        """Bytes of which its blocks are whole multiples."""
        return lcm(*(spec.stride_alignment for spec in self.specs)) if self.layers else 1

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.specs[0].block_size

    def request_blocks(self, limits: Limits) -> int:
        """Blocks that one request may hold of this group."""
        return max(spec.request_pages(limits) for spec in self.specs)

    def growth(self, limits: Limits) -> blocks.Group | None:
        """How those blocks follow its tokens, None where it holds all of them from the first to the last."""
        return max(self.specs, key=lambda spec: spec.request_pages(limits)).growth(limits)

    def on_stage(self, first: int, end: int) -> "Group":
        """What a pipeline stage holds of it: `_project_kv_cache_groups_to_worker`."""
        here = [place for place, layer in enumerate(self.layers) if first <= layer < end]
        specs = self.specs if len(self.specs) == 1 or not here else tuple(self.specs[place] for place in here)
        return Group(name=self.name, layers=tuple(self.layers[place] for place in here), specs=specs)


def make_groups(
    specs: Sequence[PageSpec], *, hybrid: bool = True, block_outermost: bool = False, rules: Rules = NEWEST
) -> tuple[Group, ...]:
    """The groups of a model's layers (`get_kv_cache_groups`); `hybrid` is vLLM's hybrid KV cache manager.

    KvcalcError where vLLM finds no common page size.
    """
    specs = list(specs) if hybrid and rules.windows == "grouped" else _promote_all(specs, rules)
    places = range(len(specs))
    if not specs:
        return ()
    merged = _merged(specs)
    if merged is not None:
        return (Group(name=merged.name, layers=tuple(places), specs=(merged,)),)
    if rules.knows_mixed_widths and is_one_type(specs):
        return (_mixed(places, specs),)
    packed = pack(specs, is_one_type) if block_outermost else None
    if packed is not None:
        if sum(map(len, packed)) != len(specs):
            raise _no_common_page()  # a split that leaves layers out, which vLLM asserts too
        return tuple(_mixed(layers, [specs[layer] for layer in layers]) for layers in packed)
    unified = unify_pages(specs, rules)
    return _fallback(specs, rules) if unified is None else _split(unified, rules)


def _merged(specs: Sequence[PageSpec]) -> PageSpec | None:
    """One spec for all, None where they need several (`is_kv_cache_spec_uniform`)."""
    if specs[0].clashes(specs):
        raise KvcalcError(
            "vLLM cannot keep windows of different sizes like full attention",
            "leave --disable-hybrid-kv-cache-manager out",
        )
    return specs[0].merged(specs)


def is_one_type(specs: Sequence[PageSpec]) -> bool:
    """Whether all need the same number of pages: `UniformTypeKVCacheSpecs.is_uniform_type`."""
    sizes = {(spec.block_size, spec.dcp_sharded) for spec in specs}
    return len(sizes) == 1 and specs[0].is_uniform_with(specs)


def _mixed(layers: Sequence[int], specs: Sequence[PageSpec]) -> Group:
    return Group(name=MIXED, layers=tuple(layers), specs=tuple(specs))


def unify_pages(specs: Sequence[PageSpec], rules: Rules) -> list[PageSpec] | None:
    """All pages as large as the largest, None where that cannot be (`unify_kv_cache_spec_page_size`).

    A block takes more tokens where a whole number of it fills the page; else the page is padded, as a state's always
    is. MLA's cannot be padded.
    """
    largest = max(spec.page_bytes for spec in specs)
    unified = [_grown(spec, largest, rules) for spec in specs]
    return None if None in unified else [spec for spec in unified if spec is not None]


def _grown(spec: PageSpec, page_bytes: int, rules: Rules) -> PageSpec | None:
    if spec.page_bytes == page_bytes:
        return spec
    if rules.grows_pages and spec.scales_with_block and page_bytes % spec.page_bytes == 0:
        grown = spec.resized(spec.block_size * (page_bytes // spec.page_bytes))
    elif spec.takes_padding and (rules.pads_attention if spec.scales_with_block else rules.pads_states):
        grown = spec.padded(page_bytes)
    else:
        return None
    if grown.page_bytes != page_bytes:
        raise _no_common_page()  # vLLM asserts it, and tries no fallback
    return grown


def _split(specs: Sequence[PageSpec], rules: Rules) -> tuple[Group, ...]:
    """Groups of as many layers each (`_get_kv_cache_groups_uniform_page_size`); the last of a kind may be padded.

    As many as the rarest kind has, or as the commonest has where that is not many more.
    """
    buckets = _buckets(specs, rules)
    counts = [len(layers) for layers in buckets]
    size = max(counts) if max(counts) < min(counts) * rules.group_slack else min(counts)
    return tuple(
        _merged_group(layers[first :: cdiv(len(layers), size)], specs)
        for layers in buckets
        for first in range(cdiv(len(layers), size))
    )


def _merged_group(layers: Sequence[int], specs: Sequence[PageSpec]) -> Group:
    own = [specs[layer] for layer in layers]
    merged = own[0].merged(own) or own[0]
    return Group(name=merged.name, layers=tuple(layers), specs=(merged,))


def _buckets(specs: Sequence[PageSpec], rules: Rules) -> list[list[int]]:
    """Layers by equal spec, then by specs that merge, in order of first appearance."""
    alike: dict[PageSpec, list[int]] = {}
    for place, spec in enumerate(specs):
        alike.setdefault(spec, []).append(place)
    if not rules.merges_kinds:
        return list(alike.values())
    buckets: list[tuple[list[PageSpec], list[int]]] = []
    for spec, places in alike.items():
        for kinds, layers in buckets:
            if kinds[0].merged([*kinds, spec]) is not None:
                kinds.append(spec)
                layers.extend(places)
                break
        else:
            buckets.append(([spec], list(places)))
    return [layers for _, layers in buckets]


def _fallback(specs: Sequence[PageSpec], rules: Rules) -> tuple[Group, ...]:
    """Windows kept like full attention beside an MLA whose page theirs cannot meet.

    `_try_get_full_allocation_fallback_groups`.
    """
    kinds = {type(spec) for spec in specs}
    meets = rules.keeps_windows_beside_latent and {Latent, Sliding} <= kinds and not {SlidingLatent, Chunked} & kinds
    promoted = promote(specs, rules) if meets else None
    if promoted is None or not is_one_type(promoted):
        raise _no_common_page()
    return (_mixed(range(len(promoted)), promoted),)


def _no_common_page() -> KvcalcError:
    return KvcalcError(
        "vLLM finds no common page size for the layers of this model", "try another --block-size or --kv-dtype"
    )


def promote(specs: Sequence[PageSpec], rules: Rules) -> list[PageSpec] | None:
    """Windows and chunks kept like full attention beside which they stand, None where that unites nothing.

    `_promote_local_kv_cache_specs`.
    """
    if _are_united(specs, rules):
        return list(specs)
    full = {spec.block_size for spec in specs if isinstance(spec, Full)}
    promoted = [spec.promoted(min(full) if len(full) == 1 else None) for spec in specs] if full else list(specs)
    return promoted if _are_united(promoted, rules) else None


def _are_united(specs: Sequence[PageSpec], rules: Rules) -> bool:
    return _merged(specs) is not None or (rules.knows_mixed_widths and is_one_type(specs))


def _promote_all(specs: Sequence[PageSpec], rules: Rules) -> list[PageSpec]:
    """`unify_hybrid_kv_cache_specs`: what decode-context ranks share and what they replicate, each by itself."""
    replicated = [isinstance(spec, Attention) and not spec.dcp_sharded for spec in specs]
    united = list(specs)
    for side in set(replicated):
        places = [place for place, one in enumerate(replicated) if one == side]
        promoted = promote([specs[place] for place in places], rules)
        if promoted is None:
            raise KvcalcError(
                "vLLM cannot keep the layers of this model as one kind",
                "leave --disable-hybrid-kv-cache-manager out, or follow vLLM 0.9.1 or later",
            )
        for place, spec in zip(places, promoted, strict=True):
            united[place] = spec
    return united
