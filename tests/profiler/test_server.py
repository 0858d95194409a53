"""A running server is timed: what is measured, and what is doubted of it."""

import json
import time

import pytest
from fake_server import VLLM, VLLM_IDLE, ask, fake_servers, stream_like_vllm

from kvcalc.profiler.server import doubts_of_starts, prompt
from kvcalc.profiler.server_stream import StreamTiming

pytest.importorskip("httpx")


@pytest.fixture
def serve():
    """Start fake servers: serve(gap_seconds=0.01) -> Fake; all end with the test."""
    with fake_servers() as start:
        yield start


# What is measured


def test_times_are_those_that_the_server_sleeps(serve):
    fake = serve(ttft_seconds=0.15, gap_seconds=0.03)
    run = ask(fake)
    (stream,) = run.streams
    assert 0.15 <= stream.ttft_seconds < 0.6
    assert len(stream.token_seconds) == 7
    # A chunk may be read late and the next one on time, so one gap can fall short; all together cannot by much.
    assert sum(stream.token_seconds) > 7 * 0.03 - 0.02
    assert sum(stream.token_seconds) < 7 * 0.03 + 0.5
    assert stream.tpot_seconds == pytest.approx(sum(stream.token_seconds) / 7)
    assert run.wall_seconds == pytest.approx(stream.ttft_seconds + sum(stream.token_seconds), abs=1e-6)
    assert run.tokens_per_second == pytest.approx(8 / run.wall_seconds)
    assert run.served_model == "tiny-model"


def test_streams_run_at_the_same_time(serve):
    fake = serve(ttft_seconds=0.2, gap_seconds=0.01)
    run = ask(fake, streams=6)
    assert len(run.streams) == fake.most_streams == 6
    assert all(stream.ttft_seconds >= 0.2 for stream in run.streams)
    # One after the other they would take six times 0.27 s.
    assert run.wall_seconds < 1.0
    assert run.tokens_per_second == pytest.approx(6 * 8 / run.wall_seconds)


def test_one_slow_stream_sets_the_wall_and_no_other_stream(serve):
    order = iter([0.4, 0.0])

    def stream(handler, body):
        time.sleep(next(order))
        stream_like_vllm(handler, body)

    run = ask(serve(stream=stream), streams=2)
    slow, fast = sorted(run.streams, key=lambda timing: -timing.ttft_seconds)
    assert slow.ttft_seconds >= 0.4 > fast.ttft_seconds
    assert run.wall_seconds >= 0.4


def test_the_request_asks_for_what_it_needs(serve):
    fake = serve()
    ask(fake, model="chosen", api_key="secret", output_tokens=5)
    (body,) = fake.bodies
    assert {name: value for name, value in body.items() if name != "prompt"} == {
        "model": "chosen",
        "max_tokens": 5,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer secret"}
    # What is packed arrives in lumps.
    assert {headers["accept-encoding"] for headers in fake.headers} == {"identity"}


@pytest.mark.parametrize("tokens_a_word", [0.5, 1.0, 1.3, 3.0])
def test_prompts_are_as_long_as_asked_whatever_the_tokenizer(serve, tokens_a_word):
    run = ask(serve(tokens_a_word=tokens_a_word), prompt_tokens=2000)
    assert run.streams[0].prompt_tokens == pytest.approx(2000, rel=0.02)
    assert run.streams[0].prompt_tokens <= 2000 + tokens_a_word
    assert not [doubt for doubt in run.doubts if "prompt" in doubt]


def test_prompts_differ_in_their_first_words(serve):
    fake = serve()
    ask(fake, streams=8)
    starts = {tuple(body["prompt"].split()[:8]) for body in fake.bodies}
    assert len(starts) == 8


@pytest.mark.parametrize("words", [1, 5, 8, 9, 300])
def test_a_prompt_has_as_many_words_as_asked(words):
    assert len(prompt(words).split()) == words


def test_the_warm_up_comes_before_the_timed_streams(serve):
    fake = serve()
    run = ask(fake, warm_up=True)
    assert len(run.streams) == 1
    warm_up, timed = fake.bodies
    assert warm_up["max_tokens"] < timed["max_tokens"]
    assert len(warm_up["prompt"].split()) == len(timed["prompt"].split())
    assert warm_up["prompt"] != timed["prompt"]


def test_progress_counts_the_chunks_up_to_the_last(serve):
    seen = []
    ask(serve(gap_seconds=0.05), streams=2, progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) > 2
    assert seen[-1] == 16


def test_nothing_is_doubted_of_a_clean_run(serve):
    assert ask(serve(pages=[VLLM_IDLE, VLLM])).doubts == []


# What is doubted


def test_several_tokens_in_a_chunk_are_counted_by_usage(serve):
    run = ask(serve(gap_seconds=0.02, tokens_a_chunk=4), output_tokens=16)
    (stream,) = run.streams
    assert stream.output_tokens == 16
    assert len(stream.token_seconds) == 3
    assert stream.tpot_seconds == pytest.approx(sum(stream.token_seconds) / 15)
    assert any("16 tokens came in 4 chunks" in doubt for doubt in run.doubts)


def test_without_usage_a_word_and_a_chunk_are_taken_for_a_token(serve):
    run = ask(serve(usage=False))
    (stream,) = run.streams
    assert (stream.prompt_tokens, stream.output_tokens, stream.tokens) == (None, None, 8)
    assert any("counts no prompt tokens" in doubt for doubt in run.doubts)
    assert any("counts no output tokens" in doubt for doubt in run.doubts)


def test_a_prefix_cache_that_helped_is_doubted(serve):
    run = ask(serve(cached_tokens=48))
    assert run.streams[0].cached_prompt_tokens == 48
    assert any("48 prompt tokens came from the server's prefix cache" in doubt for doubt in run.doubts)


def test_a_stream_that_stops_early_is_doubted(serve):
    def stream(handler, body):
        stream_like_vllm(handler, {**body, "max_tokens": 3})

    assert any("after 3 of 8 tokens" in doubt for doubt in ask(serve(stream=stream)).doubts)


def test_a_prompt_far_from_its_length_is_doubted(serve):
    def stream(handler, body):
        handler.fake.tokens_a_word = 2.0
        stream_like_vllm(handler, body)

    assert any("128 tokens where 64 were wanted" in doubt for doubt in ask(serve(stream=stream)).doubts)


def test_streams_that_begin_one_after_another_are_doubted():
    assert doubts_of_starts([5.0, 5.05], wall_seconds=1.0) == []
    (doubt,) = doubts_of_starts([5.0, 5.3], wall_seconds=1.0)
    assert "over 0.30 s of 1.00 s" in doubt


def test_one_token_has_no_tpot():
    assert StreamTiming(0.1, [], output_tokens=1).tpot_seconds is None
    # (0.3 + 0.3) / (3 - 1)
    assert StreamTiming(0.1, [0.3, 0.3], output_tokens=3).tpot_seconds == pytest.approx(0.3)


def test_an_empty_chunk_at_the_head_is_no_token_and_one_between_is(serve):
    def stream(handler, body):
        handler.begin_stream()
        handler.piece(": keep-alive\n\n")
        handler.token("")
        time.sleep(0.2)
        for text in (" a", "", " b"):
            handler.token(text)
        handler.token("", "stop")
        handler.event("[DONE]")
        handler.end_stream()

    (timing,) = ask(serve(stream=stream), output_tokens=3).streams
    assert timing.ttft_seconds >= 0.2
    assert timing.chunks == 3


def test_tokens_without_text_are_timed_where_usage_counts_them(serve):
    def stream(handler, body):
        handler.begin_stream()
        for _ in range(7):
            handler.token("")
        handler.token("", "length")
        handler.event({"choices": [], "usage": handler.counts(body, 8)})
        handler.event("[DONE]")
        handler.end_stream()

    (timing,) = ask(serve(stream=stream)).streams
    assert (timing.output_tokens, timing.chunks) == (8, 7)


def test_events_may_be_split_anywhere(serve):
    def stream(handler, body):
        handler.begin_stream()
        text = "".join(
            "data: " + json.dumps({"choices": [{"text": " é", "finish_reason": end}]}, ensure_ascii=False) + "\r\n\r\n"
            for end in (None, None, "length")
        )
        for byte in text.encode():
            handler.piece(bytes([byte]))
        handler.piece("data: [DO")
        handler.piece("NE]")
        handler.end_stream()

    assert ask(serve(stream=stream), output_tokens=3).streams[0].chunks == 3
