"""The hit rate of a prefix cache at every capacity in one pass, from how far apart uses of a block lie."""

from typing import NamedTuple

from kvcalc.workload.prefix import Blocks, blocks_of
from kvcalc.workload.trace import Integers, Seconds, Trace

NEVER = 2**62
"""The distance of what was not there before."""


class Uses(NamedTuple):
    """What each request uses, head first: request i has the places from `ends[i - 1]` to `ends[i]`.

    An item is a block of `tokens` tokens, or `weights` of them that are always used together.
    """

    ids: Integers
    ends: Integers
    weights: Integers
    tokens: Integers


def hit_curve(trace: Trace, block_tokens: int, *, with_tails: bool = False) -> tuple[Integers, Seconds]:
    """Capacities in blocks where something changes, and the share of all prompt tokens that a cache so large has.

    Requests come one after the other, least recently used blocks go first, and of one request the tail goes first.
    Blocks are full ones, and the last of a prompt `with_tails`, which a cache by whole blocks would not keep.
    """
    import numpy as np

    blocks = blocks_of(trace, block_tokens, with_tails=with_tails)
    uses = _single_uses(blocks) if with_tails or block_tokens >= trace.prefix_tokens else _joined_uses(blocks)
    request = np.repeat(np.arange(len(uses.ends)), np.diff(uses.ends, prepend=0))
    depths = depths_of(uses, request)
    reaches = _largest_so_far(np.minimum(depths + uses.weights, NEVER), request)
    before = np.where(np.diff(request, prepend=-1) > 0, 0, np.concatenate([[0], reaches[:-1]]))
    found = reaches < NEVER
    hits = _hits(depths[found], before[found], uses.weights[found], uses.tokens[found])
    capacities = hits.nonzero()[0]
    return capacities, np.cumsum(hits)[capacities] / max(int(trace.prompt_tokens.sum()), 1)


def _hits(depths: Integers, before: Integers, weights: Integers, tokens: Integers) -> Seconds:
    """Tokens that a cache has for each block that it is larger, from 0 blocks on.

    The n-th block of an item needs n beside those on top of it, and room for all `before` it in its request.
    """
    import numpy as np

    size = int((np.maximum(before, depths + weights)).max(initial=0)) + 2
    at_once = np.clip(before - depths, 0, weights)
    begins = np.bincount(depths + at_once + 1, tokens, size)
    ends = np.bincount(depths + weights + 1, tokens, size)
    # A ramp that begins where it ends has no blocks.
    hits = np.bincount(before, at_once * tokens, size) + np.cumsum(begins - ends)
    return hits.astype(np.float64)


def _single_uses(blocks: Blocks) -> Uses:
    """Every block for itself."""
    import numpy as np

    found = blocks.whole()
    return Uses(found.ids, found.ends, np.ones_like(found.ids), found.tokens)


def _joined_uses(blocks: Blocks) -> Uses:
    """The parts of an id together where all prompts that have it have as many of them, else each for itself."""
    import numpy as np

    parts, counts = blocks.known_tokens // blocks.block_tokens, blocks.counts
    ids_each = -(-counts // parts)
    ends = np.cumsum(ids_each)
    place = np.arange(int(ids_each.sum())) - np.repeat(ends - ids_each, ids_each)
    ids = blocks.known_ids[np.repeat(blocks.starts, ids_each) + place]
    weights = np.minimum(parts, np.repeat(counts, ids_each) - place * parts)
    which = np.unique(ids, return_inverse=True)[1]
    least, most = np.full(len(ids), parts), np.zeros(len(ids), dtype=np.int64)
    np.minimum.at(least, which, weights)
    np.maximum.at(most, which, weights)
    times = np.where((least == most)[which], 1, weights)
    sums = np.concatenate([[0], np.cumsum(times)])
    part = np.arange(int(sums[-1])) - np.repeat(sums[:-1], times)
    joined = np.repeat(np.where(times == 1, weights, 1), times)
    return Uses(np.repeat(ids * parts, times) + part, sums[ends], joined, np.full(len(part), blocks.block_tokens))


def depths_of(uses: Uses, request: Integers) -> Integers:
    """For every use how many blocks were used since the last one of the same item, else NEVER.

    Mattson's stack algorithm (1970): whatever its size, an LRU cache holds the blocks used last, so one that holds d
    has every block whose d - 1 followers are distinct. It holds for a prefix cache because a request touches all its
    blocks, found or not; that a block counts only where all before it do is the largest distance so far. A request is
    looked up before it touches anything, then touches its tail first and its head last.
    """
    import numpy as np

    ids, ends = uses.ids, uses.ends
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    touched = starts[request] + ends[request] - 1 - np.arange(len(ids))
    before, weights = _previous(ids[touched]), uses.weights[touched]
    own = before[touched]
    # A block twice in one request was not there before the request unless an earlier request had it.
    while (twice := own >= starts[request]).any():
        own[twice] = before[own[twice]]
    known = own >= 0
    depths = np.full(len(ids), NEVER)
    sums = np.cumsum(weights)
    depths[known] = _sums_below(before, weights, starts[request[known]], own[known]) - sums[own[known]]
    return depths


def _previous(ids: Integers) -> Integers:
    """For each place the one before at which its id stood, -1 where there is none."""
    import numpy as np

    order = np.argsort(ids, kind="stable")
    same = ids[order[1:]] == ids[order[:-1]]
    before = np.full(len(ids), -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _sums_below(values: Integers, weights: Integers, ends: Integers, limits: Integers) -> Integers:
    """For each query the weights of those of `values[:end]` that are at most `limit`: of a window's first uses.

    A prefix is cut into runs of powers of two, each sorted once: O(n log^2 n), in arrays.
    """
    import numpy as np

    found = np.zeros(len(ends), dtype=np.int64)
    span = np.int64(len(values) + 2)
    for level in range(len(values).bit_length()):
        asked = np.nonzero(ends >> level & 1)[0]
        run = (ends[asked] >> level) - 1
        keys = (np.arange(len(values)) >> level) * span + values + 1
        order = np.argsort(keys, kind="stable")
        sums = np.concatenate([[0], np.cumsum(weights[order])])
        places = np.searchsorted(keys[order], run * span + limits[asked] + 1, side="right")
        found[asked] += sums[places] - sums[run << level]
    return found


def _largest_so_far(distances: Integers, request: Integers) -> Integers:
    """The running maximum within each request."""
    import numpy as np

    ranks = np.unique(distances, return_inverse=True)
    raised = np.maximum.accumulate(request * len(ranks[0]) + ranks[1]) - request * len(ranks[0])
    return ranks[0][raised]
