"""kvcalc sweep on the command line: its document, its files, and what is refused."""

import csv
import importlib.util
import json
import math

import jsonschema
import msgspec
import pytest

from kvcalc.picture import STYLE
from kvcalc.speed.sweep import picture
from kvcalc.speed.sweep.documents import SCHEMAS

ASKED = (
    "sweep",
    "llama-8b",
    "--gpu",
    "h100-sxm,h200-sxm",
    "--tp",
    "1,2",
    "--batch",
    "1..256*4",
    "--isl",
    "2K",
    "--osl",
    "256",
)
SEARCHED = ("sweep", "llama-8b", "--gpu", "h100-sxm", "--isl", "2K", "--max-tpot", "20ms", "--price", "h100-sxm=2.5/h")
POINTS = 2 * 2 * 5


def validated(answer, code=0):
    assert answer.code == code, answer.err
    jsonschema.validate(answer.json, msgspec.json.schema(SCHEMAS["kvcalc.sweep-1"]))
    assert answer.json["schema"] == "kvcalc.sweep/1"
    return answer.json


def test_the_documents_keep_their_schema(kvcalc):
    points = validated(kvcalc(*ASKED, "--format", "json"))
    assert len(points["points"]) == POINTS
    assert points["request"]["gpus"] == ["h100-sxm5-80gb", "h200-sxm-141gb"]
    assert points["request"]["batches"] == [1, 4, 16, 64, 256]
    assert points["request"]["contexts"] == [2304]
    served = validated(kvcalc(*ASKED, "--served", "--power", "h100-sxm=700W", "--format", "json"))
    assert {point["joules_per_token"] is None for point in served["points"] if point["fits"]} == {True, False}
    memory = validated(kvcalc("sweep", "llama-8b", "--ctx", "1K..1M", "--kv-dtype", "bf16,fp8", "--format", "json"))
    assert len(memory["points"]) == 22
    assert "some contexts pass the 131,072 tokens of llama-3.1-8b" in memory["notes"]
    answers = validated(kvcalc(*SEARCHED, "--format", "json"))
    assert [one["limited_by"] for one in answers["answers"]] == ["TPOT"]
    assert answers["request"]["goals"]["max_tpot_seconds"] == pytest.approx(0.02)
    nobody = validated(kvcalc(*SEARCHED[:-4], "--max-tpot", "1us", "--format", "json"), code=1)
    assert nobody["answers"][0]["copies"] is nobody["answers"][0]["gpus"] is None


def test_files_say_the_same(kvcalc, tmp_path):
    document = kvcalc(*ASKED, "--format", "json").json["points"]
    for suffix in ("csv", "jsonl"):
        assert kvcalc(*ASKED, "-o", tmp_path / f"s.{suffix}").code == 0
    assert [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()] == document
    with (tmp_path / "s.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == POINTS
    for row, point in zip(rows, document, strict=True):
        assert list(row) == list(point)
        assert row["step_seconds"] == ("" if point["step_seconds"] is None else repr(point["step_seconds"]))
        assert row["pareto"] == str(point["pareto"])
    assert kvcalc(*ASKED, "--format", "csv").out == (tmp_path / "s.csv").read_text()


def test_parquet_keeps_counts_and_gaps(kvcalc, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    document = kvcalc(*ASKED, "--format", "json").json["points"]
    assert kvcalc(*ASKED, "-o", tmp_path / "s.parquet").code == 0
    table = parquet.read_table(tmp_path / "s.parquet")
    assert table.to_pylist() == document
    assert str(table.schema.field("total_bytes").type) == "int64"
    assert kvcalc(*SEARCHED[:-4], "--max-tpot", "1us", "-o", tmp_path / "none.parquet").code == 1
    assert parquet.read_table(tmp_path / "none.parquet").to_pylist()[0]["copies"] is None


def test_a_missing_extra_is_one_line(kvcalc, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    parquet = kvcalc(*ASKED, "-o", tmp_path / "s.parquet")
    assert (parquet.code, parquet.err.splitlines()[0]) == (2, "error: Parquet needs pyarrow")
    plot = kvcalc(*ASKED, "--plot", tmp_path / "s.svg")
    assert (plot.code, plot.err.splitlines()[0]) == (2, "error: a picture needs matplotlib")
    assert list(tmp_path.iterdir()) == []


def test_pictures(kvcalc, tmp_path):
    assert kvcalc(*ASKED, "--plot", tmp_path / "speed.svg", "--served").code == 0
    drawn = (tmp_path / "speed.svg").read_text()
    assert "<svg" in drawn
    assert (
        kvcalc(
            "sweep", "llama-8b", "gemma-3-27b", "--ctx", "1K..64K", "--batch", "1,8", "--plot", tmp_path / "m.png"
        ).code
        == 0
    )
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    many = kvcalc("sweep", "llama-8b", "--batch", f"1..{picture.MOST_DRAWN + 1}+1", "--plot", tmp_path / "x.svg")
    assert (many.code, "too many to draw" in many.err) == (2, True)
    none = kvcalc("sweep", "llama-3.1-70b", "--gpu", "h100-sxm", "--plot", tmp_path / "x.svg")
    assert (none.code, "nothing to draw" in none.err) == (2, True)


def test_a_screen_shows_the_front_and_the_best_first(kvcalc):
    front = kvcalc(*ASKED, "--served")
    assert f"{POINTS} points" in front.out
    assert "TTFT under load is uncertain" in front.err
    best = kvcalc(
        "sweep", "llama-3.1-70b", "--gpu", "h100-sxm", "--weights", "fp8", "--users", "100", "--max-tpot", "40ms"
    )
    gpus = [int(line.split()[1]) for line in best.out.partition(" GPUs ")[2].splitlines()[1:] if line]
    assert len(gpus) == 4
    assert gpus == sorted(gpus)
    some = kvcalc(
        "sweep", "llama-3.1-70b", "--gpu", "h100-sxm", "--weights", "fp8", "--rate", "5/s", "--max-tpot", "20ms"
    )
    assert (some.code, "3 of 4 deployments serve it" in some.out) == (0, True)
    assert some.out.splitlines()[-1].split()[0] == "1"
    long = kvcalc("sweep", "llama-8b", "--batch", "1..100+1")
    assert "the first 20 of 100 rows" in long.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "abacus"), "abacus"),
        (("--gpu", "h100"), "may be any of 3 GPUs"),
        (("--gpu", "h100-sxm", "--kv-dtype", "fp9"), "fp9"),
        (("--gpu", "h100-sxm", "--weights", "fp8,fp7"), "fp7"),
        (("--gpu", "h100-sxm", "--batch", "8..1"), "runs backwards"),
        (("--gpu", "h100-sxm", "--batch", "0"), "at least 1"),
        (("--gpu", "h100-sxm", "--batch", "1..1000000000+1"), "a grid of 1,000,000,000 points"),
        (("--gpu", "h100-sxm", "--batch", "1..2000000+1"), "too many for one document"),
        (("--gpu", "h100-sxm", "--ctx", "1K", "--isl", "2K"), "--ctx and --isl both say it"),
        (("--gpu", "h100-sxm", "--ctx", "128", "--osl", "128"), "no prompt"),
        (("--gpu", "h100-sxm", "--price", "h100-sxm=2.5"), "needs its unit"),
        (("--gpu", "h100-sxm", "--price", "h100-sxm=-2.5/h"), "above 0"),
        (("--gpu", "h100-sxm", "--max-tpot", "30"), "needs its unit"),
        (("--gpu", "h100-sxm", "--max-tpot", "30ms", "--batch", "1..8"), "leave --batch out"),
        (("--gpu", "h100-sxm", "--users", "8", "--rate", "1/s"), "two ways"),
        (("--gpu", "h100-sxm", "--users", "-8"), "--users"),
        (("--gpu", "h100-sxm", "--users", "8", "--plot", "x.svg"), "draws the points of a grid"),
        (("--gpu", "h100-sxm", "--plot", "x.pdf"), "a picture is .svg or .png"),
        (("--gpu", "h100-sxm", "-o", "x.xls"), "names no format"),
        (("--gpu", "h100-sxm", "--format", "parquet"), "-o sweep.parquet"),
        (("--gpu", "h100-sxm", "--engine", "abacus"), "abacus"),
        (("--gpu", "h100-sxm", "--pp", "64"), "only 32 layers"),
        (("--served",), "no GPU is named"),
        (("--price", "h100-sxm=1/h"), "no GPU is named"),
        (("--weights", "fp8"), "no GPU is named"),
        (("--engine", "gpt-fast"), "gpt-fast"),
        (("--engine", "vllm,abacus"), "abacus"),
        (("--engine", "vllm@99"), "rules are known for vllm"),
        (("--gpu", "h100-sxm", "--engine", "sglang@0.1"), "rules are known for sglang"),
        (("--engine", "llama.cpp", "--tp", "2"), "not a cache over ranks"),
        (("-o", "/nowhere/s.csv"), "No such file"),
        (("-o", "."), "is a directory"),
    ],
)
def test_wrong_questions(kvcalc, arguments, message):
    answer = kvcalc("sweep", "llama-8b", *arguments)
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.parametrize("flag", ["-o", "--plot"])
def test_files_that_exist_are_kept(kvcalc, tmp_path, flag):
    path = tmp_path / ("s.svg" if flag == "--plot" else "s.csv")
    path.write_text("mine")
    kept = kvcalc(*ASKED, flag, path)
    assert (kept.code, path.read_text()) == (2, "mine")
    assert "--force" in kept.err
    assert kvcalc(*ASKED, flag, path, "--force").code == 0
    assert path.read_text() != "mine"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_large_grids_stream(kvcalc, tmp_path, monkeypatch):
    whole, pieces = tmp_path / "whole.csv", tmp_path / "pieces.csv"
    asked = (*ASKED[:6], "--batch", "1..40+1", "--isl", "1K..8K", "-o")
    assert kvcalc(*asked, whole).code == 0
    monkeypatch.setattr("kvcalc.speed.sweep.axis.MOST_HELD", 10)
    monkeypatch.setattr("kvcalc.speed.sweep.cells.BLOCK_POINTS", 80)
    assert kvcalc(*asked, pieces).code == 0
    assert pieces.read_text() == whole.read_text()


def test_a_calibration_is_applied(kvcalc, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({
        "schema": "kvcalc.calibrate/1", "gpu": "h100-sxm5-80gb", "engine": "vllm", "factors": {"host": 3.0},
        "bands": {"decode, dense": 0.08}, "points": 12, "date": "2026-01-01", "device": "NVIDIA H100", "driver": None,
        "error_before": {"mape": 0.2, "median": 0.1}, "error_left_out": {"mape": 0.05, "median": 0.03},
    }))  # fmt: skip
    asked = ("sweep", "llama-8b", "--gpu", "h100-sxm", "--format", "json")
    documents = [kvcalc(*asked, *more).json for more in ((), ("--calibration", path))]
    plain, scaled = (document["points"][0]["step_seconds"] for document in documents)
    assert any("calibrated on 12 points" in note for note in documents[1]["notes"])
    # 500 us a step and 10 us a sequence become three times as much.
    assert math.isclose(scaled - plain, 2 * 510e-6, rel_tol=1e-6)
    other = kvcalc("sweep", "llama-8b", "--gpu", "h200-sxm", "--calibration", path)
    assert (other.code, "was measured on h100-sxm5-80gb" in other.err) == (2, True)


def test_engines_are_told_apart(kvcalc):
    answer = validated(kvcalc("sweep", "llama-8b", "--engine", "vllm,sglang@0.5.20", "--format", "json"))
    assert [point["engine"].partition("@")[0] for point in answer["points"]] == ["vllm", "sglang"]
    assert answer["request"]["engines"] == [point["engine"] for point in answer["points"]]
    assert answer["request"]["engine"] is None
    assert answer["points"][1]["engine"] == "sglang@0.5.20"
    shown = kvcalc("sweep", "llama-8b", "--engine", "vllm,sglang", "--format", "markdown")
    assert "engine holds" in shown.out
    one = validated(kvcalc(*ASKED, "--engine", "vllm", "--format", "json"))
    assert one["request"]["engine"] == one["points"][0]["engine"]


def test_too_many_lines_are_refused_and_too_many_deployments_grey(kvcalc, tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "MOST_SERIES", 3)
    monkeypatch.setattr(picture, "MOST_CLOUDS", 3)
    lines = kvcalc("sweep", "llama-8b", "--ctx", "1K,2K", "--tp", "1,2,4,8", "--plot", tmp_path / "m.svg")
    assert (lines.code, "4 lines cannot be told apart" in lines.err) == (2, True)
    monkeypatch.setitem(STYLE, "svg.fonttype", "none")
    assert kvcalc(*ASKED, "--plot", tmp_path / "s.svg").code == 0
    assert "1 other deployment<" in (tmp_path / "s.svg").read_text()


def test_a_stopped_sweep_says_how_far_it_was_and_leaves_nothing(kvcalc, tmp_path, monkeypatch):
    from kvcalc.speed.sweep import grid

    made = grid.blocks

    def stopped(placed, asked):
        for number, block in enumerate(made(placed, asked)):
            if number == 2:
                raise KeyboardInterrupt
            yield block

    monkeypatch.setattr("kvcalc.speed.sweep.cells.BLOCK_POINTS", 100)
    monkeypatch.setattr("kvcalc.speed.sweep.axis.MOST_HELD", 10)
    monkeypatch.setattr(grid, "blocks", stopped)
    monkeypatch.setattr(grid, "FRAME_POINTS", 1)
    for name in ("s.csv", "s.jsonl", "s.parquet"):
        answer = kvcalc("sweep", "llama-8b", "--batch", "1..400+1", "-o", tmp_path / name)
        assert answer.code == 130
        assert answer.err == "error: stopped at 50% of 400 points\n"
    assert list(tmp_path.iterdir()) == []


def test_progress_is_for_terminals(monkeypatch, capsys):
    import sys

    from kvcalc.cli import progress
    from kvcalc.cli.sweep_options import SweepOutput

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    for is_terminal, quiet, seconds, wanted in (
        (True, False, 10, "\r\x1b[K25% of 400 points, 30 s left\r\x1b[K"),
        (True, False, 100, "\r\x1b[K25% of 400 points, 5 min 00 s left\r\x1b[K"),
        (True, False, 0.5, ""),
        (False, False, 10, ""),
        (True, True, 10, ""),
    ):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        now[0] = 0.0
        with progress.Watch(SweepOutput(quiet=quiet)) as watch:
            now[0] = seconds
            watch.progress(100, 400)
        assert capsys.readouterr().err == wanted
