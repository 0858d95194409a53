"""A running OpenAI-compatible server, timed: concurrent streams of one shape, with its cache beside them.

Nothing of the server is known but its address, so a small request first tells how many tokens its
tokenizer makes of a word; the prompts are then as long as asked, and alike but for their first words,
lest a prefix cache hide the prefill.
"""

import re
import secrets
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from itertools import cycle, islice
from threading import Event
from time import perf_counter
from typing import Annotated, TypeVar

import msgspec

from kvcalc.errors import KvcalcError, printable
from kvcalc.profiler.server_client import Client, in_thread
from kvcalc.profiler.server_exchange import Stopped, excerpt
from kvcalc.profiler.server_metrics import CacheFigures, CacheMeter
from kvcalc.profiler.server_stream import StreamTiming, Tape, Usage

__all__ = ["CacheFigures", "ServerRequest", "ServerRun", "StreamTiming", "time_server"]


class ServerRequest(msgspec.Struct, frozen=True):
    """What to ask of which server; `model` None means the first that it serves."""

    url: str
    model: str | None
    prompt_tokens: int
    output_tokens: int
    streams: int
    api_key: str | None = None
    timeout_seconds: float = 120.0
    warm_up: bool = True


class ServerRun(msgspec.Struct, frozen=True):
    """The streams' timings, in the order of their start; `wall_seconds` is from first request to last token."""

    served_model: str
    streams: list[StreamTiming]
    wall_seconds: float
    cache: CacheFigures
    doubts: list[str]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all streams for each second of wall time."""
        return sum(stream.tokens for stream in self.streams) / self.wall_seconds


def time_server(request: ServerRequest, progress: Callable[[int], None] | None = None) -> ServerRun:
    """Time `request.streams` concurrent completions; `progress` hears the chunks of all so far, every 0.1 s.

    Raises KvcalcError if the server is not there, refuses, is late, or sends what no completion is.
    """
    _check(request)
    with Client(request.url, request.api_key, request.timeout_seconds) as client:
        model = request.model or _first_model(client)
        doubts: list[str] = []
        words = _words_for(client, model, request.prompt_tokens, doubts)
        if request.warm_up:
            Tape(_WARM_UP_TOKENS).read(client, _body(model, words, _WARM_UP_TOKENS))
        meter = CacheMeter(client)
        tapes = _run_streams(client, meter, model, words, request, progress)
    streams = [tape.timing() for tape in tapes]
    starts = [tape.sent_at for tape in tapes]
    wall_seconds = max(tape.arrivals[-1] for tape in tapes) - min(starts)
    doubts += [*_doubts(request, streams), *doubts_of_starts(starts, wall_seconds), *meter.doubts()]
    return ServerRun(printable(model), streams, wall_seconds, meter.figures(), doubts)


_WARM_UP_TOKENS = 4
_MOST_STREAMS = 1024
_FAR_TOO_MANY = 10**9


def _check(request: ServerRequest) -> None:
    for name in ("prompt_tokens", "output_tokens", "streams", "timeout_seconds"):
        if not 0 < getattr(request, name) < _FAR_TOO_MANY:
            raise KvcalcError(
                f"{name} is {getattr(request, name)}", "more than 0 and less than 1,000,000,000 is needed"
            )
    if request.streams > _MOST_STREAMS:
        raise KvcalcError(f"{request.streams:,} streams", f"at most {_MOST_STREAMS:,}, as each takes a thread")
    if request.model is not None and not request.model.isprintable():
        raise KvcalcError(f"{printable(request.model)!r} is no model's name", "the server lists those under /v1/models")


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Completion(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: Usage | None = None


_Answer = TypeVar("_Answer", _Models, _Completion)


def _decode(content: bytes, kind: type[_Answer], url: str) -> _Answer:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, RecursionError):
        hint = "--url takes a server that speaks OpenAI's completions API, often at an address that ends in /v1"
        raise KvcalcError(f"{url} sent no such answer as OpenAI's API has: {excerpt(content)}", hint) from None


def _first_model(client: Client) -> str:
    url = f"{client.base}/models"
    served = _decode(client.read(url), _Models, url).data
    if not served:
        raise KvcalcError(f"{url} lists no model", "name the served model")
    return served[0].id


_CALIBRATION_WORDS = 256
_LEAST_CALIBRATION_WORDS = 8


def _words_for(client: Client, model: str, tokens: int, doubts: list[str]) -> int:
    """How many words of a prompt make about `tokens` tokens, by the server's own count of a shorter prompt."""
    # A quarter, since the server may serve no longer a context than the one asked for.
    words = min(_CALIBRATION_WORDS, max(_LEAST_CALIBRATION_WORDS, tokens // 4))
    url = f"{client.base}/completions"
    answer = _decode(client.read(url, _body(model, words, 1, stream=False)), _Completion, url)
    counted = answer.usage.prompt_tokens if answer.usage else None
    if not counted:
        doubts.append("the server counts no prompt tokens: a word is taken for one token")
        return tokens
    return max(1, tokens * words // counted)


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for a completion; `ignore_eos` is an extension that vLLM, SGLang and llama.cpp share."""

    model: str
    prompt: str
    max_tokens: int
    temperature: Annotated[float, msgspec.Meta(ge=0)]
    ignore_eos: bool
    stream: bool
    stream_options: _StreamOptions | None = None


def _body(model: str, words: int, output_tokens: int, stream: bool = True) -> bytes:
    options = _StreamOptions() if stream else None
    return msgspec.json.encode(_Body(model, prompt(words), output_tokens, 0.0, True, stream, options))


def prompt(words: int) -> str:
    """A prompt of so many words, whose first ones are drawn anew each time.

    Blocks of a prefix cache are found by all tokens up to their end, so no block is found twice.
    """
    drawn = [secrets.choice(_WORDS) for _ in range(min(words, _DRAWN_WORDS))]
    return " ".join(drawn + list(islice(cycle(_WORDS), words - len(drawn))))


_DRAWN_WORDS = 8
_WORDS = re.findall(
    "[a-z]+",
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car",
)


def _run_streams(
    client: Client,
    meter: CacheMeter,
    model: str,
    words: int,
    request: ServerRequest,
    progress: Callable[[int], None] | None,
) -> list[Tape]:
    """All streams at once, the meter beside them; returns their tapes in order."""
    bodies = [_body(model, words, request.output_tokens) for _ in range(request.streams)]
    tapes = [Tape(request.output_tokens) for _ in bodies]
    over = Event()
    polling = in_thread(partial(meter.poll, over)) if meter.read() else None
    streams = [in_thread(partial(tape.read, client, body)) for tape, body in zip(tapes, bodies, strict=True)]
    try:
        _wait(streams, lambda: progress(sum(len(tape.arrivals) for tape in tapes)) if progress else None)
        over.set()
        if polling:
            polling.result()
    finally:
        over.set()
        client.stop()
        wait(streams, timeout=_LEAVE_SECONDS)
    _raise_failures(streams)
    return tapes


_TICK_SECONDS = 0.1
_GRACE_SECONDS = 1.0
"""How long the other streams may still tell whether they fail too, once one has failed."""
_LEAVE_SECONDS = 2.0


def _wait(streams: list["Future[Tape]"], tick: Callable[[], None]) -> None:
    """Until all streams ended, or one failed and the others had their grace."""
    failed_at: float | None = None
    while wait(streams, timeout=_TICK_SECONDS).not_done:
        tick()
        if failed_at is None and any(stream.done() and stream.exception() for stream in streams):
            failed_at = perf_counter()
        if failed_at is not None and perf_counter() - failed_at > _GRACE_SECONDS:
            return
    tick()


def _raise_failures(streams: list["Future[Tape]"]) -> None:
    """One error for all streams that failed, beginning with how many they are."""
    failures = [failure for stream in streams if stream.done() and (failure := stream.exception())]
    own = [failure for failure in failures if not isinstance(failure, Stopped)]
    for failure in own:
        if len(streams) == 1 or not isinstance(failure, KvcalcError):
            raise failure
    if own and isinstance(own[0], KvcalcError):
        message = f"{len(own)} of {len(streams)} streams failed, the first: {own[0].message}"
        raise KvcalcError(message, own[0].hint) from None


def _doubts(request: ServerRequest, streams: list[StreamTiming]) -> list[str]:
    """What keeps the figures from meaning what they seem to."""
    doubts = (
        _doubt_of_counts(streams),
        _doubt_of_output(request.output_tokens, streams),
        _doubt_of_prompt(request.prompt_tokens, streams),
        _doubt_of_cached_prompts(streams),
    )
    return [doubt for doubt in doubts if doubt]


def doubts_of_starts(starts: list[float], wall_seconds: float) -> list[str]:
    """Streams begun one after another, as this machine begins hundreds of them, are not all concurrent."""
    spread = max(starts) - min(starts)
    if spread <= _MOST_SPREAD * wall_seconds:
        return []
    return [
        f"the streams began over {spread:.2f} s of {wall_seconds:.2f} s: more --output-tokens lets all of them overlap"
    ]


_MOST_SPREAD = 0.1


def _doubt_of_counts(streams: list[StreamTiming]) -> str | None:
    if any(stream.output_tokens is None for stream in streams):
        return "the server counts no output tokens: a chunk is taken for one token"
    tokens, chunks = sum(stream.tokens for stream in streams), sum(stream.chunks for stream in streams)
    if tokens == chunks:
        return None
    return f"{tokens:,} tokens came in {chunks:,} chunks: TPOT goes by tokens, the gaps are those between chunks"


def _doubt_of_output(wanted: int, streams: list[StreamTiming]) -> str | None:
    least = min(stream.tokens for stream in streams)
    if least < wanted:
        return f"a stream ended after {least:,} of {wanted:,} tokens: the server heeds no ignore_eos"
    return None


def _doubt_of_prompt(wanted: int, streams: list[StreamTiming]) -> str | None:
    counted = [stream.prompt_tokens for stream in streams if stream.prompt_tokens is not None]
    farthest = max(counted, key=lambda tokens: abs(tokens - wanted), default=wanted)
    if abs(farthest - wanted) > _MOST_PROMPT_ERROR * wanted:
        return f"a prompt was of {farthest:,} tokens where {wanted:,} were wanted"
    return None


def _doubt_of_cached_prompts(streams: list[StreamTiming]) -> str | None:
    cached = sum(stream.cached_prompt_tokens or 0 for stream in streams)
    if cached > _MOST_PROMPT_ERROR * sum(stream.prompt_tokens or 0 for stream in streams):
        return f"{cached:,} prompt tokens came from the server's prefix cache: TTFT holds less than their prefill"
    return None


_MOST_PROMPT_ERROR = 0.05
