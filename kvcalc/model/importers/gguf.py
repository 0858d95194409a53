"""The header of a GGUF file: metadata and tensor infos, never the weights.

Layout: docs/gguf.md of ggml (github.com/ggml-org/ggml), versions 2 and 3, either byte order. Every
count is held against what is left of the file before anything of that size is made, and long
arrays (a vocabulary, merges) are walked past, not kept: only their lengths are.
"""

import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.errors import SpecError, shorten
from kvcalc.model.importers.ggml_types import BLOCK_TYPES, BY_NAME

MOST_KEPT_ITEMS = 10_000
MOST_KEPT_BYTES = 2**16
MOST_KEY_BYTES = 2**16 - 1
MOST_KEYS = 2**16
MOST_TENSORS = 2**16
MOST_STRINGS = 2**22
MOST_DIMENSIONS = 4
MOST_VALUES = 2**60

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool]


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor: its name, its shape with the row's length first, and the name of its ggml type."""

    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def bytes(self) -> int:
        """Bytes of its data, without the padding between tensors."""
        row, rows = (*self.shape, 1)[0], 1
        for count in self.shape[1:]:
            rows *= count
        return rows * (BY_NAME[self.type].row_bytes(row) or 0)


class GgufHeader(msgspec.Struct, frozen=True):
    """What stands before the weights, over all parts of a split file. `lengths` are those of arrays not kept."""

    version: int
    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    lengths: dict[str, int] = {}
    files: tuple[str, ...] = ()


def read_header(path: Path) -> GgufHeader:
    """The header of the model that `path` is, or is a part of; SpecError for what is no whole GGUF."""
    header = _read_part(path)
    parts = header.metadata.get("split.count", 1)
    if type(parts) is not int or parts < 0:
        raise SpecError(f"{shorten(str(path), 200)}: split.count is {shorten(str(parts))}, no count", _DAMAGED)
    return _join(path, header) if parts > 1 else header


def _read_part(path: Path) -> GgufHeader:
    shown = shorten(str(path), 200)
    try:
        if path.is_dir():
            raise SpecError(f"{shown} is a directory", "name a .gguf file in it")
        if path.exists() and not path.is_file():
            raise SpecError(f"{shown} is no regular file", "write the model to a file")
        with path.open("rb") as stream:
            if not stream.seek(0, 2):
                raise SpecError(f"{shown}: the file is empty", "download it again")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Reader(view, shown).header(path.name)
    except OSError as error:
        raise SpecError(f"{shown}: {error.strerror or 'it cannot be read'}", "check the path") from error
    except ValueError as error:
        raise SpecError(f"{shown!r} is no path", "check the path") from error


_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def _join(path: Path, part: GgufHeader) -> GgufHeader:
    """All parts of a split file beside `path` as one header; the first part's metadata count."""
    names = _part_names(path, part)
    # os.path answers False where Path.exists raises, in a folder that may not be read.
    missing = next((name for name in names if not os.path.exists(path.with_name(name))), None)  # noqa: PTH110
    if missing is not None:
        raise SpecError(f"{shorten(str(path), 200)}: its part {shorten(missing, 200)} is missing", "put it beside")
    parts = [_read_part(path.with_name(name)) for name in names]
    for number, (name, one) in enumerate(zip(names, parts, strict=True)):
        if one.metadata.get("split.no") != number or one.metadata.get("split.count") != len(names):
            raise SpecError(f"{shorten(name, 200)} says that it is another part", "keep the names that the parts had")
    tensors = tuple(tensor for one in parts for tensor in one.tensors)
    twice = next((name for name, times in Counter(one.name for one in tensors).items() if times > 1), None)
    if twice is not None:
        raise SpecError(f"{shorten(str(path), 200)}: two parts hold tensor {shorten(twice)!r}", _DAMAGED)
    stated = parts[0].metadata.get("split.tensors.count", len(tensors))
    if stated != len(tensors):
        raise SpecError(
            f"{shorten(str(path), 200)}: the parts hold {len(tensors)} tensors of {shorten(str(stated))}", _DAMAGED
        )
    return msgspec.structs.replace(parts[0], tensors=tensors, files=tuple(names))


def _part_names(path: Path, part: GgufHeader) -> list[str]:
    named, count = _PART.fullmatch(path.name), part.metadata["split.count"]
    if named is None or int(named[3]) != count:
        message = f"{shorten(str(path), 200)} is one of {count} parts, and its name does not say which"
        raise SpecError(message, f"parts are named NAME-00001-of-{count:05}.gguf")
    return [f"{named[1]}-{number:05}-of-{named[3]}.gguf" for number in range(1, int(count) + 1)]


_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DAMAGED = "the file is damaged or not downloaded to the end: fetch it again"


class _Reader:
    """Reads forward through one file's header; `at` is where the next value stands."""

    def __init__(self, view: mmap.mmap, shown: str) -> None:
        self.view, self.shown, self.at, self.order = view, shown, 0, "<"
        self.size = len(view)
        self.strings_left = MOST_STRINGS
        self.lengths: dict[str, int] = {}

    def header(self, name: str) -> GgufHeader:
        """The whole header, or SpecError."""
        version = self._version()
        tensor_count, key_count = self._scalar("Q"), self._scalar("Q")
        self._check_count(key_count, 13, MOST_KEYS, "metadata keys")
        self._check_count(tensor_count, 24, MOST_TENSORS, "tensors")
        metadata = dict(self._pairs(key_count))
        tensors = tuple(self._tensors(tensor_count))
        return GgufHeader(version, metadata, tensors, self.lengths, (name,))

    def _version(self) -> int:
        magic = self.view[:4]
        if magic != b"GGUF":
            raise self._wrong_magic(magic)
        self.at = 4
        raw = self._take(4)
        little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
        if 1 in (little, big):
            raise self._error("GGUF version 1 is not read", "convert the model again with a current llama.cpp")
        if big in (2, 3):
            self.order = ">"
            return big
        if little not in (2, 3):
            raise self._error(f"GGUF version {little} is not known", "versions 2 and 3 are read")
        return little

    def _wrong_magic(self, magic: bytes) -> SpecError:
        if self.view[:8] == b"version ":
            return self._error("this is a Git LFS pointer, not the model", "fetch the file itself: git lfs pull")
        return self._error(f"it begins with {magic!r}, not with GGUF", "name a .gguf model")

    def _pairs(self, count: int) -> Iterator[tuple[str, Value]]:
        seen = set[str]()
        for _ in range(count):
            key = self._name("a key")
            self._refuse_again(seen, key, "key")
            value = self._value(self._scalar("I"), key)
            if value is not None:
                yield key, value

    def _refuse_again(self, seen: set[str], name: str, what: str) -> None:
        if name in seen:
            raise self._error(f"the {what} {shorten(name)} stands twice", _DAMAGED)
        seen.add(name)

    def _value(self, kind: int, key: str) -> Value | None:
        """The value of a key; None for one that is walked past."""
        if kind == _STRING:
            return self._string_value(key)
        if kind == _ARRAY:
            return self._array(key)
        value: Scalar = self._scalar(self._code(kind, key))
        return value

    def _string_value(self, key: str) -> str | None:
        length = self._scalar("Q")
        if length > MOST_KEPT_BYTES:
            self._skip(length)
            self.lengths[key] = length
            return None
        return self._take(length).decode("utf-8", "replace")

    def _array(self, key: str) -> Value | None:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            self._walk_strings(count, key)
            self.lengths[key] = count
            return None
        code = self._code(kind, key)
        width = struct.calcsize("<" + code)
        self._check_count(count, width, self.size, f"items in {shorten(key)}")
        if count > MOST_KEPT_ITEMS:
            self._skip(count * width)
            self.lengths[key] = count
            return None
        return list(struct.unpack(f"{self.order}{count}{code}", self._take(count * width)))

    def _walk_strings(self, count: int, key: str) -> None:
        """Step over strings length by length: nothing of a vocabulary is copied."""
        self._check_count(count, 8, self.strings_left, f"strings in {shorten(key)}")
        self.strings_left -= count
        read, view, at, last = struct.Struct(self.order + "Q").unpack_from, self.view, self.at, self.size - 8
        for _ in range(count):
            if at > last:
                raise self._error("the file ends inside its header", _DAMAGED)
            at += 8 + read(view, at)[0]
        self.at = at
        self._skip(0)

    def _tensors(self, count: int) -> Iterator[TensorInfo]:
        seen = set[str]()
        for _ in range(count):
            name = self._name("a tensor's name")
            self._refuse_again(seen, name, "tensor")
            dimensions = self._scalar("I")
            if dimensions > MOST_DIMENSIONS:
                raise self._error(f"the tensor {shorten(name)} has {dimensions} dimensions", _DAMAGED)
            shape = tuple(self._scalar("Q") for _ in range(dimensions))
            kind = self._scalar("I")
            self._scalar("Q")
            yield self._tensor(name, shape, kind)

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int) -> TensorInfo:
        values = 1
        for count in shape:
            values *= count
        if values > MOST_VALUES:
            raise self._error(f"the tensor {shorten(name)} has more than 10^18 values", _DAMAGED)
        if kind not in BLOCK_TYPES:
            message = f"the tensor {shorten(name)} has type {kind}, which is not known here"
            raise self._error(message, "types of forks and withdrawn ones are not read: convert the model again")
        block = BLOCK_TYPES[kind]
        row = (*shape, 1)[0]
        if block.row_bytes(row) is None:
            message = f"the tensor {shorten(name)} has rows of {row} values, no multiple of the {block.values}"
            raise self._error(f"{message} in a block of {block.name}", _DAMAGED)
        return TensorInfo(name, shape, block.name)

    def _name(self, what: str) -> str:
        length = self._scalar("Q")
        if length > MOST_KEY_BYTES:
            raise self._error(f"{what} is {length:,} bytes long", _DAMAGED)
        return self._take(length).decode("utf-8", "replace")

    def _code(self, kind: int, key: str) -> str:
        if kind not in _SCALARS:
            what = "is an array of arrays" if kind == _ARRAY else f"has the unknown value type {kind}"
            raise self._error(f"the key {shorten(key)} {what}", _DAMAGED)
        return _SCALARS[kind]

    def _check_count(self, count: int, least_bytes: int, most: int, what: str) -> None:
        """Refuse a count that the rest of the file has no room for before anything of that size is made."""
        if count > (self.size - self.at) // least_bytes or count > most:
            raise self._error(f"it claims {count:,} {what}, more than the file can hold", _DAMAGED)

    def _scalar(self, code: str) -> Any:
        form = self.order + code
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, length: int) -> bytes:
        start = self.at
        self._skip(length)
        return self.view[start : self.at]

    def _skip(self, length: int) -> None:
        if length > self.size - self.at:
            raise self._error("the file ends inside its header", _DAMAGED)
        self.at += length

    def _error(self, message: str, hint: str) -> SpecError:
        return SpecError(f"{self.shown}: {message}", hint)
