"""Hit rates and times of fleets under each routing, on published traces with prefixes.

python benchmarks/fleet.py FOLDER: it has mooncake_conversation.jsonl and mooncake_synthetic.jsonl.
"""

import sys
import time
from pathlib import Path

import kvcalc
from kvcalc.sizing.blocks import layout_of
from kvcalc.speed.calibration import Scales
from kvcalc.speed.setting import Use, machine_for, make_setting
from kvcalc.workload.fleet import simulate_fleet
from kvcalc.workload.metrics import metrics_of
from kvcalc.workload.readers import read_trace
from kvcalc.workload.routing import ROUTINGS
from kvcalc.workload.simulate import Setting
from kvcalc.workload.steptime import ModelCost

REPLICAS = (4, 8)
POOL_BYTES = 40 * 2**30
BLOCK, SEQUENCES, STEP_TOKENS, MOST_TOKENS = 512, 256, 8192, 131_072


def main(folder: Path) -> None:
    """A line for each trace, fleet and routing."""
    use = Use()
    speed = make_setting(kvcalc.load("llama-8b"), machine_for("h100-sxm", "vllm", use), use)
    layout = layout_of(speed.model.size, BLOCK)
    setting = Setting(
        layout=layout,
        pool_units=layout.pool_units(POOL_BYTES),
        prefix_caching=True,
        max_model_len=MOST_TOKENS,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=STEP_TOKENS,
        cost=ModelCost(speed, Scales(), SEQUENCES, MOST_TOKENS, STEP_TOKENS),
    )
    for name in ("mooncake_conversation", "mooncake_synthetic"):
        trace = read_trace(folder / f"{name}.jsonl")
        for replicas in REPLICAS:
            for routing in ROUTINGS:
                start = time.perf_counter()
                found = metrics_of(simulate_fleet(trace, setting, replicas, routing).whole)
                ttft = found.ttft.percentiles if found.ttft else ()
                print(
                    f"{name:22} {replicas} x {routing:12}: {found.hit_rate:6.2%} found, TTFT p50 {ttft[0]:8.2f} s, "
                    f"p99 {ttft[3]:8.2f} s; {time.perf_counter() - start:.1f} s"
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
