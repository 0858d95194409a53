"""CPU time of whole commands as ratios to the imports that any of them needs, all taken in one run.

    python benchmarks/startup.py [RUNS]

`size` as JSON should stay within 1.5x of `import typer, yaml, msgspec`, its table within 2.2x, and
`models list` over the whole catalogue within 3x of `size`. Rounds are interleaved and medians compared, since
these machines are noisy.
"""

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

KVCALC = str(Path(sys.executable).with_name("kvcalc"))
IMPORTS = [sys.executable, "-c", "import typer, yaml, msgspec"]
JSON = [KVCALC, "size", "llama-8b", "--ctx", "8192", "--batch", "32", "--format", "json"]
TABLE = JSON[:-2]
LIST = [KVCALC, "models", "list"]
COMMANDS = {"imports": IMPORTS, "size --format json": JSON, "size": TABLE, "models list": LIST}
BUDGETS = [
    ("size --format json", "imports", 1.5),
    ("size", "imports", 2.2),
    ("models list", "size", 3.0),
]

# An installed package has its bytecode beside it; compiling it anew each time is not what is measured.
CACHED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one run of `command`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=CACHED)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(runs: int) -> None:
    """Run every command `runs` times in turn and print the ratios."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for name, command in list(COMMANDS.items()) * runs:
        times[name].append(cpu_seconds(command))
    for name, seconds in times.items():
        print(f"{name:20} median {statistics.median(seconds) * 1000:6.1f} ms   least {min(seconds) * 1000:6.1f} ms")
    for name, base, budget in BUDGETS:
        ratio = statistics.median(times[name]) / statistics.median(times[base])
        print(f"{name} / {base}: {ratio:.2f}x, budget {budget}x {'kept' if ratio <= budget else 'BROKEN'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
