"""The run file: sealed when it is written, checked as a whole before anything is read out of it.

The seal is the SHA-256 of the document without its `digest`, as JSON with sorted keys. It tells a slip of an editor
from a measurement; it keeps nobody from sealing again.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from kvcalc.errors import KvcalcError, shorten
from kvcalc.model.files import read_json
from kvcalc.profiler.documents import PROFILE_SCHEMA, ProfileDocument

MOST_BYTES = 64 * 2**20
"""Far past a run with every raw sample."""
LARGEST_NUMBER = 1e30
"""Far past every byte, FLOP and second, and far from where arithmetic with floats ends."""
_FAMILY, _, _VERSION = PROFILE_SCHEMA.rpartition("/")
_SCHEMA_KEY = re.compile(rb'"schema"\s*:\s*"' + re.escape(_FAMILY).encode() + rb"/")
_LATER = re.compile(r"[1-9][0-9]{0,5}")
_HEAD_BYTES = 4096
_AGAIN = "run kvcalc profile again, with -o run.json"


def seal(document: ProfileDocument) -> ProfileDocument:
    """The same document with the digest of all its other keys."""
    return {**document, "digest": _digest(cast("Mapping[str, Any]", document))}


def _digest(document: Mapping[str, Any]) -> str:
    import hashlib

    rest = {key: value for key, value in document.items() if key != "digest"}
    return hashlib.sha256(msgspec.json.encode(rest, order="sorted")).hexdigest()


def is_run_file(path: str | Path) -> bool:
    """Whether `path` is a .json file whose document calls itself a run, whole or cut short, of any version."""
    file = Path(path)
    if file.suffix.lower() != ".json" or not file.is_file():
        return False
    try:
        with file.open("rb") as stream:
            raw = stream.read(MOST_BYTES)
        return msgspec.json.decode(raw, type=_Head).schema.startswith(f"{_FAMILY}/")
    except OSError:
        return False
    except (msgspec.DecodeError, RecursionError):
        # A file that was cut short still says in its first lines what it was going to be.
        return _SCHEMA_KEY.search(raw, 0, _HEAD_BYTES) is not None


class _Head(msgspec.Struct):
    schema: str = ""


def read_run(path: str | Path) -> ProfileDocument:
    """The run in the file at `path`; KvcalcError where it is no run, of another version, edited or damaged.

    Keys that this version does not know are kept: a version may add some.
    """
    file, name = Path(path), shorten(str(path), 200)
    document = read_json(file, MOST_BYTES, "run file", _AGAIN, "kvcalc profile writes no file as large as that")
    try:
        return _checked(document, name)
    except RecursionError as error:
        raise KvcalcError(f"{name} is no run file: it is nested too deeply", _AGAIN) from error


def _checked(document: dict[str, Any], name: str) -> ProfileDocument:
    _check_schema(document, name)
    if document.get("digest") != _digest(document):
        raise KvcalcError(f"{name} was edited: its digest does not match", f"take the file as written, or {_AGAIN}")
    _check_types(document, name)
    return cast("ProfileDocument", document)


def _check_schema(document: Mapping[str, Any], name: str) -> None:
    family, _, version = str(document.get("schema", "")).rpartition("/")
    if family != _FAMILY:
        other = f"it is a {shorten(family)} document" if family else f"it has no schema {PROFILE_SCHEMA}"
        raise KvcalcError(f"{name} is no run file: {other}", f"kvcalc profile ... -o run.json writes one ({_FAMILY})")
    if _LATER.fullmatch(version) and int(version) > int(_VERSION):
        raise KvcalcError(f"{name} was written by a newer kvcalc: schema {_FAMILY}/{version}", "upgrade kvcalc")
    if version != _VERSION:
        raise KvcalcError(f"{name}: schema {_FAMILY}/{shorten(version)} is none that kvcalc wrote", _AGAIN)


def _check_types(document: Mapping[str, Any], name: str) -> None:
    try:
        msgspec.convert(document, ProfileDocument)
    except msgspec.ValidationError as error:
        raise KvcalcError(f"{name} is damaged: {error}", _AGAIN) from error
    if any(abs(number) > LARGEST_NUMBER for number in _numbers(document)):
        raise KvcalcError(f"{name} is damaged: a number is larger than {LARGEST_NUMBER:g}", _AGAIN)


def _numbers(value: object) -> Iterator[int | float]:
    """Every number in a decoded document."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
