"""Seconds in which `kvcalc check` answers 500 cases, start-up included, and how many a second that is.

python benchmarks/check.py
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = (
    "llama-8b",
    "llama-3.1-70b",
    "qwen3-32b",
    "mistral-7b",
    "gemma-3-27b",
    "gpt-oss-120b",
    "deepseek-v3",
    "qwen3-next-80b-a3b",
    "qwen3-8b",
    "mixtral-8x7b",
)
CONTEXTS = (2048, 4096, 8192, 12288, 16384)
BATCHES = (1, 2, 4, 8, 16)


def plan_text() -> str:
    """Ten models with and without vLLM at five contexts and five batches: 500 cases that differ, three limits each."""
    matrix = f"{{model: [{', '.join(MODELS)}], ctx: {list(CONTEXTS)}, batch: {list(BATCHES)}}}"
    return (
        f"defaults: {{gpu: h200-sxm, tp: 8, weights: fp8, matrix: {matrix}}}\n"
        "limits: {must_fit: true, max_kv_cache: 2TiB, min_context: 2K}\n"
        "cases:\n  - {name: vllm, engine: vllm}\n  - {name: none}\n"
    )


def seconds(plan: Path) -> float:
    """One run of the command, as a shell starts it."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "kvcalc", "check", str(plan), "--format", "json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Print the best of three."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "kvcalc.yaml"
        plan.write_text(plan_text(), encoding="utf-8")
        best = min(seconds(plan) for _ in range(3))
    print(f"500 cases, 1,500 limits: {best:.2f} s, {500 / best:,.0f} cases a second")


if __name__ == "__main__":
    main()
