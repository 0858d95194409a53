"""One streamed completion: its chunks as they arrive, and what they say of time and of tokens.

The format is that of OpenAI's completions, as vLLM, SGLang and llama.cpp speak it: server-sent
events, each `data:` line a JSON object with `choices`, the last ones with `usage`, then `[DONE]`.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.profiler.server_client import Client
from kvcalc.profiler.server_exchange import Exchange, excerpt

_Count = Annotated[int, msgspec.Meta(ge=0)]
_MOST_EMPTY_CHUNKS = 16
"""Chunks past the tokens asked for: those which open or end a stream without a token."""


class StreamTiming(msgspec.Struct, frozen=True):
    """One stream: seconds from the request to the first token, and those between the chunks that follow.

    The token counts are those of the server's usage block, None where it does not say.
    """

    ttft_seconds: float
    token_seconds: list[float]
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_prompt_tokens: int | None = None

    @property
    def chunks(self) -> int:
        """The chunks that delivered tokens."""
        return len(self.token_seconds) + 1

    @property
    def tokens(self) -> int:
        """The tokens delivered: the server's count, or one a chunk where it gives none."""
        return self.output_tokens or self.chunks

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token: (last token's time - first token's time) / (tokens - 1); None for one token."""
        return sum(self.token_seconds) / (self.tokens - 1) if self.tokens > 1 else None


class CachedTokens(msgspec.Struct, frozen=True):
    """Prompt tokens that were not computed anew."""

    cached_tokens: _Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """The server's own count of tokens."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: CachedTokens | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


class Tape:
    """What one stream delivered so far; times are seconds of `perf_counter`."""

    def __init__(self, output_tokens: int) -> None:
        self.output_tokens = output_tokens
        self.sent_at = 0.0
        self.arrivals: list[float] = []
        self._silent: list[float] = []
        self._usage = Usage()
        self._finished = False

    def read(self, client: Client, body: bytes) -> "Tape":
        """Record the completion that `body` asks for, to its end."""
        with client.exchange(f"{client.base}/completions", body) as exchange:
            for at, data in _events(exchange):
                if data == b"[DONE]":
                    self._finished = True
                    break
                self._take(exchange, at, _chunk(exchange, data))
            self.sent_at = exchange.sent_at
            self._close(exchange)
        return self

    def _take(self, exchange: Exchange, at: float, chunk: _Chunk) -> None:
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            self._finished |= choice.finish_reason is not None
            if choice.text or choice.finish_reason is None:
                # A chunk without text is a token that shows none, but not at the head: it may only open the stream.
                (self.arrivals if choice.text or self.arrivals else self._silent).append(at)
                exchange.heard()
        if len(self.arrivals) + len(self._silent) > self.output_tokens + _MOST_EMPTY_CHUNKS:
            raise KvcalcError(
                f"{exchange.url} does not stop: {exchange.chunks} chunks, where {self.output_tokens} tokens were asked",
                "--url takes a server that heeds max_tokens",
            )

    def _close(self, exchange: Exchange) -> None:
        """Raise if the stream ended before its end, or held no token."""
        if not self.arrivals and self._usage.completion_tokens:
            self.arrivals = self._silent
        if not self._finished:
            raise KvcalcError(
                f"{exchange.url} ended the stream {exchange.so_far()}, without finish_reason or [DONE]",
                "look into the server's log",
            )
        if not self.arrivals:
            raise KvcalcError(f"{exchange.url} ended the stream without a token", "look into the server's log")

    def timing(self) -> StreamTiming:
        """The stream as durations."""
        return StreamTiming(
            ttft_seconds=self.arrivals[0] - self.sent_at,
            token_seconds=[later - earlier for earlier, later in pairwise(self.arrivals)],
            prompt_tokens=self._usage.prompt_tokens,
            output_tokens=self._usage.completion_tokens,
            cached_prompt_tokens=(self._usage.prompt_tokens_details or CachedTokens()).cached_tokens,
        )


def _events(exchange: Exchange) -> Iterator[tuple[float, bytes]]:
    """The payloads of the stream's `data:` lines; comments, which keep a connection alive, are passed over."""
    for at, line in exchange.lines():
        field, _, value = line.partition(b":")
        if field == b"data" and value.strip():
            yield at, value.strip()
        elif field not in (b"", b"data", b"event", b"id", b"retry"):
            raise exchange.garbage("a line that is no event of a stream", line)


def _chunk(exchange: Exchange, data: bytes) -> _Chunk:
    try:
        chunk = msgspec.json.decode(data, type=_Chunk)
    except (msgspec.DecodeError, RecursionError):
        raise exchange.garbage("an event that is no chunk of a completion", data) from None
    if bytes(chunk.error) != b"null":
        raise KvcalcError(
            f"{exchange.url} reported an error {exchange.so_far()}: {excerpt(bytes(chunk.error))}",
            "look into the server's log",
        )
    if chunk.choices is msgspec.UNSET:
        raise exchange.garbage("an event without choices", data)
    return chunk
