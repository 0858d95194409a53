"""vLLM's cache specs: what a layer's page weighs, and how many pages one request takes.

Read in vLLM 0.33.0, v1/kv_cache_interface.py; every class here bears the name of its own in `name`. A page is one
block of one layer. Pages count the tokens of a block; what a sequence keeps follows from the kind.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Self

import msgspec

from kvcalc.engines.vllm_holding import ChunkBlocks, SlidingBlocks
from kvcalc.errors import KvcalcError
from kvcalc.sizing.blocks import Group

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1, "int8": 1}
"""Bytes of a value by vLLM's name of its type."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds one request: its longest context, the tokens in flight, and how states are kept.

    `in_flight_tokens` is `--max-num-batched-tokens` times the batches that overlap (VllmConfig.max_in_flight_tokens).
    """

    max_model_len: int
    in_flight_tokens: int = 16384
    dcp: int = 1
    encoder_tokens: int = 0
    aligned_states: bool = False
    """Whether states are kept at block boundaries for prefix caching (`mamba_cache_mode` align)."""


class PageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What vLLM keeps for one layer, in pages of `block_size` tokens."""

    block_size: int
    padded_bytes: int | None = None
    dcp_sharded: bool = False
    stride_alignment: int = 1
    """Bytes to whose multiple a block with the pages of all layers in it is rounded up (`block_stride_alignment`)."""

    name: ClassVar[str] = "KVCacheSpec"
    takes_padding: ClassVar[bool] = True
    """Whether its page may be padded where no whole number of its blocks fills another's page."""
    scales_with_block: ClassVar[bool] = True
    """Whether a page of more tokens is larger."""

    @property
    def bare_bytes(self) -> int:
        """Bytes of a page before it is padded to another's size."""
        raise NotImplementedError

    @property
    def page_bytes(self) -> int:
        """Bytes of a page (`page_size_bytes`)."""
        return self.bare_bytes if self.padded_bytes is None else self.padded_bytes

    def request_pages(self, limits: Limits) -> int:
        """Pages that one request of `max_model_len` tokens may hold (`max_memory_usage_bytes` / page)."""
        raise NotImplementedError

    def growth(self, limits: Limits) -> Group | None:
        """How the pages of a request follow its tokens, None where it has as many from the first to the last."""
        return None

    def merged(self, others: "Sequence[PageSpec]") -> "PageSpec | None":
        """One spec for all of them, or None where they cannot share a group (`merge`)."""
        return self if all(one == self for one in others) else None

    def clashes(self, others: "Sequence[PageSpec]") -> bool:
        """Whether vLLM stops, rather than says no, when it is asked to merge them."""
        return False

    def is_uniform_with(self, others: "Sequence[PageSpec]") -> bool:
        """Whether all of them need the same number of pages (`is_uniform_with_collection`)."""
        return all(isinstance(one, type(self)) for one in others)

    def resized(self, block_size: int) -> Self:
        """The same cache in blocks of another size."""
        return msgspec.structs.replace(self, block_size=block_size)

    def padded(self, page_bytes: int) -> Self:
        """The same cache in pages padded to `page_bytes`."""
        return msgspec.structs.replace(self, padded_bytes=page_bytes)

    def promoted(self, block_size: int | None) -> "PageSpec":
        """What it is allocated as where a window or chunk keeps every token; `block_size` is that of full layers."""
        return self

    def retaining(self, tokens: int) -> "PageSpec":
        """The same cache where a window keeps so many tokens more than it attends to (`extra_retained_tokens`)."""
        return self


class Attention(PageSpec, frozen=True, kw_only=True):
    """Entries a token: `kv_heads` slots, K and V of a head in each.

    `state_bytes` replaces the bytes of a slot where a format packs it, `head_slots` their number. `tokens_per_state`
    tokens share one entry, or one token has several where it is a fraction. V is as wide as K unless it says otherwise.
    """

    kv_heads: int
    head_size: int
    head_size_v: int | None = None
    dtype: str = "bfloat16"
    dcp_sharded: bool = True
    head_slots: int | None = None
    state_bytes: int | None = None
    tokens_per_state: int | Fraction = 1

    single_vector: ClassVar[bool] = False
    """Whether an entry is one vector, without a V of its own."""

    def __post_init__(self) -> None:
        # Stated, so that specs which mean the same are equal.
        if self.head_size_v is None:
            msgspec.structs.force_setattr(self, "head_size_v", 0 if self.single_vector else self.head_size)

    @property
    def bare_bytes(self) -> int:
        slots = self.kv_heads if self.head_slots is None else self.head_slots
        return slots * int(self.block_size // self.tokens_per_state) * self.slot_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of one entry (`state_content_size_bytes`)."""
        if self.state_bytes is not None:
            return self.state_bytes
        return (self.head_size + (self.head_size_v or 0)) * WIDTHS[self.dtype]


class Full(Attention, frozen=True, kw_only=True):
    """Full attention: pages for every token of the context, a share of them under decode-context parallelism."""

    window: int | None = None
    chunk: int | None = None
    """Where the hybrid manager is off, what the layer attends to; its pages are kept all the same."""

    name: ClassVar[str] = "FullAttentionSpec"

    def request_pages(self, limits: Limits) -> int:
        tokens = limits.max_model_len
        return cdiv(cdiv(tokens, limits.dcp) if self.dcp_sharded else tokens, self.block_size)

    def growth(self, limits: Limits) -> Group:
        return Group(name="tokens", block_tokens=self.block_size * (limits.dcp if self.dcp_sharded else 1), units=1)

    def merged(self, others: Sequence[PageSpec]) -> "PageSpec | None":
        bare = self._bare()
        for one in others:
            if type(one) is not type(self) or one._bare() != bare:
                return None
        windows, chunks = (_stated(key, (self, *others)) for key in ("window", "chunk"))
        if len(windows) + len(chunks) > 1:
            return None
        return msgspec.structs.replace(self, window=next(iter(windows), None), chunk=next(iter(chunks), None))

    def clashes(self, others: Sequence[PageSpec]) -> bool:
        # merge_window_sizes raises a ValueError, where all else is an AssertionError that means no.
        is_plain = all(type(one) is Full for one in (self, *others))
        return is_plain and max(len(_stated(key, others)) for key in ("window", "chunk")) > 1

    def is_uniform_with(self, others: Sequence[PageSpec]) -> bool:
        return all(isinstance(one, Full) for one in others)

    def _bare(self) -> Self:
        """Itself without what may differ within a group."""
        return msgspec.structs.replace(self, window=None, chunk=None)


class Latent(Full, frozen=True, kw_only=True):
    """MLA and index keys: one vector an entry. `alignment` rounds its page up."""

    alignment: int | None = None
    layout: str | None = None
    """vLLM's `cache_dtype_str`; layers that differ in it share no group."""

    name: ClassVar[str] = "MLAAttentionSpec"
    takes_padding: ClassVar[bool] = False
    single_vector: ClassVar[bool] = True

    @property
    def page_bytes(self) -> int:
        return aligned(self.bare_bytes, self.alignment) if self.padded_bytes is None else self.padded_bytes

    def _bare(self) -> Self:
        return msgspec.structs.replace(self, window=None, chunk=None, alignment=None, padded_bytes=self.page_bytes)


class Sliding(Attention, frozen=True, kw_only=True):
    """A window: the W - 1 tokens behind, those in flight, and one block because a window may begin inside one."""

    window: int
    extra_tokens: int = 0

    name: ClassVar[str] = "SlidingWindowSpec"

    def request_pages(self, limits: Limits) -> int:
        kept = self.window - 1 + self.extra_tokens + limits.in_flight_tokens
        return cdiv(min(kept, limits.max_model_len), self.block_size) + 1

    def growth(self, limits: Limits) -> Group:
        return SlidingBlocks.of(self.block_size, self.window + self.extra_tokens, limits.in_flight_tokens)

    def promoted(self, block_size: int | None) -> PageSpec:
        return Full(window=self.window, **_kept(self, block_size))

    def retaining(self, tokens: int) -> Self:
        return msgspec.structs.replace(self, extra_tokens=tokens)

    def is_uniform_with(self, others: Sequence[PageSpec]) -> bool:
        return all(isinstance(one, Sliding) and one.window == self.window for one in others)


class SlidingLatent(Sliding, frozen=True, kw_only=True):
    """A window of single vectors. `alignment` rounds its page up."""

    alignment: int | None = None
    layout: str | None = None

    name: ClassVar[str] = "SlidingWindowMLASpec"
    single_vector: ClassVar[bool] = True

    @property
    def page_bytes(self) -> int:
        return aligned(self.bare_bytes, self.alignment) if self.padded_bytes is None else self.padded_bytes

    def merged(self, others: Sequence[PageSpec]) -> "PageSpec | None":
        mine = self._shared_key()
        return self if all(isinstance(one, SlidingLatent) and one._shared_key() == mine for one in others) else None

    def is_uniform_with(self, others: Sequence[PageSpec]) -> bool:
        return all(isinstance(one, SlidingLatent) and one.window == self.window for one in others)

    def padded(self, page_bytes: int) -> Self:
        # An aligned page is aligned again, whatever it was padded to.
        return self if self.page_bytes != self.bare_bytes else super().padded(page_bytes)

    def promoted(self, block_size: int | None) -> PageSpec:
        # replace_as hands a field to MLAAttentionSpec that it does not have: a TypeError.
        raise KvcalcError(
            "vLLM 0.33 cannot keep a window of latents like full attention",
            "leave --disable-hybrid-kv-cache-manager out",
        )

    def _shared_key(self) -> tuple[object, ...]:
        return (
            self.layout,
            self.tokens_per_state,
            self.window,
            self.extra_tokens,
            self.dcp_sharded,
            self.stride_alignment,
        )


class Chunked(Attention, frozen=True, kw_only=True):
    """A chunk: its tokens and those in flight."""

    chunk: int

    name: ClassVar[str] = "ChunkedLocalAttentionSpec"

    def request_pages(self, limits: Limits) -> int:
        return cdiv(min(self.chunk + limits.in_flight_tokens, limits.max_model_len), self.block_size)

    def growth(self, limits: Limits) -> Group:
        return ChunkBlocks.of(self.block_size, self.chunk, limits.in_flight_tokens)

    def promoted(self, block_size: int | None) -> PageSpec:
        return Full(chunk=self.chunk, **_kept(self, block_size))

    def is_uniform_with(self, others: Sequence[PageSpec]) -> bool:
        return all(isinstance(one, Chunked) and one.chunk == self.chunk for one in others)


def cdiv(count: int, size: int) -> int:
    """Whole pieces of `size` that `count` needs."""
    return -(-count // size)


def _kept(spec: Attention, block_size: int | None) -> dict[str, Any]:
    """The fields that a promoted spec takes over, its padding grown with its block."""
    fields = {name: getattr(spec, name) for name in Attention.__struct_fields__}
    size = block_size or spec.block_size
    if spec.padded_bytes is not None:
        fields["padded_bytes"] = max(spec.padded_bytes, spec.bare_bytes * size // spec.block_size)
    return fields | {"block_size": size}


def _stated(key: str, specs: Sequence[Any]) -> set[int]:
    return {getattr(one, key) for one in specs} - {None}


def aligned(count: int, multiple: int | None) -> int:
    """`count` rounded up to a multiple of `multiple`."""
    return count if multiple is None else cdiv(count, multiple) * multiple
