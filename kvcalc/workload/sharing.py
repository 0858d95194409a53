"""What sequences of one request save by sharing blocks: parallel samples their prompt, beams most of what they wrote.

PagedAttention, arXiv 2309.06180, section 6.3: the blocks saved by sharing over those without it, averaged over time.
"""

import random
from collections.abc import Callable, Iterable

from kvcalc.errors import KvcalcError
from kvcalc.sizing.blocks import Group, Layout
from kvcalc.workload.paged import PagedPool, Table

Step = Callable[[PagedPool, list[Table], random.Random], list[Table]]


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
        tables = _begin(pool, prompt, width)
        for length in range(prompt + 1, prompt + output + 1):
            tables = METHODS[method](pool, tables, chance)
            whole += width * group.blocks(length)
            saved += width * group.blocks(length) - pool.used_units
    return saved / whole if whole else 0.0


def _begin(pool: PagedPool, prompt: int, width: int) -> list[Table]:
    first = pool.add(range(prompt))
    tables = [first, *(pool.fork(first) for _ in range(width - 1))] if first else []
    return [table for table in tables if table is not None]


def _sampled(pool: PagedPool, tables: list[Table], chance: random.Random) -> list[Table]:
    """Each goes its own way: nothing is shared but the prompt's full blocks."""
    for token, table in enumerate(tables):
        pool.append(table, token)
    return tables


def _resampled(pool: PagedPool, tables: list[Table], chance: random.Random) -> list[Table]:
    """Each new beam goes on from any old one with the same chance: an assumption, where a model's scores decide.

    Beams whose parent was not chosen are forgotten. Real beams hold on to a good parent longer than chance does when
    scores differ little, and leave it sooner when they differ much.
    """
    chosen = [chance.randrange(len(tables)) for _ in tables]
    seen: set[int] = set()
    nexts = []
    for parent in chosen:
        nexts.append(pool.fork(tables[parent]) if parent in seen else tables[parent])
        seen.add(parent)
    for parent, table in enumerate(tables):
        if parent not in seen:
            pool.free(table)
    beams = [table for table in nexts if table is not None]
    return _sampled(pool, beams, chance)


METHODS: dict[str, Step] = {"parallel sampling": _sampled, "beam search": _resampled}
"""How the sequences of a request go on, a token each."""
