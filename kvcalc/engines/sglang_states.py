"""SGLang's slots for recurrent states: how many a budget makes, and how many a request holds.

Read in SGLang 0.5.23, srt/mem_cache/kv_cache_configurator.py (_handle_max_mamba_cache, _calculate_mamba_ratio) and
memory_pool.py (MambaPool). The arithmetic is in floats where its is, so that it rounds alike.
"""

import msgspec

from kvcalc.engines.sglang_layers import Stage
from kvcalc.engines.sglang_setup import Setup
from kvcalc.errors import KvcalcError

SLOTS_A_REQUEST = 3
"""With a prefix cache: MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO."""


class StateSlots(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of a model: `slot_bytes` of one on the stage that keeps the most states, `kept` per request."""

    setup: Setup
    slot_bytes: int
    per_request: int

    def solve(self, rest: float) -> tuple[int, float]:
        """Slots out of a budget of bytes for states and tokens together, and the bytes left for tokens."""
        slots = self._asked()
        if slots is None:
            slots = self._from_ratio(rest)
        if self.setup.draft_tokens:
            rest -= self.slot_bytes * (self._speculating(slots) + 1) * self.setup.draft_tokens
        spare = 1 if self.setup.release.pays_spare_slot else 0
        return slots, rest - (slots + spare) * self.slot_bytes

    def _asked(self) -> int | None:
        """Slots that flags state: --max-mamba-cache-size, or a slot a request where nothing is cached for reuse."""
        setup = self.setup
        if setup.asked_slots is not None:
            return setup.asked_slots // setup.attention_dp
        if not setup.reuses_prefixes and setup.asked_requests is not None:
            return setup.asked_requests
        return None

    def _from_ratio(self, rest: float) -> int:
        """States get r parts of memory where tokens get one, r being --mamba-full-memory-ratio."""
        ratio, drafts = self.setup.state_ratio, self.setup.draft_tokens
        budget = rest * ratio / (1 + ratio)
        spare = self.slot_bytes * (1 + drafts) if self.setup.release.pays_spare_slot else 0
        return int((budget - spare) // (self.slot_bytes * (1 + drafts / self.per_request)))

    def _speculating(self, slots: int) -> int:
        """Requests that keep a state for every draft token while they are verified."""
        return min(self.setup.asked_requests or slots, slots // self.per_request)


def state_slots(stages: tuple[Stage, ...], setup: Setup) -> StateSlots | None:
    """The slots of a model; None for one that keeps no states."""
    everything = [slot for stage in stages for slot in stage.slots]
    if not everything:
        return None
    most = max(len(stage.slots) for stage in stages)
    whole = sum(slot.bytes for slot in everything)
    return StateSlots(
        setup=setup,
        slot_bytes=int(whole * (most / len(everything))),
        per_request=_per_request(stages, setup),
    )


def _per_request(stages: tuple[Stage, ...], setup: Setup) -> int:
    """Slots that count for one running request: its own, and those that the prefix cache may hold for it."""
    if not setup.reuses_prefixes:
        return 1
    strategy = setup.strategy
    if strategy == "auto":
        extra = setup.release.extra_buffers and setup.overlaps and _takes_extra_buffers(stages)
        strategy = "extra_buffer" if extra else "no_buffer"
    if strategy == "extra_buffer_lazy" and not setup.overlaps:
        raise KvcalcError("SGLang takes no extra_buffer_lazy without its overlap scheduler", "use extra_buffer")
    tracking = {"no_buffer": 0, "extra_buffer_lazy": 1, "extra_buffer": 2 if setup.overlaps else 1}
    return SLOTS_A_REQUEST + tracking[strategy]


def _takes_extra_buffers(stages: tuple[Stage, ...]) -> bool:
    """Whether prefix caching of a model tracks states by itself: of those with attention and a recurrent state.

    arg_groups/overrides.py, _MAMBA_EXTRA_BUFFER_ARCHS: Qwen3-Next and after, Kimi, Nemotron-H, Falcon-H1, Granite 4;
    not LFM2, whose layers keep a convolution alone.
    """
    slots = [slot for stage in stages for slot in stage.slots]
    return any(stage.full for stage in stages) and all(slot.ssm for slot in slots)
