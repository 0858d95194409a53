"""How far predictions lie from published measurements: `python benchmarks/accuracy.py [points.csv] [class]`.

Each class of prediction as it is; calibrated for every engine and GPU in five folds, the rows of one configuration
always together; and calibrated on all engines and GPUs with one model, and with one GPU, left out at a time.
"""

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import load
from kvcalc.model.spec import ModelSpec
from kvcalc.speed.calibration import Point, Scales, choose_fit, fit_scales, predict
from kvcalc.speed.kernels import Setting
from kvcalc.speed.measured import Measurement, measurement_of, point_of, read_rows, setting_of
from kvcalc.speed.plausible import bound_seconds

POINTS = Path(__file__).resolve().parent.parent / "tests" / "golden" / "throughput_points.csv.gz"
FOLDS = 5
MODELS = {
    "llama-7b": "llama-2-7b",
    "llama-70b": "llama-2-70b",
    "llama3-405b": "llama-3.1-405b",
    "qwen3-235b": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "zhipuai/GLM-5": "glm-5",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
}
GPUS = {"a100_sxm": "a100-sxm4-80gb"}
"""Models and GPUs of the points whose name there is none here, or of several."""


class Case(NamedTuple):
    """A measurement as a point, and its class."""

    row: Measurement
    point: Point
    kind: str

    @property
    def machine(self) -> Hashable:
        """What a calibration is made for."""
        return self.row.engine, self.row.gpu

    @property
    def configuration(self) -> tuple[Hashable, ...]:
        """What must not lie in two folds: only the batch varies within it."""
        row = self.row
        return (row.model, row.precision, row.gpu, row.tp, row.dp, row.ep, row.engine, row.isl, row.osl)


class Errors(NamedTuple):
    """Of predicted over measured, less 1, in percent; `above` is what nine in ten measurements stay below."""

    count: int
    mape: float
    median: float
    bias: float
    p90: float
    above: float

    def __str__(self) -> str:
        shown = f"MAPE {self.mape:5.1f}  median {self.median:5.1f}  bias {self.bias:+6.1f}  p90 {self.p90:5.1f}"
        return f"n {self.count:4d}  {shown}  nine in ten below {self.above:+.0f}%"


def errors_of(pairs: Iterable[tuple[Case, float]]) -> Errors:
    """The errors of predicted seconds."""
    ratios = [predicted / case.point.seconds for case, predicted in pairs]
    sizes = sorted(abs(ratio - 1) * 100 for ratio in ratios)
    over = sorted(1 / ratio - 1 for ratio in ratios)
    count = len(sizes)
    return Errors(
        count,
        sum(sizes) / count,
        sizes[count // 2],
        sum(ratio - 1 for ratio in ratios) / count * 100,
        sizes[int(0.9 * count)],
        over[int(0.9 * count)] * 100,
    )


def read_cases(path: Path = POINTS) -> list[Case]:
    """Every row that can be predicted: those of an unstated batch, or of a GPU that is not known, cannot."""
    return [case for row in read_rows(path) if row["batch"] != "max" for case in _case(row)]


def _case(row: dict[str, str]) -> Iterable[Case]:
    read = measurement_of(_plain(row))
    served_ttft = read.metric == "ttft_ms" and read.category == "silicon_serving"
    if served_ttft:
        return
    try:
        setting = _setting(read.model, read.precision, read.kv_precision, read.gpu, read.engine, _ranks(read))
    except KvcalcError:
        return
    yield Case(read, point_of(read, setting), _kind(read, setting, squared=read.tp != int(row["tp"])))


def _plain(row: dict[str, str]) -> dict[str, str]:
    """The row with formats and ranks as they are here.

    Where `ep` GPUs were counted once as tp (or dp) and once as ep, tp says ep x ep. Their fp4 is a model's own format.
    """
    ep = int(row["ep"])
    squared = {name: str(ep) for name in ("tp", "dp") if ep > 2 and int(row[name]) == ep * ep}
    if row["precision"] == "fp4":
        squared["precision"] = "mxfp4" if "gpt-oss" in row["model"] else "nvfp4"
    return {**row, **squared, "gpu": GPUS.get(row["gpu"], row["gpu"])}


def _ranks(row: Measurement) -> tuple[int, int, int]:
    return row.tp, row.dp, row.ep


@cache
def _setting(
    model: str, precision: str, kv_precision: str, gpu: str, engine: str, ranks: tuple[int, int, int]
) -> Setting:
    tp, dp, ep = ranks
    row = Measurement(model=model, precision=precision, kv_precision=kv_precision, gpu=gpu, engine=engine, tp=tp, dp=dp,
                      ep=ep, batch=1, isl=1, osl=1, context_mid=1, metric="", value=1, unit="")  # fmt: skip
    return setting_of(row, _spec(model))


@cache
def _spec(model: str) -> ModelSpec:
    return load(MODELS.get(model, model.replace("-Instruct", "")))


WIDE = "tp squared"
KINDS = {
    "llamacpp_decode_b1": "llama.cpp decode",
    "llamacpp_decode_b1_2023": "llama.cpp decode",
    "llamacpp_prefill_b1": "llama.cpp prefill",
    "trtllm_static_peak": "TensorRT-LLM static",
    "trtllm_static_b64": "TensorRT-LLM static",
    "trtllm_first_token": "TensorRT-LLM static",
    "gptfast_b1": "gpt-fast decode",
    "spark_batched_decode": "DGX Spark decode",
    "spark_prefill": "DGX Spark prefill",
}


def _kind(row: Measurement, setting: Setting, squared: bool) -> str:
    """The class of a prediction; `squared` rows say tp 64 of eight GPUs."""
    if row.category in KINDS:
        return KINDS[row.category]
    kind = f"served {'MoE' if setting.model.has_experts else 'dense'}"
    return f"{kind}, attention-DP" if row.dp > 1 else f"{kind}, {WIDE}" if squared else kind


def uncalibrated(cases: Sequence[Case]) -> list[tuple[Case, float]]:
    """Predictions as they are."""
    return list(zip(cases, predict([case.point for case in cases], Scales()), strict=True))


def in_folds(cases: Sequence[Case], by: Callable[[Case], Hashable], seed: int = 0) -> list[tuple[Case, float]]:
    """Predictions of each case by factors that were fitted, for each value of `by`, without its fold."""
    configurations = sorted({case.configuration for case in cases}, key=str)
    random.Random(seed).shuffle(configurations)  # noqa: S311 - nothing is kept secret by it
    fold = {one: place % FOLDS for place, one in enumerate(configurations)}
    return left_out(cases, by, lambda case: fold[case.configuration])


def left_out(
    cases: Sequence[Case], by: Callable[[Case], Hashable], out: Callable[[Case], Hashable]
) -> list[tuple[Case, float]]:
    """Predictions of each case by factors fitted on those of the same `by` with another `out`, where there are any."""
    found = []
    for value in sorted({out(case) for case in cases}, key=str):
        others: dict[Hashable, list[Point]] = defaultdict(list)
        asked: dict[Hashable, list[Case]] = defaultdict(list)
        for case in cases:
            if out(case) == value:
                asked[by(case)].append(case)
            else:
                others[by(case)].append(case.point)
        for key, group in asked.items():
            scales = fit_scales(others[key]) if others[key] else Scales()
            found += list(zip(group, predict([case.point for case in group], scales), strict=True))
    return found


def calibrated_on(cases: Sequence[Case]) -> Scales:
    """What kvcalc calibrate makes of the points, which are left out by configuration."""
    return choose_fit([case.point for case in cases], [case.configuration for case in cases]).scales


def from_few(
    cases: Sequence[Case],
    count: int,
    draws: int = 6,
    seed: int = 3,
    fit: Callable[[Sequence[Case]], Scales] = calibrated_on,
) -> list[tuple[Case, float]]:
    """Predictions of the rest after `count` drawn points of each engine and GPU were calibrated on; 0 are none.

    Points that calibrate refuses, those faster than their bound, are among neither.
    """
    found, chance = [], random.Random(seed)  # noqa: S311 - nothing is kept secret by it
    possible = [case for case in cases if bound_seconds(case.point) <= case.point.seconds]
    for machine in sorted({case.machine for case in possible}, key=str):
        own = [case for case in possible if case.machine == machine]
        for _ in range(draws if len(own) > count else 0):
            chance.shuffle(own)
            scales = fit(own[:count]) if count else Scales()
            rest = own[count:]
            found += list(zip(rest, predict([case.point for case in rest], scales), strict=True))
    return found


def print_few(cases: Sequence[Case]) -> None:
    """How far off the others of an engine and GPU are without and after a few of its points, by class and in all."""
    for kind in [*sorted({case.kind for case in cases}), ""]:
        own = [case for case in cases if kind in ("", case.kind)]
        machines = Counter(case.machine for case in own)
        most = [case for case in own if machines[case.machine] >= _LEAST_CASES]
        if not most:
            continue
        cells = [kind or "all together"]
        for count in (1, 4, 16):
            pairs = (errors_of(from_few(most, count, fit=fit)) for fit in (lambda _: Scales(), calibrated_on))
            cells += [f"{one.mape:.1f} / {one.median:.1f}" for one in pairs]
        print(f"| {' | '.join(cells)} |")


_LEAST_CASES = 20
"""Points of an engine and GPU of which sixteen can be drawn and some are left."""


def main(path: Path, only: str) -> None:
    """Print the errors of every class."""
    cases = read_cases(path)
    for kind in sorted({case.kind for case in cases}):
        own = [case for case in cases if case.kind == kind]
        if only not in kind:
            continue
        print(kind)
        print("  uncalibrated                   ", errors_of(uncalibrated(own)))
        print("  per engine and GPU, five folds ", errors_of(in_folds(own, lambda case: case.machine)))
        print("  global, a model left out       ", errors_of(left_out(own, lambda _: 0, lambda case: case.row.model)))
        print("  global, a GPU left out         ", errors_of(left_out(own, lambda _: 0, lambda case: case.row.gpu)))
    print("calibrated on 0, 1, 4 and 16 points of an engine and GPU: MAPE and median of its others")
    print_few(cases)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else POINTS, sys.argv[2] if len(sys.argv) > 2 else "")
