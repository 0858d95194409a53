"""A trace's file: opened whether packed or plain, its first line, and any line by number for an error to show."""

import gzip
import importlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn, cast

from kvcalc.errors import KvcalcError, printable, shorten

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_LONGEST_LINE = 1 << 24


class Source:
    """One file of requests. Errors: a folder, no such file, an empty file, bytes that are no text, a broken pack."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.open() as handle:
            first = handle.readline(_LONGEST_LINE)
        if not first:
            raise KvcalcError(f"{self} is empty", "a trace begins with a line of column names, or with a JSON object")
        self.head = self._text(first)

    def __str__(self) -> str:
        return shorten(printable(str(self.path)), 200)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The unpacked bytes; what goes wrong while they are read is said in one line."""
        try:
            with self._unpacked() as handle:
                yield handle
        except (gzip.BadGzipFile, EOFError) as error:
            said = f"{self} is no whole gzip file: {error}"
            raise KvcalcError(said, "gzip -t FILE tests it; plain text has no .gz in its name") from error
        except UnicodeDecodeError as error:
            raise self._no_text() from error
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise KvcalcError(f"cannot read {self}: {reason}", "a trace is one file, CSV or JSONL") from error

    def _unpacked(self) -> IO[bytes]:
        with self.path.open("rb") as raw:
            magic = raw.read(4)
        if magic.startswith(_ZSTD):
            return self._zstd()
        # The name decides as well, so that plain text called .gz is refused and not guessed at.
        if magic.startswith(_GZIP) or (magic and self.path.suffix == ".gz"):
            return cast(IO[bytes], gzip.open(self.path))
        return self.path.open("rb")

    def _zstd(self) -> IO[bytes]:
        try:
            module = importlib.import_module("zstandard")
        except ImportError as error:
            said = f"{self} is packed with zstd, which needs the package zstandard"
            raise KvcalcError(said, "pip install zstandard, or unpack it first: zstd -d FILE") from error
        return cast(IO[bytes], module.open(self.path, "rb"))

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end."""
        with self.open() as handle:
            return self._text(next(itertools.islice(handle, number - 1, None), b"")).rstrip("\r\n")

    def is_last(self, number: int) -> bool:
        """Whether nothing but blank lines follows line `number`."""
        with self.open() as handle:
            return not any(line.strip() for line in itertools.islice(handle, number, None))

    def fail(self, number: int, said: str, hint: str) -> NoReturn:
        """Raise what is wrong with line `number`, which the message names."""
        raise KvcalcError(f"{self}:{number}: {said}", hint)

    def _text(self, line: bytes) -> str:
        if b"\0" in line:
            raise self._no_text()
        try:
            return line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self._no_text() from error

    def _no_text(self) -> KvcalcError:
        return KvcalcError(f"{self} is no text in UTF-8", "a trace is CSV or JSONL, plain or packed with gzip")
