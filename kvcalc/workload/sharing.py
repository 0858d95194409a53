"""What sequences of one request save by sharing blocks: parallel samples their prompt, beams most of what they wrote.

PagedAttention, arXiv 2309.06180, section 6.3: the blocks saved by sharing over those without it, averaged over time.
"""

import random
from collections.abc import Callable, Iterable

from kvcalc.errors import KvcalcError
from kvcalc.sizing.blocks import Group, Layout
from kvcalc.workload.paged import PagedPool, Table

Parents = Callable[[int, random.Random], list[int]]
"""For so many sequences the one that each of their successors goes on from."""


def shared_share(
    lengths: Iterable[tuple[int, int]], width: int, method: str, *, block_tokens: int = 16, seed: int = 0
) -> float:
    """The share of blocks that is saved where each request of (prompt, output) tokens runs as `width` sequences.

    Every step of every request counts as much: what is saved of a batch at any time. Methods are those of `METHODS`.
    """
    if method not in METHODS:
        raise KvcalcError(f"sharing by {method} is not known", f"known are {', '.join(METHODS)}")
    group = Group(name="tokens", block_tokens=block_tokens, units=1)
    layout = Layout(groups=(group,), slot_units=0, bytes_per_unit=1)
    chance, saved, whole = random.Random(seed), 0, 0  # noqa: S311 - a model of chance, no secret
    for prompt, output in lengths:
        pool = PagedPool(layout, width * (group.blocks(prompt + output) + 1), reuses_prefixes=False)
        tables, parents = _begin(pool, prompt, width), METHODS[method]()
        for length in range(prompt + 1, prompt + output + 1):
            tables = _step(pool, tables, parents(len(tables), chance))
            whole += width * group.blocks(length)
            saved += width * group.blocks(length) - pool.used_units
    return saved / whole if whole else 0.0


def _begin(pool: PagedPool, prompt: int, width: int) -> list[Table]:
    first = pool.add(range(prompt))
    tables = [first, *(pool.fork(first) for _ in range(width - 1))] if first else []
    return [table for table in tables if table is not None]


def _step(pool: PagedPool, tables: list[Table], parents: list[int]) -> list[Table]:
    """Each successor goes on from its parent by a token of its own; who has no successor is forgotten."""
    seen: set[int] = set()
    nexts = []
    for parent in parents:
        nexts.append(pool.fork(tables[parent]) if parent in seen else tables[parent])
        seen.add(parent)
    for parent, table in enumerate(tables):
        if parent not in seen:
            pool.free(table)
    found = [table for table in nexts if table is not None]
    for token, table in enumerate(found):
        pool.append(table, token)
    return found


def _samples() -> Parents:
    """Each goes its own way: nothing is shared but the prompt's full blocks."""
    return lambda width, chance: list(range(width))


def _beams() -> Parents:
    """Each beam goes on from any old one with the same chance, as where what a beam wrote says nothing of the next."""
    return lambda width, chance: [chance.randrange(width) for _ in range(width)]


def _beams_alike() -> Parents:
    """The beams of the highest scores, where the next tokens of all beams in a step are alike.

    Beams that differ in a few words go on much the same. A token's score is below that of the token before it by an
    exponential gap, 1 / j on average for the j-th: the spacings of the highest of many values (Renyi 1953), whatever
    they are drawn from as long as large ones are rare. Their unit does not matter to who is higher.
    """
    scores: list[float] = []

    def parents(width: int, chance: random.Random) -> list[int]:
        nonlocal scores
        gaps = [0.0]
        for rank in range(1, width):
            gaps.append(gaps[-1] + chance.expovariate(rank))
        # Before the first token there is one sequence.
        candidates = [(score - gap, beam) for beam, score in enumerate(scores or [0.0]) for gap in gaps]
        best = sorted(candidates, reverse=True)[:width]
        scores = [score for score, _ in best]
        return [beam for _, beam in best]

    return parents


METHODS: dict[str, Callable[[], Parents]] = {
    "parallel sampling": _samples,
    "beam search": _beams,
    "beam search, alike": _beams_alike,
}
"""How the sequences of a request go on, a token each. Two extremes of beams: real ones are partly alike."""
