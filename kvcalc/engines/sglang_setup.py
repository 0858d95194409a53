"""One launch of SGLang as its pools see it: its flags resolved for a model and its ranks."""

from typing import Literal

import msgspec

from kvcalc.cache.sharding import Sharding
from kvcalc.engines.sglang_versions import Release

Strategy = Literal["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"]

RUNNING_WITH_DRAFTS = 48
"""--max-running-requests where drafts are on and nothing is asked (arg_groups/speculative_hook.py)."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What sizing asks of a launch; requests and tokens are those of one attention-parallel rank."""

    release: Release
    attention_tp: int
    attention_dp: int
    dcp: int
    page_size: int
    context_tokens: int
    max_total_tokens: int | None
    asked_requests: int | None
    """--max-running-requests on one data-parallel rank of attention, None where it was not given."""
    swa_ratio: float | None
    state_ratio: float
    asked_slots: int | None
    prefill_tokens: int
    """--chunked-prefill-size on one rank."""
    reuses_prefixes: bool
    overlaps: bool
    strategy: Strategy
    draft_layers: int
    draft_tokens: int
    """--speculative-num-draft-tokens, 0 without drafts."""

    @property
    def heads(self) -> Sharding:
        """How KV heads are spread (ModelConfig.get_num_kv_heads): over the ranks that keep the same tokens."""
        return Sharding(tp=max(1, self.attention_tp // self.dcp))

    @property
    def states(self) -> Sharding:
        """How the heads of states are spread."""
        return Sharding(tp=self.attention_tp)

    def pages(self, tokens: int) -> int:
        """`tokens` rounded down to whole pages."""
        return tokens // self.page_size * self.page_size

    def whole_pages(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def limited(self, tokens: int) -> int:
        """`tokens`, or --max-total-tokens where that is less (_apply_token_constraints)."""
        return tokens if self.max_total_tokens is None else min(tokens, self.max_total_tokens)

    def running_requests(self, tokens: int) -> int:
        """Requests that may run at once before states are counted (resolve_max_num_reqs)."""
        estimated = max(min(int(tokens / self.context_tokens * 512), 4096), 2048)
        if self.asked_requests is None:
            return min(estimated, tokens // 2)
        return min(self.asked_requests, estimated if self.release.clamps_asked_requests else tokens // 2)


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of one rank: tokens of all layers, tokens of windows, slots of states, and requests at once."""

    tokens: int
    requests: int
    window_tokens: int | None = None
    slots: int | None = None
