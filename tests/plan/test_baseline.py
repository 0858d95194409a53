"""Comparisons with an earlier result: verdicts by hand from the definition in docs/ci.md."""

import json

import pytest
from check_documents import case, document, figure, verdict
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import KvcalcError
from kvcalc.plan.baseline import change_of, compare, read_check


@pytest.fixture
def saved(tmp_path):
    """Write a document as `kvcalc check --format json` does, and return its path."""

    def write(content):
        path = tmp_path / "main.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def around(value, share, **more):
    return figure(value, value * (1 - share), value * (1 + share), **more)


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (figure(100), figure(101), "worse"),
        (figure(100), figure(99), "better"),
        (figure(100), figure(100), "same"),
        (figure(100, better="higher"), figure(99, better="higher"), "worse"),
        (figure(100, better="higher"), figure(101, better="higher"), "better"),
        (figure(0), figure(1), "worse"),
        (figure(1 / 3), figure(1 / 3 + 1e-15), "same"),
    ],
)
def test_exact_figures_are_never_undecided(before, now, change):
    assert change_of(before, now) == change


def test_what_is_uncertain_of_both_alike_does_not_hide_a_prediction_that_got_worse():
    """Each 30% wide and 10% apart: the same calibrated share makes both wide, so the move is the plan's."""
    assert change_of(around(100, 0.3), around(110, 0.3)) == "worse"
    assert change_of(around(100, 0.3), around(90, 0.3)) == "better"


def test_an_overhead_that_is_uncertain_by_so_many_bytes_shifts_both_ends_alike():
    assert change_of(figure(100, 80, 130), figure(110, 90, 140)) == "worse"


def test_an_end_that_stays_leaves_the_move_decided():
    """A figure may touch a bound that does not move: no fewer than 0 tokens, no more than the model's context."""
    assert change_of(figure(100, 0, 130), figure(110, 0, 140)) == "worse"


@pytest.mark.parametrize(
    "now",
    [figure(110, 60, 180), figure(100, 60, 140), figure(110, 80, 120)],
    ids=["wider, and a little worse", "wider alone", "the high end fell"],
)
def test_ends_that_move_apart_are_undecided(now):
    assert change_of(figure(100, 70, 130), now) == "undecided"


def test_ends_that_move_apart_are_decided_where_the_bounds_lie_clear():
    assert change_of(figure(100, 99, 101), figure(150, 102, 160, basis="assumed")) == "worse"
    assert change_of(figure(100, 99, 101), figure(50, 40, 98, basis="assumed")) == "better"
    assert (
        change_of(figure(100, 99, 101, better="higher"), figure(50, 40, 98, basis="assumed", better="higher"))
        == "worse"
    )


def test_another_basis_is_undecided_where_the_bounds_meet():
    assert change_of(around(100, 0.3, basis="assumed"), around(110, 0.3)) == "undecided"
    assert change_of(around(100, 0.3, basis="assumed"), around(100, 0.3)) == "same"


@pytest.mark.parametrize("other", [{"unit": "seconds"}, {"better": "higher"}])
def test_another_unit_or_direction_is_undecided(other):
    assert change_of(figure(100), figure(300, **other)) == "undecided"


FINITE = st.floats(0, 1e12)


@given(
    st.lists(FINITE, min_size=3, max_size=3),
    st.lists(FINITE, min_size=3, max_size=3),
    st.sampled_from(["lower", "higher"]),
)
def test_the_way_back_is_the_other_way(first, second, better):
    one, two = (figure(value, low, high, better=better) for low, value, high in (sorted(first), sorted(second)))
    opposite = {"better": "worse", "worse": "better"}
    change = change_of(one, two)
    assert change_of(two, one) == opposite.get(change, change)
    assert change_of(one, one) == "same"


@pytest.mark.parametrize(("now", "passed"), [(104, True), (105, True), (106, False), (50, True)])
def test_a_figure_may_get_worse_by_the_share_and_no_more(saved, now, passed):
    path = saved(document(case("a", figures={"kv": figure(100)})))
    found = compare(document(case("a", figures={"kv": figure(now)})), path, 0.05)
    assert found["passed"] is passed
    assert [one["ratio"] for one in found["moved"]] == [now / 100]


@pytest.mark.parametrize(("now", "passed"), [(96, True), (95, True), (94, False)])
def test_where_more_is_better_the_share_is_of_what_it_was(saved, now, passed):
    path = saved(document(case("a", figures={"tokens": figure(100, better="higher")})))
    found = compare(document(case("a", figures={"tokens": figure(now, better="higher")})), path, 0.05)
    assert found["passed"] is passed


def test_without_a_share_anything_worse_fails(saved):
    path = saved(document(case("a", figures={"kv": figure(1000)})))
    assert not compare(document(case("a", figures={"kv": figure(1001)})), path)["passed"]
    same = compare(document(case("a", figures={"kv": figure(1000)})), path)
    assert (same["passed"], [one["change"] for one in same["moved"]]) == (True, ["same"])


def test_from_nothing_to_something_fails_whatever_the_share(saved):
    path = saved(document(case("a", figures={"kv": figure(0)})))
    found = compare(document(case("a", figures={"kv": figure(1)})), path, 10.0)
    assert (found["passed"], found["moved"][0]["ratio"]) == (False, None)


def test_undecided_fails_nothing(saved):
    path = saved(document(case("a", figures={"t": figure(100, 70, 130), "gone": figure(1)})))
    found = compare(document(case("a", figures={"t": figure(300, 60, 400), "new": figure(1)})), path)
    assert [(one["figure"], one["change"]) for one in found["moved"]] == [
        ("t", "undecided"),
        ("new", "undecided"),
        ("gone", "undecided"),
    ]
    assert [(one["before"], one["now"]) for one in found["moved"]] == [(100, 300), (None, 1), (1, None)]
    assert found["passed"]


def test_cases_that_came_and_went_and_limits_that_broke(saved):
    path = saved(document(case("old", verdict()), case("both", verdict("a"), verdict("b", passed=False))))
    now = document(
        case("both", verdict("a", passed=False), verdict("b", passed=False), verdict("c", passed=False)), case("new")
    )
    found = compare(now, path)
    assert (found["added_cases"], found["removed_cases"]) == (["new"], ["old"])
    assert [(one["case"], one["limit"], one["line"]) for one in found["newly_broken"]] == [("both", "a", 7)]
    assert not found["passed"]


def test_keys_that_a_later_version_adds_are_passed_over(saved):
    assert read_check(saved({**document(case("a")), "extra": 1}))["cases"][0]["name"] == "a"


GOOD = json.dumps(document(case("a", verdict(), figures={"kv": figure(1)})))
TWICE = json.dumps(document(case("a"), case("a")))
INSIDE_OUT = json.dumps(document(case("a", figures={"kv": figure(5, 6, 7)})))
HUGE = json.dumps(document(case("a", figures={"kv": figure(10**40)})))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is no JSON: it is empty"),
        ("cases: []", "is no JSON"),
        (GOOD[: len(GOOD) // 2], "is cut short"),
        ("[]", "no JSON object"),
        ("{}", "it has no schema kvcalc.check/1"),
        ('{"schema": 1}', "it has no schema"),
        (GOOD.replace("kvcalc.check/1", "kvcalc.fit/1"), "it is a kvcalc.fit document"),
        (GOOD.replace("kvcalc.check/1", "kvcalc.check/2"), "schema kvcalc.check/2, this kvcalc reads kvcalc.check/1"),
        (GOOD.replace('"name"', '"nome"'), "is damaged"),
        (GOOD.replace('"lower"', '"sideways"'), "is damaged"),
        (GOOD.replace('"value": 1,', '"value": NaN,'), "is no JSON"),
        (GOOD.replace('"value": 1,', '"value": 1e999,'), "is "),
        (TWICE, "two of its cases have one name"),
        (INSIDE_OUT, "kv of a is not within its bounds"),
        (HUGE, "is "),
        ("[" * 100_000, "is "),
    ],
)
def test_what_is_no_result_of_a_check_is_one_line(saved, content, says):
    with pytest.raises(KvcalcError) as caught:
        read_check(saved(content))
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_file_that_is_not_there_a_folder_and_a_huge_one_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("kvcalc.plan.baseline.MOST_BYTES", 10)
    (tmp_path / "huge.json").write_text(GOOD)
    for name, says in (("none.json", "No such file"), (".", "no regular file"), ("huge.json", "more than 10 bytes")):
        with pytest.raises(KvcalcError, match=says):
            read_check(tmp_path / name)
