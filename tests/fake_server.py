"""A fake server on a real socket that streams as vLLM does, and misbehaves on request."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvcalc.errors import KvcalcError
from kvcalc.profiler.server import ServerRequest, time_server

HELD_SECONDS = 8
"""How long a silent server holds a request: far past every patience of these tests."""


@dataclass
class Fake:
    """What the fake server does; `bodies` are the streams asked of it, `headers` those of every POST."""

    ttft_seconds: float = 0.0
    gap_seconds: float = 0.0
    tokens_a_word: float = 1.0
    tokens_a_chunk: int = 1
    usage: bool = True
    cached_tokens: int = 0
    pages: list[str] | None = None
    stream: "Callable[[Handler, dict], None] | None" = None
    answers: "dict[str, Callable[[Handler], None]]" = field(default_factory=dict)
    bodies: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    streams_under_way: int = 0
    most_streams: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake: Fake

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path in self.fake.answers:
            self.fake.answers[self.path](self)
        elif self.path == "/v1/models":
            self.say(200, json.dumps({"object": "list", "data": [{"id": "tiny-model"}, {"id": "other"}]}))
        elif self.path == "/metrics" and self.fake.pages:
            self.say(200, self.fake.pages.pop(0) if len(self.fake.pages) > 1 else self.fake.pages[0])
        else:
            self.say(404, '{"detail":"Not Found"}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.fake.headers.append({name.lower(): value for name, value in self.headers.items()})
        if self.path in self.fake.answers:
            self.fake.answers[self.path](self)
        elif self.path != "/v1/completions":
            self.say(404, '{"detail":"Not Found"}')
        elif not body.get("stream"):
            usage = {"usage": self.counts(body, 1)} if self.fake.usage else {}
            self.say(200, json.dumps({"choices": [{"text": "a", "finish_reason": "length"}], **usage}))
        else:
            self.fake.bodies.append(body)
            (self.fake.stream or stream_like_vllm)(self, body)

    def counts(self, body, output_tokens):
        prompt_tokens = round(len(body["prompt"].split()) * self.fake.tokens_a_word)
        details = {"cached_tokens": self.fake.cached_tokens}
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "prompt_tokens_details": details,
        }

    def say(self, status, text, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text.encode())

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def piece(self, content):
        content = content.encode() if isinstance(content, str) else content
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self.wfile.flush()

    def event(self, data):
        self.piece("data: " + (data if isinstance(data, str) else json.dumps(data)) + "\n\n")

    def token(self, text=" a", finish_reason=None):
        self.event({"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})

    def end_stream(self):
        self.wfile.write(b"0\r\n\r\n")

    def hold(self):
        self.fake.over.wait(HELD_SECONDS)
        self.close_connection = True


def stream_like_vllm(handler, body):
    """Tokens one by one, the last with its finish_reason, then usage, then [DONE]."""
    fake = handler.fake
    fake.streams_under_way += 1
    fake.most_streams = max(fake.most_streams, fake.streams_under_way)
    handler.begin_stream()
    time.sleep(fake.ttft_seconds)
    chunks = -(-body["max_tokens"] // fake.tokens_a_chunk)
    for number in range(chunks):
        if number:
            time.sleep(fake.gap_seconds)
        handler.token(" a" * fake.tokens_a_chunk, "length" if number == chunks - 1 else None)
    if fake.usage and body["stream_options"]["include_usage"]:
        handler.event({"id": "cmpl-1", "choices": [], "usage": handler.counts(body, body["max_tokens"])})
    handler.event("[DONE]")
    handler.end_stream()
    fake.streams_under_way -= 1


class Quiet(ThreadingHTTPServer):
    """A client that hangs up is part of these tests."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass


def in_turn(*streams):
    """Each stream behaves as the next of `streams`."""
    order = iter(streams)

    def stream(handler, body):
        next(order)(handler, body)

    return stream


@contextmanager
def fake_servers():
    """Start fake servers: start(gap_seconds=0.01) -> Fake; all end with the block."""
    servers = []

    def start(**behaviour) -> Fake:
        fake = Fake(**behaviour)
        server = Quiet(("127.0.0.1", 0), type("Bound", (Handler,), {"fake": fake}))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        servers.append((fake, server))
        return fake

    yield start
    for fake, server in servers:
        fake.over.set()
        server.shutdown()
        server.server_close()


def ask(fake, **changes):
    """Time the fake server: 64 prompt tokens, 8 output tokens, one stream, 5 s of patience, no warm-up."""
    shape = {"prompt_tokens": 64, "output_tokens": 8, "streams": 1, "timeout_seconds": 5.0, "warm_up": False}
    progress = changes.pop("progress", None)
    return time_server(ServerRequest(**{"url": fake.url, "model": None, **shape, **changes}), progress)


def refusal(fake, within_seconds=3.0, **changes):
    """The error of timing the fake server, which has to come soon and to leave no thread behind."""
    began = time.perf_counter()
    with pytest.raises(KvcalcError) as caught:
        ask(fake, **changes)
    assert time.perf_counter() - began < within_seconds
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


# The labels are those of vLLM's CacheConfig, the lines as in https://docs.vllm.ai/en/stable/usage/metrics/.
VLLM = r"""# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 12345.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="say \"hi\", {you}\\"} 4.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="say \"hi\", {you}\\"} 0.25
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",calculate_kv_scales="False",cpu_offload_gb="0",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",is_attention_free="False",num_cpu_blocks="None",num_gpu_blocks="27448",num_gpu_blocks_override="None",sliding_window="None",swap_space="4"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5.0
"""
VLLM_IDLE = VLLM.replace("} 0.25", "} 0.0")
