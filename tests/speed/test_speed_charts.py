"""The front of points that were timed one by one, against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.speed.charts import PER_GPU, latency_chart, with_front

SPEED = st.integers(1, 6)
POINT = st.tuples(st.sampled_from(["a", "b"]), SPEED, SPEED)


def point(model, seconds, rate, batch):
    return {"case": model, "model": model, "context_tokens": 1, "batch": batch, "fits": True,
            "step_seconds": float(seconds), PER_GPU: float(rate)}  # fmt: skip


@given(st.lists(POINT, min_size=1, max_size=12))
def test_on_the_front_is_what_none_of_its_model_beats(found):
    points = [point(*one, batch) for batch, one in enumerate(found)]
    for one in with_front(points):
        beaten = any(
            other["model"] == one["model"]
            and other["step_seconds"] <= one["step_seconds"]
            and other[PER_GPU] >= one[PER_GPU]
            and (other["step_seconds"], other[PER_GPU]) != (one["step_seconds"], one[PER_GPU])
            for other in points
        )
        equal_before = any(
            (other["model"], other["step_seconds"], other[PER_GPU]) == (one["model"], one["step_seconds"], one[PER_GPU])
            and other["batch"] < one["batch"]
            for other in points
        )
        assert one["pareto"] == (not beaten and not equal_before)


def test_fronts_are_parted_by_a_gap():
    points = with_front([point("a", 1, 1, 0), point("a", 2, 2, 1), point("b", 1, 3, 0)])
    front = latency_chart(points, ("case",)).series[-1]
    assert front.is_dashed
    assert list(front.y) == [1.0, 2.0, None, 3.0]


def test_nothing_that_fits_is_no_chart():
    assert latency_chart([{"fits": False}]) is None


def test_engines_are_series_of_their_own():
    under = [{**point("a", 1, 2, 1), "engine": engine} for engine in ("vllm@0.26", "sglang@0.5.20")]
    assert [one.name for one in latency_chart(under).series[:2]] == ["vllm@0.26", "sglang@0.5.20"]
