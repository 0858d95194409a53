"""Somebody's file, read whole: a regular one, and no larger than such a file can be."""

from pathlib import Path
from typing import Any

import msgspec

from kvcalc.errors import KvcalcError, SpecError, shorten


def read_bounded(path: Path, most_bytes: int, what: str, hint: str, large_hint: str) -> bytes:
    """The bytes of a `what`; SpecError for what is no regular file, cannot be read, or is larger than `most_bytes`."""
    try:
        if path.exists() and not path.is_file():
            raise SpecError(f"{path} is no regular file", hint)
        with path.open("rb") as stream:
            raw = stream.read(most_bytes + 1)
    except OSError as error:
        raise SpecError(f"{shorten(str(path), 200)}: {error.strerror}", "check the path") from error
    if len(raw) > most_bytes:
        raise SpecError(f"{path}: more than {most_bytes:,} bytes is no {what}", large_hint)
    return raw


def read_json(path: Path, most_bytes: int, what: str, hint: str, large_hint: str) -> dict[str, Any]:
    """The JSON object that a `what` is, read as `read_bounded` does; KvcalcError where the file holds none."""
    raw, name = read_bounded(path, most_bytes, what, hint, large_hint), shorten(str(path), 200)
    try:
        document = msgspec.json.decode(raw)
    except RecursionError as error:
        raise KvcalcError(f"{name} is no {what}: it is nested too deeply", hint) from error
    except msgspec.DecodeError as error:
        if raw and "truncated" in str(error):
            raise KvcalcError(f"{name} is cut short: its JSON does not end", hint) from error
        raise KvcalcError(f"{name} is no JSON: {str(error) if raw else 'it is empty'}", hint) from error
    if not isinstance(document, dict):
        raise KvcalcError(f"{name} is no {what}: no JSON object", hint)
    return document
