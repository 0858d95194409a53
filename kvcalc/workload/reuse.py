"""The hit rate of a prefix cache at every capacity in one pass, from how far apart uses of a block lie."""

from kvcalc.workload.prefix import Prefixes, prefixes_of
from kvcalc.workload.trace import Integers, Seconds, Trace

NEVER = 2**62
"""The distance of a block that was not there before."""


def hit_curve(trace: Trace, block_tokens: int, *, with_tails: bool = False) -> tuple[Integers, Seconds]:
    """Capacities in blocks where something changes, and the share of all prompt tokens that a cache so large has.

    Requests come one after the other, least recently used blocks go first, and of one request the tail goes first.
    Blocks are full ones, and the last of a prompt `with_tails`, which a cache by whole blocks would not keep.
    """
    import numpy as np

    prefixes = prefixes_of(trace, block_tokens, with_tails=with_tails)
    distances = reuse_distances(prefixes)
    order = np.argsort(distances, kind="stable")
    order = order[: np.searchsorted(distances[order], NEVER)]
    hits = np.cumsum(prefixes.tokens[order])
    last = np.nonzero(np.diff(distances[order], append=NEVER))[0]
    return distances[order][last], hits[last] / max(int(trace.prompt_tokens.sum()), 1)


def reuse_distances(prefixes: Prefixes) -> Integers:
    """For every block of every request the smallest cache in blocks that has it and all before it, else NEVER.

    Mattson's stack algorithm (1970): whatever its size, an LRU cache holds the blocks used last, so one that holds d
    has every block whose d - 1 followers are distinct. It holds for a prefix cache because a request touches all its
    blocks, found or not; that a block counts only where all before it do is the largest distance so far. A request is
    looked up before it touches anything, then touches its tail first and its head last.
    """
    import numpy as np

    ids, ends = prefixes.ids, prefixes.ends
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    request = np.repeat(np.arange(len(ends)), ends - starts)
    place = np.arange(len(ids))
    touched = starts[request] + ends[request] - 1 - place
    before = _previous(ids[touched])
    own = before[touched]
    # A block twice in one request was not there before the request unless an earlier request had it.
    while (twice := own >= starts[request]).any():
        own[twice] = before[own[twice]]
    known = own >= 0
    distances = np.full(len(ids), NEVER)
    distances[known] = _count_below(before, starts[request[known]], own[known]) - own[known]
    return _largest_so_far(distances, request)


def _previous(ids: Integers) -> Integers:
    """For each place the one before at which its id stood, -1 where there is none."""
    import numpy as np

    order = np.argsort(ids, kind="stable")
    same = ids[order[1:]] == ids[order[:-1]]
    before = np.full(len(ids), -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _count_below(values: Integers, ends: Integers, limits: Integers) -> Integers:
    """For each query how many of `values[:end]` are at most `limit`: the distinct blocks of a window, by first uses.

    A prefix is cut into runs of powers of two, each sorted once: O(n log^2 n), in arrays.
    """
    import numpy as np

    counts = np.zeros(len(ends), dtype=np.int64)
    span = np.int64(len(values) + 2)
    for level in range(len(values).bit_length()):
        asked = np.nonzero(ends >> level & 1)[0]
        run = (ends[asked] >> level) - 1
        keys = np.sort((np.arange(len(values)) >> level) * span + values + 1, kind="stable")
        counts[asked] += np.searchsorted(keys, run * span + limits[asked] + 1, side="right") - (run << level)
    return counts


def _largest_so_far(distances: Integers, request: Integers) -> Integers:
    """The running maximum within each request."""
    import numpy as np

    ranks = np.unique(distances, return_inverse=True)
    raised = np.maximum.accumulate(request * len(ranks[0]) + ranks[1]) - request * len(ranks[0])
    return ranks[0][raised]
