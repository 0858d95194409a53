"""A trace's file: opened whether packed or plain, its first line, and any line by number for an error to show."""

import itertools
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from kvcalc.errors import KvcalcError, printable, shorten
from kvcalc.workload.unpacked import BrokenPackError, unpacked


class Source:
    """One file of requests. Errors: a folder, no such file, an empty file, bytes that are no text, a broken pack."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.open() as handle:
            first = handle.readline()
        if not first:
            raise KvcalcError(f"{self} is empty", "a trace begins with a line of column names, or with a JSON object")
        self.head = self._text(first)

    def __str__(self) -> str:
        return shorten(printable(str(self.path)), 200)

    @property
    def name(self) -> str:
        """The file's name, of characters that any document and terminal takes."""
        return printable(self.path.name)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The unpacked bytes; what goes wrong while they are read is said in one line."""
        try:
            self._refuse_streams()
            with unpacked(self.path, str(self)) as handle:
                yield handle
        except BrokenPackError as error:
            said = f"{self} is no whole {error.tool} file: {error}"
            raise KvcalcError(said, f"{error.tool} -t FILE tests it; plain text has no .gz in its name") from error
        except UnicodeDecodeError as error:
            raise self._no_text() from error
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise KvcalcError(f"cannot read {self}: {reason}", "a trace is one file, CSV or JSONL") from error

    def _refuse_streams(self) -> None:
        mode = self.path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            said = f"{self} is no plain file, and a trace is read more than once"
            raise KvcalcError(said, "save what comes through a pipe: COMMAND > trace.csv")

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
            return line.decode()
        except UnicodeDecodeError as error:
            raise self._no_text() from error

    def _no_text(self) -> KvcalcError:
        return KvcalcError(f"{self} is no text in UTF-8", "a trace is CSV or JSONL, plain or packed with gzip")
