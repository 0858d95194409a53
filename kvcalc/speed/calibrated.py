"""A calibration as a file: factors of time for one GPU and engine, and how they were found."""

from pathlib import Path
from typing import Annotated

import msgspec

from kvcalc.errors import KvcalcError, shorten
from kvcalc.hardware.gpus import find_gpu
from kvcalc.model.files import read_bounded
from kvcalc.speed.calibration import ARITHMETIC, FACTORS, OVERHEAD, Scales
from kvcalc.speed.documents import ErrorDocument
from kvcalc.speed.machine import SERVER, engine_name

SCHEMA = "kvcalc.calibrate/1"
MOST_BYTES = 64 * 2**20
MOST_TIMES = 10**6
"""By how much a file may say that times differ from what is predicted; past that it is broken."""


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True):
    """What an estimate needs of the document that `kvcalc calibrate` writes."""

    schema: str
    gpu: str
    engine: str
    factors: dict[str, float]
    bands: dict[str, float]
    points: Annotated[int, msgspec.Meta(ge=1)]
    date: str
    device: str | None
    driver: str | None
    error_before: ErrorDocument
    error_left_out: ErrorDocument | None

    @property
    def scales(self) -> Scales:
        """The factors as estimates take them."""
        return Scales(self.factors, self.bands)

    @property
    def provenance(self) -> str:
        """On what it rests, in one line."""
        made = ", ".join(filter(None, (self.date, self.device, self.driver and f"driver {self.driver}")))
        before, after = self.error_before["median"], self.error_left_out
        error = f"{before:.1%} off (median) without it"
        error += ", none left out" if after is None else f", left out {after['median']:.1%} with it"
        return f"calibrated on {self.points} point{'s' if self.points > 1 else ''} ({made}): {error}"

    def engine_for(self, asked: str | None) -> str | None:
        """The engine to estimate for: the one asked, else that of the calibration, None for a server of today."""
        return asked or (None if self.engine == SERVER else self.engine)


def read_calibration(path: Path, gpu: str, engine: str | None) -> CalibrationFile:
    """The calibration in the file at `path`; KvcalcError where it is another GPU's or engine's, or none at all."""
    name = shorten(str(path), 200)
    raw = read_bounded(path, MOST_BYTES, "calibration", "name a file", "kvcalc calibrate writes none that large")
    found = _decoded(raw, name)
    asked = find_gpu(gpu).name
    if found.gpu != asked:
        raise KvcalcError(f"{name} was measured on {found.gpu}, not on {asked}", f"--gpu {found.gpu}")
    if engine is not None and engine_name(engine) != found.engine:
        raise KvcalcError(f"{name} is of {found.engine}, not of {engine_name(engine)}", f"--engine {found.engine}")
    return found


def _decoded(raw: bytes, name: str) -> CalibrationFile:
    try:
        schema = msgspec.json.decode(raw, type=_Head).schema
        if schema != SCHEMA:
            other = f"it says {shorten(schema)}" if schema else "it names no schema"
            raise KvcalcError(f"{name} is no {SCHEMA}: {other}", _WRITES)
        found = msgspec.json.decode(raw, type=CalibrationFile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise KvcalcError(f"{name} is no {SCHEMA}: {error}", _WRITES) from error
    for factor, value in found.factors.items():
        if factor not in FACTORS and not factor.startswith((ARITHMETIC, OVERHEAD)):
            raise KvcalcError(f"{name}: {shorten(factor)} is no factor", f"known: {', '.join(FACTORS)}")
        if not 1 / MOST_TIMES <= value <= MOST_TIMES:
            message = f"{name}: {shorten(factor)} {value:g} is no factor of time"
            raise KvcalcError(message, f"factors are from 1/{MOST_TIMES:,} to {MOST_TIMES:,}")
    if any(not 0 <= share <= MOST_TIMES for share in found.bands.values()):
        raise KvcalcError(f"{name}: a band is no share from 0 to {MOST_TIMES:,}", "run kvcalc calibrate again")
    return found


_WRITES = "kvcalc calibrate FILE... -o NAME.json writes one"


class _Head(msgspec.Struct):
    schema: str = ""
