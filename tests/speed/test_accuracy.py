"""How far predictions lie from 1,900 published measurements; thresholds stand a little above what was reached."""

import sys

import pytest
from conftest import ROOT

from kvcalc.errors import KvcalcError
from kvcalc.speed.calibration import Scales, predict
from kvcalc.speed.measured import measurement_of, read_rows

sys.path.insert(0, str(ROOT / "benchmarks"))
import accuracy


@pytest.fixture(scope="module")
def cases():
    return accuracy.read_cases()


def of_kind(cases, kind):
    return [case for case in cases if case.kind == kind]


@pytest.mark.parametrize(
    ("kind", "mape", "median"),
    [
        ("served dense", 12.3, 6.8),
        ("served MoE", 20.5, 13.0),
        ("llama.cpp decode", 15.0, 12.5),
        ("gpt-fast decode", 13.0, 12.0),
        ("TensorRT-LLM static", 20.0, 20.0),
        ("DGX Spark decode", 13.0, 11.0),
    ],
)
def test_uncalibrated(cases, kind, mape, median):
    errors = accuracy.errors_of(accuracy.uncalibrated(of_kind(cases, kind)))
    assert errors.mape < mape
    assert errors.median < median


@pytest.mark.parametrize(
    ("kind", "mape", "median"),
    [
        ("served dense", 6.8, 4.1),
        ("served MoE", 14.2, 8.8),
        ("llama.cpp decode", 9.0, 6.0),
        ("TensorRT-LLM static", 12.8, 8.5),
    ],
)
def test_calibrated_for_an_engine_and_gpu_in_folds(cases, kind, mape, median):
    errors = accuracy.errors_of(accuracy.in_folds(of_kind(cases, kind), lambda case: case.machine))
    assert errors.mape < mape
    assert errors.median < median


@pytest.mark.parametrize("kind", ["served dense", "served MoE"])
def test_one_point_does_no_harm_and_sixteen_help(cases, kind):
    none, one, four, sixteen = (
        accuracy.errors_of(accuracy.from_few(of_kind(cases, kind), n)).mape for n in (0, 1, 4, 16)
    )
    assert one < none * 1.01
    assert sixteen < four < none * 0.93
    assert sixteen < none * 0.82


def test_calibrating_on_points_of_all_classes_is_no_worse_than_none(cases):
    """Dense, MoE and static points of an engine and GPU, drawn together, contradict the model most."""
    count = accuracy.Counter(case.machine for case in cases)
    own = [case for case in cases if count[case.machine] >= 20]
    for count, share in ((1, 1.01), (4, 1.0), (16, 0.95)):
        plain = accuracy.from_few(own, count, draws=2, fit=lambda _: Scales())
        assert accuracy.errors_of(accuracy.from_few(own, count, draws=2)).mape < share * accuracy.errors_of(plain).mape


def test_without_terms_a_roofline_promises_too_much(cases):
    """What the terms are for: the bound alone is wrong by more than half, always on the fast side."""
    own = of_kind(cases, "served dense")
    bare = [
        case.point._replace(
            parts=[
                part._replace(
                    costs=[
                        cost._replace(start=0.0, moving=cost.floor_moving, working=cost.floor_working)
                        for cost in part.costs
                    ]
                )
                for part in case.point.parts
                if not part.interferes
            ]
        )
        for case in own
    ]
    errors = accuracy.errors_of(zip(own, predict(bare, Scales()), strict=True))
    assert errors.mape > 50
    assert errors.bias < -50


def test_the_upper_bound_holds_nine_in_ten(cases):
    from kvcalc.speed.machine import load_constants

    for kind, band in (
        ("served dense", "served, dense"),
        ("served MoE", "served, moe"),
        ("llama.cpp decode", "decode, dense"),
    ):
        pairs = accuracy.uncalibrated(of_kind(cases, kind))
        share = load_constants().bands[band].share
        below = sum(case.point.seconds <= predicted * (1 + share) for case, predicted in pairs)
        assert below / len(pairs) > 0.895, kind


def test_what_no_measurement_is():
    row = next(iter(read_rows(accuracy.POINTS)))
    for change, message in (({"unit": "s"}, "its unit"), ({"metric": "speed"}, "unknown metric"), ({"value": "nan"}, "above 0"),
                            ({"value": "-3"}, "above 0"), ({"tp": "two"}, "tp 'two'")):  # fmt: skip
        with pytest.raises(KvcalcError) as refused:
            measurement_of({**row, **change})
        assert message in refused.value.message + refused.value.hint
    del row["isl"]
    with pytest.raises(KvcalcError, match="isl"):
        measurement_of(row)
