"""From measured points to a calibration: what cannot be is refused, and factors are kept only where they help."""

import datetime
import math
import statistics
from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.speed.calibration import ENOUGH, Fit, Scales, choose_fit, predict
from kvcalc.speed.plausible import refuse_contradictions, refuse_impossible, setting_key
from kvcalc.speed.points import Built, Found, of_one_machine

LeftOutBy = Literal["configuration", "point"]
MOST_TIMES_SLOWER = 10
"""Past what a point is asked about: 4 of 2,260 rows of tests/golden/throughput_points.csv.gz are."""
HELD = 0.9
"""The share of measurements that a band is to hold."""


class Case(NamedTuple):
    """A point with what is predicted of it in seconds, plain and calibrated, and its error where it was left out."""

    found: Found
    built: Built
    plain_seconds: float
    calibrated_seconds: float
    left_out_error: float | None

    @property
    def seconds(self) -> float:
        """What was measured."""
        return self.built.point.seconds

    @property
    def plain_error(self) -> float:
        """Predicted over measured, less 1, without a calibration."""
        return self.plain_seconds / self.seconds - 1

    @property
    def group(self) -> str:
        """The class of predictions that it tells about, by the name of its band."""
        return f"{self.found.row.predicts}, {'moe' if self.built.setting.model.has_experts else 'dense'}"


class Errors(NamedTuple):
    """Sizes of predicted over measured, less 1: their mean and the middle one."""

    mape: float
    median: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Errors | None":
        """Those of `errors`, None where there are none."""
        sizes = list(map(abs, errors))
        return cls(statistics.mean(sizes), statistics.median(sizes)) if sizes else None


class Calibration(msgspec.Struct, frozen=True):
    """Factors for one GPU and engine, with the points that they rest on, and what of them was left out at once."""

    gpu: str
    engine: str
    fit: Fit
    cases: tuple[Case, ...]
    left_out_by: LeftOutBy
    date: datetime.date
    device: str | None
    driver: str | None
    notes: tuple[str, ...]

    @property
    def groups(self) -> dict[str, list[Case]]:
        """The cases by class of prediction."""
        found: dict[str, list[Case]] = {}
        for case in self.cases:
            found.setdefault(case.group, []).append(case)
        return found

    @property
    def bands(self) -> dict[str, float]:
        """For each class with enough left-out points, by what share nine in ten stay below."""
        shares = {group: band_of(cases) for group, cases in self.groups.items()}
        return {group: share for group, share in shares.items() if share is not None}

    @property
    def scales(self) -> Scales:
        """The factors as estimates take them."""
        return Scales(self.fit.scales.factors, self.bands)


def calibrate(
    found: Sequence[Found], gpu: str | None = None, engine: str | None = None, notes: Sequence[str] = ()
) -> Calibration:
    """The calibration that `found` supports, of `gpu` and `engine` where several were measured.

    KvcalcError for points of several machines, for one that no machine of that kind can have reached, and for two
    that contradict each other; each is named by its file and line.
    """
    if not found:
        raise KvcalcError(
            f"no point to calibrate on: {notes[0] if notes else 'no file'}", "give one measurement at least"
        )
    kept = of_one_machine(found, gpu, engine)
    refuse_contradictions(kept)
    built = [one.build() for one in kept]
    refuse_impossible(kept, built)
    left_out_by, groups = _groups(kept)
    points = [one.point for one in built]
    fit = choose_fit(points, groups)
    plain, calibrated = predict(points, Scales()), predict(points, fit.scales)
    errors: Sequence[float | None] = fit.left_out or [None] * len(kept)
    rows = [one.row for one in kept]
    return Calibration(
        gpu=rows[0].gpu,
        engine=rows[0].engine,
        fit=fit,
        cases=tuple(map(Case, kept, built, plain, calibrated, errors)),
        left_out_by=left_out_by,
        date=max((row.date for row in rows if row.date), default=datetime.datetime.now(datetime.UTC).date()),
        device=_all_of(row.device for row in rows),
        driver=_all_of(row.driver for row in rows),
        notes=(*notes, *_slow(kept, built, plain), *_notes(fit, built)),
    )


def _groups(found: Sequence[Found]) -> tuple[LeftOutBy, list[Hashable]]:
    """What is left out at once: rows that differ in nothing but the batch, or repetitions where there is no more."""
    configurations: list[Hashable] = [one.row.configuration for one in found]
    if len(set(configurations)) > 1:
        return "configuration", configurations
    return "point", [setting_key(one) for one in found]


def _all_of(values: Iterator[str | None]) -> str | None:
    """The values that were given, each once."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or None


def _slow(found: Sequence[Found], built: Sequence[Built], plain: Sequence[float]) -> Iterator[str]:
    """What is no bound's business: points so slow that their unit is the likelier reason."""
    for one, made, seconds in zip(found, built, plain, strict=True):
        times = made.point.seconds / seconds
        if times > MOST_TIMES_SLOWER:
            yield f"{one.where}: {times:,.3g} times as slow as without a calibration: check its unit and batch"


def _notes(fit: Fit, built: Sequence[Built]) -> Iterator[str]:
    yield from dict.fromkeys(note for one in built for note in one.setting.machine.notes)
    if not fit.left_out:
        yield "nothing can be left out of one setting: how far off other predictions are is not known"
    elif not fit.strength:
        yield "with factors, points that were left out are met worse than without: all factors are 1"
    elif fit.strength < 1:
        why = f"fewer than {ENOUGH} points" if len(built) < ENOUGH else "so points that were left out are met best"
        yield f"factors were held to half their usual freedom: {why}"


def band_of(cases: Sequence[Case]) -> float | None:
    """By what share nine in ten measurements like these stay below their prediction; None where too few say so.

    Of n left-out errors the ceil(0.9 (n + 1))-th: a further measurement like them is below it nine times in ten (split
    conformal prediction, Lei et al., arXiv 1604.04173, section 2.2). Nine points are the fewest.
    """
    over = sorted(1 / (1 + case.left_out_error) - 1 for case in cases if case.left_out_error is not None)
    place = math.ceil(HELD * (len(over) + 1))
    return max(0.0, over[place - 1]) if place <= len(over) else None
