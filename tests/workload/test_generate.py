"""Synthetic traces: what was asked comes out within the bounds of chance, and the same seed gives the same bits."""

import math

import numpy as np
import pytest
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import KvcalcError
from kvcalc.workload.arrivals import parse_arrivals, retimed
from kvcalc.workload.distributions import parse_distribution
from kvcalc.workload.generate import CAPPED_ANSWERS, CAPPED_PROMPTS, DEFAULT_SEED, generate, streams
from kvcalc.workload.prefixes import parse_prefix
from kvcalc.workload.readers import read_trace

ISL, OSL = parse_distribution("lognormal:mean=1200,p99=8000"), parse_distribution("geometric:mean=200")


def made(requests=20_000, arrivals=None, prefix=None, **others):
    return generate(
        requests=requests,
        isl=ISL,
        osl=OSL,
        arrivals=parse_arrivals(arrivals) if arrivals else None,
        prefix=parse_prefix(prefix) if prefix else None,
        **others,
    )


def test_the_same_seed_gives_the_same_bits():
    one, two = (made(arrivals="20/s,cv=3", prefix="prefix:groups=9,tokens=64,zipf=1", seed=7) for _ in range(2))
    for name in ("prompt_tokens", "output_tokens", "arrival_seconds", "prefix_ids", "prefix_ends"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    other = made(arrivals="20/s,cv=3", seed=8)
    assert not np.array_equal(other.prompt_tokens, one.prompt_tokens)
    assert "seed=7" in one.name


def test_the_bits_are_those_of_the_default_seed_for_ever():
    trace = made(requests=4, arrivals="20/s")
    assert f"seed={DEFAULT_SEED}" in trace.name
    assert trace.prompt_tokens.tolist() == made(requests=4, seed=20230916).prompt_tokens.tolist()


def test_each_part_is_drawn_by_itself():
    plain, rich = made(), made(arrivals="20/s", prefix="prefix:groups=9,tokens=64")
    assert np.array_equal(plain.prompt_tokens + 64, rich.prompt_tokens)
    assert np.array_equal(plain.output_tokens, rich.output_tokens)
    assert plain.arrival_seconds is None
    assert plain.prefix_ids is None


def test_a_traces_name_says_what_it_was_drawn_from():
    trace = made(arrivals="90/min", prefix="prefix:groups=9,tokens=64")
    fields = dict(part.split("=", 1) for part in trace.name.split(" "))
    assert parse_distribution(fields["isl"]) == ISL
    assert parse_arrivals(fields["arrivals"]) == parse_arrivals("90/min")
    assert parse_prefix(fields["prefix"]) == parse_prefix("prefix:groups=9,tokens=64")


def test_what_was_capped_is_counted():
    capped = parse_distribution("lognormal:mean=1200,p99=8000,max=1000")
    trace = generate(requests=1000, isl=capped, osl=parse_distribution("geometric:mean=9,max=9"))
    assert trace.counted == {
        CAPPED_PROMPTS: int((made(1000).prompt_tokens > 1000).sum()),
        CAPPED_ANSWERS: trace.counted[CAPPED_ANSWERS],
    }
    assert trace.counted[CAPPED_ANSWERS] <= (trace.output_tokens == 9).sum()
    assert trace.prompt_tokens.max() == 1000


@given(st.floats(0.01, 1000), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(0, 2**32))
def test_gaps_have_the_rate_and_the_cv(rate, cv, seed):
    count = 20_000
    seconds = made(count, f"{rate!r}/s,cv={cv}", seed=seed).arrival_seconds
    gaps = np.diff(seconds)
    assert seconds[0] == 0
    assert (gaps >= 0).all()
    # Six standard errors of the mean of the gaps.
    assert gaps.mean() * rate == pytest.approx(1, abs=6 * cv / math.sqrt(count) + 1e-9)
    assert gaps.std() * rate == pytest.approx(cv, rel=0.25, abs=1e-6)


def test_poisson_gaps_are_exponential():
    gaps = np.diff(made(arrivals="20/s").arrival_seconds)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert (gaps > 0.05).mean() == pytest.approx(math.exp(-1), abs=0.015)


@pytest.mark.parametrize(("text", "per_second"), [("20/s", 20), ("90/min", 1.5), ("3600/h", 1), (" 2 / s", 2)])
def test_rates_in_their_units(text, per_second):
    assert parse_arrivals(text).per_second == per_second


def test_on_and_off_keeps_the_mean_rate_and_sends_nothing_between():
    seconds = made(60_000, "20/s,on=10,off=50").arrival_seconds
    assert (seconds % 60 <= 10 + 1e-6).all()
    assert len(seconds) / seconds[-1] == pytest.approx(20, rel=0.05)


def test_all_at_once_and_recorded():
    assert not made(9, "inf").arrival_seconds.any()
    trace = read_trace(GOLDEN / "traces" / "plain.csv")
    rng = streams(0, 1)[0]
    assert retimed(trace, parse_arrivals("recorded,speed=2"), rng).arrival_seconds.tolist() == [0, 0.25, 3.625]
    assert retimed(trace, parse_arrivals("recorded"), rng).arrival_seconds.tolist() == [0, 0.5, 7.25]
    other = retimed(trace, parse_arrivals("1/s,cv=0"), rng)
    assert other.arrival_seconds.tolist() == [0, 1, 2]
    assert other.prompt_tokens is trace.prompt_tokens
    with pytest.raises(KvcalcError, match="need a trace with times"):
        made(9, "recorded")


@pytest.mark.parametrize(
    "text", ["20/s", "90/min", "20/s,cv=3", "20/s,cv=0", "0.1/s,on=10,off=0.3", "inf", "recorded", "recorded,speed=1.7"]
)
def test_arrivals_are_read_back_from_their_spelling(text):
    assert parse_arrivals(parse_arrivals(text).spelling) == parse_arrivals(text)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("0/s", "the rate is 0", "never send a request"),
        ("-2/s", "the rate is -2", "from 1e-9"),
        ("inf/s", "an infinite rate has no unit", "at second 0"),
        ("nan/s", "no finite number", ""),
        ("20", "no rate with its unit", "20/s"),
        ("20/fortnight", "unknown unit of time", "known: s"),
        ("20/s,cv", "no key=value", ""),
        ("20/s,cv=-1", "cv is -1", "1 for Poisson"),
        ("20/s,cv=1e-200", "cv is 1e-200", ""),
        ("20/s,on=1", "both on and off", ""),
        ("20/s,on=0,off=1", "on is 0", ""),
        ("20/s,cv=1,on=1,off=1", "either a cv", ""),
        ("inf,cv=3", "inf stands alone", ""),
        ("recorded,speed=0", "speed is 0", ""),
    ],
)
def test_arrivals_that_there_are_not(text, said, hint):
    with pytest.raises(KvcalcError) as caught:
        parse_arrivals(text)
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_prefixes_are_shared_as_a_zipf_law_says():
    trace = made(100_000, prefix="prefix:groups=100,tokens=2048,zipf=1.1")
    share = np.bincount(trace.prefix_ids, minlength=100) / 100_000
    weights = np.arange(1, 101) ** -1.1
    assert share == pytest.approx(weights / weights.sum(), abs=0.006)
    assert trace.prefix_tokens == 2048
    assert (trace.prompt_tokens > 2048).all()
    even = np.bincount(made(100_000, prefix="prefix:groups=10,tokens=5").prefix_ids) / 100_000
    assert even == pytest.approx(np.full(10, 0.1), abs=0.006)


def test_a_prefix_in_blocks_has_an_id_for_each_of_them():
    trace = made(50, prefix="prefix:groups=3,tokens=1536,block=512")
    ids = trace.prefix_ids.reshape(50, 3)
    assert trace.prefix_ends.tolist() == list(range(3, 151, 3))
    assert set(map(tuple, ids.tolist())) == {(0, 1, 2), (3, 4, 5), (6, 7, 8)}
    assert trace.prefix_tokens == 512


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("groups=1,tokens=2", "is no prefix"),
        ("prefix:tokens=3", "no groups"),
        ("prefix:groups=0,tokens=3", "groups is 0"),
        ("prefix:groups=2.5,tokens=3", "groups is 2.5"),
        ("prefix:groups=2", "no tokens"),
        ("prefix:groups=2,tokens=3,zipf=-1", "zipf is -1"),
        ("prefix:groups=1,tokens=3,block=2", "do not divide"),
        ("prefix:groups=1,tokens=3,block=4", "block is 4"),
        ("prefix:groups=1,token=3", "unknown key"),
    ],
)
def test_prefixes_that_there_are_not(text, said):
    with pytest.raises(KvcalcError) as caught:
        parse_prefix(text)
    assert said in caught.value.message
    assert caught.value.hint


def test_counts_and_seeds_that_there_are_not():
    with pytest.raises(KvcalcError, match="0 requests"):
        made(0)
    with pytest.raises(KvcalcError, match="1,000,000,000 requests cannot be drawn: all of them are held in memory"):
        made(10**9)
    with pytest.raises(KvcalcError, match="a seed of -1"):
        made(1, seed=-1)
    assert len(made(1, "20/s")) == 1
