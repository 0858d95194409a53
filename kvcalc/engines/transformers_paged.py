"""The paged cache of transformers' continuous batching: sectors that attention of one type draws blocks from.

Read in transformers 5.24.0, generation/continuous_batching: PagedAttentionCache and PagedAttentionMemoryHandler of
cache.py, cache_allocators/, initialization.py. A block holds `page_size` tokens of all layers of a type; a sector is
the least that every type cuts into whole blocks. Two sectors more are made for padding and never given out.
"""

from collections import Counter
from math import lcm

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.cache.sharding import WHOLE
from kvcalc.engines.engine import Capacity
from kvcalc.engines.held import MOST_SEQUENCES, largest
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import components_of

_ALIGNMENT = 128
_TRASH_SECTORS = 2
_INT32, _INT64, _FP32 = 4, 8, 4
_ROWS_OF_INPUT = 7
_FAR = 10**9


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of ContinuousBatchingConfig that shape the cache, as they are resolved without hints on CUDA."""

    page_size: int = 256
    num_blocks: int | None = None
    max_batch_tokens: int = 8192
    max_requests_per_batch: int = 1024
    max_blocks_per_request: int = 32
    """Of the fast path of decoding, which needs Flash Attention and full attention alone."""
    flash: bool = True
    """Whether attention needs no mask; asynchronous batches, with their second set of inputs, come with it."""


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a model: `windows` has, for each type of attention, its window and the bytes of its block."""

    windows: dict[int | None, int]
    block_bytes: int
    """Of `page_size` tokens of every layer."""
    sector_bytes: int
    paging: Paging
    kv_heads: int
    q_heads: int
    width: int
    value_bytes: int
    hidden_size: int
    vocab_size: int

    def blocks(self, window: int | None, tokens: int) -> int:
        """Blocks that one request of `tokens` tokens takes of a type; a window is a ring of its own tokens."""
        return -(-(tokens if window is None else min(tokens, window)) // self.paging.page_size)

    def sectors(self, tokens: int, requests: int) -> int:
        """Sectors of so many requests at once: requests share one, types of attention do not."""
        each = {window: self.sector_bytes // block for window, block in self.windows.items()}
        return sum(-(-requests * self.blocks(window, tokens) // each[window]) for window in self.windows)

    def configured_sectors(self) -> int | None:
        """Sectors of `num_blocks` blocks, None where memory decides (num_sectors_from_config)."""
        wanted = self.paging.num_blocks
        return None if wanted is None else max(1, -(-wanted * self.block_bytes // self.sector_bytes))

    def fitting_sectors(self, memory_bytes: int) -> int:
        """Sectors that a share of the free memory gives, beside the inputs, activations and masks that go with them.

        infer_max_batch_tokens_and_num_sectors; 0 or less where nothing fits.
        """
        sectors = (memory_bytes - self._beside_bytes) // self._bytes_per_sector
        masks = self._mask_bytes(sectors)
        return sectors - -(-masks // (self._bytes_per_sector + self._mask_bytes(sectors + 1) - masks))

    def footprint_bytes(self, sectors: int) -> int:
        """What so many sectors take with all that goes with them (compute_memory_footprint)."""
        return self._beside_bytes + sectors * self._bytes_per_sector + self._mask_bytes(sectors)

    @property
    def _bytes_per_sector(self) -> int:
        return self.sector_bytes + self._tokens_per_sector * self._bytes_per_cache_token

    @property
    def _beside_bytes(self) -> int:
        return self._fixed_bytes + self.paging.max_batch_tokens * self._bytes_per_batch_token

    @property
    def _tokens_per_sector(self) -> int:
        return self.sector_bytes // min(self.windows.values()) * self.paging.page_size

    @property
    def _sets(self) -> int:
        return 2 if self.paging.flash else 1

    @property
    def _heads_at_peak(self) -> int:
        return 2 * self.kv_heads if self.paging.flash else 2 * self.q_heads + self.kv_heads

    @property
    def _bytes_per_cache_token(self) -> int:
        """K and V read back, and their indices."""
        return self._heads_at_peak * self.width * self.value_bytes + self._sets * len(self.windows) * _INT64

    @property
    def _bytes_per_batch_token(self) -> int:
        """The peak of attention, and inputs and outputs; logits are sliced before they are made."""
        heads = self.q_heads + 2 * self.kv_heads + self._heads_at_peak
        table = len(self.windows) * (self._table_blocks * _INT32 + 2 * _INT64)
        return self.value_bytes * (self.hidden_size + heads * self.width) + self._sets * (
            _ROWS_OF_INPUT * _INT32 + _INT32 + table
        )

    @property
    def _table_blocks(self) -> int:
        return self.paging.max_blocks_per_request if self.paging.flash and set(self.windows) == {None} else 0

    @property
    def _fixed_bytes(self) -> int:
        """The sectors of padding, and the logits of every request."""
        row = self.hidden_size * self.value_bytes + self.vocab_size * _FP32
        return _TRASH_SECTORS * self.sector_bytes + self.paging.max_requests_per_batch * row

    def _mask_bytes(self, sectors: int) -> int:
        masks = 0 if self.paging.flash else 2 if any(self.windows) else 1
        batch = self.paging.max_batch_tokens
        return masks * self.value_bytes * batch * (sectors * self._tokens_per_sector + batch)


def pages_of(size: CacheSize, paging: Paging) -> Pages:
    """The blocks of the model of `size` on one rank; KvcalcError for what continuous batching does not take."""
    held, spec = components_of(size.layers), size.spec
    shapes = {one.parts(WHOLE) for one in held}
    windows: Counter[int | None] = Counter(one.span.cap for one in held)
    plain = len(shapes) == 1 and [part.name for part in next(iter(shapes))] == ["k", "v"] and not spec.reads
    chunked = any(one.tokens_in_sight(_FAR) != _FAR or one.span.ratio > 1 or one.states(WHOLE) for one in held)
    if not plain or chunked or len(set(windows) - {None}) > 1 or len({part.width for part in next(iter(shapes))}) > 1:
        message = f"continuous batching takes KV heads of one shape under one window, and {spec.name} has others"
        raise KvcalcError(message, "leave --cache-implementation out for the dynamic one")
    (heads, width), tp = next(iter(shapes))[0][1:], size.sharding.tp
    if heads % tp:
        raise KvcalcError(f"--tp {tp} does not divide {heads} KV heads", "continuous batching wants whole heads")
    q_heads = held[0].queries
    if q_heads is None or spec.hidden_size is None or spec.vocab_size is None:
        raise KvcalcError(f"the memory beside the cache needs sizes that {spec.name} does not state", "add them")
    value_bytes = find_format(size.packer.dtype).bulk_bytes(1, "kv")
    page = 2 * (heads // tp) * width * value_bytes * paging.page_size
    blocks = {window: count * page for window, count in windows.items()}
    return Pages(
        windows=blocks,
        block_bytes=len(held) * page,
        sector_bytes=lcm(*blocks.values(), _ALIGNMENT),
        paging=paging,
        kv_heads=heads // tp,
        q_heads=q_heads // tp,
        width=width,
        value_bytes=value_bytes,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
    )


def paged_bytes(size: CacheSize, pages: Pages) -> tuple[int, list[str]]:
    """Bytes of the cache's tensor: of `num_blocks` where they are given, else of what the batch takes; and rules."""
    needed = pages.sectors(size.workload.context_tokens, size.workload.batch)
    sectors = pages.configured_sectors() or needed
    if sectors < needed:
        message = f"--num-blocks {pages.paging.num_blocks:,} are {sectors:,} sectors, and the batch takes {needed:,}"
        raise KvcalcError(message, "give more, or lower --batch or --ctx")
    rules = [f"blocks of {pages.paging.page_size:,} tokens, {sectors:,} sectors of them and 2 for padding"]
    return (sectors + _TRASH_SECTORS) * pages.sector_bytes, rules


def paged_capacity(size: CacheSize, pages: Pages, pool_bytes: int) -> Capacity:
    """What a share of the free memory of so many bytes carries, once what goes with the cache is paid for."""
    tokens = size.workload.context_tokens
    sectors = pages.configured_sectors() or max(0, pages.fitting_sectors(pool_bytes))
    # It does not start where that does not fit (_check_footprint).
    sectors = sectors if pages.footprint_bytes(sectors) <= pool_bytes else 0
    fitting = largest(lambda count: pages.sectors(tokens, count) <= sectors, MOST_SEQUENCES)
    limit = min(pages.paging.max_requests_per_batch, pages.paging.max_batch_tokens)
    blocks = sectors * pages.sector_bytes // pages.block_bytes
    of_one = sum(pages.blocks(window, tokens) * block for window, block in pages.windows.items())
    return Capacity(
        pool_bytes=pool_bytes,
        tokens=blocks * pages.paging.page_size,
        sequences=min(fitting, limit),
        max_concurrency=sectors * pages.sector_bytes / of_one,
        limited_by="blocks" if fitting <= limit else "running requests",
        longest_request=largest(lambda length: pages.sectors(length, 1) <= sectors, tokens),
        max_model_len=tokens,
        block_tokens=(pages.paging.page_size,),
        num_blocks=blocks,
        bytes_per_block=pages.block_bytes,
        figures={"num_sectors": sectors, "bytes_per_sector": pages.sector_bytes},
    )
