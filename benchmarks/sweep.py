"""Seconds of large grids, after imports: a million points of memory and each way to write them, speed, many settings.

python benchmarks/sweep.py [MODEL...]
"""

import io
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd  # noqa: F401 - imported here so that only the sweep is timed

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.speed.setting import Use
from kvcalc.speed.sweep.asked import Asked
from kvcalc.speed.sweep.grid import Grid
from kvcalc.speed.sweep.stream import write_csv, write_lines, write_parquet
from kvcalc.speed.throughput import Load, estimate

MODELS = ("llama-3.1-70b", "deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b")
GPU, OSL = "h200-sxm-141gb", 256
GPUS = ("h100-sxm5-80gb", GPU, "b200-sxm", "a100-sxm4-80gb", "l40s", "mi300x")
SINGLE_POINTS = 20


def main(models: tuple[str, ...]) -> None:
    """Print seconds of memory alone, of speed for each model against single answers, and of many settings."""
    memory()
    for model in models:
        speed(model)
    for engine in (None, "vllm", "sglang"):
        settings(models, engine)


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def memory() -> None:
    """1,000 contexts with 1,000 batches: their bytes, and as each kind of file."""
    grid = Grid(
        Asked(
            specs=(kvcalc.load("llama-8b"),),
            uses=(Use(),),
            contexts=tuple(range(1024, 1024 * 1001, 1024)),
            batches=tuple(range(1, 1001)),
        )
    )
    made = seconds(lambda: Grid(grid.asked))
    framed = seconds(lambda: list(grid.frames()))
    with tempfile.TemporaryDirectory() as folder:
        parquet = seconds(lambda: write_parquet(grid.frames(), grid.columns, Path(folder) / "s.parquet"))
    csv, lines = (
        seconds(lambda: write_csv(grid.frames(), io.StringIO())),
        seconds(lambda: write_lines(grid.frames(), io.StringIO())),
    )
    print(
        f"memory of {grid.points:,} points: {made:.3f} s, as frames {framed:.3f} s, Parquet {parquet:.3f} s, "
        f"CSV {csv:.3f} s, JSON lines {lines:.3f} s"
    )


def speed(model: str) -> None:
    """20 contexts with 5,000 batches on 8 GPUs, against single answers."""
    contexts, batches = np.arange(1, 21) * 1024, np.arange(1, 5001)
    use, spec = Use(weights="fp8", sharding=Sharding(tp=8)), kvcalc.load(model)
    asked = Asked(
        specs=(spec,), uses=(use,), contexts=contexts.tolist(), batches=batches.tolist(), gpus=(GPU,), osl=OSL
    )
    start = time.perf_counter()
    grid = Grid(asked)
    points = sum(map(len, grid.frames()))
    whole = time.perf_counter() - start
    [(_, ready, _)] = grid.prepared.deployments
    pricing = ready.pricing(contexts[:, None].astype(float), OSL)
    costs = seconds(lambda: sum(cost.seconds for cost in pricing.last_step(batches[None, :].astype(float))))
    asked_singly = contexts[:SINGLE_POINTS].tolist()
    single = seconds(lambda: [estimate(spec, GPU, Load(context - OSL, OSL, 1), use) for context in asked_singly])
    single *= points / SINGLE_POINTS
    print(
        f"{model:20} {points:,} points: costs {costs:.3f} s, all of it {whole:.3f} s, "
        f"{single / whole:,.0f}x faster than singly"
    )


def settings(models: tuple[str, ...], engine: str | None) -> None:
    """Every model on 6 GPUs, with 4 sizes of tensor parallelism and 2 formats, each with 8 contexts and 9 batches."""
    uses = tuple(Use(kv_dtype=form, sharding=Sharding(tp=tp)) for form, tp in product(("bf16", "fp8"), (1, 2, 4, 8)))
    specs = tuple(kvcalc.load(model) for model in models)
    contexts, batches = tuple(2**place for place in range(10, 18)), tuple(2**place for place in range(9))
    asked = Asked(specs=specs, uses=uses, contexts=contexts, batches=batches, gpus=GPUS, engines=(engine,))
    start = time.perf_counter()
    grid = Grid(asked)
    points = sum(map(len, grid.frames()))
    whole = time.perf_counter() - start
    count = len(grid.prepared.deployments)
    print(
        f"{count} deployments under {engine or 'no engine'}: {points:,} points in {whole:.3f} s, "
        f"{whole / count * 1e3:.1f} ms each"
    )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or MODELS)
