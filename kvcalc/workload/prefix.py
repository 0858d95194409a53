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

    def release(self, ids: Sequence[int], computed: int | None = None) -> None:
        """Give back what `acquire` pinned; blocks that nobody uses any more may be evicted from now on.

        Only the first `computed` ones of them are kept, where that is said: nobody has written the others.
        """
        pins, idle = self._pins, self._idle
        kept = len(ids) if computed is None else computed
        for place in range(len(ids) - 1, -1, -1):
            one = ids[place]
            count = pins[one]
            if count == 1:
                del pins[one]
                if place < kept:
                    idle[one] = None
            else:
                pins[one] = count - 1
        self._trim()

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


class Blocks(msgspec.Struct, frozen=True):
    """The full blocks of every prompt whose ids are known, in another block size; `with_tails` takes its last one too.

    Ids of a trace stand for all that was before them, so that a larger block is known by its last id, and one of k
    parts by the id and its place. Blocks are made when they are asked for: small ones are many times a trace's ids.
    """

    known_ids: Integers
    starts: Integers
    covered: Integers
    counts: Integers
    known_tokens: int
    block_tokens: int

    def of(self, request: int) -> list[int]:
        """The ids of one request."""
        found: list[int] = self.whole(slice(request, request + 1)).ids.tolist()
        return found

    def whole(self, requests: slice = slice(None)) -> Prefixes:
        """All of them, of these requests."""
        import numpy as np

        known, block, counts = self.known_tokens, self.block_tokens, self.counts[requests]
        ends = np.cumsum(counts)
        begin = (np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)) * block
        end = np.minimum(begin + block, np.repeat(self.covered[requests], counts))
        ids = self.known_ids[np.repeat(self.starts[requests], counts) + (end - 1) // known]
        parts = max(1, known // block)
        return Prefixes(ids * parts + begin % known // block, ends, end - begin)


def blocks_of(trace: Trace, block_tokens: int, *, with_tails: bool = False) -> Blocks:
    """The blocks of a trace's prompts; KvcalcError where neither block size is a multiple of the other."""
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
    ids, parts = trace.prefix_ids, max(1, known // block_tokens)
    # Ids are any integers of 64 bits; those whose parts would pass them get smaller names.
    if len(ids) and max(abs(int(ids.min())), abs(int(ids.max()))) >= 2**62 // parts:
        ids = np.unique(ids, return_inverse=True)[1]
    return Blocks(ids, starts, covered, counts, known, block_tokens)


def prefixes_of(trace: Trace, block_tokens: int, *, with_tails: bool = False) -> Prefixes:
    """All blocks of a trace's prompts at once."""
    return blocks_of(trace, block_tokens, with_tails=with_tails).whole()
