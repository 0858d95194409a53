"""Requests a second of `simulate`: synthetic ones without time in a paged pool, and a recorded trace with step times.

python benchmarks/simulate.py [AZURE.csv]
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

import kvcalc
from kvcalc.sizing.blocks import layout_of
from kvcalc.speed.calibration import Scales
from kvcalc.speed.setting import Use, machine_for, make_setting
from kvcalc.workload.metrics import metrics_of
from kvcalc.workload.simulate import Setting, simulate
from kvcalc.workload.steptime import ModelCost
from kvcalc.workload.trace import Trace

COUNTS = (10**4, 10**5, 10**6)
POOL_BYTES = 10 * 2**30
SEQUENCES, STEP_TOKENS, MOST_TOKENS = 256, 8192, 16_384


def main(path: Path | None) -> None:
    """Print a line for every count, and one for the trace."""
    use = Use()
    speed = make_setting(kvcalc.load("llama-8b"), machine_for("h100-sxm", "vllm", use), use)
    layout = layout_of(speed.model.size, 16)
    for count in COUNTS:
        setting = Setting(layout=layout, pool_units=layout.pool_units(POOL_BYTES), max_num_seqs=SEQUENCES)
        _report(synthetic(count), setting)
    if path is not None:
        start = time.perf_counter()
        cost = ModelCost(speed, Scales(), SEQUENCES, MOST_TOKENS, STEP_TOKENS)
        print(f"tables of step times: {time.perf_counter() - start:.2f} s")
        setting = Setting(
            layout=layout,
            pool_units=layout.pool_units(5 * POOL_BYTES),
            max_num_seqs=SEQUENCES,
            max_num_batched_tokens=STEP_TOKENS,
            cost=cost,
        )
        _report(azure(path), setting)


def synthetic(count: int) -> Trace:
    """Lognormal lengths of about 240 and 300 tokens."""
    draw = np.random.default_rng(0)
    prompts, outputs = draw.lognormal(5, 1, count), draw.lognormal(5.3, 0.9, count)
    return Trace(
        name=f"{count:,} synthetic",
        prompt_tokens=np.clip(prompts, 1, 4000).astype(np.int64),
        output_tokens=np.clip(outputs, 1, 3000).astype(np.int64),
    )


def azure(path: Path) -> Trace:
    """The columns of Azure's CSV, read plainly."""
    frame = pd.read_csv(path)
    times = pd.to_datetime(frame["TIMESTAMP"], format="ISO8601")
    return Trace(
        name=path.stem,
        prompt_tokens=frame["ContextTokens"].to_numpy(),
        output_tokens=frame["GeneratedTokens"].to_numpy(),
        arrival_seconds=(times - times.iloc[0]).dt.total_seconds().to_numpy(),
    )


def _report(trace: Trace, setting: Setting) -> None:
    start, used = time.perf_counter(), time.process_time()
    found = metrics_of(simulate(trace, setting))
    seconds, used = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{trace.name:20} {seconds:6.2f} s ({used:.2f} s of CPU), {len(trace) / seconds:7,.0f} requests/s, "
        f"{peak:.2f} GiB at most; {found.mean_running:.0f} at once, {found.preemptions:,} preempted"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
