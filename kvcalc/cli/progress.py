"""How far long work is: one line on a terminal that is written over, and a word where somebody stops it."""

import contextlib
import sys
import time
from types import TracebackType
from typing import Self

from kvcalc.cli.emit import say
from kvcalc.cli.sweep_options import SweepOutput

_EVERY_SECONDS = 0.2
_SILENT_SECONDS = 1.0
"""Work that ends sooner needs no line."""
_CLEAR = "\r\x1b[K"


class Watch:
    """Shows points that are done and the time left, on a terminal and without --quiet; says so where work is stopped.

    Pipes and logs get nothing while it works.
    """

    def __init__(self, output: SweepOutput) -> None:
        self._is_shown = sys.stderr.isatty() and not output.quiet
        self._start = time.monotonic()
        self._next = self._start + _SILENT_SECONDS
        self._done = self._points = 0
        self._has_line = False

    def progress(self, done: int, points: int) -> None:
        """Called with how many points are done, of how many."""
        self._done, self._points = done, points
        now = time.monotonic()
        if self._is_shown and now >= self._next:
            self._next = now + _EVERY_SECONDS
            self._write(f"{_CLEAR}{self._share}, {_left((now - self._start) / max(1, done) * (points - done))}")
            self._has_line = True

    @property
    def _share(self) -> str:
        return f"{self._done / max(1, self._points):.0%} of {self._points:,} points"

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_line:
            self._write(_CLEAR)
        if kind is KeyboardInterrupt:
            say("error", f"stopped at {self._share}" if self._points else "stopped before the first point")


_MINUTE = 60


def _left(seconds: float) -> str:
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s left"
    minutes, rest = divmod(whole, _MINUTE)
    return (
        f"{minutes} min {rest:02} s left"
        if minutes < _MINUTE
        else f"{minutes // _MINUTE} h {minutes % _MINUTE} min left"
    )
