"""A trace that cannot be read says so in one line, with the file and line that are meant."""

import gzip
import os

import pandas as pd
import pytest

from kvcalc.errors import KvcalcError
from kvcalc.workload.readers import read_trace, stream_trace

PLAIN = "arrival_seconds,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
LATER = '{"timestamp": 9, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'

BAD = {
    # columns
    "misspelt": ("arrival_second,prompt_tokens,output_tokens\n0,1,1\n", ":1: no form", "is 'arrival_second' meant?"),
    "foreign": ("a;b;c\n1;2;3\n", ":1: no form of trace has these columns: a;b;c", "Azure CSV (TIMESTAMP"),
    "misspelt key": (MOONCAKE.replace("hash_ids", "hashids"), ":1: no form", "is 'hashids' meant?"),
    "no keys": ("{}\n", ":1: no form of trace has these columns: none", "known: "),
    "twice": (PLAIN.replace("prompt", "prompt_tokens,prompt") + "0,1,1,1\n", ":1: two columns are called", "rename"),
    "blank head": ("\n" + PLAIN, ":1: no form", "known: "),
    # fields
    "too few": (PLAIN + "0,1,2\n1,2\n3,4,5\n", ":3: 2 fields, where the first line has 3 names: 1,2", ""),
    "too many first": (PLAIN + "0,1,2,3,4\n", ":2: more fields than the first line has names", "a number has none"),
    "too many": (PLAIN + "0,1,2\n1,1,2,3\n", ":3: more fields than the first line has names: 1,1,2,3", ""),
    "far too many": (PLAIN + "0,1,2\n" * 3 + "1,1,2,3,4,5\n", ":5: 6 fields, where the first line has 3 names", ""),
    "blank": (PLAIN + "0,1,2\n\n1,1,1\n", ":3: 0 fields, where the first line has 3 names: the line is blank", ""),
    "open quote": (PLAIN + '0,"1,2\n1,1,1\n', "is no whole CSV", "a quote that is never closed"),
    "old Mac": (
        (PLAIN + "0,1,2\n").replace("\n", "\r"),
        ":1: no line of CSV: new-line character seen in unquoted field: ",
        "LF",
    ),
    "long field": (PLAIN + "0,1,2\n" + "x" * 140_000 + ",1,2\n", ":3: no line of CSV: field larger than", "short"),
    "long line": (PLAIN + "1" * (17 << 20), ":2: a line of more than 16,777,216 bytes", "one request a line"),
    "long first line": ("x" * (17 << 20), ":1: a line of more than 16,777,216 bytes", "one request a line"),
    "long line of JSON": (MOONCAKE + " " * (17 << 20), ":2: a line of more than 16,777,216 bytes", ""),
    "many columns": (PLAIN.strip() + ",x" * 10_000 + "\n", ":1: 10,003 columns", "a few: plain CSV (arrival_seconds"),
    # numbers
    "word": (PLAIN + "0,1,2\n1,x,3\n", ":3: prompt_tokens is no number: 1,x,3", "a whole number of tokens"),
    "NaN tokens": (PLAIN + "0,1,2\n1,NaN,3\n2,2,2\n", ":3: prompt_tokens is no number", ""),
    "NaN last": (PLAIN + "0,1,2\n1,1,NaN\n", ":3: output_tokens is no number", ""),
    "NaN time": (PLAIN + "0,1,2\nNaN,1,2\n", ":3: arrival_seconds is no time: NaN,1,2", "such as 12.5"),
    "infinite time": (PLAIN + "inf,1,2\n", ":2: arrival_seconds is no time", ""),
    "half a token": (PLAIN + "0,1.5,2\n", ":2: prompt_tokens is no whole number", ""),
    "booleans": (PLAIN + "0,True,2\n", ":2: prompt_tokens is no number", ""),
    "past int64": (PLAIN + "0,99999999999999999999999,2\n", ":2: prompt_tokens is past 1,000,000,000 tokens", ""),
    "past int63": (PLAIN + "0,9999999999999999999,2\n", ":2: prompt_tokens is past 1,000,000,000 tokens", ""),
    "endless": (PLAIN + "0,1,inf\n", ":2: output_tokens is past 1,000,000,000 tokens", ""),
    "huge in JSON": (MOONCAKE.replace("600", "9" * 30), ":1: Expected `int` <= 1000000000 - at `$.input_length`", ""),
    "huge id": (MOONCAKE.replace("[0, 1]", f"[0, {2**63}]"), ":1: Expected `int` <=", ""),
    "string in JSON": (MOONCAKE + LATER.replace("1100", '"x"'), ":2: Expected `int`, got `str`", ""),
    "null in JSON": (MOONCAKE.replace("600", "null"), ":1: Expected `int`, got `null`", ""),
    "NaN in JSON": (MOONCAKE + LATER.replace("1100", "NaN"), ":2: JSON is malformed", "each line is an object"),
    "number as line": (MOONCAKE + "3\n", ":2: Expected `object`, got `int`", ""),
    "deep JSON": ('{"a": ' + "[" * 10_000 + "\n", ":1: maximum recursion depth", "one whole JSON object a line"),
    "deep JSON later": (MOONCAKE + '{"a": ' + "[" * 10_000 + "]" * 10_000 + "}\n", ":2: maximum recursion depth", ""),
    # times
    "before 0": (PLAIN + "-1,1,2\n", ":2: the request arrives before second 0", ""),
    "before 0 in JSON": (MOONCAKE.replace(": 0,", ": -3,"), ":1: the request arrives before second 0", ""),
    "unsorted": (PLAIN + "0,1,1\n2,1,1\n1,1,1\n", ":4: the request arrives before the one above it", "--sort"),
    "unsorted BurstGPT": (BURST + "9,x,1,1,2,y\n8,x,1,1,2,y\n", ":3: the request arrives before the one above", ""),
    "no time": (AZURE + "2024-05-10 00:00:00,1,2\nx,1,2\n", ":3: TIMESTAMP is no time: x,1,2", "2023-11-16"),
    "no time at all": (AZURE + "x,1,2\n", ":2: TIMESTAMP is no time", ""),
    "the moment of reading": (AZURE + "now,1,2\n", ":2: TIMESTAMP is no time: now", "2023-11-16"),
    "the day of reading": (AZURE + "today,1,2\n", ":2: TIMESTAMP is no time: today", "2023-11-16"),
    "zone, then none": (
        AZURE + "2024-05-10 00:00:00.1+00:00,1,2\n2024-05-10 00:00:01,1,2\n",
        ":3: times with and without an offset from UTC: 2024-05-10 00:00:01,1,2",
        "all of them one, or none",
    ),
    "none, then zone": (
        AZURE + "2024-05-10 00:00:00,1,2\n2024-05-10 00:00:01Z,1,2\n",
        ":3: times with and without an offset from UTC",
        "",
    ),
    # lengths
    "negative": (PLAIN + "0,-1,2\n", ":2: a prompt of fewer than 0 tokens", ""),
    "negative answer": (PLAIN + "0,1,-2\n", ":2: an answer of fewer than 0 tokens", ""),
    "no prompt": (PLAIN + "0,0,2\n", ":2: a prompt of 0 tokens", "--policy reject"),
    "no answer": (PLAIN + "0,1,0\n", ":2: an answer of 0 tokens", "--policy reject"),
    "no prompt in BurstGPT": (BURST + "5,x,0,1,1,y\n", ":2: a prompt of 0 tokens", ""),
    "too few ids": (MOONCAKE.replace("[0, 1]", "[0]"), ":1: the number of prefix ids contradicts", "512"),
    "too many ids": (MOONCAKE + LATER.replace("1100", "1024"), ":2: the number of prefix ids contradicts", ""),
    # files
    "cut in the middle": (MOONCAKE + MOONCAKE[:30] + "\n" + LATER, ":2: JSON is malformed", "each line is an object"),
    "cut at the head": (MOONCAKE[:30], ":1: ", "one whole JSON object a line"),
    "header only": (PLAIN, "has no request", "at least one"),
    "bare header": (PLAIN.strip(), "has no request", "at least one"),
    "empty": ("", "is empty", "a line of column names"),
    "binary": (b"\x00\x01\x02\x03", "is no text in UTF-8", "CSV or JSONL"),
    "Latin-1 head": ("pr\xe9nom\n".encode("latin1"), "is no text in UTF-8", ""),
    "Latin-1": ((PLAIN + "0,1,2\n\xe9,1,2\n").encode("latin1"), "is no text in UTF-8", ""),
}


@pytest.mark.parametrize(("text", "said", "hint"), BAD.values(), ids=BAD)
def test_a_mistake_names_its_line_and_what_would_work(text, said, hint, tmp_path):
    path = tmp_path / "t.trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(KvcalcError) as caught:
        read_trace(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.hint


def test_the_earliest_mistake_is_the_one_that_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(PLAIN + "0,1,2\n-1,1,2\n1,x,1\n")
    with pytest.raises(KvcalcError, match=r":3: the request arrives before second 0"):
        read_trace(path)
    path.write_text(PLAIN + "0,1,2\n1,1,x\nx,1,1\n2,2,2\n")
    with pytest.raises(KvcalcError, match=r":3: output_tokens is no number"):
        read_trace(path)
    path.write_text(MOONCAKE.replace("600", "-5") + "{{{\n" + LATER)
    with pytest.raises(KvcalcError, match=r":1: a prompt of fewer than 0 tokens"):
        read_trace(path)


def test_lines_are_counted_across_chunks(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(PLAIN + "".join(f"{i},1,2\n" for i in range(10)) + "4,1,1\n")
    with pytest.raises(KvcalcError, match=r":12: the request arrives before"):
        list(stream_trace(path, chunk_requests=3))
    path.write_text(PLAIN + "".join(f"{i},1,2\n" for i in range(10)) + "11,1\n12,1,1\n")
    with pytest.raises(KvcalcError, match=r":12: 2 fields"):
        list(stream_trace(path, chunk_requests=3))
    path.write_text(AZURE + "2024-05-10 00:00:00,1,2\n" * 5 + "2024-05-10 00:00:00Z,1,2\n")
    with pytest.raises(KvcalcError, match=r":7: times with and without an offset"):
        list(stream_trace(path, chunk_requests=5))


PACKED = {
    "plain": b"arrival_seconds",
    "cut": gzip.compress(PLAIN.encode() * 99)[:-9],
    # After the header of 10 bytes a block of type 3, which RFC 1951, 3.2.3, reserves as an error.
    "damaged": gzip.compress(PLAIN.encode())[:10] + b"\xff" * 40,
}


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
def test_what_is_no_whole_gzip_file_is_said_to_be_none(packed, tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(packed)
    with pytest.raises(KvcalcError, match=r"t\.csv\.gz is no whole gzip file") as caught:
        read_trace(path)
    assert "gzip -t" in caught.value.hint


def test_a_folder_and_a_file_that_is_not_there(tmp_path):
    with pytest.raises(KvcalcError, match="is a directory"):
        read_trace(tmp_path)
    with pytest.raises(KvcalcError, match="no such file"):
        read_trace(tmp_path / "none.csv")


def test_what_comes_through_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KvcalcError, match="is no plain file") as caught:
        read_trace(tmp_path / "pipe")
    assert "save what comes through a pipe" in caught.value.hint


def test_ctrl_c_within_pandas_stays_ctrl_c(tmp_path, monkeypatch):
    """A signal that comes while its parser calls for bytes, pandas turns into this error; seen with pandas 3."""
    (tmp_path / "t.csv").write_text(PLAIN + "0,1,2\n")

    def interrupted(*asked, **more):
        said = "Error tokenizing data. C error: Calling read(nbytes) on source failed. Try engine='python'."
        raise pd.errors.ParserError(said)

    monkeypatch.setattr(pd, "read_csv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_trace(tmp_path / "t.csv")


def test_limits_that_hold_nothing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(PLAIN + "0,5,2\n")
    with pytest.raises(KvcalcError, match="a context limit of 1 tokens holds no request"):
        read_trace(path, max_context=1)
    with pytest.raises(KvcalcError, match="a trace of 0 requests"):
        read_trace(path, limit=0)
    with pytest.raises(KvcalcError, match="unknown policy"):
        read_trace(path, policy="drop")
    with pytest.raises(KvcalcError, match="has no request; left out: above the context limit: 1"):
        read_trace(path, max_context=6, policy="reject")
