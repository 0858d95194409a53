"""`name:key=value,key=value`: how distributions, arrivals and prefixes are spelled."""

import math
from collections.abc import Iterable, Sequence

from kvcalc.errors import KvcalcError, UnknownNameError, shorten


def parse_fields(text: str, parts: str, known: Sequence[str], example: str) -> dict[str, float]:
    """The numbers of `parts` by key; `text` is the whole spelling, for errors, and `example` one that is right."""
    fields: dict[str, float] = {}
    for part in parts.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise KvcalcError(f"{shorten(text)!r}: {shorten(part)!r} is no key=value", f"such as {example}")
        if key not in known:
            raise UnknownNameError(f"key in {shorten(text)!r}:", key, known, f"known: {', '.join(known)}")
        if key in fields:
            raise KvcalcError(f"{shorten(text)!r} says {key} twice", f"such as {example}")
        fields[key] = parse_number(value, text, example)
    return fields


def parse_number(value: str, text: str, example: str) -> float:
    """A finite number of the spelling `text`; 1e3 and 1_000 are fine."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise KvcalcError(f"{shorten(text)!r}: {shorten(value)!r} is no finite number", f"such as {example}")
    return number


def number_text(value: float) -> str:
    """A number as it is read back to the same bits, whole ones without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def spelled(name: str, fields: Iterable[tuple[str, float | None]]) -> str:
    """`name:key=value,...` of the fields that have a value."""
    return f"{name}:" + ",".join(f"{key}={number_text(value)}" for key, value in fields if value is not None)
