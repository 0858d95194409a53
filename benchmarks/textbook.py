"""The textbook set at one narrow 8B-like shape: bytes stored and read, decode and prefill time, ratios to MHA.

    python benchmarks/textbook.py [CONTEXT] [BATCH]

Eight layers of each textbook model, 1,024 wide, fp32 but for the FP4 cache. Attention alone is compared: projections
are the same for all. Then YOCO's prefill against the same stack whose every layer sees the whole prompt.
"""

import sys

import msgspec

import kvcalc
from kvcalc.model.spec import ModelSpec
from kvcalc.model.subset import keep_layers
from kvcalc.profiler.device import CpuDevice
from kvcalc.profiler.documents import PointDocument
from kvcalc.profiler.request import ProfileRequest
from kvcalc.profiler.run import profile_run
from kvcalc.sizing.need import Workload

SET = ("mha", "gqa", "mqa", "cla2", "yoco", "mla", "window", "fp4")
LAYERS = 8
NARROW = ("hidden_size=1024",)


def main(context: int, batch: int) -> None:
    """Print a line a model, then YOCO's prefill beside that of the whole stack."""
    print(f"{LAYERS} layers, {context:,} tokens x {batch}, fp32")
    print(" " * 10 + "".join(f"{head:>{width}}" for head, width in HEADS))
    first: tuple[int, float] | None = None
    for name in SET:
        point = _measured(_spec(name), context, batch)
        stored = sum(one["measured_bytes"] for one in point["components"])
        error = stored - sum(one["predicted_bytes"] for one in point["components"])
        read, seconds = _read_bytes(point), _attention_seconds(point)
        first = first or (read, seconds)
        shares = f"{read / first[0]:>8.3f}{seconds * 1e3:>9.1f} ms{seconds / first[1]:>8.3f}"
        print(f"{name:10}{stored:>14,}{error:>7}{read:>14,}{shares}{_prefill_seconds(point):>8.2f} s")
    half, whole = (_prefill_seconds(_measured(spec, context, batch)) for spec in _yocos())
    print(f"YOCO's prefill takes {half / whole:.2f} of the whole stack's ({half:.2f} s of {whole:.2f} s)")


HEADS = (
    ("stored", 14),
    ("error", 7),
    ("read a step", 14),
    ("of MHA", 8),
    ("attention", 12),
    ("of MHA", 8),
    ("prefill", 10),
)


def _spec(name: str) -> ModelSpec:
    return keep_layers(kvcalc.load(f"textbook-{name}", NARROW), LAYERS)


def _yocos() -> tuple[ModelSpec, ModelSpec]:
    yoco = _spec("yoco")
    return yoco, msgspec.structs.replace(yoco, prefill_layers=None)


def _measured(spec: ModelSpec, context: int, batch: int) -> PointDocument:
    request = ProfileRequest(
        spec=spec,
        layers_of_model=len(spec.layers),
        workload=Workload(dtype="fp32"),
        contexts=(context,),
        batches=(batch,),
        seconds_per_point=20,
    )
    return profile_run(request, CpuDevice())["points"][0]


def _read_bytes(point: PointDocument) -> int:
    return sum(one["counted_read_bytes_per_step"] or 0 for one in point["components"])


def _attention_seconds(point: PointDocument) -> float:
    return sum(op["calls"] * op["seconds"] for op in point["ops"] if op["name"].startswith("attention"))


def _prefill_seconds(point: PointDocument) -> float:
    return 0.0 if point["prefill"] is None else point["prefill"]["median_seconds"]


if __name__ == "__main__":
    main(*(int(one) for one in (sys.argv[1:] + ["2048", "2"][len(sys.argv) - 1 :])[:2]))
