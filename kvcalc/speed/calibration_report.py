"""A calibration as a report: the document that `--calibration` reads, and the tables beside it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvcalc.report import Column, Report, Table, Value
from kvcalc.speed.calibrated import SCHEMA
from kvcalc.speed.calibrating import Calibration, Case, Errors, band_of
from kvcalc.speed.calibration import ARITHMETIC, FACTORS

if TYPE_CHECKING:
    from kvcalc.speed.documents import CalibrateDocument, ErrorDocument, GroupDocument, MeasuredDocument


def calibration_report(found: Calibration) -> Report:
    """The answer of `kvcalc calibrate`; as CSV a row for every point."""
    return Report(
        document=calibration_document(found),
        title=(f"{found.gpu} under {found.engine}", _count(len(found.cases), "point"), found.date.isoformat()),
        tables=(_point_table(found), _factor_table(found), _group_table(found)),
        shown_tables=tuple(table for table in (_factor_table(found), _group_table(found)) if table.rows),
        lines=tuple(_lines(found)),
        notes=found.notes,
    )


def calibration_document(found: Calibration) -> "CalibrateDocument":
    """The versioned JSON document, which is the file."""
    before = _errors(Errors.of([case.plain_error for case in found.cases]))
    assert before is not None  # noqa: S101 - a fit has points
    return {
        "schema": SCHEMA,
        "gpu": found.gpu,
        "engine": found.engine,
        "factors": found.fit.scales.factors,
        "strength": found.fit.strength,
        "points": len(found.cases),
        "date": found.date.isoformat(),
        "device": found.device,
        "driver": found.driver,
        "error_before": before,
        "error_left_out": _errors(Errors.of(found.fit.left_out)),
        "left_out_by": found.left_out_by,
        "bands": found.bands,
        "groups": [_group(name, cases) for name, cases in found.groups.items()],
        "measurements": [_measured(case) for case in found.cases],
        "notes": list(found.notes),
    }


def _errors(errors: Errors | None) -> "ErrorDocument | None":
    return None if errors is None else {"mape": errors.mape, "median": errors.median}


def _left_out(cases: Sequence[Case]) -> Errors | None:
    return Errors.of([case.left_out_error for case in cases if case.left_out_error is not None])


def _group(name: str, cases: Sequence[Case]) -> "GroupDocument":
    before = _errors(Errors.of([case.plain_error for case in cases]))
    assert before is not None  # noqa: S101 - a group has cases
    return {
        "predicts": name,
        "points": len(cases),
        "error_before": before,
        "error_left_out": _errors(_left_out(cases)),
        "band": band_of(cases),
    }


def _measured(case: Case) -> "MeasuredDocument":
    row = case.found.row
    return {
        "where": case.found.where,
        "model": row.model,
        "precision": row.precision,
        "kv_precision": row.kv_precision,
        "tp": row.tp,
        "pp": row.pp,
        "dp": row.dp,
        "ep": row.ep,
        "batch": row.batch,
        "isl": row.isl,
        "osl": row.osl,
        "metric": row.metric,
        "value": row.value,
        "unit": row.unit,
        "seconds": case.seconds,
        "plain_seconds": case.plain_seconds,
        "calibrated_seconds": case.calibrated_seconds,
        "left_out_error": case.left_out_error,
    }


def stands_for(factor: str) -> str:
    """What a factor of time is the factor of, in words."""
    kind, _, form = factor.partition(".")
    if not form:
        return FACTORS[kind]
    return f"computing in {form}" if factor.startswith(ARITHMETIC) else f"starting {form} matrices"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _lines(found: Calibration) -> Iterator[str]:
    before, after = Errors.of([case.plain_error for case in found.cases]), Errors.of(found.fit.left_out)
    assert before is not None  # noqa: S101 - a fit has points
    yield f"without a calibration: MAPE {before.mape:.1%}, median {before.median:.1%}"
    if after is not None:
        yield f"each {found.left_out_by} left out in turn: MAPE {after.mape:.1%}, median {after.median:.1%}"
    measured_on = ", ".join(filter(None, (found.device, found.driver and f"driver {found.driver}")))
    if measured_on:
        yield f"measured on {measured_on}"


def _factor_table(found: Calibration) -> Table:
    columns = Column("factor", "factor"), Column("value", "times", "number"), Column("stands_for", "of the time of")
    factors = found.fit.scales.factors
    return Table(columns, [(name, _rounded(value), stands_for(name)) for name, value in factors.items()])


def _rounded(value: float) -> float:
    return round(value, 3)


def _group_table(found: Calibration) -> Table:
    columns = (
        Column("predicts", "predictions"),
        Column("points", "points", "count"),
        Column("mape_before", "MAPE"),
        Column("mape_left_out", "left out"),
        Column("band", "nine in ten within"),
    )
    rows: list[Sequence[Value]] = []
    for name, cases in found.groups.items():
        before, after, band = Errors.of([case.plain_error for case in cases]), _left_out(cases), band_of(cases)
        mapes = ["" if one is None else f"{one.mape:.1%}" for one in (before, after)]
        rows.append((name, len(cases), *mapes, "too few to say" if band is None else f"+{band:.0%}"))
    return Table(columns, rows)


def _point_table(found: Calibration) -> Table:
    rows: list[Any] = [_measured(case) for case in found.cases]
    return Table(tuple(Column(key, key) for key in rows[0]), [tuple(row.values()) for row in rows])
