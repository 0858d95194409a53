"""Seconds for grids of a hundred thousand points, after imports: the costs alone, and with what fits, front and rows.

python benchmarks/sweep.py [MODEL...]
"""

import sys
import time

import numpy as np
import pandas as pd  # noqa: F401 - imported here so that only the sweep is timed

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.speed.setting import Use
from kvcalc.speed.sweep.asked import Asked
from kvcalc.speed.sweep.grid import Grid
from kvcalc.speed.throughput import Load, estimate

MODELS = ("llama-3.1-70b", "deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b")
GPU, OSL = "h200-sxm-141gb", 256
SINGLE_POINTS = 20


def main(models: tuple[str, ...]) -> None:
    """Sweep 20 contexts with 5,000 batches on 8 GPUs for each model and print seconds and ratio."""
    contexts, batches = np.arange(1, 21) * 1024, np.arange(1, 5001)
    use = Use(weights="fp8", sharding=Sharding(tp=8))
    for model in models:
        spec = kvcalc.load(model)
        asked = Asked(
            specs=(spec,), uses=(use,), contexts=contexts.tolist(), batches=batches.tolist(), gpus=(GPU,), osl=OSL
        )
        start = time.perf_counter()
        grid = Grid(asked)
        points = sum(map(len, grid.frames()))
        whole = time.perf_counter() - start
        [(_, ready, _)] = grid.prepared.deployments
        start = time.perf_counter()
        pricing = ready.pricing(contexts[:, None].astype(float), OSL)
        _ = sum(cost.seconds for cost in pricing.last_step(batches[None, :].astype(float)))
        costs = time.perf_counter() - start
        start = time.perf_counter()
        for context in contexts[:SINGLE_POINTS].tolist():
            estimate(spec, GPU, Load(context - OSL, OSL, 1), use)
        single = (time.perf_counter() - start) / SINGLE_POINTS * points
        print(
            f"{model:20} {points:,} points: costs {costs:.3f} s, all of it {whole:.3f} s, "
            f"{single / whole:,.0f}x faster than singly"
        )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or MODELS)
