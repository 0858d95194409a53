"""The words of a plan file: every setting by its spellings, and what may stand behind it.

A setting is a flag of `kvcalc fit` or `kvcalc throughput` by its long name; the command line hands them over.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from kvcalc.errors import KvcalcError, nearest, shorten

Takes = Literal["switch", "whole", "number", "text", "list", "file"]


class Setting(msgspec.Struct, frozen=True):
    """One setting: its name, how else it may be spelled, what it takes, and whether a value reads as one.

    `read` raises KvcalcError for a value that is none.
    """

    name: str
    spellings: tuple[str, ...]
    takes: Takes
    read: Callable[[Any], Any]
    help: str = ""


class Given(msgspec.Struct, frozen=True):
    """What somebody says, and the line where it stands; line 0 is the command line."""

    value: Any
    line: int = 0


MODEL = Setting("model", ("model",), "text", str, "The model: a catalogue name, a hub id, or a path beside the plan.")
"""What a case needs, and a matrix may vary."""


class Vocabulary:
    """Settings by their spellings; hyphens and underscores are alike."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self.settings: Mapping[str, Setting] = {one.name: one for one in (MODEL, *settings)}
        self._spelled = {spelling: one for one in self.settings.values() for spelling in one.spellings}

    def find(self, key: str) -> Setting | None:
        """The setting of this spelling."""
        return self._spelled.get(key.replace("-", "_"))

    def near(self, key: str, more: Iterable[str]) -> str:
        """What may have been meant by `key`; `more` are other words that may stand there."""
        found = nearest(key.replace("-", "_"), (*more, *self._spelled))
        return f"did you mean {' or '.join(found)}?" if found else "settings are the long flags of kvcalc fit --help"


def switched(name: str, value: Any) -> bool:
    """A switch, which is true or false."""
    if not isinstance(value, bool):
        raise KvcalcError(f"{name}: {shorten(str(value))} is neither true nor false", f"write {name}: true")
    return value


def worded(name: str, value: Any) -> str:
    """A word as it would stand on the command line."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        shown = "a switch" if isinstance(value, bool) else "a mapping" if isinstance(value, dict) else "a list"
        raise KvcalcError(f"{name}: one value is expected, and this is {shown}", "quote a word that YAML reads as more")
    return str(value)
