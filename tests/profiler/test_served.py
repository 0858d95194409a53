"""Somebody's server as `kvcalc profile` times it: a fake vLLM on a real socket, and its figures beside predictions."""

import sys
from types import SimpleNamespace

import pytest
from fake_server import VLLM_IDLE, Handler, fake_servers, in_turn, stream_like_vllm

from kvcalc.profiler import served as module
from kvcalc.profiler.record import read_run

pytest.importorskip("httpx")

BUSY = VLLM_IDLE.replace("} 0.0", "} 0.0047")
BLOCK, BLOCKS = 16, 27448
"""As the fake's page states them."""


@pytest.fixture
def serve():
    """Start fake servers: serve(gap_seconds=0.01) -> Fake; all end with the test."""
    with fake_servers() as start:
        yield start


@pytest.fixture
def run(kvcalc, tmp_path):
    """Profile a fake server: run(fake, "llama-8b", "--batch", "2") -> the answer and the run file; 8 tokens come."""

    def profile(fake, *arguments):
        out = tmp_path / "run.json"
        shape = ("--ctx", "100", "--osl", "8") if "--ctx" not in arguments else ("--osl", "8")
        answer = kvcalc("profile", *arguments, "--backend", "openai", "--url", fake.url, *shape, "-o", out, "--force")
        return SimpleNamespace(code=answer.code, err=answer.err, document=read_run(out) if out.exists() else None)

    return profile


# What is measured


def test_times_are_those_that_the_server_sleeps(serve, run):
    answer = run(serve(ttft_seconds=0.1, gap_seconds=0.02), "--batch", "3")
    served = answer.document["served"]
    assert answer.code == 0
    assert len(served["ttft"]["samples_seconds"]) == len(served["tpot"]["samples_seconds"]) == 3
    assert 0.1 <= served["ttft"]["median_seconds"] < 0.6
    assert 0.018 <= served["tpot"]["median_seconds"] < 0.1
    # 24 tokens in at least 0.1 + 7 x 0.02 s, all streams together.
    assert 24 / 2 < served["tokens_per_second"] <= 24 / 0.24
    assert served["served_model"] == "tiny-model"


def test_nothing_is_judged_of_a_server(serve, run):
    document = run(serve()).document
    assert document["verdict"] == {"memory": "not measured", "time": "not judged", "tolerance": None, "reasons": []}
    assert (document["machine"], document["points"], document["components"]) == (None, [], [])
    assert document["request"]["backend"] == "openai"


def test_a_stream_fills_the_context_with_its_prompt_and_its_output(serve, run):
    fake = serve(tokens_a_word=2.0)
    document = run(fake, "--ctx", "108", "--batch", "2").document
    assert [len(body["prompt"].split()) for body in fake.bodies[-2:]] == [50, 50]  # 100 of 108 tokens, 2 a word
    assert [body["max_tokens"] for body in fake.bodies[-2:]] == [8, 8]
    assert (document["request"]["contexts"], document["request"]["batches"]) == ([108], [2])


def test_defaults_are_one_stream_of_2048_tokens(serve, kvcalc):
    fake = serve()
    answer = kvcalc("profile", "--backend", "openai", "--url", fake.url, "--format", "json")
    assert answer.json["request"]["contexts"] == [2048]
    assert answer.json["request"]["batches"] == [1]
    assert len(fake.bodies[-1]["prompt"].split()) == 2048 - 64


def test_the_named_model_is_asked(serve, run):
    fake = serve()
    assert run(fake, "--served-model", "other").document["served"]["served_model"] == "other"
    assert {body["model"] for body in fake.bodies} == {"other"}


# The cache beside the prediction


def test_the_servers_cache_stands_beside_the_prediction(serve, run):
    """Llama 3.1 8B keeps 2 x 32 layers x 8 heads x 128 numbers of 2 bytes a token (config.json, bf16)."""
    document = run(serve(pages=[VLLM_IDLE, BUSY]), "llama-8b", "--batch", "3").document
    a_token = 2 * 32 * 8 * 128 * 2
    assert document["served"]["cache"] == {
        "engine": "vllm",
        "block_tokens": BLOCK,
        "blocks": BLOCKS,
        "capacity_tokens": BLOCK * BLOCKS,
        "peak_usage_fraction": 0.0047,
        "peak_tokens": round(0.0047 * BLOCK * BLOCKS),
        "predicted_peak_tokens": 3 * 112,  # 100 tokens take 7 blocks
        "predicted_bytes_per_token": a_token,
        "predicted_pool_bytes": a_token * BLOCK * BLOCKS,
    }
    assert document["model"]["name"] == "llama-3.1-8b"
    assert document["request"]["layers"] == 32


@pytest.mark.parametrize(("flags", "bytes_each"), [(("--kv-dtype", "fp8"), 1), (("--dtype", "fp32"), 4)])
def test_formats_are_those_of_the_prediction(serve, run, flags, bytes_each):
    document = run(serve(pages=[VLLM_IDLE]), "llama-8b", *flags).document
    assert document["served"]["cache"]["predicted_bytes_per_token"] == 2 * 32 * 8 * 128 * bytes_each


def test_without_a_model_nothing_of_one_is_predicted(serve, run):
    document = run(serve(pages=[VLLM_IDLE, BUSY])).document
    cache = document["served"]["cache"]
    assert (cache["predicted_bytes_per_token"], cache["predicted_pool_bytes"]) == (None, None)
    assert cache["predicted_peak_tokens"] == 112
    assert document["model"] == {"name": "tiny-model", "source": ""}
    assert document["spec"] == {}


def test_a_server_without_metrics_has_no_figures(serve, run):
    answer = run(serve(), "llama-8b")
    assert answer.code == 0
    known = {name for name, value in answer.document["served"]["cache"].items() if value is not None}
    assert known == {"predicted_bytes_per_token"}
    assert any("no cache figures" in doubt for doubt in answer.document["doubts"])


def test_the_report_shows_times_and_cache(serve, kvcalc):
    fake = serve(pages=[VLLM_IDLE, BUSY])
    shown = kvcalc("profile", "llama-8b", "--backend", "openai", "--url", fake.url, "--ctx", "100", "--osl", "8").out
    assert f"tiny-model at {fake.url}: " in shown
    assert "time to first token" in shown and "time per output token" in shown
    assert "capacity tokens 439,168, peak usage 0.5%" in shown
    assert "predicted bytes per token 131,072, predicted pool 53.61 GiB" in shown
    bare = kvcalc("profile", "--backend", "openai", "--url", fake.url, "--ctx", "100", "--osl", "8").out
    assert "0 layers" not in bare and "unknown" not in bare


# Keys and streams


@pytest.mark.parametrize("flags", [("--api-key", "secret-7"), ("--api-key=secret-7",)])
def test_the_key_is_sent_and_not_written_down(serve, kvcalc, tmp_path, monkeypatch, flags):
    fake, out = serve(), tmp_path / "run.json"
    arguments = ["profile", "--backend", "openai", "--url", fake.url, "--ctx", "100", *flags, "-o", str(out)]
    monkeypatch.setattr(sys, "argv", ["kvcalc", *arguments])
    assert kvcalc(*arguments).code == 0
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer secret-7"}
    assert "secret-7" not in out.read_text()
    assert "--ctx 100 --api-key" in read_run(out)["environment"]["command"]


def test_the_key_may_stand_in_the_environment(serve, run, monkeypatch):
    monkeypatch.setenv("KVCALC_API_KEY", "secret-8")
    fake = serve()
    assert run(fake).code == 0
    assert fake.headers[-1]["authorization"] == "Bearer secret-8"


def one_token(handler: Handler, body):
    stream_like_vllm(handler, {**body, "max_tokens": 1})


def test_a_stream_of_one_token_has_no_time_between_tokens(serve, run):
    answer = run(serve(stream=one_token))
    assert (answer.code, answer.document) == (2, None)
    assert "no time lies between the tokens of any stream" in answer.err


def test_streams_without_such_a_time_are_left_out_and_doubted(serve, run):
    fake = serve(stream=in_turn(stream_like_vllm, stream_like_vllm, one_token, stream_like_vllm), gap_seconds=0.01)
    document = run(fake, "--batch", "3").document
    assert len(document["served"]["tpot"]["samples_seconds"]) == 2
    assert len(document["served"]["ttft"]["samples_seconds"]) == 3
    assert any("1 of 3 streams" in doubt for doubt in document["doubts"])


def test_ctrl_c_ends_with_130(serve, run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "time_server", interrupt)
    answer = run(serve())
    assert (answer.code, answer.document) == (130, None)


# What is refused

REFUSED = {
    "no server": ([], "--backend openai times a server, and none is named"),
    "several contexts": (["--url", "U", "--ctx", "1k,2k"], "--ctx gives 2 numbers"),
    "several batches": (["--url", "U", "--batch", "1", "--batch", "2"], "--batch gives 2 numbers"),
    "no prompt": (["--url", "U", "--ctx", "64", "--osl", "64"], "--ctx 64 leaves no prompt before 64 output tokens"),
    "one token": (["--url", "U", "--osl", "1"], "--output-tokens 1: nothing lies between"),
    "layers": (["--url", "U", "--layers", "2"], "--layers: --backend openai leaves that to the server"),
    "a device": (["--url", "U", "--device", "cpu"], "--device: --backend openai leaves that to the server"),
    "a tolerance": (["--url", "U", "--tolerance", "20%"], "--tolerance: --backend openai leaves that to the server"),
    "a format of nothing": (["--url", "U", "--kv-dtype", "fp8"], "--kv-dtype is about a prediction, and no MODEL"),
    "an unknown model": (["lama-8b", "--url", "U"], "unknown model 'lama-8b'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_server_cannot_be_asked_is_refused_before_it_is_asked(serve, kvcalc, what):
    fake = serve()
    arguments, says = REFUSED[what]
    answer = kvcalc("profile", "--backend", "openai", *(fake.url if one == "U" else one for one in arguments))
    assert (answer.code, answer.out, fake.headers) == (2, "", [])
    assert says in answer.err
    assert "\nhint: " in answer.err


@pytest.mark.parametrize("flag", ["--url", "--served-model", "--api-key", "--output-tokens"])
def test_flags_of_a_server_need_the_backend(kvcalc, flag):
    answer = kvcalc("profile", flag, "8")
    assert answer.code == 2
    assert f"{flag}: --backend reference asks no server" in answer.err
    assert "use --backend openai" in answer.err


def test_a_server_that_is_not_there_is_one_error(kvcalc):
    answer = kvcalc("profile", "--backend", "openai", "--url", "http://127.0.0.1:9/v1")
    assert answer.code == 2
    assert "nothing answers at http://127.0.0.1:9/v1" in answer.err
