"""Medians, percentiles, doubts and repeats, against the statistics module and by hand."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.profiler.series import Series, repeats_for

seconds = st.floats(1e-9, 1e3)


@given(st.lists(seconds, min_size=2, max_size=40))
def test_percentiles_are_those_of_the_statistics_module(samples):
    series = Series(tuple(samples))
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    assert series.median_seconds == statistics.median(samples)
    for place in (1, 5, 9):
        assert series.quantile(place / 10) == pytest.approx(tenths[place - 1], rel=1e-9)
    assert (series.quantile(0), series.quantile(1)) == (min(samples), max(samples))


def test_the_document_of_five_samples_by_hand():
    # Ordered 1 2 3 4 9: a tenth of the way through four gaps is 1.4, nine tenths lie at 4 + 0.6 x 5.
    found = Series((9.0, 1.0, 3.0, 2.0, 4.0)).document()
    assert found["median_seconds"] == 3
    assert found["p10_seconds"] == pytest.approx(1.4)
    assert found["p90_seconds"] == pytest.approx(7.0)
    assert found["samples_seconds"] == [9, 1, 3, 2, 4]


def test_one_sample_is_every_percentile():
    assert Series((2.0,)).document() == {
        "median_seconds": 2.0, "p10_seconds": 2.0, "p90_seconds": 2.0, "samples_seconds": [2.0]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("samples", "doubts"),
    [
        ((1.0,), ["it: 1 sample, too few for percentiles"]),
        ((1.0, 9.0, 1.0, 1.0), ["it: 4 samples, too few for percentiles"]),
        ((1.0,) * 5, []),
        ((1.0, 1.1, 1.0, 1.1, 1.0), []),
        # p10 = 1, p90 = 1.2 + 0.6 x 0.3 = 1.38, the median 1.1: 34.5%.
        ((1.0, 1.0, 1.1, 1.2, 1.5), ["it: p10 to p90 spans 35% of the median, the machine was not quiet"]),
        ((1.0,) * 5 + (1.16,) * 5, ["it: the second half ran 16% slower than the first"]),
        ((1.25,) * 5 + (1.0,) * 5, ["it: the second half ran 20% faster than the first"]),
        ((1.0,) * 5 + (1.14,) * 5, []),
        # Nine samples have halves of four: too few to tell a drift.
        ((1.0,) * 4 + (1.1,) + (1.24,) * 4, []),
    ],
)
def test_doubts_say_what_is_the_matter(samples, doubts):
    assert Series(samples).doubts("it") == doubts


def test_a_drift_and_noise_are_both_said():
    assert len(Series((1.0,) * 6 + (2.0,) * 6).doubts("it")) == 2


@pytest.mark.parametrize(
    ("pilot", "budget", "repeats"), [(0.5, 2.0, 4), (0.6, 2.0, 3), (9.0, 2.0, 2), (1e-6, 2.0, 7), (0.0, 2.0, 7)]
)
def test_repeats_fit_the_budget_between_two_limits(pilot, budget, repeats):
    assert repeats_for(pilot, budget, least=2, most=7) == repeats


@given(seconds, seconds, st.integers(1, 9), st.integers(0, 9))
def test_repeats_stay_within_their_limits_and_the_budget(pilot, budget, least, more):
    count = repeats_for(pilot, budget, least, least + more)
    assert least <= count <= least + more
    assert count == least or count * pilot <= budget * (1 + 1e-9)
