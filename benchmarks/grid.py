"""Seconds for a grid of a million points, after imports, and the ratio to the same points sized one by one.

python benchmarks/grid.py [MODEL...]
"""

import sys
import time

import numpy as np
import pandas as pd  # noqa: F401 - imported here so that only the sizing is timed

import kvcalc

MODELS = ("llama-8b", "gemma-3-27b", "deepseek-v4.1-flash", "qwen3-next-80b-a3b")
SINGLE_POINTS = 200


def main(models: tuple[str, ...]) -> None:
    """Size 10,000 contexts with 100 batches for each model and print seconds and ratio."""
    contexts, batches = np.arange(1, 10_001) * 100, np.arange(1, 101)
    for model in models:
        spec = kvcalc.load(model)
        start = time.perf_counter()
        points = len(kvcalc.grid(spec, contexts, batches))
        vectorised = time.perf_counter() - start
        start = time.perf_counter()
        for context in contexts[:SINGLE_POINTS]:
            kvcalc.size(spec, int(context))
        one_by_one = (time.perf_counter() - start) / SINGLE_POINTS * points
        print(f"{model:22} {points:,} points in {vectorised:.3f} s, {one_by_one / vectorised:,.0f}x faster than singly")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or MODELS)
