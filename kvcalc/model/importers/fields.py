"""A config.json as typed fields: one meaning under its many names, with the model type's own defaults behind them.

An explicit value under any name wins over a default under any name, an explicit null too: it switches a
thing off that the model type has by itself. What was read is remembered, so that what was not can be asked about.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.errors import SpecError, shorten

MOST_COUNT = 10**9
_KNOWN = Path(__file__).parent / "known.json"


class KnownTypes(msgspec.Struct, frozen=True):
    """What transformers' configuration classes state: defaults by model type, and the type of a text tower."""

    source: str
    causal: list[str]
    text: dict[str, str]
    defaults: dict[str, dict[str, Any]]


@cache
def known_types() -> KnownTypes:
    """The table of model types, read once."""
    return msgspec.json.decode(_KNOWN.read_bytes(), type=KnownTypes)


_LAYER = re.compile(r"[0-9]{1,8}")


class Fields:
    """The fields of one config, of a part of it, or of one of its layers; `where` begins every complaint."""

    def __init__(self, data: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.data, self.where = data, where
        self.defaults = defaults or {}
        self.layer: int | None = None
        self.read: set[str] = set()
        self.parts: dict[str, Fields] = {}
        self.layers_own: dict[int, Mapping[str, Any]] | None = None

    def completed(self, more: Mapping[str, Any]) -> "Fields":
        """The same fields with what the model type's code makes of them; a reader sees no difference."""
        self.data, self.layers_own = {**self.data, **more}, None
        return self

    def at(self, layer: int) -> "Fields":
        """The fields as one layer has them: its own values, and its place in every list of one value a layer."""
        mine = Fields(self.data, self.where, self.defaults)
        own = self._own(layer)
        mine.layer, mine.read, mine.parts, mine.layers_own = layer, self.read, self.parts, self.layers_own
        mine.data = {**self.data, **own} if own else self.data
        return mine

    def _own(self, layer: int) -> Mapping[str, Any]:
        self.read.add("per_layer_config")
        table = self.data.get("per_layer_config")
        if table is None:
            return {}
        if self.layers_own is None:
            self.layers_own = self._numbered(table)
        return self.layers_own.get(layer, {})

    def _numbered(self, table: Any) -> dict[int, Mapping[str, Any]]:
        keys = [_LAYER.fullmatch(str(key)) for key in table] if isinstance(table, Mapping) else [None]
        values = table.values() if isinstance(table, Mapping) else ()
        if not all(keys) or not all(isinstance(value, Mapping) for value in values):
            raise self.wrong(("per_layer_config",), table, "a mapping from a layer's number to its fields")
        return {int(key): own for key, own in table.items()}

    def raw(self, *names: str) -> Any:
        """The first stated value that is not null; the first default where none of the names is stated."""
        self.read.update(names)
        stated = [name for name in names if name in self.data]
        for name in stated:
            if self.data[name] is not None:
                return self.data[name]
        for name in () if stated else names:
            if self.defaults.get(name) is not None:
                return self.defaults[name]
        return None

    def states(self, *names: str) -> bool:
        """Whether the config itself states one of the names, null or not."""
        return any(name in self.data for name in names)

    def means_nothing(self, *names: str) -> None:
        """Note that these names do not bear on the cache here, whatever they say."""
        self.read.update(names)

    def count(self, *names: str, least: int = 1) -> int | None:
        """A whole number of at least `least`; a float without a fraction counts as one, a list by the layer."""
        stated = self.raw(*names)
        value = self._of_layer(names, stated) if isinstance(stated, list | tuple) else stated
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or value is False or value == "auto":
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_COUNT:
            raise self.wrong(names, stated, f"a whole number from {least} to 10^9")
        return value

    def _of_layer(self, names: tuple[str, ...], values: list[Any] | tuple[Any, ...]) -> Any:
        if self.layer is not None and self.layer < len(values):
            return values[self.layer]
        if len(values) > 1 and all(value == values[0] for value in values):
            return values[0]
        raise self.wrong(names, values, "one number, or a list of one for each layer")

    def need(self, *names: str) -> int:
        """A whole number that must be there."""
        value = self.count(*names)
        if value is None:
            raise SpecError(f"{self.where}: no {names[0]}", "is this a language model's config.json?")
        return value

    def flag(self, *names: str) -> bool:
        """Whether a switch is on; off where nothing is stated."""
        value = self.raw(*names)
        if value is not None and not isinstance(value, bool | int):
            raise self.wrong(names, value, "true or false")
        return bool(value)

    def word(self, *names: str) -> str | None:
        """A word."""
        value = self.raw(*names)
        if value is not None and not isinstance(value, str):
            raise self.wrong(names, value, "a word")
        return value

    def items(self, *names: str) -> list[Any] | None:
        """A list."""
        value = self.raw(*names)
        if value is not None and not isinstance(value, list | tuple):
            raise self.wrong(names, value, "a list")
        return None if value is None else list(value)

    def counts(self, *names: str) -> list[int] | None:
        """A list of whole numbers of at least 0."""
        values = self.items(*names)
        if values is not None and not all(type(value) is int and 0 <= value <= MOST_COUNT for value in values):
            raise self.wrong(names, values, "a list of whole numbers")
        return values

    def part(self, *names: str) -> "Fields | None":
        """A nested mapping as fields of its own."""
        value = self.raw(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(names, value, "a mapping")
        name = next(name for name in names if value in (self.data.get(name), self.defaults.get(name)))
        if name not in self.parts or self.parts[name].data is not value:
            self.parts[name] = Fields(value, f"{self.where}: {name}")
        return self.parts[name]

    def wrong(self, names: tuple[str, ...], value: Any, wanted: str) -> SpecError:
        """The complaint about one field."""
        name = next((name for name in names if self.data.get(name) is not None), names[0])
        return SpecError(f"{self.where}: {name} {shown(value)} is not {wanted}", "check the config")


def shown(value: Any) -> str:
    """A value in a complaint, short."""
    try:
        return shorten(repr(value))
    except (ValueError, RecursionError):
        return "as it stands"  # a number of thousands of digits, or lists in lists in lists
