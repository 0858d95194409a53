"""kvcalc calibrate on the command line: the file, what it shows, and what throughput makes of it."""

import csv
import gzip
import io
import json

import jsonschema
import msgspec
import pytest
from conftest import GOLDEN

from kvcalc.speed.documents import SCHEMAS

COLUMNS = (
    "model",
    "precision",
    "kv_precision",
    "gpu",
    "tp",
    "batch",
    "isl",
    "osl",
    "engine",
    "metric",
    "value",
    "unit",
)


@pytest.fixture
def measured(tmp_path):
    """Twelve published points of Llama-3.1-70B on H100 under vLLM as somebody's CSV."""
    text = gzip.decompress((GOLDEN / "throughput_points.csv.gz").read_bytes()).decode()
    rows = [
        row
        for row in csv.DictReader(io.StringIO(text))
        if (row["gpu"], row["engine"], row["metric"]) == ("h100_sxm", "vllm", "tpot_ms")
        and "Llama-3.1-70B" in row["model"]
    ]
    path = tmp_path / "m.csv"
    lines = [",".join(row[name] for name in COLUMNS).replace("h100_sxm", "h100-sxm") for row in rows[:12]]
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return path


def test_the_document_keeps_its_schema_and_is_the_file(kvcalc, measured, tmp_path):
    answer = kvcalc("calibrate", measured, "--format", "json")
    assert answer.code == 0
    jsonschema.validate(answer.json, msgspec.json.schema(SCHEMAS["kvcalc.calibrate-1"]))
    shown = kvcalc("calibrate", measured, "-o", tmp_path / "my.json")
    assert json.loads((tmp_path / "my.json").read_text()) == answer.json
    assert "reading weights and activations" in shown.out
    assert "left out in turn" in shown.out
    assert kvcalc("calibrate", measured, "-o", tmp_path / "my.json").code == 2
    assert kvcalc("calibrate", measured, "-o", tmp_path / "my.json", "--force", "-q").out == ""


def test_errors_and_points_add_up(kvcalc, measured):
    document = kvcalc("calibrate", measured, "--format", "json").json
    sizes = [abs(one["plain_seconds"] / one["seconds"] - 1) for one in document["measurements"]]
    assert document["error_before"]["mape"] == pytest.approx(sum(sizes) / 12)
    left_out = [abs(one["left_out_error"]) for one in document["measurements"]]
    assert document["error_left_out"]["mape"] == pytest.approx(sum(left_out) / 12)
    assert document["error_left_out"]["mape"] < document["error_before"]["mape"]
    assert [group["points"] for group in document["groups"]] == [12]
    rows = list(csv.DictReader(io.StringIO(kvcalc("calibrate", measured, "--format", "csv").out)))
    assert [float(row["seconds"]) for row in rows] == [one["seconds"] for one in document["measurements"]]


def test_throughput_takes_the_file_and_comes_nearer(kvcalc, measured, tmp_path):
    kvcalc("calibrate", measured, "-o", tmp_path / "my.json")
    row = next(csv.DictReader(io.StringIO(measured.read_text())))
    asked = ("throughput", row["model"], "--gpu", "h100-sxm", "--tp", row["tp"], "--weights", row["precision"], "--kv-dtype",
             row["kv_precision"], "--isl", row["isl"], "--osl", row["osl"], "--batch", row["batch"], "--served",
             "--format", "json")  # fmt: skip
    plain, scaled = kvcalc(*asked).json["served"], kvcalc(*asked, "--calibration", tmp_path / "my.json").json["served"]
    document = json.loads((tmp_path / "my.json").read_text())["measurements"][0]
    assert plain["tpot_seconds"] == pytest.approx(document["plain_seconds"])
    assert scaled["tpot_seconds"] == pytest.approx(document["calibrated_seconds"])
    assert scaled["tpot_upper_seconds"] / scaled["tpot_seconds"] < plain["tpot_upper_seconds"] / plain["tpot_seconds"]


def test_wrong_questions(kvcalc, measured, tmp_path):
    (tmp_path / "other.json").write_text('{"schema": "kvcalc.calibrate/1"}')
    other = kvcalc("calibrate", tmp_path / "other.json")
    assert (other.code, "it is a kvcalc.calibrate document" in other.err) == (2, True)
    other = kvcalc("calibrate", measured, "--gpu", "b200")
    assert (other.code, "no point of --gpu b200-sxm" in other.err) == (2, True)
    assert kvcalc("calibrate").code == 2
