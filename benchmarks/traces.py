"""How fast traces are read and drawn, and in how much memory.

    python benchmarks/traces.py [REQUESTS]

A million requests by default, written to a temporary folder in every form and read back; each in a process of its own,
so that its peak memory is its own. A million lines of CSV are to take at most 3 s.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

from kvcalc.workload.arrivals import parse_arrivals
from kvcalc.workload.distributions import parse_distribution
from kvcalc.workload.generate import generate
from kvcalc.workload.prefixes import parse_prefix
from kvcalc.workload.readers import read_trace, stream_trace
from kvcalc.workload.trace import Trace


def drawn(requests: int) -> Trace:
    """Requests as in a chat service, 20 a second."""
    return generate(
        requests=requests,
        isl=parse_distribution("lognormal:mean=1200,p99=8000"),
        osl=parse_distribution("lognormal:mean=200"),
        arrivals=parse_arrivals("20/s"),
        prefix=parse_prefix("prefix:groups=100,tokens=2048,zipf=1.1"),
    )


def write(requests: int, folder: Path) -> list[Path]:
    """As many requests in every form that is read."""
    trace = drawn(requests)
    seconds, prompts, answers = trace.arrival_seconds, trace.prompt_tokens, trace.output_tokens
    start = pd.Timestamp("2024-05-10 00:00:00+00:00")
    columns: dict[str, dict[str, Any]] = {
        "plain.csv": {"arrival_seconds": seconds, "prompt_tokens": prompts, "output_tokens": answers},
        "azure.csv": {
            "TIMESTAMP": start + pd.to_timedelta(seconds, unit="s"),
            "ContextTokens": prompts,
            "GeneratedTokens": answers,
        },
        "burstgpt.csv": {
            "Timestamp": seconds,
            "Model": "ChatGPT",
            "Request tokens": prompts,
            "Response tokens": answers,
            "Total tokens": prompts + answers,
            "Log Type": "Conversation log",
        },
        "plain.csv.gz": {"arrival_seconds": seconds, "prompt_tokens": prompts, "output_tokens": answers},
    }
    for name, table in columns.items():
        pd.DataFrame(table).to_csv(folder / name, index=False)
    with (folder / "mooncake.jsonl").open("w") as handle:
        for at, isl, osl in zip(seconds.tolist(), prompts.tolist(), answers.tolist(), strict=True):
            row = {"timestamp": at * 1000, "input_length": isl, "output_length": osl}
            handle.write(json.dumps({**row, "hash_ids": list(range(-(-isl // 512)))}) + "\n")
    return [folder / name for name in (*columns, "mooncake.jsonl")]


def streamed(path: Path) -> int:
    """The requests of a file, piece by piece."""
    return sum(len(piece) for piece in stream_trace(path))


def timed(work: Callable[[Any], Any], argument: object) -> tuple[float, float, float]:
    """Seconds of `work` on the clock and on the CPU, and the peak memory of this process in MiB; pandas is loaded."""
    start, cpu = time.perf_counter(), time.process_time()
    work(argument)
    return (
        time.perf_counter() - start,
        time.process_time() - cpu,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own as well: a child's peak begins at its parent's.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            paths = pool.submit(write, requests, Path(folder)).result()
        works: list[tuple[str, Callable[[Any], Any], object]] = [("draw", drawn, requests)]
        works += [(f"read {path.name}", read_trace, path) for path in paths]
        works += [("stream azure.csv", streamed, paths[1])]
        for name, work, argument in works:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                seconds, cpu, mebibytes = pool.submit(timed, work, argument).result()
            size = f"{argument.stat().st_size / 1e6:7.0f} MB" if isinstance(argument, Path) else " " * 10
            rate = f"{requests / seconds:12,.0f} requests/s"
            print(f"{name:20} {size} {seconds:6.2f} s {cpu:6.2f} s CPU {rate} {mebibytes:7.0f} MiB")


if __name__ == "__main__":
    main()
