"""kvcalc throughput on the command line: the document, the echo of what was asked, and what is refused."""

import jsonschema
import msgspec
import pytest

from kvcalc.cli.throughput import parse_rate
from kvcalc.errors import KvcalcError
from kvcalc.speed.documents import SCHEMAS

ASKED = ("throughput", "llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "4", "--weights", "fp8", "--isl", "2K", "--osl", "256",
         "--batch", "32", "--served", "--rate", "1/s", "--format", "json")  # fmt: skip


def test_the_document_keeps_its_schema(kvcalc):
    answer = kvcalc(*ASKED)
    assert answer.code == 0
    jsonschema.validate(answer.json, msgspec.json.schema(SCHEMAS["kvcalc.throughput-1"]))
    assert answer.json["schema"] == "kvcalc.throughput/1"
    request = answer.json["request"]
    assert (request["isl"], request["osl"], request["context_tokens"], request["batch"]) == (2048, 256, 2304, 32)
    assert (request["gpu"], request["engine"], request["rate_per_second"]) == ("h100-sxm5-80gb", "vllm", 1.0)


def test_terms_add_up(kvcalc):
    document = kvcalc(*ASKED).json
    for terms, seconds in (
        (document["terms"], document["decode"]["step_seconds"]),
        (document["prefill"]["terms"], document["prefill"]["seconds"]),
        (document["served"]["terms"], document["served"]["tpot_seconds"]),
    ):
        assert sum(term["seconds"] for term in terms) == pytest.approx(seconds)


def test_defaults_are_echoed(kvcalc):
    request = kvcalc("throughput", "llama-8b", "--gpu", "h200", "--format", "json")
    assert request.code == 2
    request = kvcalc("throughput", "llama-8b", "--gpu", "h200-sxm", "--format", "json").json["request"]
    assert (request["isl"], request["osl"], request["batch"], request["context_tokens"]) == (1024, 128, 1, 1152)


def test_a_table_says_what_limits(kvcalc):
    answer = kvcalc("throughput", "llama-8b", "--gpu", "rtx-4090", "--engine", "llama.cpp", "--weights", "q4_k_m")
    assert answer.code == 0
    assert "1,024 tokens in, 128 out, batch 1" in answer.out
    assert "weights bandwidth" in answer.out
    assert "rtx-4090 has no op tables" in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "abacus"), "abacus"),
        (("--gpu", "h100-sxm", "--batch", "0"), "--batch"),
        (("--gpu", "h100-sxm", "--rate", "2/s"), "--rate"),
        (("--gpu", "h100-sxm", "--served", "--rate", "-2/s"), "no rate above 0"),
        (("--gpu", "h100-sxm", "--isl", "128K", "--osl", "1K"), "pass the 131,072 tokens"),
        (("--gpu", "h100-sxm", "--batch", "4K"), "do not fit"),
        (("--gpu", "h100-sxm", "--weights", "fp7"), "fp7"),
        (("--gpu", "rtx-4090", "--weights", "fp8", "--engine", "torchserve"), "torchserve"),
        (("--gpu", "h100-sxm", "--draft-tokens", "3"), "--draft-tokens 3: drafting needs both"),
        (("--gpu", "h100-sxm", "--acceptance", "0.7"), "--acceptance: drafting needs both"),
        ((), "--gpu"),
    ],
)
def test_wrong_questions(kvcalc, arguments, message):
    answer = kvcalc("throughput", "llama-8b", *arguments)
    assert answer.code == 2
    assert message in answer.err


def test_force_answers_for_what_does_not_fit(kvcalc):
    answer = kvcalc("throughput", "deepseek-v3", "--gpu", "h100-sxm", "--force", "--format", "json")
    assert answer.code == 0
    assert answer.json["decode"]["step_seconds"] > 0


def test_a_title_says_how_ranks_are_used(kvcalc):
    asked = ("throughput", "deepseek-v3", "--gpu", "h200-sxm", "--weights", "fp8", "--tp", "8")
    assert "vllm tp 8 dp 8 attention-dp" in kvcalc(*asked, "--dp", "8", "--attention-dp").out
    assert "vllm tp 8 dcp 2" in kvcalc(*asked, "--dcp", "2").out


def test_a_rate_past_capacity_is_a_no(kvcalc):
    answer = kvcalc("throughput", "llama-8b", "--gpu", "h100-sxm", "--served", "--rate", "1000/s", "--format", "json")
    assert answer.code == 1
    assert answer.json["served"]["queued_ttft_seconds"] is None


@pytest.mark.parametrize(("text", "rate"), [("2/s", 2), ("90/min", 1.5), ("7200/h", 2)])
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["2", "2/d", "0/s", "nan/s", "inf/s", "x/s", ""])
def test_what_is_no_rate(text):
    with pytest.raises(KvcalcError):
        parse_rate(text)


def calibration(path, **changes):
    made = {
        "schema": "kvcalc.calibrate/1", "gpu": "h100-sxm5-80gb", "engine": "vllm", "factors": {"host": 2.0},
        "bands": {"decode, dense": 0.08}, "points": 12, "date": "2026-01-01", "device": "NVIDIA H100", "driver": None,
        "error_before": {"mape": 0.2, "median": 0.1}, "error_left_out": {"mape": 0.05, "median": 0.03},
    }  # fmt: skip
    path.write_bytes(msgspec.json.encode(made | changes))
    return str(path)


def test_a_calibration_is_applied(kvcalc, tmp_path):
    asked = ("throughput", "llama-8b", "--gpu", "h100-sxm", "--format", "json")
    plain, scaled = kvcalc(*asked).json, kvcalc(*asked, "--calibration", calibration(tmp_path / "c.json")).json
    host = [
        next(term["seconds"] for term in document["terms"] if term["name"] == "host") for document in (plain, scaled)
    ]
    assert host[1] == pytest.approx(2 * host[0])
    assert scaled["calibration"] == {
        "factors": {"host": 2.0}, "points": 12, "date": "2026-01-01", "device": "NVIDIA H100", "driver": None,
        "error_before": {"mape": 0.2, "median": 0.1}, "error_left_out": {"mape": 0.05, "median": 0.03},
    }  # fmt: skip
    assert plain["calibration"]["points"] is None
    # Nine in ten: as left-out points say where they do, as published ones do elsewhere.
    assert scaled["decode"]["upper_seconds"] == pytest.approx(1.08 * scaled["decode"]["step_seconds"])
    assert scaled["bands"]["prefill"] == plain["bands"]["prefill"]
    shown = kvcalc(*asked[:4], "--calibration", tmp_path / "c.json").out
    assert "calibrated on 12 points (2026-01-01, NVIDIA H100): 10.0% off (median) without it, left out 3.0%" in shown


def test_a_calibration_brings_its_engine(kvcalc, tmp_path):
    asked = ("throughput", "llama-8b", "--gpu", "h100-sxm", "--format", "json", "--calibration")
    answer = kvcalc(*asked, calibration(tmp_path / "torch.json", engine="torch", error_left_out=None))
    assert answer.json["request"]["engine"] == "torch"


def test_a_calibration_of_something_else(kvcalc, tmp_path):
    asked = ("throughput", "llama-8b", "--gpu", "h100-sxm", "--calibration")
    other = kvcalc(*asked, calibration(tmp_path / "gpu.json", gpu="b200-sxm"))
    assert (other.code, "measured on b200-sxm" in other.err) == (2, True)
    other = kvcalc(*asked, calibration(tmp_path / "engine.json", engine="sglang"), "--engine", "vllm")
    assert (other.code, "is of sglang" in other.err) == (2, True)
    (tmp_path / "none.json").write_text('{"schema": "kvcalc.profile/1"}')
    other = kvcalc(*asked, str(tmp_path / "none.json"))
    assert (other.code, "no kvcalc.calibrate/1: it says kvcalc.profile/1" in other.err) == (2, True)
    assert kvcalc(*asked, str(tmp_path / "missing.json")).code == 2
    for spoiled, message in (({"factors": {"luck": 2.0}}, "luck is no factor"), ({"factors": {"host": 0.0}}, "no factor of time"),
                             ({"factors": {"bandwidth": 1e300}}, "no factor of time"),
                             ({"bands": {"decode, dense": 1e308}}, "a band is no share"), ({"points": 0}, ">= 1"),
                             ({"bands": {"decode, dense": -0.1}}, "no share"), ({"points": "x"}, "Expected `int`")):  # fmt: skip
        other = kvcalc(*asked, calibration(tmp_path / "spoiled.json", **spoiled))
        assert (other.code, message in other.err) == (2, True), other.err
