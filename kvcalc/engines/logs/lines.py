"""The lines of a log that may matter, in constant memory: whatever the file is, and however long its lines are."""

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from kvcalc.errors import KvcalcError

BLOCK_BYTES = 2**20
MOST_LINE_BYTES = 2**18
"""Of a line that is longer only the beginning is read."""

PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"BZh": "bzip2"}
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_WHOLE = re.compile(rb"(?:.*\s[\\`^]\r?\n)*.*\n?")
"""A line, with those that a shell joins to it: of bash, PowerShell and cmd."""
_JOINT = re.compile(rb"[\\`^]\r?\n\s*")
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\\u001b\[[0-9;]*m")


class Line(msgspec.Struct, frozen=True):
    """One line, or one piece of it between carriage returns; `is_cut` where its end is missing."""

    number: int
    text: str
    is_cut: bool = False


class LineReader:
    """Lines of `stream` that hold one of the `needles`; afterwards, what the whole of it was like."""

    def __init__(self, stream: BinaryIO, needles: Iterable[str], name: str = "the log") -> None:
        self._stream, self._name = stream, name
        self._needles = [needle.encode() for needle in dict.fromkeys(needles)]
        self._any = re.compile(b"|".join(map(re.escape, self._needles)))
        self.lines = 0
        """Line breaks so far."""
        self.bytes = 0
        self.has_nul = False
        self.long_lines: list[int] = []

    def __iter__(self) -> Iterator[Line]:
        """Every such line, in order."""
        rest, skips = b"", False
        for block in self._blocks():
            wanted, skips = self._skip(block) if skips else (block, False)
            whole, rest = self._split(rest + wanted)
            yield from self._search(whole)
            if len(rest) > MOST_LINE_BYTES:
                yield from self._search(rest[:MOST_LINE_BYTES], is_cut=True)
                self.long_lines.append(self.lines + 1)
                rest, skips = b"", True
        yield from self._search(rest, is_cut=True)

    def _blocks(self) -> Iterator[bytes]:
        """The bytes of the log as UTF-8, without colours; KvcalcError for a packed file."""
        decoder = None
        first = True
        while block := self._stream.read(BLOCK_BYTES):
            if first:
                decoder, first = self._decoder(block), False
            self.bytes += len(block)
            if decoder:
                block = decoder.decode(block).encode(errors="replace")
            self.has_nul = self.has_nul or b"\0" in block
            yield block

    def _decoder(self, start: bytes) -> codecs.IncrementalDecoder | None:
        packed = next((form for magic, form in PACKED.items() if start.startswith(magic)), None)
        if packed:
            raise KvcalcError(
                f"{self._name} is packed with {packed}", "unpack it, for instance into kvcalc reconcile -"
            )
        encoding = next((name for mark, name in _UTF_16.items() if start.startswith(mark)), None)
        return codecs.getincrementaldecoder(encoding)("replace") if encoding else None

    def _split(self, held: bytes) -> tuple[bytes, bytes]:
        """Whole lines, and what is left behind the last break; a carriage return is one where a line is too long."""
        end = held.rfind(b"\n") + 1
        if len(held) - end > MOST_LINE_BYTES:
            # The last byte may be half of a \r\n.
            end = max(end, held.rfind(b"\r", end, -1) + 1)
        return held[:end], held[end:]

    def _skip(self, block: bytes) -> tuple[bytes, bool]:
        """The block from the end of a line that was too long, and whether that end is still to come."""
        ends = [place for place in (block.find(b"\n"), block.find(b"\r")) if place >= 0]
        return (block[min(ends) :], False) if ends else (b"", True)

    def _search(self, text: bytes, is_cut: bool = False) -> Iterator[Line]:
        """The lines of `text` with a needle; `is_cut` holds for the last of them."""
        if b"\x1b" in text or b"\\u001b" in text:
            text = _COLOURS.sub(b"", text)
        if any(needle in text for needle in self._needles):
            counted, place = 0, 0
            while match := self._any.search(text, place):
                start = text.rfind(b"\n", place, match.start()) + 1 or place
                whole = _WHOLE.match(text, start)
                place = whole.end() if whole else len(text)
                self.lines += text.count(b"\n", counted, start)
                counted = start
                yield from self._pieces(_JOINT.sub(b" ", text[start:place]), is_cut and place == len(text))
            self.lines += text.count(b"\n", counted)
        else:
            self.lines += text.count(b"\n")

    def _pieces(self, line: bytes, is_cut: bool) -> Iterator[Line]:
        """The parts of a line that a progress bar wrote over each other."""
        pieces = line.rstrip(b"\n").split(b"\r")
        for place, piece in enumerate(pieces):
            if self._any.search(piece):
                yield Line(self.lines + 1, piece.decode(errors="replace"), is_cut and place == len(pieces) - 1)
