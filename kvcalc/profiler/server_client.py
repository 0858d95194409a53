"""HTTP as a stopwatch needs it: every request has a connection of its own and can be cut off.

The client's watch ends the requests that are late and, when the client is left, all of them.
Redirects and proxies are never followed: what answers is what `--url` names.
"""

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from kvcalc.errors import KvcalcError, printable, shorten
from kvcalc.profiler.server_exchange import Exchange, Stopped, excerpt

_MOST_ERROR_BYTES = 64 << 10
_MOST_BODY_BYTES = 1 << 20
_MOST_CONNECT_SECONDS = 10.0
_WATCH_SECONDS = 0.05

_Made = TypeVar("_Made")


class Client:
    """Requests to one server; used as a context manager, which ends what is under way."""

    def __init__(self, url: str, api_key: str | None, timeout_seconds: float) -> None:
        _require_httpx()
        import httpx

        self.base, self.root = addresses(url)
        self.timeout_seconds = timeout_seconds
        self._http = httpx.Client(
            headers={"accept-encoding": "identity", **_authorization(api_key)},
            timeout=httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, _MOST_CONNECT_SECONDS)),
            # A connection of its own for each request: its socket is known from the start.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
            verify=_certificates(self.base),
        )
        self._under_way: set[Exchange] = set()
        self._stopped = threading.Event()

    def __enter__(self) -> "Client":
        in_thread(self._watch)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._http.close()

    def stop(self) -> None:
        """Cut off what is under way, and begin nothing more."""
        self._stopped.set()
        for exchange in list(self._under_way):
            exchange.stop()

    def _watch(self) -> None:
        while not self._stopped.wait(_WATCH_SECONDS):
            for exchange in list(self._under_way):
                exchange.end_if_late()

    @contextmanager
    def exchange(
        self, url: str, body: bytes | None = None, patience_seconds: float | None = None
    ) -> Iterator[Exchange]:
        """GET `url`, or POST the JSON `body`; the answer is 200 or an error."""
        exchange = Exchange(url, patience_seconds or self.timeout_seconds)
        method, headers = ("GET", {}) if body is None else ("POST", {"content-type": "application/json"})
        answer = self._http.stream(method, url, content=body, headers=headers, extensions={"trace": exchange.trace})
        self._under_way.add(exchange)
        try:
            if self._stopped.is_set():
                raise Stopped
            with _errors(exchange), answer as exchange.response:
                _refuse(exchange)
                yield exchange
        finally:
            self._under_way.discard(exchange)

    def read(
        self,
        url: str,
        body: bytes | None = None,
        most_bytes: int = _MOST_BODY_BYTES,
        patience_seconds: float | None = None,
    ) -> bytes:
        """The whole body of an answer of at most `most_bytes`."""
        with self.exchange(url, body, patience_seconds) as exchange:
            content = _at_most(most_bytes, exchange.pieces())
            if len(content) > most_bytes:
                raise exchange.garbage(f"more than {most_bytes:,} bytes", content[:400])
            return content


@contextmanager
def _errors(exchange: Exchange) -> Iterator[None]:
    """httpx's errors as the user's."""
    import httpx

    try:
        yield
    except httpx.TimeoutException:
        exchange.check()
        raise exchange.too_late() from None
    except httpx.ConnectError as failure:
        exchange.check()
        hint = _CERTIFICATE_HINT if "CERTIFICATE" in str(failure) else _DOWN_HINT
        raise KvcalcError(f"nothing answers at {exchange.url}: {_reason(failure)}", hint) from None
    except httpx.HTTPError as failure:
        exchange.check()
        message = f"{exchange.url} broke off {exchange.so_far()}: {_reason(failure)}"
        raise KvcalcError(message, "look into the server's log") from None


def _reason(failure: Exception) -> str:
    return printable(shorten(str(failure), 200)) or type(failure).__name__


def _refuse(exchange: Exchange) -> None:
    """Raise for every status but 200, with the beginning of what the server says."""
    status, url = exchange.response.status_code, exchange.url
    if status == 200:
        return
    if exchange.response.has_redirect_location:
        goal = excerpt(exchange.response.headers["location"].encode())
        raise KvcalcError(f"{url} redirects to {goal}", "redirects are not followed: name the goal as --url")
    said = excerpt(_at_most(_MOST_ERROR_BYTES, exchange.pieces()))
    raise KvcalcError(f"{url} answered {status}: {said}", _HINTS.get(status, "look into the server's log"))


def _at_most(most_bytes: int, pieces: Iterable[bytes]) -> bytes:
    """The bytes of `pieces`, read no further than the first piece past `most_bytes`."""
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > most_bytes:
            break
    return bytes(content)


def addresses(url: str) -> tuple[str, str]:
    """The API's address and the server's root, neither with a slash at its end."""
    import httpx

    hint = "write it like http://127.0.0.1:8000/v1"
    try:
        parsed = httpx.URL(url.strip())
        parsed.raw_host.decode().encode("idna")
    except (httpx.InvalidURL, UnicodeError) as failure:
        raise KvcalcError(f"--url {shorten(printable(url))!r} is no address: {_reason(failure)}", hint) from None
    if parsed.userinfo:
        raise KvcalcError("--url takes no name and password", "give a key with --api-key")
    if parsed.scheme not in ("http", "https") or not parsed.raw_host or (parsed.port or 80) > 65535:
        raise KvcalcError(f"--url {shorten(printable(url))!r} is not the http address of a server", hint)
    if parsed.query or parsed.fragment:
        raise KvcalcError(f"--url {shorten(printable(url))!r} goes on after its path", hint)
    base = str(parsed).rstrip("/")
    return base, base.removesuffix("/v1").rstrip("/")


def _certificates(base: str) -> ssl.SSLContext | bool:
    """The system's certificates, or those of SSL_CERT_FILE; loading them takes 50 ms, so not for plain http."""
    return ssl.create_default_context() if base.startswith("https:") else False


def _authorization(api_key: str | None) -> dict[str, str]:
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()):
        raise KvcalcError("the API key has characters that no header can carry", "check --api-key or KVCALC_API_KEY")
    return {"authorization": f"Bearer {api_key.strip()}"}


def _require_httpx() -> None:
    """Raise a user's error where httpx is missing."""
    try:
        import httpx  # noqa: F401
    except ImportError:
        raise KvcalcError("timing a server needs httpx", "pip install 'kvcalc[server]'") from None


def in_thread(work: Callable[[], _Made]) -> "Future[_Made]":
    """Begin `work` in a thread that never outlives the program."""
    future: Future[_Made] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as failure:
            future.set_exception(failure)

    threading.Thread(target=run, daemon=True).start()
    return future


_DOWN_HINT = "start the server, or give its address: --url http://127.0.0.1:8000/v1"
_CERTIFICATE_HINT = "name the file of its authority's certificate in SSL_CERT_FILE"
_KEY_HINT = "give the server's key with --api-key, or in KVCALC_API_KEY"
_HINTS = {
    400: "the server may serve a shorter context than --ctx asks for",
    401: _KEY_HINT,
    403: _KEY_HINT,
    404: "did you forget /v1 in --url? the names of the served models stand under /v1/models",
    429: "wait, or ask for fewer streams with --batch",
    503: "the server may still be loading its model",
}
