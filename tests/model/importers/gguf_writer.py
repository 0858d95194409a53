"""Writes small GGUF files by hand: metadata and tensor infos, with no data behind them unless asked for."""

import struct
from pathlib import Path
from typing import Any, NamedTuple

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIif?Qqd", strict=True))


class Typed(NamedTuple):
    """A value with the GGUF type that it is to have, rather than the one that its Python type suggests."""

    type: int
    value: Any


class Tensor(NamedTuple):
    """A tensor info: shape with the row first, and the number of its ggml type."""

    name: str
    shape: tuple[int, ...] = (32,)
    type: int = 0


def gguf_bytes(metadata: dict[str, Any], tensors: list[Tensor] = [], *, version: int = 3, order: str = "<") -> bytes:  # noqa: B006
    """A whole header; what stands in `metadata` takes the GGUF type of its Python type, or of its `Typed`."""
    head = b"GGUF" + struct.pack(order + "IQQ", version, len(tensors), len(metadata))
    pairs = (_text(key, order) + _typed(value, order) for key, value in metadata.items())
    return head + b"".join(pairs) + b"".join(_tensor(tensor, order) for tensor in tensors)


def write(path: Path, metadata: dict[str, Any], tensors: list[Tensor] = [], **how: Any) -> Path:  # noqa: B006
    """The same in a file."""
    path.write_bytes(gguf_bytes(metadata, tensors, **how))
    return path


def model(arch: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Metadata of an architecture from keys without its prefix."""
    named = {
        key if key.startswith(("tokenizer.", "general.", "split.")) else f"{arch}.{key}": keys[key] for key in keys
    }
    return {"general.architecture": arch, **named}


def _tensor(tensor: Tensor, order: str) -> bytes:
    shape = struct.pack(f"{order}I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
    return _text(tensor.name, order) + shape + struct.pack(order + "IQ", tensor.type, 0)


def _text(text: str, order: str) -> bytes:
    raw = text.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def _typed(value: Any, order: str) -> bytes:
    kind, value = value if isinstance(value, Typed) else (_kind(value), value)
    return struct.pack(order + "I", kind) + _plain(kind, value, order)


def _plain(kind: int, value: Any, order: str) -> bytes:
    if kind == STRING:
        return _text(value, order)
    if kind != ARRAY:
        return struct.pack(order + CODES[kind], value)
    inner = value[0].type if value and isinstance(value[0], Typed) else _kind(value[0]) if value else U32
    items = (_plain(inner, item.value if isinstance(item, Typed) else item, order) for item in value)
    return struct.pack(order + "IQ", inner, len(value)) + b"".join(items)


def _kind(value: Any) -> int:
    kinds = {bool: BOOL, int: U32, float: F32, str: STRING, list: ARRAY}
    return kinds[type(value)]
