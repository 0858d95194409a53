"""docs/accuracy.md: what PagedAttention's paper publishes of memory, and what `kvcalc simulate` makes of its moments.

python tests/paper_table.py
"""

from workload.paper import (
    BATCHED,
    EXTERNAL,
    INTERNAL,
    LENGTHS,
    RESERVED,
    SAVED,
    TOKEN_STATES,
    saved,
    served,
    setting,
)

from kvcalc.workload.sharing import METHODS

PAPER = {"token states": TOKEN_STATES | {"paged": 96.3}, "reserved": RESERVED, "internal": INTERNAL}


def paper_table() -> str:
    """Shares and batches of each allocator, then what sharing saves."""
    lines = [
        "| percent of the pool, paper / here | token states | reserved | internal | external | requests at once |",
        "|---|---:|---:|---:|---:|---:|",
        *(_allocator(name) for name in BATCHED),
        "",
        "| percent of blocks saved by 2, 4, 6 sequences | paper | here |",
        "|---|---|---|",
        *(_saved(dataset, method) for dataset in LENGTHS for method in METHODS),
    ]
    return "\n".join(lines) + f"\n\n{setting('max').pool_units:,} token slots.\n"


def _allocator(name: str) -> str:
    found = served(name)
    shares = dict(zip(PAPER, (found.pool.filled, found.pool.reserved, found.pool.internal), strict=True))
    cells = [f"{PAPER[word].get(name, '-')} / {100 * share:.1f}" for word, share in shares.items()]
    external = EXTERNAL.get(name, "-")
    cells += [f"{external} / {100 * found.pool.external:.1f}", f"{BATCHED[name]:.2f} / {found.mean_running:.2f}"]
    return f"| `{name}` | " + " | ".join(cells) + " |"


def _saved(dataset: str, method: str) -> str:
    paper = SAVED.get((dataset, method.partition(",")[0]), ())
    told = ", ".join("-" if figure is None else f"{figure}" for figure in paper)
    ours = ", ".join(f"{percent:.1f}" for percent in saved(dataset, method))
    return f"| {dataset}, {method} | {told} | {ours} |"


if __name__ == "__main__":
    print(paper_table(), end="")
