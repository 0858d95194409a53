"""Seconds in which `kvcalc check` answers 500 cases, start-up included: all held, and a fifth of them broken.

For what is broken the smallest change is searched for. CPU seconds are those of the command alone, on any machine.

python benchmarks/check.py
"""

import resource
import subprocess
import sys
import tempfile
import time
from itertools import product
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


def mixed_text() -> str:
    """The same models, contexts and batches, half with vLLM and half without; every fifth case breaks a limit."""
    broken = ("max_kv_cache: 16MiB", "min_sequences: 9000")
    lines = [
        "defaults: {gpu: h200-sxm, tp: 8, weights: fp8}",
        "limits: {max_kv_cache: 2TiB, min_context: 2K}",
        "cases:",
    ]
    asked = product(("engine: vllm, ", ""), MODELS, CONTEXTS, BATCHES)
    for place, (engine, model, context, batch) in enumerate(asked):
        limits = "" if place % 5 else f", limits: {{{broken[place // 5 % 2]}}}"
        lines.append(f"  - {{name: '{place}', {engine}model: {model}, ctx: {context}, batch: {batch}{limits}}}")
    return "\n".join(lines)


def seconds(plan: Path) -> tuple[float, float]:
    """One run of the command, as a shell starts it: wall, and CPU."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "kvcalc", "check", str(plan), "--format", "json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode == 2 or not done.stdout.startswith(b"{"):
        raise SystemExit(f"{plan}: no answer")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the best of three of each plan."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "kvcalc.yaml"
        for what, text in (("all held", plan_text()), ("a fifth broken", mixed_text())):
            plan.write_text(text, encoding="utf-8")
            best, cpu = min(seconds(plan) for _ in range(3))
            print(f"500 cases, {what}: {best:.2f} s ({cpu:.2f} s of CPU), {500 / best:,.0f} cases a second")


if __name__ == "__main__":
    main()
