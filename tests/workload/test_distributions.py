"""Distributions have the figures by which they are spelled; percentiles of the normal from tables."""

import math
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import KvcalcError
from kvcalc.workload.distributions import Gamma, Lognormal, parse_distribution
from kvcalc.workload.fitting import fit_lengths, ks_distance

Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal, NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.1."""


def drawn(text: str, count: int = 200_000, seed: int = 1):
    return parse_distribution(text).draw(np.random.Generator(np.random.PCG64(seed)), count)


@given(st.floats(10, 1e5), st.floats(1.001, 14.9))
def test_a_lognormal_reproduces_its_mean_and_p99_with_the_smaller_sigma(mean, ratio):
    made = parse_distribution(f"lognormal:mean={mean!r},p99={mean * ratio!r}")
    assert made.median * math.exp(made.sigma**2 / 2) == pytest.approx(mean, rel=1e-9)
    assert made.median * math.exp(Z99 * made.sigma) == pytest.approx(mean * ratio, rel=1e-9)
    # The two solutions lie about z: s and 2z - s.
    assert 0 < made.sigma <= Z99


def test_lognormals_by_other_figures():
    assert parse_distribution("lognormal:median=100,p99=1000").sigma == pytest.approx(math.log(10) / Z99)
    by_sigma = parse_distribution("lognormal:mean=200,sigma=0.5")
    assert by_sigma.median == pytest.approx(200 / math.exp(0.125))
    assert parse_distribution("lognormal:mean=200") == parse_distribution("lognormal:mean=200,sigma=1")


@pytest.mark.parametrize(
    ("text", "mean", "p99"),
    [
        ("512", 512, 512),
        ("constant:512", 512, 512),
        ("lognormal:mean=1200,p99=8000", 1200, 8000),
        ("gamma:mean=2000,cv=1", 2000, 2000 * math.log(100)),  # a gamma of cv 1 is exponential
        ("geometric:mean=200", 200, math.log(0.01) / math.log(1 - 1 / 200)),
        ("uniform:low=100,high=1100", 600, 1090),
    ],
)
def test_draws_have_the_mean_and_p99_that_were_asked(text, mean, p99):
    lengths, capped = drawn(text)
    assert lengths.dtype == np.int64
    assert lengths.min() >= 1
    assert capped == 0
    assert lengths.mean() == pytest.approx(mean, rel=0.01)
    assert np.percentile(lengths, 99) == pytest.approx(p99, rel=0.03)


def test_gamma_has_its_cv_and_uniform_its_ends():
    lengths, _ = drawn("gamma:mean=2000,cv=0.5")
    assert lengths.std() / lengths.mean() == pytest.approx(0.5, rel=0.01)
    lengths, _ = drawn("uniform:low=3,high=5", 1000)
    assert set(lengths.tolist()) == {3, 4, 5}


def test_lengths_are_whole_from_1_to_the_cap_and_what_was_above_it_is_counted():
    free, none = drawn("lognormal:median=3,sigma=1.5")
    capped, count = drawn("lognormal:median=3,sigma=1.5,max=50")
    assert none == 0
    assert count == (free > 50).sum() > 0
    assert np.array_equal(capped, np.minimum(free, 50))
    assert free.min() == 1


FIGURE = st.floats(1, 1e6)


@given(
    st.one_of(
        st.builds(lambda m, s: f"lognormal:median={m!r},sigma={s!r}", FIGURE, st.floats(0.01, 5)),
        st.builds(lambda m, r: f"lognormal:mean={m!r},p99={m * r!r}", FIGURE, st.floats(1.01, 14)),
        st.builds(lambda m, c: f"gamma:mean={m!r},cv={c!r},max=4096", FIGURE, st.floats(0.01, 5)),
        st.builds(lambda m: f"geometric:mean={m!r}", FIGURE),
        st.builds(lambda low, more: f"uniform:low={low},high={low + more}", st.integers(1, 99), st.integers(0, 99)),
        st.integers(1, 10**9).map(str),
        st.just("file:some/trace,with:signs=1.csv"),
    )
)
def test_a_spelling_is_read_back_to_the_same_bits(text):
    made = parse_distribution(text)
    assert parse_distribution(made.spelling) == made


def test_lengths_are_drawn_from_a_trace():
    path = GOLDEN / "traces" / "plain.csv"
    for side, values in (("prompt_tokens", {100, 2000, 300}), ("output_tokens", {10, 1, 20})):
        made = parse_distribution(f"file:{path}", side)
        assert set(made.draw(np.random.Generator(np.random.PCG64(0)), 99)[0].tolist()) == values


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("lognormal:mean=1200,p99=1200", "a p99 that is not above the mean", "1 request in 100"),
        ("lognormal:mean=1,p99=15", "p99 is 15 times the mean, and no lognormal has more than 14.97", "file:TRACE"),
        ("lognormal:median=9,p99=9", "a p99 that is not above the median", ""),
        ("lognormal:sigma=1", "a mean or a median", "lognormal:mean"),
        ("lognormal:mean=2,median=1", "a mean or a median", ""),
        ("lognormal:mean=2,p99=3,sigma=1", "a sigma or a p99", ""),
        ("lognormal:mean=0", "mean is 0", "above 0"),
        ("lognormal:mean=1,sigma=1e9", "sigma is 1000000000", "to 10"),
        ("lognormal", "says no figures", "such as"),
        ("lognormal:", "is no key=value", ""),
        ("lognormal:men=2", "unknown key", "did you mean mean"),
        ("lognormal:mean=2,mean=2", "says mean twice", ""),
        ("lognorm:mean=2", "unknown distribution 'lognorm'", "did you mean lognormal?"),
        ("gamma:mean=2", "a mean and a cv", "gamma:mean=200,cv=1.5"),
        ("gamma:mean=2,cv=1e-200", "cv is 1e-200", "above 0"),
        ("gamma:mean=2,cv=nan", "no finite number", ""),
        ("geometric:mean=0.5", "at least 1 token", ""),
        ("uniform:low=4,high=3", "from a low of at least 1 to a high", ""),
        ("uniform:low=0,high=3", "from a low of at least 1", ""),
        ("gamma:mean=9,cv=1,max=0.5", "a max of 0.5", "whole number"),
        ("0", "is no length", "from 1"),
        ("1.5", "is no length", ""),
        ("many", "is no finite number", "512"),
    ],
)
def test_figures_that_no_distribution_has(text, said, hint):
    with pytest.raises(KvcalcError) as caught:
        parse_distribution(text)
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_the_largest_p99_of_a_mean_is_reached():
    highest = math.exp(Z99**2 / 2)
    assert parse_distribution(f"lognormal:mean=100,p99={100 * highest * (1 - 1e-12)!r}").sigma == pytest.approx(
        Z99, abs=1e-5
    )


@pytest.mark.parametrize(
    ("text", "kind"), [("lognormal:median=500,sigma=0.9", Lognormal), ("gamma:mean=900,cv=1.2", Gamma)]
)
def test_a_fit_finds_what_was_drawn_and_can_be_pasted_back(text, kind):
    made = parse_distribution(text)
    lengths, _ = drawn(text, 50_000)
    best, other = fit_lengths(lengths)
    assert isinstance(best.distribution, kind)
    assert best.distance < 0.02 < other.distance
    for name in made.__struct_fields__:
        assert getattr(best.distribution, name) == pytest.approx(getattr(made, name), rel=0.03)
    assert parse_distribution(best.distribution.spelling) == best.distribution


def test_a_fit_of_equal_lengths_is_a_constant():
    assert [fit.distribution.spelling for fit in fit_lengths(np.full(9, 7))] == ["7"]
    with pytest.raises(KvcalcError, match="no lengths"):
        fit_lengths(np.array([], dtype=np.int64))


def test_the_ks_distance_is_the_largest_gap_between_the_shares():
    # Half of the draws lie below 2; at 1 the shares are 1/4 and 1/2.
    assert ks_distance(np.array([1, 2, 2, 2]), parse_distribution("uniform:low=1,high=2")) == pytest.approx(
        0.25, abs=0.002
    )
    assert ks_distance(np.array([5, 5]), parse_distribution("4")) == 1


def test_a_trace_that_is_not_there_is_named():
    with pytest.raises(KvcalcError, match="cannot read"):
        drawn(f"file:{Path('none.csv')}")
