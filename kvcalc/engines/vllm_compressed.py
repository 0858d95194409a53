"""What vLLM keeps of the compressed attention of DeepSeek-V4 and V4.1: windows, entries, index keys, compressor states.

Read in vLLM 0.33.0, models/deepseek_v4/attention.py and compressor.py, models/deepseek_v41/attention.py and
compressor.py, v1/attention/backends/mla/sparse_swa.py (DeepseekV4SWACache): the get_kv_cache_spec of each. Blocks hold
the pages of all layers side by side, of 256 tokens (v1/attention/backends/mla/indexer.py, DeepseekV4IndexerBackend).
"""

from collections.abc import Sequence
from math import lcm
from typing import Any, ClassVar

import msgspec

from kvcalc.cache.component import Attended, Component
from kvcalc.cache.formats import find_format
from kvcalc.cache.sharding import WHOLE
from kvcalc.engines.vllm_specs import Latent, PageSpec, SlidingLatent, cdiv
from kvcalc.engines.vllm_states import Ring
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize

BLOCK_SIZE = 256

INDEX_BLOCK, INDEX_SCALE_BYTES = 128, 4
"""An index key is FP8 with an fp32 scale for every 128 values, whatever --kv-dtype says (DeepseekV32IndexerCache)."""

PACKED_RECORD, PLAIN = "fp8_ds_v4", "bf16"
"""An entry of 584 B, in pages aligned to 576 B; and plain rows, which FlashInfer's backends alone take."""

RECORDS_V41 = {("mxfp8", "mxfp8"), ("mxfp8", "nvfp4")}
"""Windows and compressed entries on cards of compute capability 10, where V4.1 has records of its own."""


def index_key_bytes(size: CacheSize, component: Component) -> int:
    """Bytes of an index key: FP8 and its scales, MXFP4 where that is asked by name (dsa_indexer_uses_fp4)."""
    (part,) = component.parts(WHOLE)
    if size.packer.request.by_name.get(component.name) == "mxfp4":
        return find_format("mxfp4").entry_bytes([part], component.name)
    return part.width + cdiv(part.width, INDEX_BLOCK) * INDEX_SCALE_BYTES


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """The caches of one model with compressed entries; `entry` and `window` are formats by name."""

    size: CacheSize
    window: str
    entry: str
    speculative_tokens: int = 0

    chains_drafts: ClassVar[bool] = True
    """Whether draft layers run one behind the other (MTP), each over the tokens that the one before drafted."""

    @property
    def alignment(self) -> int:
        """Bytes to whose multiple a page is rounded up."""
        return 576 if self.window == PACKED_RECORD else 512

    @property
    def window_block(self) -> int:
        """Tokens of a block of the windows."""
        return 64

    def specs(self, components: Sequence[Component]) -> list[PageSpec]:
        """What one layer keeps, in the order in which vLLM's layers register their caches."""
        ordered = sorted(components, key=lambda one: (not one.selects, one.span.cap is None))
        return [spec for one in ordered for spec in self._of(one)]

    def rules(self) -> list[str]:
        """What an answer should say."""
        where = "" if self.window == PACKED_RECORD else f": {self._backend}"
        return [
            f"entries are kept as {' and '.join(dict.fromkeys((self.window, self.entry)))}{where}",
            f"pages of all layers lie side by side in a block, each rounded up to {self.alignment} B",
            f"a compressor keeps the tokens of the entry that it is filling in fp32: {self._state_rule}",
        ]

    @property
    def _backend(self) -> str:
        return "FlashInfer's backend, which --attention-backend chooses"

    @property
    def _state_rule(self) -> str:
        return "a window of blocks of 4 or 8 tokens"

    def _of(self, component: Component) -> list[PageSpec]:
        ratio, fields = component.span.ratio, self._fields(component)
        if component.selects:
            # Its width has the scales in it.
            fields = {"kv_heads": 1, "head_size": index_key_bytes(self.size, component), "dtype": "uint8"}
        elif isinstance(component, Attended) and component.window is not None:
            return [self._window(component.window, fields)]
        states = [] if ratio == 1 else self._states(component)
        entries = Latent(block_size=BLOCK_SIZE, tokens_per_state=ratio, alignment=self.alignment, **fields)
        return [entries, *states]

    def _fields(self, component: Component) -> dict[str, Any]:
        """An entry is one record, whose bytes do not follow from its width."""
        parts = component.parts(WHOLE)
        record = self.size.packer.entry_format(component).entry_bytes(parts, component.name)
        width = sum(part.width for part in parts)
        return {"kv_heads": 1, "head_size": width, "state_bytes": record, "layout": self.entry}

    def _window(self, window: int, fields: dict[str, Any]) -> PageSpec:
        return SlidingLatent(block_size=self.window_block, window=window, alignment=self.alignment, **fields)

    def _states(self, component: Component) -> list[PageSpec]:
        """CompressorStateCache: values and scores in fp32, of an entry's tokens, or of two entries' that overlap."""
        twice = 2 if component.overlaps else 1
        width = sum(part.width for part in component.parts(WHOLE))
        state = SlidingLatent(
            block_size=4 if component.overlaps else 8,
            kv_heads=1,
            head_size=2 * twice * width,
            dtype="float32",
            window=twice * component.span.ratio,
            alignment=self.alignment,
        )
        return [state]


class CompressedV41(Compressed, frozen=True, kw_only=True):
    """DeepSeek-V4.1: its own records on some cards, rings instead of windows of states, index keys without a state."""

    chains_drafts: ClassVar[bool] = False
    """Its draft layers are those of DSpark, which drafts a block of tokens at once."""

    @property
    def window_block(self) -> int:
        return 32

    @property
    def _backend(self) -> str:
        return super()._backend if self.window == PLAIN else "cards of compute capability 10"

    @property
    def _state_rule(self) -> str:
        return "one block a request"

    def _window(self, window: int, fields: dict[str, Any]) -> PageSpec:
        whole = super()._window(window, fields)
        if self.window in {PACKED_RECORD, PLAIN}:
            return whole
        # The cache is read as rows of either record, so a block holds whole rows of both.
        entry = next(one for layer in self.size.layers for one in layer.components if _is_entry(one))
        stride = lcm(fields["state_bytes"], self._fields(entry)["state_bytes"])
        return msgspec.structs.replace(whole, stride_alignment=stride)

    def _states(self, component: Component) -> list[PageSpec]:
        if component.selects:
            return []  # keys are made of the entry beside them
        width = sum(part.width for part in component.parts(WHOLE))
        # Draft tokens, the token after them and the row before, as a power of two.
        rows = max(8, 1 << (self.speculative_tokens + 1).bit_length())
        return [Ring(block_size=rows, kv_heads=1, head_size=2 * width, head_size_v=0, dtype="float32")]


_BY_RATIO: dict[int, type[Compressed]] = {4: Compressed, 128: Compressed, 2: CompressedV41}


def compressed_of(size: CacheSize, block_size: int | None, speculative_tokens: int) -> Compressed | None:
    """The compressed caches of a model, None where it has none; KvcalcError for ratios and formats without a rule."""
    entries = [one for layer in size.layers for one in layer.components if _is_entry(one)]
    squeezed = [one for one in entries if one.span.ratio > 1]
    if not squeezed:
        return None
    families = {_BY_RATIO.get(one.span.ratio) for one in squeezed}
    family = families.pop() if len(families) == 1 else None
    if family is None:
        ratios = " and ".join(str(ratio) for ratio in sorted({one.span.ratio for one in squeezed}))
        raise KvcalcError(
            f"vLLM compresses by 4 and 128 (DeepSeek-V4) or by 2 (V4.1), not by {ratios}", "leave --engine out"
        )
    if block_size not in {None, BLOCK_SIZE}:
        raise KvcalcError(
            f"--block-size {block_size}: vLLM keeps compressed entries in blocks of {BLOCK_SIZE}",
            f"use --block-size {BLOCK_SIZE}, or leave it out",
        )
    windows = [one for layer in size.layers for one in layer.components if one.span.cap is not None]
    window, entry = (_one_format(size, ones) for ones in (windows, squeezed))
    plain = {(PACKED_RECORD, PACKED_RECORD), (PLAIN, PLAIN)}
    if (window, entry) not in (plain | RECORDS_V41 if family is CompressedV41 else plain):
        raise KvcalcError(f"vLLM keeps no window in {window} beside entries in {entry}", "use --kv-dtype fp8 or bf16")
    return family(size=size, window=window, entry=entry, speculative_tokens=speculative_tokens)


def _is_entry(component: Component) -> bool:
    """Whether it is what attention reads beside a window."""
    return component.keeps_entries and not component.selects and component.span.cap is None


def _one_format(size: CacheSize, components: Sequence[Component]) -> str:
    names = {size.packer.format_name(one) for one in components}
    if len(names) != 1:
        raise KvcalcError(f"vLLM keeps all such caches in one format, not {' and '.join(sorted(names))}", "use one")
    return names.pop()
