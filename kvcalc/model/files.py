"""Somebody's file, read whole: a regular one, and no larger than such a file can be."""

from pathlib import Path

from kvcalc.errors import SpecError, shorten


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
