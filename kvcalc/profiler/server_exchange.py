"""One request and its answer, timed: it ends when patience does, and another thread can cut it off.

A blocked read ends only when its socket is shut down, so each exchange keeps its socket.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from socket import SHUT_RDWR, socket
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError, printable, shorten

if TYPE_CHECKING:
    import httpx

MOST_LINE_BYTES = 1 << 20
_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")
_SENDING = "http11.send_request_headers.started"


class Stopped(Exception):  # noqa: N818 - nothing went wrong: the whole was called off
    """The client was stopped while this request was under way."""


class Exchange:
    """One request and its answer: when it was sent, what came so far, and the socket that ends it."""

    def __init__(self, url: str, patience_seconds: float) -> None:
        self.url = url
        self.sent_at = self._heard_at = perf_counter()
        self.chunks = 0
        self.response: httpx.Response
        self._patience_seconds = patience_seconds
        self._socket: socket | None = None
        self._late = self._stopped = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Take the socket as soon as there is one, and the time at which the request leaves."""
        if event in _CONNECTED:
            self._socket = info["return_value"].get_extra_info("socket")
            self._shut_down(when=self._late or self._stopped)
        elif event == _SENDING:
            self.sent_at = perf_counter()

    def heard(self) -> None:
        """A chunk came: patience begins anew."""
        self.chunks += 1
        self._heard_at = perf_counter()

    def end_if_late(self) -> None:
        """Cut the request off if nothing useful came for as long as patience lasts."""
        if perf_counter() - self._heard_at > self._patience_seconds:
            self._late = True
            self._shut_down(when=True)

    def stop(self) -> None:
        """Cut the request off; its thread ends with `Stopped`."""
        self._stopped = True
        self._shut_down(when=True)

    def _shut_down(self, when: bool) -> None:
        if when and self._socket is not None:
            with suppress(OSError):
                # A TLS socket's own shutdown drops state that its reading thread still uses.
                socket.shutdown(self._socket, SHUT_RDWR)

    def check(self) -> None:
        """Raise if it was this side that ended the answer: late, or stopped."""
        if self._stopped:
            raise Stopped
        if self._late:
            raise self.too_late()

    def too_late(self) -> KvcalcError:
        """The error for an answer that did not come in time."""
        return KvcalcError(
            f"{self.url} sent nothing of use for {self._patience_seconds:g} s, {self.so_far()}",
            "look into the server's log; a smaller --ctx or --batch answers sooner",
        )

    def so_far(self) -> str:
        """How far the answer had come, in the words of an error."""
        return f"after {self.chunks} chunks" if self.chunks else "before any answer"

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives; raises where this side had to end it."""
        yield from self.response.iter_raw()
        self.check()

    def lines(self) -> Iterator[tuple[float, bytes]]:
        """The body's lines, each with the time at which its last byte arrived, in seconds of `perf_counter`."""
        held = bytearray()
        for piece in self.pieces():
            arrived_at = perf_counter()
            head, *rest = piece.split(b"\n")
            held += head
            for part in rest:
                yield arrived_at, self._bounded(held)
                held = bytearray(part)
            self._bounded(held)
        yield perf_counter(), self._bounded(held)

    def _bounded(self, line: bytearray) -> bytes:
        if len(line) > MOST_LINE_BYTES:
            raise self.garbage("a line of more than 1 MiB", bytes(line[:400]))
        return bytes(line).strip()

    def garbage(self, what: str, sent: bytes) -> KvcalcError:
        """The error for bytes that no completions server sends."""
        return KvcalcError(
            f"{self.url} sent {what}: {excerpt(sent)}",
            "--url takes a server that speaks OpenAI's completions API, like vLLM, SGLang or llama.cpp",
        )


def excerpt(content: bytes) -> str:
    """The first 200 characters, fit for one line of a terminal."""
    return printable(shorten(content[:4096].decode("utf-8", "replace"), 200))
