"""Traces in their published forms become requests; the forms stand in tests/golden/traces/README.md."""

import gzip
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.errors import KvcalcError
from kvcalc.workload.forms import FORMS
from kvcalc.workload.limits import CUT_LINE, FAILED, NO_ANSWER, NO_PROMPT, SHORTENED, TOO_LONG, UNSORTED, limited
from kvcalc.workload.readers import joined, read_trace, stream_trace
from kvcalc.workload.summary import summarise

TRACES = GOLDEN / "traces"
HEAD = "arrival_seconds,prompt_tokens,output_tokens\n"


@pytest.fixture
def trace_file(tmp_path):
    """Write a file and return its path."""

    def write(text: str | bytes, name: str = "t.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def same(one, other) -> bool:
    """Whether two traces hold the same requests."""
    names = ("prompt_tokens", "output_tokens", "arrival_seconds", "prefix_ids", "prefix_ends")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all((a is None and b is None) or np.array_equal(a, b) for a, b in pairs)


# What the files say, read by eye.
EXPECTED = {
    "azure_2023.csv": ([374, 396, 879, 91], [44, 109, 55, 16], [0, 4.314579, 4.541401, 14.31941], {}),
    "azure_2024.csv": ([1452, 2711, 160], [3, 81, 7], [0, 0.248, 0.998], {}),
    "burstgpt_1.csv": ([472, 417, 30], [18, 276, 12], [0, 113, 113], {FAILED: 1}),
    "burstgpt_3.csv": ([906, 36], [446, 29], [0, 51.5], {FAILED: 1}),
    "mooncake.jsonl": ([1100, 1024, 1537], [52, 26, 7], [0, 0, 3.052], {}),
    "plain.csv": ([100, 2000, 300], [10, 1, 20], [0, 0.5, 7.25], {}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_published_form_is_read(name):
    prompts, answers, seconds, counted = EXPECTED[name]
    trace = read_trace(TRACES / name)
    assert trace.name == name
    assert trace.prompt_tokens.tolist() == prompts
    assert trace.output_tokens.tolist() == answers
    assert trace.arrival_seconds.tolist() == pytest.approx(seconds, abs=1e-9)
    assert trace.counted == counted
    assert trace.prompt_tokens.dtype == trace.output_tokens.dtype == np.int64


def test_mooncake_ids_are_those_of_each_request():
    trace = read_trace(TRACES / "mooncake.jsonl")
    assert np.split(trace.prefix_ids, trace.prefix_ends[:-1])[2].tolist() == [0, 1, 3, 4]
    assert trace.prefix_ends.tolist() == [3, 5, 9]
    assert trace.prefix_tokens == 512


@pytest.mark.parametrize("name", EXPECTED)
def test_a_packed_trace_is_the_plain_one(name, trace_file):
    packed = gzip.compress((TRACES / name).read_bytes())
    assert same(read_trace(trace_file(packed, f"{name}.gz")), read_trace(TRACES / name))
    assert same(read_trace(trace_file(packed, f"unnamed-{name}")), read_trace(TRACES / name))


def test_zstd_is_read_where_its_package_is(trace_file):
    if importlib.util.find_spec("zstandard") is None:
        with pytest.raises(KvcalcError, match="needs the package zstandard"):
            read_trace(trace_file(b"\x28\xb5\x2f\xfd", "t.csv.zst"))
        return
    import zstandard

    packed = zstandard.ZstdCompressor().compress((TRACES / "plain.csv").read_bytes())
    assert same(read_trace(trace_file(packed, "t.csv.zst")), read_trace(TRACES / "plain.csv"))


def test_zstd_of_frames_in_turn_and_what_is_no_whole_one(trace_file):
    zstandard = pytest.importorskip("zstandard")
    text = (TRACES / "plain.csv").read_bytes()
    frames = [zstandard.compress(text[:50]), zstandard.compress(text[50:])]
    assert same(read_trace(trace_file(b"".join(frames), "t.csv.zst")), read_trace(TRACES / "plain.csv"))
    for broken in (frames[0][:-3], frames[0] + frames[1][:-3], frames[0] + b"no frame"):
        with pytest.raises(KvcalcError, match="is no whole zstd file") as caught:
            read_trace(trace_file(broken, "t.csv.zst"))
        assert "zstd -t" in caught.value.hint


@pytest.mark.parametrize("name", EXPECTED)
def test_a_mark_of_utf_8_is_passed_over(trace_file, name):
    text = b"\xef\xbb\xbf" + (TRACES / name).read_bytes()
    assert same(read_trace(trace_file(text, f"marked-{name}")), read_trace(TRACES / name))
    assert same(read_trace(trace_file(gzip.compress(text), f"packed-{name}")), read_trace(TRACES / name))


def test_a_name_is_shown_without_what_no_terminal_and_no_document_takes(trace_file):
    path = trace_file((TRACES / "plain.csv").read_bytes(), "a\x1b[31m\udcff.csv")
    assert read_trace(path).name == "a_[31m_.csv"


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_a_stream_in_pieces_is_the_trace(name, chunk):
    pieces = list(stream_trace(TRACES / name, chunk_requests=chunk))
    whole = read_trace(TRACES / name)
    assert max(len(piece) for piece in pieces) <= chunk
    assert same(joined(name, pieces), whole)
    assert joined(name, pieces).counted == whole.counted


def test_columns_may_stand_in_any_order_with_others_between(trace_file):
    path = trace_file("output_tokens,note, prompt_tokens ,arrival_seconds\n2,x,7,1.5\n3,,8,2\n")
    trace = read_trace(path)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([7, 8], [2, 3])
    assert trace.arrival_seconds.tolist() == [0, 0.5]


def test_a_byte_order_mark_and_blank_lines_at_the_end_are_no_requests(trace_file):
    assert len(read_trace(trace_file("\ufeff" + HEAD + "0,1,2\r\n1,1,1\r\n\r\n\n"))) == 2


def test_different_offsets_are_one_clock(trace_file):
    path = trace_file(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 01:00:00+00:00,1,1\n2024-05-10 03:00:02+02:00,1,1\n"
    )
    assert read_trace(path).arrival_seconds.tolist() == [0, 2]


def test_a_limit_takes_the_first_requests_and_looks_no_further(trace_file):
    path = trace_file(HEAD + "0,1,2\n1,3,4\n2,bad,1\n")
    assert read_trace(path, limit=2).prompt_tokens.tolist() == [1, 3]
    trace = read_trace(TRACES / "mooncake.jsonl", limit=2)
    assert (trace.prefix_ids.tolist(), trace.prefix_ends.tolist()) == ([0, 1, 2, 0, 1], [3, 5])
    path = trace_file(HEAD + "5,50,1\n0,1,2\n1,3,4\n")
    assert read_trace(path, limit=2, sort=True).prompt_tokens.tolist() == [1, 3]


def test_sorting_keeps_each_requests_prefix_and_counts_what_it_moved(trace_file):
    lines = (TRACES / "mooncake.jsonl").read_text().splitlines(keepends=True)
    trace = read_trace(trace_file(lines[2] + lines[0] + lines[1], "m.jsonl"), sort=True)
    assert same(trace, read_trace(TRACES / "mooncake.jsonl"))
    assert trace.counted == {UNSORTED: 1}


def test_requests_of_one_moment_keep_their_order_when_sorted(trace_file):
    path = trace_file(HEAD + "5,1,1\n" + "".join(f"{i % 2},{i + 2},1\n" for i in range(400)))
    prompts = read_trace(path, sort=True).prompt_tokens.tolist()
    assert prompts == [*range(2, 402, 2), *range(3, 402, 2), 1]


def test_above_the_context_limit_a_request_is_refused_cut_or_left_out():
    path = TRACES / "mooncake.jsonl"
    with pytest.raises(KvcalcError, match=r"mooncake\.jsonl:1: prompt and answer are above .* 1,060 tokens"):
        read_trace(path, max_context=1060)
    left = read_trace(path, max_context=1060, policy="reject")
    assert (left.prompt_tokens.tolist(), left.counted) == ([1024], {TOO_LONG: 2})
    assert (left.prefix_ids.tolist(), left.prefix_ends.tolist()) == ([0, 1], [2])
    cut = read_trace(path, max_context=1060, policy="truncate")
    assert cut.prompt_tokens.tolist() == [1060 - 52, 1024, 1060 - 7]
    assert cut.counted == {SHORTENED: 2}
    # A block that is cut is no longer the one that its id names: whole blocks alone stay.
    assert (cut.prefix_ids.tolist(), cut.prefix_ends.tolist()) == ([0, 0, 1, 0, 1], [1, 3, 5])


def test_the_limit_itself_fits(trace_file):
    path = trace_file(HEAD + "0,60,40\n")
    assert len(read_trace(path, max_context=100)) == 1
    assert read_trace(path, max_context=99, policy="truncate").prompt_tokens.tolist() == [59]


def test_an_answer_that_fills_the_limit_alone_cannot_be_cut_to_fit(trace_file):
    path = trace_file(HEAD + "0,60,40\n1,5,100\n")
    trace = read_trace(path, max_context=100, policy="truncate")
    assert (len(trace), trace.counted) == (1, {TOO_LONG: 1})


def test_lengths_of_0_are_refused_or_left_out(trace_file):
    path = trace_file(HEAD + "0,0,40\n1,5,0\n2,6,7\n")
    with pytest.raises(KvcalcError, match=r":2: a prompt of 0 tokens"):
        read_trace(path)
    for policy in ("reject", "truncate"):
        trace = read_trace(path, policy=policy)
        assert (trace.prompt_tokens.tolist(), trace.counted) == ([6], {NO_PROMPT: 1, NO_ANSWER: 1})


def test_a_trace_that_was_read_can_be_limited_later():
    whole = read_trace(TRACES / "mooncake.jsonl")
    for policy in ("truncate", "reject"):
        later = limited(whole, 1060, policy)
        first = read_trace(TRACES / "mooncake.jsonl", max_context=1060, policy=policy)
        assert (later.prompt_tokens.tolist(), later.counted) == (first.prompt_tokens.tolist(), first.counted)
        assert later.prefix_ids.tolist() == first.prefix_ids.tolist()
    with pytest.raises(KvcalcError, match="request 1 has 1,152 tokens"):
        limited(whole, 1060, "refuse")
    assert same(limited(whole, 2000, "refuse"), whole)
    with pytest.raises(KvcalcError, match="no request fits"):
        limited(whole, 9, "reject")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (HEAD + "0,1,2\n1,3", "t.csv"),
        (HEAD + "0,1,2\n1,3\n", "t.csv"),
        (HEAD + "0,1,2\n1,3,", "t.csv"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,1,2\n2024-05", "t.csv"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 2, "hash_ids": [0]}\n{"timest', "t.jsonl"),
    ],
)
def test_a_last_line_cut_short_is_left_out_and_counted(text, name, trace_file):
    trace = read_trace(trace_file(text, name))
    assert (trace.prompt_tokens.tolist(), trace.counted) == ([1], {CUT_LINE: 1})


REQUESTS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(1, 9000), st.integers(1, 9000), st.integers(0, 50)), min_size=1
)


@settings(max_examples=30)
@given(REQUESTS, st.integers(1, 7))
def test_what_is_written_is_read_back(tmp_path_factory, requests, chunk):
    folder = tmp_path_factory.getbasetemp()
    requests = sorted(requests)
    plain, mooncake = folder / "hypothesis.csv", folder / "hypothesis.jsonl"
    plain.write_text(HEAD + "".join(f"{at / 1000!r},{isl},{osl}\n" for at, isl, osl, _ in requests))
    rows = [
        {"timestamp": at, "input_length": isl, "output_length": osl, "hash_ids": [*range(i, i - (-isl // 512))]}
        for at, isl, osl, i in requests
    ]
    mooncake.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (plain, mooncake):
        trace = read_trace(path)
        assert trace.prompt_tokens.tolist() == [isl for _, isl, _, _ in requests]
        assert trace.output_tokens.tolist() == [osl for _, _, osl, _ in requests]
        assert np.allclose(trace.arrival_seconds, [(at - requests[0][0]) / 1000 for at, *_ in requests], atol=1e-9)
        assert same(joined("", stream_trace(path, chunk_requests=chunk)), trace)
    ids = np.split(trace.prefix_ids, trace.prefix_ends[:-1])
    assert [list(one) for one in ids] == [row["hash_ids"] for row in rows]


def test_every_form_is_tried_by_a_golden_file():
    heads = [(TRACES / name).read_text().splitlines()[0] for name in EXPECTED]
    assert all(any(all(column in head for column in form.columns) for head in heads) for form in FORMS)


# README of the collection: counts, means and length-biased means of the published files.
REAL = [
    ("azure_2023_conv.csv", 19366, 1155, 211, 337),
    ("azure_2023_code.csv", 8819, 2048, 28, 156),
    ("mooncake_conversation.jsonl", 12031, 12035, 343, None),
    ("mooncake_synthetic.jsonl", 3993, 15325, 149, None),
]


@pytest.mark.parametrize(("name", "requests", "prompt", "answer", "biased"), REAL)
def test_the_published_traces_are_what_they_are_said_to_be(name, requests, prompt, answer, biased):
    path = Path(os.environ.get("KVCALC_TRACES", "")) / name
    if not path.is_file():
        pytest.skip("KVCALC_TRACES names no folder with the published traces")
    summary = summarise(read_trace(path))
    assert (summary.requests, summary.counted) == (requests, {})
    assert (round(summary.prompt_tokens.mean), round(summary.output_tokens.mean)) == (prompt, answer)
    assert biased is None or round(summary.output_tokens.biased_mean) == biased
