"""Which leading blocks of a prompt are already there: full blocks by the hash of all that stands before their end."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.workload.trace import Integers, Trace


class PrefixCache:
    """Blocks of prompts by id, those in use pinned, the others kept until room is needed, least recently used first.

    An id stands for a block and all before it. What a request gives back goes tail first, so that a tail is evicted
    before its head (vLLM, v1/core/single_type_kv_cache_manager.py, free: "eviction order"). Blocks count as there as
    soon as they are acquired, not when they have been computed.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        """Blocks that may be held; pinned ones stay beyond it, others go. None leaves it to `evict`."""
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def held(self) -> int:
        """Blocks in the cache, in use or not."""
        return len(self._pins) + len(self._idle)

    @property
    def pinned(self) -> int:
        """Blocks in use by at least one request."""
        return len(self._pins)

    def match(self, ids: Sequence[int]) -> int:
        """How many leading blocks of `ids` are there."""
        pins, idle = self._pins, self._idle
        for place, one in enumerate(ids):
            if one not in pins and one not in idle:
                return place
        return len(ids)

    def in_use(self, ids: Sequence[int]) -> int:
        """How many leading blocks of `ids` others use: one that is in use has all before it in use."""
        pins = self._pins
        return next((place for place, one in enumerate(ids) if one not in pins), len(ids))

    def acquire(self, ids: Sequence[int]) -> int:
        """Pin all of `ids`, making those that are missing; how many leading ones were there."""
        hits = self.match(ids)
        pins, idle = self._pins, self._idle
        for one in ids:
            count = pins.get(one)
            if count is None:
                idle.pop(one, None)
                pins[one] = 1
            else:
                pins[one] = count + 1
        self._trim()
        return hits

    def release(self, ids: Sequence[int]) -> None:
        """Give back what `acquire` pinned; blocks that nobody uses any more may be evicted from now on."""
        pins, idle = self._pins, self._idle
        for one in reversed(ids):
            count = pins[one]
            if count == 1:
                del pins[one]
                idle[one] = None
            else:
                pins[one] = count - 1
        self._trim()

    def forget(self, ids: Sequence[int]) -> None:
        """Drop those of `ids` that nobody uses."""
        for one in ids:
            self._idle.pop(one, None)

    def evict(self, count: int) -> int:
        """Forget up to `count` blocks that are not in use; how many were."""
        idle = self._idle
        evicted = min(count, len(idle))
        for _ in range(evicted):
            idle.popitem(last=False)
        return evicted

    def _trim(self) -> None:
        if self.capacity is not None and self.held > self.capacity:
            self.evict(self.held - self.capacity)


class Prefixes(msgspec.Struct, frozen=True):
    """Blocks of prompts: request i has `ids[ends[i - 1]:ends[i]]`, of `tokens` tokens each."""

    ids: Integers
    ends: Integers
    tokens: Integers

    def of(self, request: int) -> list[int]:
        """The ids of one request."""
        first = int(self.ends[request - 1]) if request else 0
        return list(self.ids[first : int(self.ends[request])].tolist())


def prefixes_of(trace: Trace, block_tokens: int, *, with_tails: bool = False) -> Prefixes:
    """The full blocks of every prompt whose ids are known, in another block size; `with_tails` takes its last one too.

    Ids of a trace stand for all that was before them, so that a larger block is known by its last id, and one of k
    parts by the id and its place. KvcalcError where neither size is a multiple of the other.
    """
    import numpy as np

    if trace.prefix_ids is None or trace.prefix_ends is None:
        raise KvcalcError(f"{trace.name} does not say which prefixes are shared", "use a trace with hash_ids")
    known = trace.prefix_tokens
    if block_tokens < 1 or max(known, block_tokens) % min(known, block_tokens):
        message = f"--block-size {block_tokens}: ids of {trace.name} stand for {known} tokens each"
        raise KvcalcError(message, f"take a divisor or a multiple of {known}")
    starts = np.concatenate([[0], trace.prefix_ends[:-1]])
    covered = np.minimum((trace.prefix_ends - starts) * known, trace.prompt_tokens)
    counts = -(-covered // block_tokens) if with_tails else covered // block_tokens
    ends, request = np.cumsum(counts), np.repeat(np.arange(len(trace)), counts)
    begin = (np.arange(len(request)) - (ends - counts)[request]) * block_tokens
    end = np.minimum(begin + block_tokens, covered[request])
    ids = trace.prefix_ids[starts[request] + (end - 1) // known]
    parts = max(1, known // block_tokens)
    return Prefixes(ids * parts + begin % known // block_tokens, ends, end - begin)
