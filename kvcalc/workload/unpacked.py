"""The bytes of a trace's file, whether packed or plain, in lines that memory holds."""

import gzip
import importlib
import io
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP, ZSTD, BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"
LONGEST_LINE = 1 << 24
"""Bytes. A file that is one line of gigabytes is refused while it is read: no reader of lines bounds what it holds."""
_PACKED_CHUNK = 1 << 12
"""Bytes unpacked at once; zstd makes at most some 30,000 times as many of them."""


class BrokenPackError(Exception):
    """A packed file that ends early or is damaged; `tool` is the program that tests it."""

    def __init__(self, error: object, tool: str) -> None:
        super().__init__(str(error))
        self.tool = tool


def unpacked(path: Path, shown: str) -> IO[bytes]:
    """The bytes of a file without a mark of UTF-8 before them; `shown` names it in errors.

    Errors while it is opened or read: BrokenPackError, OSError, and KvcalcError for a line past `LONGEST_LINE`.
    """
    with path.open("rb") as raw:
        magic = raw.read(4)
    found: IO[bytes]
    if magic.startswith(ZSTD):
        found = cast(IO[bytes], _Zstd(path.open("rb"), shown))
    # The name decides as well, so that plain text called .gz is refused and not guessed at.
    elif magic.startswith(GZIP) or (magic and path.suffix == ".gz"):
        found = cast(IO[bytes], gzip.open(path))  # noqa: SIM115 - closed with the reader
    else:
        found = path.open("rb", buffering=0)
    reader = io.BufferedReader(_Lines(found, shown), 1 << 18)
    if reader.peek(len(BOM)).startswith(BOM):
        reader.read(len(BOM))
    return reader


class _Lines(io.RawIOBase):
    """Bytes passed on while no line of them is too long."""

    def __init__(self, source: IO[bytes], shown: str) -> None:
        self._source, self._shown = source, shown
        self._number, self._length = 1, 0

    def readable(self) -> bool:
        return True

    def readinto(self, room: "WriteableBuffer") -> int:
        data = self._read(memoryview(room).nbytes)
        memoryview(room)[: len(data)] = data
        self._number += data.count(b"\n")
        last = data.rfind(b"\n")
        self._length = self._length + len(data) if last < 0 else len(data) - last - 1
        if self._length > LONGEST_LINE:
            said = f"{self._shown}:{self._number}: a line of more than {LONGEST_LINE:,} bytes"
            raise KvcalcError(said, "a trace is CSV or JSONL: one request a line")
        return len(data)

    def _read(self, most: int) -> bytes:
        try:
            return self._source.read(most)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BrokenPackError(error, "gzip") from error

    def close(self) -> None:
        self._source.close()
        super().close()


class _Zstd(io.RawIOBase):
    """Frames of zstd, one after the other; whether the last one is whole, zstandard's own reader does not say."""

    def __init__(self, packed: IO[bytes], shown: str) -> None:
        try:
            self._module: Any = importlib.import_module("zstandard")
        except ImportError as error:
            packed.close()
            said = f"{shown} is packed with zstd, which needs the package zstandard"
            raise KvcalcError(said, "pip install zstandard, or unpack it first: zstd -d FILE") from error
        self._packed, self._behind, self._ready = packed, b"", b""
        self._frame: Any = None

    def read(self, size: int = -1) -> bytes:
        while not self._ready and (packed := self._behind or self._packed.read(_PACKED_CHUNK)):
            self._frame = self._frame or self._module.ZstdDecompressor().decompressobj()
            try:
                self._ready = self._frame.decompress(packed)
            except self._module.ZstdError as error:
                raise BrokenPackError(error, "zstd") from error
            self._behind = self._frame.unused_data
            self._frame = None if self._frame.eof else self._frame
        if not self._ready and self._frame is not None:
            raise BrokenPackError("it ends within a frame", "zstd")
        found, self._ready = self._ready[:size], self._ready[size:]
        return found

    def close(self) -> None:
        self._packed.close()
        super().close()
