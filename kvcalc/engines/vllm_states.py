"""vLLM's specs of what one request keeps however long it is: states, rings, the encoder's tokens.

Read in vLLM 0.33.0, v1/kv_cache_interface.py, under the names that `name` gives.
"""

from collections.abc import Sequence
from typing import ClassVar

from kvcalc.engines.vllm_specs import Attention, Limits, PageSpec, cdiv


class Encoder(Attention, frozen=True, kw_only=True):
    """The encoder's tokens, for cross attention."""

    name: ClassVar[str] = "CrossAttentionSpec"

    def request_pages(self, limits: Limits) -> int:
        return cdiv(limits.encoder_tokens, self.block_size)


class Ring(Attention, frozen=True, kw_only=True):
    """One block a request: the tokens that a compressor has not finished."""

    name: ClassVar[str] = "CircularBufferSpec"

    def request_pages(self, limits: Limits) -> int:
        return 1


class States(PageSpec, frozen=True, kw_only=True):
    """Recurrent states, a page for all that a layer keeps of one sequence; two where prefix caching keeps the last."""

    values_bytes: int
    shapes: tuple[tuple[int, ...], ...] = ()
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0

    name: ClassVar[str] = "MambaSpec"
    scales_with_block: ClassVar[bool] = False

    @property
    def bare_bytes(self) -> int:
        return self.values_bytes

    def request_pages(self, limits: Limits) -> int:
        if limits.aligned_states:
            return 2 + self.speculative_blocks + self.checkpoint_blocks
        return 1 + self.speculative_blocks

    def is_uniform_with(self, others: Sequence[PageSpec]) -> bool:
        return all(isinstance(one, States) and one._uniform_key() == self._uniform_key() for one in others)

    def _uniform_key(self) -> tuple[int, ...]:
        return self.page_bytes, self.speculative_blocks, self.checkpoint_blocks
