"""What to run once a CUDA device is at hand: every kind on it, then a grid of llama-8b; run files into a folder.

    python benchmarks/device.py FOLDER [DEVICE]

Prints a line a run and goes on after one that failed; 1 where any was not as predicted. On a CPU it runs small.
"""

import sys
from pathlib import Path

import msgspec

import kvcalc
from kvcalc.errors import KvcalcError

KINDS = {
    "textbook-mha": {},
    "textbook-mqa": {},
    "textbook-cla2": {},
    "textbook-yoco": {"layers": 4},
    "textbook-mla": {},
    "textbook-window": {},
    "textbook-fp4": {},
    "deepseek-v4.1-flash": {"layers": 8},
    "deepseek-v4-flash": {"layers": 4},
    "deepseek-v3.2": {},
    "gemma-3-27b": {},
    "qwen3-next-80b-a3b": {},
    "nemotron-h-8b": {"layers": 4},
    "yoco-3b": {"layers": 4},
    "lfm2-1.2b": {},
    "recurrentgemma-2b": {},
    "rwkv6-7b": {},
}
SMALL = {"context_tokens": [4096], "batch": [4]}
GRID = {"context_tokens": [2048, 8192, 32768], "batch": [1, 8, 32]}


def main(folder: Path, device: str) -> int:
    """Run everything and return how many runs were off, at most 1."""
    folder.mkdir(parents=True, exist_ok=True)
    is_small = device == "cpu"
    kinds = {name: {"layers": 2, **SMALL, **more} for name, more in KINDS.items()}
    grid = {"llama-8b": {"layers": 2, **SMALL} if is_small else GRID}
    cut = {"context_tokens": [256], "batch": [1]} if is_small else {}
    return max([_one(folder, name, {**asked, **cut}, device) for name, asked in {**kinds, **grid}.items()])


def _one(folder: Path, name: str, asked: dict[str, object], device: str) -> int:
    try:
        run = kvcalc.profile(name, device=device, **asked)  # type: ignore[arg-type]
    except KvcalcError as error:
        print(f"{name:22} {error.message} ({error.hint})")
        return 1
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(run))
    decode, verdict = run["decode"], run["verdict"]
    shown = "" if decode is None else f"{decode['bandwidth_fraction']:.2f} of the measured bandwidth"
    print(f"{name:22} memory {verdict['memory']}, time {verdict['time']}, {shown}; {len(run['doubts'])} doubts")
    return 1 if verdict["reasons"] else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cuda"))
