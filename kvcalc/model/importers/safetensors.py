"""Safetensors: what the tensors of a checkpoint weigh and hold, from headers alone.

A file is eight bytes (the header's length, little-endian), the header as JSON, and the data, which
is never read. The format: https://github.com/huggingface/safetensors, README, "Format".
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvcalc.errors import SpecError, shorten
from kvcalc.model.importers.unpacked import unpacked_parameters
from kvcalc.model.spec import Checkpoint

MOST_BYTES = 100_000_000  # of a header or an index: the library's own limit, safetensors/src/tensor.rs
INDEX_NAME = "model.safetensors.index.json"

# Bits of one value by the format's name (safetensors 0.8.0, enum Dtype).
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F64": 64, "I64": 64, "U64": 64, "C64": 64}
_BITS |= dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8)
_BITS |= {"BF16": 16, "F16": 16, "I16": 16, "U16": 16, "F32": 32, "I32": 32, "U32": 32}
_WORDS = {"F": "fp", "I": "int", "U": "uint", "C": "complex", "B": "b"}
_SHARD = re.compile(r"(.*-)\d{5}-of-(\d{5})\.safetensors", re.ASCII)
_AGAIN = "the file is damaged or incomplete: download it again"
_SHARDS = "download the missing shards"
_FEW = msgspec.Meta(max_length=500_000)  # tensors in one file: bounds what a hostile header costs
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One tensor as a header describes it; the offsets count from the end of the header."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Size, _Size]

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def elements(self) -> int:
        """Values as stored: those packed into one number count as one."""
        return math.prod(self.shape)

    @property
    def format(self) -> str:
        """The dtype as kvcalc spells formats: `bf16`, `fp8_e4m3`, `uint8`."""
        return _WORDS[self.dtype[0]] + self.dtype[1:].lower()


class _Index(msgspec.Struct, frozen=True):
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    metadata: dict[str, Any] | None = None


class _Files(msgspec.Struct, frozen=True):
    """The files of one checkpoint; `index` where one lists them, and only then `missing`."""

    where: Path
    present: list[Path]
    missing: list[Path] = []
    index: _Index | None = None


def holds_weights(folder: Path) -> bool:
    """Whether a folder has an index or weights of a model; an adapter's are none."""
    return (folder / INDEX_NAME).exists() or any(_model_files(folder))


def _model_files(folder: Path) -> Iterator[Path]:
    return (one for one in folder.iterdir() if one.suffix == ".safetensors" and not one.name.startswith("adapter_"))


def read_checkpoint(folder_or_file: Path, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """Bytes, formats and parameters of the weights in a folder, a file or an index; without all shards, bytes only.

    `config` says how tensors are packed, which the number of parameters rests on.
    """
    files = _find_files(folder_or_file)
    if files.missing:
        return _from_total_size(files)
    tensors = _read_tensors(files)
    sizes = Counter[str]()
    for tensor in tensors.values():
        sizes[tensor.format] += tensor.bytes
    return Checkpoint(
        bytes=sizes.total(),
        formats=tuple(name for name, size in sizes.most_common() if size),
        source=f"safetensors headers of {files.where}",
        parameters=unpacked_parameters(tensors, config or {}),
    )


def tensor_summary(path: Path) -> dict[str, int]:
    """Values as stored for each format, most first; SpecError where a shard is missing."""
    counts = Counter[str]()
    for tensor in _read_tensors(_find_files(path)).values():
        counts[tensor.format] += tensor.elements
    return dict(counts.most_common())


def _find_files(path: Path) -> _Files:
    """The index decides where there is one; else `model*` goes before other names, which are often copies."""
    try:
        if not path.is_dir():
            return _indexed(path) if path.suffix == ".json" else _Files(path, [path])
        if (path / INDEX_NAME).exists():
            return _indexed(path / INDEX_NAME)
        found = sorted(_model_files(path))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not found:
        raise SpecError(f"{path}: no .safetensors file in it", "name the folder or the file that holds the weights")
    found = [one for one in found if one.name.startswith("model")] or found
    _refuse_gaps(path, {one.name for one in found})
    return _Files(path, found)


def _refuse_gaps(folder: Path, names: set[str]) -> None:
    """Without an index, `model-00001-of-00003.safetensors` still says how many there are."""
    for match in filter(None, map(_SHARD.fullmatch, sorted(names))):
        for number in range(1, int(match[2]) + 1):
            expected = f"{match[1]}{number:05}-of-{match[2]}.safetensors"
            if expected not in names:
                raise SpecError(f"{folder}: {_quoted(expected)} is missing", _SHARDS)


def _indexed(path: Path) -> _Files:
    raw = _read(path, 0, MOST_BYTES)
    index: _Index = _decode(raw, _Index, path, "the index")
    _refuse_duplicates(raw, path)
    names = sorted(set(index.weight_map.values()))
    for name in names:
        if not re.fullmatch(r"(?!.*\.\.)[\w.-]+(/[\w.-]+)*\.safetensors", name):
            raise SpecError(f"{path}: {_quoted(name)} is no shard beside the index", "weight_map names files beside it")
    shards = [path.parent / name for name in names]
    return _Files(path, [one for one in shards if one.is_file()], [one for one in shards if not one.is_file()], index)


def _from_total_size(files: _Files) -> Checkpoint:
    total: Any = ((files.index.metadata if files.index else None) or {}).get("total_size")
    if type(total) not in (int, float) or not 0 < total < 2**63 or total != int(total):
        raise SpecError(f"{files.missing[0]} is missing, and no usable total_size in {files.where.name}", _SHARDS)
    lacking = f"{len(files.missing)} of {len(files.missing) + len(files.present)} shards missing"
    return Checkpoint(bytes=int(total), formats=(), source=f"total_size in {files.where} (dtypes unknown: {lacking})")


def _read_tensors(files: _Files) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its name."""
    if files.missing:
        raise SpecError(f"{files.missing[0]} is missing", _SHARDS)
    found: dict[str, Tensor] = {}
    for path in files.present:
        header = read_header(path)
        for name in found.keys() & header.keys():
            message = f"{path}: tensor {_quoted(name)} stands in another file too"
            raise SpecError(message, "two checkpoints in one folder? name the file that is meant")
        found |= header
    for name in (files.index.weight_map if files.index else {}).keys() - found.keys():
        raise SpecError(f"{files.where}: no shard holds tensor {_quoted(name)}", "download index and shards again")
    return found


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name, checked against each other and the file's length; the data is not read."""
    start, rest = _read(path, 0, 8), path.stat().st_size - 8
    length = int.from_bytes(start, "little")
    if start == b"version ":
        raise SpecError(f"{path}: a Git LFS pointer, not the weights", "fetch them: git lfs pull")
    if not 0 <= length <= min(rest, MOST_BYTES):
        message = f"{path}: a header of {length:,} bytes, where the file has {max(rest, 0):,} left"
        raise SpecError(message, f"no safetensors file (headers end at {MOST_BYTES:,}), or incomplete")
    raw = _read(path, 8, length)
    entries: dict[str, msgspec.Raw] = _decode(raw, Annotated[dict[str, msgspec.Raw], _FEW], path, "the header")
    metadata = entries.pop("__metadata__", msgspec.Raw(b"null"))
    _decode(metadata, Annotated[dict[str, str], _FEW] | None, path, "__metadata__")
    tensors = {name: _decode(entry, Tensor, path, f"tensor {_quoted(name)}") for name, entry in entries.items()}
    _refuse_duplicates(raw, path)
    for name, tensor in tensors.items():
        _check_size(f"{path}: tensor {_quoted(name)}", tensor)
    _check_layout(tensors, rest - length, path)
    return tensors


def _read(path: Path, start: int, most: int) -> bytes:
    """At most so many bytes, unbuffered so that no data is read along."""
    try:
        if path.exists() and not path.is_file():
            raise SpecError(f"{path} is no regular file", "name a .safetensors file, or a folder of them")
        with path.open("rb", buffering=0) as stream:
            stream.seek(start)
            return stream.read(most)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | ValueError) -> SpecError:
    reason = error.strerror if isinstance(error, OSError) else error
    return SpecError(f"{shorten(ascii(str(path))[1:-1], 200)}: {reason}", "check the path, and where a link leads")


def _decode(raw: Any, kind: Any, path: Path, what: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SpecError(f"{path}: {what}: {shorten(str(error), 160)}", _AGAIN) from error


def _refuse_duplicates(raw: bytes, path: Path) -> None:
    """msgspec keeps the last of two equal keys, so valid JSON is walked once more, for its keys only."""
    import json

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise SpecError(f"{path}: the key {_quoted(twice)} stands twice", _AGAIN)

    json.loads(raw.decode(), object_pairs_hook=check, strict=False)


def _check_size(where: str, tensor: Tensor) -> None:
    if tensor.dtype not in _BITS:
        raise SpecError(f"{where}: unknown dtype {_quoted(tensor.dtype)}", f"known: {' '.join(_BITS)}")
    bits = tensor.elements * _BITS[tensor.dtype]
    if bits != tensor.bytes * 8:
        takes = f"{shorten(str(list(tensor.shape)), 40)} takes {shorten(f'{bits:,}', 40)} bits"
        raise SpecError(f"{where}: {tensor.dtype} {takes}, its offsets {tensor.bytes * 8:,}", _AGAIN)


def _check_layout(tensors: Mapping[str, Tensor], data_bytes: int, path: Path) -> None:
    """The format wants data without overlaps, holes or a tail."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        start, stop = tensor.data_offsets
        if start != end:
            what = "overlaps the one before it" if start < end else "leaves a hole before it"
            raise SpecError(f"{path}: tensor {_quoted(name)} {what}: it begins at {start:,}, not {end:,}", _AGAIN)
        end = stop
    if end != data_bytes:
        raise SpecError(f"{path}: the tensors end at byte {end:,}, the data at {data_bytes:,}", _AGAIN)


def _quoted(name: str) -> str:
    return repr(shorten(name, 100))
