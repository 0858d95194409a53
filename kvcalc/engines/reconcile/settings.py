"""What a log says that was asked for: the settings of all its lines as one, and where they contradict each other."""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, get_args

import msgspec

from kvcalc.cache.formats import AUTO, find_format
from kvcalc.engines.engine import Engine
from kvcalc.engines.logs.pattern import Finding, Printed, printed
from kvcalc.engines.reconcile.row import Row
from kvcalc.errors import KvcalcError

KINDS = (
    "concurrency",
    "needed",
    "stored",
    "limits",
    "window",
    "start",
    "config",
    "context",
    "batched",
    "async",
    "states",
    "kv dtype",
    "block size",
    "usage",
    "profile",
    "budget",
    "peak",
    "arguments",
    "version",
    "tokens",
)
"""Kinds of lines with settings, those first that say what the engine made of them, `arguments` what it was asked."""

_NONE = {"none", "null", "auto", ""}
_WORDS = {"true": True, "enabled": True, "1": True, "false": False, "disabled": False, "0": False}
_AGREE = ("ctx", "tp", "pp", "dp", "model", "kv_dtype")
"""What all lines of one kind must agree on."""


class Settings(msgspec.Struct, frozen=True):
    """Values by key, as they are printed; of several lines that name one, the first kind of `KINDS` counts."""

    values: dict[str, str]

    def text(self, key: str) -> str | None:
        """The value of `key`, None where the log does not say it, or says `None` or `auto`."""
        return self.values.get(key)

    def count(self, key: str) -> int | None:
        """The same as a whole number."""
        value = (self.text(key) or "").replace(",", "")
        return int(value) if value.isdecimal() and len(value) < _MOST_DIGITS else None

    def number(self, key: str) -> Fraction | None:
        """The same as a number with a fraction."""
        said = printed(self.text(key) or "")
        return said.value

    def format(self, key: str) -> str:
        """The number format that `key` names, `auto` where it names none."""
        value = self.text(key)
        return AUTO if value is None else find_format(value.removeprefix("torch."), f"the log's {key}").name

    def flags(self, engine: type[Engine]) -> dict[str, Any]:
        """The values of the engine's own flags that the log says."""
        kinds = {field.name: field.type for field in msgspec.structs.fields(engine)}
        read = {name: _as_kind(self.text(name), kinds[name]) for name in engine.flags() if name in self.values}
        return {name: value for name, value in read.items() if value is not None}


_MOST_DIGITS = 15


def _as_kind(text: str | None, kind: Any) -> Any:
    """`text` as a flag of such a type takes it; None where it is none."""
    kinds = {*get_args(kind), kind}
    if text is None:
        return None
    if bool in kinds:
        return _WORDS.get(text.casefold())
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        return None


def numbers_of(version: str) -> tuple[int, ...]:
    """A printed version as numbers that compare: v0.11.1rc2 is (0, 11, 1); nothing where there are none."""
    found = _NUMBERS.search(version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


_NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9})*")


def settings_of(findings: Sequence[Finding]) -> Settings:
    """The settings that the findings of one engine say."""
    values: dict[str, str] = {}
    for kind in KINDS:
        for one in findings:
            if one.kind == kind:
                said = {key: value.text for key, value in one.values.items() if value.text.casefold() not in _NONE}
                values = said | values
    return Settings(values)


def contradictions(findings: Sequence[Finding]) -> Iterator[Row]:
    """A row for every setting that a later line gives another value than an earlier one did."""
    seen: dict[tuple[str, str], tuple[Printed, int]] = {}
    may_shrink = any(one.kind == "auto-fit" for one in findings)
    for one in findings:
        for key in _AGREE:
            said = one.values.get(key)
            if said is None or one.kind not in KINDS or said.text.casefold() in _NONE:
                continue
            is_asked = one.kind == "arguments"
            place = (
                key,
                "asked" if is_asked or (key == "ctx" and may_shrink and one.kind in {"start", "config"}) else "made",
            )
            first, line = seen.setdefault(place, (said, one.line))
            if not _agree(first, said):
                why = f"line {line:,} says {first.text}"
                yield Row(line=one.line, rank=one.rank, figure=key, logged=said, verdict="contradictory", why=why)


def _agree(first: Printed, other: Printed) -> bool:
    if first.value is not None:
        return first.value == other.value
    if first.text == other.text:
        return True
    try:
        return find_format(first.text.removeprefix("torch.")) == find_format(other.text.removeprefix("torch."))
    except KvcalcError:
        return False
