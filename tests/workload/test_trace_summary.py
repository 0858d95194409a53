"""The figures of a trace, against sums done by hand."""

import msgspec
import numpy as np
import pytest
from conftest import GOLDEN

from kvcalc.workload.readers import read_trace
from kvcalc.workload.summary import summarise
from kvcalc.workload.trace import Trace


def test_the_figures_are_those_of_the_requests():
    summary = summarise(read_trace(GOLDEN / "traces" / "plain.csv"))  # prompts 100, 2000, 300; answers 10, 1, 20
    assert (summary.name, summary.requests) == ("plain.csv", 3)
    assert summary.duration_seconds == 7.25
    assert summary.rate_per_second == pytest.approx(2 / 7.25)
    assert summary.gap_cv == pytest.approx(3.125 / 3.625)  # gaps of 0.5 and 6.75 s
    assert summary.prompt_tokens.mean == 800
    assert (summary.prompt_tokens.p50, summary.prompt_tokens.largest) == (300, 2000)
    assert summary.output_tokens.biased_mean == pytest.approx((100 + 1 + 400) / 31)
    assert summary.repeated_prefixes is None


def test_percentiles_lie_between_requests():
    lengths = summarise(Trace(name="", prompt_tokens=np.arange(1, 102), output_tokens=np.ones(101, int))).prompt_tokens
    assert (lengths.p50, lengths.p90, lengths.p99) == (51, 91, 100)


def test_prefix_ids_that_stood_before_are_a_share():
    # 0 1 2, 0 1, 0 1 3 4: four of nine stood before.
    assert summarise(read_trace(GOLDEN / "traces" / "mooncake.jsonl")).repeated_prefixes == pytest.approx(4 / 9)


def test_what_is_not_known_is_not_said():
    trace = read_trace(GOLDEN / "traces" / "plain.csv")
    timeless = summarise(msgspec.structs.replace(trace, arrival_seconds=None))
    assert (timeless.duration_seconds, timeless.rate_per_second, timeless.gap_cv) == (None, None, None)
    assert [column.key for column in timeless.tables()[0].columns] == ["requests"]
    at_once = summarise(msgspec.structs.replace(trace, arrival_seconds=np.zeros(3)))
    assert (at_once.duration_seconds, at_once.rate_per_second) == (0, None)


def test_tables_hold_the_figures_under_their_names():
    summary = summarise(read_trace(GOLDEN / "traces" / "burstgpt_1.csv"))
    facts, lengths = summary.tables()
    assert facts.rows[0][0] == 3
    assert [row[0] for row in lengths.rows] == ["prompt", "answer"]
    named = dict(zip((column.key for column in lengths.columns), lengths.rows[1], strict=True))
    assert named["mean"] == pytest.approx((18 + 276 + 12) / 3)
    assert named["largest"] == 276
    assert summary.notes() == ("left out: failed, no answer: 1",)
