"""Block references a second of the hit-rate curve and of a prefix cache: `python benchmarks/reuse.py [mooncake.jsonl]`.

On made-up conversations of 25 blocks a request, and on a trace with hash_ids where one is given: what full blocks, and
what all of them find, with 3M and 50M tokens of cache as shares of what is found without a limit.
"""

import json
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

from kvcalc.workload.prefix import PrefixCache, prefixes_of
from kvcalc.workload.reuse import hit_curve
from kvcalc.workload.trace import Trace

BLOCKS, SHARED = 25, 8
COUNTS = (10_000, 100_000, 1_000_000)
CAPACITY = 100_000
TOKENS = (3_000_000, 50_000_000)


def made_up(references: int) -> Trace:
    """Requests that begin with one of 5,000 prefixes, some far more often than others, and go on alone."""
    chance, requests = np.random.default_rng(0), references // BLOCKS
    prefix = chance.zipf(1.3, requests) % 5000
    place = np.arange(BLOCKS)
    own = (5000 + np.arange(requests))[:, None] * (place >= SHARED) + prefix[:, None] * (place < SHARED)
    return trace_of("made up", own * BLOCKS + place, np.full(requests, BLOCKS), np.full(requests, BLOCKS * 16), 16)


def mooncake(path: Path) -> Trace:
    """A published trace: prefix blocks of 512 tokens."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ids = np.array([one for row in rows for one in row["hash_ids"]])
    counts = np.array([len(row["hash_ids"]) for row in rows])
    return trace_of(path.name, ids, counts, np.array([row["input_length"] for row in rows]), 512)


def trace_of(name: str, ids: np.ndarray, counts: np.ndarray, prompts: np.ndarray, block: int) -> Trace:
    """A trace of prompts alone."""
    ends = np.cumsum(counts)
    ones = np.ones_like(prompts)
    return Trace(
        name=name,
        prompt_tokens=prompts,
        output_tokens=ones,
        prefix_ids=ids.ravel(),
        prefix_ends=ends,
        prefix_tokens=block,
    )


def measure(trace: Trace) -> None:
    """One line: both ways, and what they find."""
    start = perf_counter()
    capacities, rates = hit_curve(trace, trace.prefix_tokens)
    curve_seconds = perf_counter() - start
    prefixes = prefixes_of(trace, trace.prefix_tokens)
    requests = [prefixes.of(request) for request in range(len(trace))]
    start, cache, hits = perf_counter(), PrefixCache(CAPACITY), 0
    for ids in requests:
        hits += cache.acquire(ids)
        cache.release(ids)
    cache_seconds, count = perf_counter() - start, len(prefixes.ids)
    at = rates[np.searchsorted(capacities, CAPACITY, side="right") - 1]
    print(
        f"{trace.name}: {count:,} references; curve {curve_seconds:.2f} s, {count / curve_seconds:,.0f}/s, "
        f"{at:.4f} of tokens at {CAPACITY:,} blocks; "
        f"one cache {cache_seconds:.2f} s, {hits * trace.prefix_tokens / trace.prompt_tokens.sum():.4f}"
    )
    print(f"  full blocks {found(trace)}; last ones too {found(trace, with_tails=True)}")


def found(trace: Trace, *, with_tails: bool = False) -> str:
    """The share of tokens without a limit, and the shares of it at TOKENS."""
    capacities, rates = hit_curve(trace, trace.prefix_tokens, with_tails=with_tails)
    places = np.searchsorted(capacities, np.array(TOKENS) // trace.prefix_tokens, side="right") - 1
    shares = [rates[place] / rates[-1] if place >= 0 else 0.0 for place in places]
    return f"{rates[-1]:.1%}, of that " + " and ".join(
        f"{share:.3f} at {tokens // 10**6}M" for share, tokens in zip(shares, TOKENS, strict=True)
    )


if __name__ == "__main__":
    for references in COUNTS:
        measure(made_up(references))
    for argument in sys.argv[1:]:
        measure(mooncake(Path(argument)))
