"""vLLM's spec of recurrent states: MambaSpec of v1/kv_cache_interface.py, read in vLLM 0.33.0."""

from collections.abc import Sequence
from typing import ClassVar

from kvcalc.engines.vllm_specs import Limits, PageSpec


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
