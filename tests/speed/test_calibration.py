"""Factors are found again from measurements made with them, stay where nothing was measured, and never pass a peak."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.speed.calibration import Part, Point, Scales, fit_scales, fit_with_errors, predict
from kvcalc.speed.setting import Use, decode_costs, machine_for, make_setting, prefill_costs, seconds_of

TRUE = {
    "overhead": 1.4,
    "overhead.bf16": 1.2,
    "host": 0.6,
    "communication": 1.5,
    "bandwidth": 1.12,
    "cache_bandwidth": 1.15,
    "arithmetic.bf16": 1.3,
    "interference": 0.7,
}


def served_points(factors, noise=0.0, seed=1):
    """Points as a machine of these factors would measure them: tp, batch and prompt vary."""
    chance, scales, points = random.Random(seed), Scales(factors), []  # noqa: S311
    for tp in (1, 4):
        use = Use(sharding=Sharding(tp=tp))
        setting = make_setting(kvcalc.load("llama-3.1-8b"), machine_for("h100-sxm5-80gb", None, use), use)
        for batch in (1, 8, 32, 128):
            for isl, osl in ((1024, 1024), (8192, 1024), (1024, 8192)):
                parts = (
                    Part(1.0, decode_costs(setting, batch, isl + osl // 2)),
                    Part(0.8 * (batch - 1) / osl, prefill_costs(setting, isl), interferes=True),
                )
                bare = Point(parts, 1.0)
                points.append(Point(parts, predict([bare], scales)[0] * chance.lognormvariate(0, noise)))
    return points


def test_factors_are_found_again():
    found = fit_scales(served_points(TRUE))
    assert found.factors.keys() == TRUE.keys()
    assert predict(served_points({}), found) == pytest.approx(predict(served_points({}), Scales(TRUE)), rel=0.05)
    assert found.of("bandwidth") == pytest.approx(1.12, rel=0.05)
    # Prompts tell little of the units' rate beside what is waited for: only their product is found.
    assert found.of("interference") * found.of("arithmetic.bf16") == pytest.approx(0.7 * 1.3, rel=0.1)


def test_applied_scales_are_those_that_were_fitted():
    """`Scales.applied`, which answers use, and the table of many points agree."""
    point, scales = served_points(TRUE)[-1], Scales(TRUE)
    by_hand = sum(
        part.weight * (scales.of("interference") if part.interferes else 1) * seconds_of(scales.applied(part.costs))
        for part in point.parts
    )
    assert by_hand == pytest.approx(point.seconds)


def test_errors_of_points_left_out_are_larger_than_noise_and_smaller_than_before():
    fit = fit_with_errors(served_points(TRUE, noise=0.03))
    sizes = [sum(map(abs, errors)) / len(errors) for errors in (fit.before, fit.left_out)]
    assert fit.points == 24
    assert 0.01 < sizes[1] < 0.06 < sizes[0]


def test_one_point_helps_and_moves_little():
    """One point of a machine that is slower all over: the others come nearer, and no factor runs away."""
    points = served_points(dict.fromkeys(TRUE, 1.3))
    fit = fit_with_errors(points[5:6])
    assert fit.left_out == ()
    before, after = (sum(abs(one / point.seconds - 1) for one, point in zip(predict(points, scales), points, strict=True))
                     for scales in (Scales(), fit.scales))  # fmt: skip
    assert after < 0.7 * before
    assert all(0.6 < factor < 1.7 for factor in fit.scales.factors.values())


def test_what_was_not_measured_stays():
    """A prompt on its own on one GPU says nothing of exchanges or of what running sequences wait for."""
    setting = make_setting(kvcalc.load("llama-3.1-8b"), machine_for("h100-sxm5-80gb", None, Use()), Use())
    costs = prefill_costs(setting, 4096)
    found = fit_scales([Point((Part(1.0, costs),), 2 * seconds_of(costs))])
    assert found.of("communication") == found.of("interference") == 1
    assert found.of("arithmetic.bf16") > 1.5


def test_contradictory_points_meet_in_the_middle():
    first, *_ = served_points({})
    double = Point(first.parts, 2 * first.seconds)
    predicted = predict([first], fit_scales([first, double]))[0]
    assert first.seconds < predicted < double.seconds


@given(st.floats(0.001, 0.9))
def test_no_factor_passes_a_peak(share):
    """Measurements faster than the figures allow: the prediction stops at the floor of every kernel."""
    points = [Point(point.parts, point.seconds * share) for point in served_points({})[:3]]
    scales = fit_scales(points)
    for point in points:
        for part in point.parts:
            for before, after in zip(part.costs, scales.applied(part.costs), strict=True):
                assert after.moving >= before.floor_moving * 0.999999
                assert after.working >= before.floor_working * 0.999999


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_that_are_none(seconds):
    point = served_points({})[0]
    with pytest.raises(KvcalcError, match="is no time"):
        fit_scales([Point(point.parts, seconds)])


def test_no_points_at_all():
    with pytest.raises(KvcalcError, match="no point"):
        fit_scales([])
