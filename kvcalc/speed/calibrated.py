"""A calibration as a file: factors of time for one GPU and engine, and how they were found."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from kvcalc.errors import KvcalcError, shorten
from kvcalc.hardware.gpus import find_gpu
from kvcalc.speed.calibration import Fit, Scales

SCHEMA: Literal["kvcalc.calibration/1"] = "kvcalc.calibration/1"
Factor = Annotated[float, msgspec.Meta(gt=0)]


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `kvcalc calibrate` writes; errors are median sizes of predicted over measured, less 1."""

    schema: Literal["kvcalc.calibration/1"] = SCHEMA
    gpu: str
    engine: str
    factors: dict[str, Factor]
    points: int
    date: str
    device: str | None = None
    driver: str | None = None
    error_before: float | None = None
    error_left_out: float | None = None

    @classmethod
    def of(cls, fit: Fit, gpu: str, engine: str, date: str) -> "CalibrationFile":
        """A fit as a file."""
        return cls(
            gpu=gpu,
            engine=engine,
            factors=fit.scales.factors,
            points=fit.points,
            date=date,
            error_before=_median(fit.before),
            error_left_out=_median(fit.left_out),
        )


def read_calibration(path: Path, gpu: str, engine: str | None) -> Scales:
    """The factors of the file at `path`; KvcalcError where it is another GPU's or engine's, or no calibration."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=CalibrationFile)
    except msgspec.MsgspecError as error:
        raise KvcalcError(f"{shorten(str(path))} is no {SCHEMA}: {error}", "kvcalc calibrate writes one") from error
    asked = find_gpu(gpu).name
    if found.gpu != asked:
        raise KvcalcError(f"{shorten(str(path))} was measured on {found.gpu}, not on {asked}", f"--gpu {found.gpu}")
    if engine is not None and found.engine != engine:
        raise KvcalcError(f"{shorten(str(path))} is of {found.engine}, not of {engine}", f"--engine {found.engine}")
    return Scales(found.factors)


def _median(errors: tuple[float, ...]) -> float | None:
    return sorted(map(abs, errors))[len(errors) // 2] if errors else None
