"""A server that is not there, refuses, is late or sends what no completion is: each is one error, and soon."""

import builtins
import json
import os
import signal
import socket
import threading
import time

import pytest
from fake_server import Fake, Handler, ask, fake_servers, in_turn, refusal, stream_like_vllm

from kvcalc.profiler.server_metrics import CacheFigures

pytest.importorskip("httpx")


@pytest.fixture
def serve():
    """Start fake servers: serve(gap_seconds=0.01) -> Fake; all end with the test."""
    with fake_servers() as start:
        yield start


# What goes wrong before the first token


def test_a_server_that_is_down(serve):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        error = refusal(Fake(url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1"))
    assert "nothing answers" in error.message
    assert "Connection refused" in error.message


def test_a_url_without_v1(serve):
    fake = serve()
    error = refusal(Fake(url=fake.url.removesuffix("/v1")))
    assert "404" in error.message
    assert "forget /v1" in error.hint


def test_a_model_that_is_not_served(serve):
    said = '{"object":"error","message":"The model `x` does not exist.","code":404}'
    error = refusal(serve(answers={"/v1/completions": lambda handler: handler.say(404, said)}), model="x")
    assert "The model `x` does not exist" in error.message
    assert "/v1/models" in error.hint


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/metrics"])
def test_a_server_that_says_nothing(serve, path):
    fake = serve(answers={path: Handler.hold})
    if path == "/metrics":
        run = ask(fake, timeout_seconds=0.3)
        assert run.cache == CacheFigures()
        assert any("no cache figures" in doubt and "0.3 s" in doubt for doubt in run.doubts)
    else:
        assert "sent nothing of use for 0.3 s" in refusal(fake, timeout_seconds=0.3).message


def test_headers_that_drip_are_silence(serve):
    def drip(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
        while not handler.fake.over.wait(0.05):
            handler.wfile.write(b"a")

    assert "0.4 s" in refusal(serve(answers={"/v1/models": drip}), timeout_seconds=0.4).message


def test_500_shows_what_the_server_says_in_200_printable_characters(serve):
    said = "CUDA out of memory\x1b[31m\nTraceback " + "x" * 100_000
    error = refusal(serve(answers={"/v1/completions": lambda handler: handler.say(500, said)}))
    assert "answered 500: CUDA out of memory_[31m Traceback xxx" in error.message
    assert len(error.message) < 300
    assert error.message.isprintable()


def test_an_error_page_without_end_is_read_no_further_than_needed(serve):
    sent = [0]

    def endless(handler):
        handler.send_response(502)
        handler.end_headers()
        while not handler.fake.over.is_set():
            handler.wfile.write(b"x" * 65536)
            sent[0] += 65536

    assert "answered 502: xxx" in refusal(serve(answers={"/v1/models": endless})).message
    assert sent[0] < 64 << 20


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "KVCALC_API_KEY"), (403, "--api-key"), (400, "--ctx"), (503, "loading")]
)
def test_statuses_hint_at_what_helps(serve, status, hint):
    error = refusal(serve(answers={"/v1/models": lambda handler: handler.say(status, "no")}))
    assert f"answered {status}: no" in error.message
    assert hint in error.hint


def test_redirects_are_named_and_not_followed(serve):
    other = serve()
    fake = serve(answers={"/v1/models": lambda handler: handler.say(307, "", Location=f"{other.url}/models")})
    assert f"redirects to {other.url}/models" in refusal(fake).message
    fake = serve(answers={"/v1/completions": lambda handler: handler.say(308, "", Location=f"{other.url}/completions")})
    assert "redirects" in refusal(fake, api_key="secret").message
    assert other.headers == []


@pytest.mark.parametrize(
    "said", ["<html>hello</html>", "", "[]", '{"data": []}', '{"data": [{}]}', '{"data": ' + "[" * 100_000, "\xff\x00"]
)
def test_models_that_are_no_list(serve, said):
    refusal(serve(answers={"/v1/models": lambda handler: handler.say(200, said)}))


def test_an_answer_that_is_far_too_long(serve):
    fake = serve(answers={"/v1/models": lambda handler: handler.say(200, " " * (2 << 20))})
    assert "more than 1,048,576 bytes" in refusal(fake).message


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000/v1",
        "localhost:8000/v1",
        "ftp://127.0.0.1/v1",
        "file:///etc/passwd",
        "http://",
        "http:///v1",
        "http://127.0.0.1:99999/v1",
        "http://127.0.0.1:x/v1",
        "http://a..b/v1",
        "http://h\udcff/v1",
        "http://\x1b[31m/v1",
        "http://127.0.0.1/v1?model=x",
        "",
    ],
)
def test_what_is_no_http_address_is_refused(url):
    error = refusal(Fake(url=url))
    assert error.message.startswith("--url")
    assert "http://127.0.0.1:8000/v1" in error.hint
    assert error.message.isprintable()


def test_a_password_in_the_url_is_refused_and_not_shown():
    assert "hunter2" not in refusal(Fake(url="http://me:hunter2@127.0.0.1/v1")).message


@pytest.mark.parametrize("key", ["naïve", "two\r\nlines"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(key):
    assert key not in refusal(Fake(url="http://127.0.0.1:9/v1"), api_key=key).message


@pytest.mark.parametrize(
    "change",
    [{"streams": 0}, {"streams": 5000}, {"prompt_tokens": 0}, {"output_tokens": -1}, {"timeout_seconds": float("nan")}],
)
def test_counts_that_make_no_run_are_refused(change):
    refusal(Fake(url="http://127.0.0.1:9/v1"), **change)


def test_httpx_is_asked_for_where_it_is_missing(monkeypatch):
    real = builtins.__import__

    def no_httpx(name, *rest, **more):
        if name == "httpx":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_httpx)
    error = refusal(Fake(url="http://127.0.0.1:9/v1"))
    assert "needs httpx" in error.message
    assert error.hint == "pip install 'kvcalc[server]'"


# What goes wrong within a stream


def broken_stream(*parts, abort=False, then_hold=False):
    """Two tokens, then these bytes, and the connection's end: clean, torn off, or never."""

    def stream(handler, body):
        handler.begin_stream()
        handler.token()
        handler.token()
        for part in parts:
            handler.piece(part)
        if then_hold:
            handler.hold()
        elif not abort:
            handler.end_stream()
        handler.close_connection = True

    return stream


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (broken_stream(abort=True), "broke off after 2 chunks"),
        (broken_stream(), "ended the stream after 2 chunks"),
        (broken_stream(then_hold=True), "sent nothing of use for 0.5 s, after 2 chunks"),
        (broken_stream("GIF89a\x00\x01\n"), "no event of a stream: GIF89a__"),
        (broken_stream(b"\xff\xfe\xfd\n"), "no event of a stream"),
        (broken_stream("data: hello\n\n"), "no chunk of a completion: hello"),
        (broken_stream(b'data: {"choices": [{"text": "\xff"}]}\n\n'), "no chunk of a completion"),
        (broken_stream('data: {"x": ' + "[" * 50_000 + "\n"), "no chunk of a completion"),
        (broken_stream('data: {"choices": "none"}\n\n'), "no chunk of a completion"),
        (broken_stream('data: {"object": "chunk"}\n\n'), "an event without choices"),
        (broken_stream('data: {"error": {"message": "EngineDeadError", "code": 500}}\n\n'), "error after 2 chunks"),
        (broken_stream("data: " + "x" * (2 << 20) + "\n\n"), "a line of more than 1 MiB"),
        (broken_stream(*["y" * 65536] * 32, then_hold=True), "a line of more than 1 MiB"),
    ],
)
def test_a_stream_that_breaks_is_one_error(serve, stream, message):
    error = refusal(serve(stream=stream), timeout_seconds=0.5)
    assert message in error.message
    assert len(error.message) < 400


def test_the_error_that_the_server_reports_is_shown(serve):
    fake = serve(stream=broken_stream('data: {"error": {"message": "EngineDeadError"}}\n\n'))
    assert "EngineDeadError" in refusal(fake).message


def endless(handler, send):
    handler.begin_stream()
    while not handler.fake.over.is_set():
        send()


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (lambda handler, _: endless(handler, lambda: handler.token("")), "does not stop"),
        (lambda handler, _: endless(handler, handler.token), "does not stop"),
        (lambda handler, _: endless(handler, lambda: handler.piece(": ping\n\n")), "sent nothing of use for 0.5 s"),
        (lambda handler, _: endless(handler, lambda: handler.event({"choices": []})), "sent nothing of use for 0.5 s"),
    ],
)
def test_a_stream_without_end_is_cut_off(serve, stream, message):
    assert message in refusal(serve(stream=stream), timeout_seconds=0.5).message


def test_a_stream_without_a_token(serve):
    def stream(handler, body):
        handler.begin_stream()
        handler.event("[DONE]")
        handler.end_stream()

    assert "without a token" in refusal(serve(stream=stream)).message


def test_a_server_that_does_not_stream(serve):
    said = json.dumps({"choices": [{"text": "all at once", "finish_reason": "length"}]})
    assert "no event of a stream" in refusal(serve(stream=lambda handler, _: handler.say(200, said))).message


def test_some_failed_streams_fail_the_whole_and_are_counted(serve):
    torn = broken_stream(abort=True)
    fake = serve(stream=in_turn(torn, stream_like_vllm, torn, stream_like_vllm))
    error = refusal(fake, streams=4)
    assert error.message.startswith("2 of 4 streams failed, the first: http://")
    assert "broke off after 2 chunks" in error.message


def test_one_failure_does_not_wait_for_streams_that_hang(serve):
    fake = serve(stream=in_turn(broken_stream(abort=True), broken_stream(then_hold=True)))
    error = refusal(fake, streams=2, timeout_seconds=60.0)
    assert error.message.startswith("1 of 2 streams failed")


def test_ctrl_c_ends_the_streams_and_goes_on_to_the_caller(serve):
    fake = serve(stream=broken_stream(then_hold=True))
    before = threading.active_count()
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        ask(fake, streams=4, timeout_seconds=60.0)
    assert 0.5 <= time.perf_counter() - began < 20.0
    fake.over.set()
    deadline = time.perf_counter() + 20
    while threading.active_count() > before and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_an_error_of_the_caller_ends_the_streams_too(serve):
    def progress(_):
        raise ZeroDivisionError

    began = time.perf_counter()
    with pytest.raises(ZeroDivisionError):
        ask(serve(stream=broken_stream(then_hold=True)), streams=2, timeout_seconds=60.0, progress=progress)
    assert time.perf_counter() - began < 20.0
