"""The settings of a plan file out of the flags of `kvcalc fit` and `kvcalc throughput`, and back into their groups."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import msgspec
import typer

from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.fit import CardOptions, CommandOptions
from kvcalc.cli.options import KvDtypeOption, RequestOptions, ShardingOptions
from kvcalc.cli.throughput import LoadOptions, MachineOptions, NumberOptions
from kvcalc.errors import KvcalcError, shorten
from kvcalc.plan.settings import Given, Setting, Takes, Vocabulary, switched, worded

GROUPS: tuple[type[msgspec.Struct], ...] = (
    RequestOptions,
    KvDtypeOption,
    CardOptions,
    EngineOptions,
    CommandOptions,
    ShardingOptions,
    LoadOptions,
    NumberOptions,
    MachineOptions,
)
"""Whose flags are settings; of two flags of one name the first stands for both."""

OF_THE_VERB = {"strict", "emit"}
"""Flags that say how the whole verb answers, and are no settings of a case."""

Group = TypeVar("Group", bound=msgspec.Struct)


class Flag(msgspec.Struct, frozen=True):
    """One flag of a group: its field, what it is annotated with, and the panel of its help."""

    field: str
    annotation: Any
    panel: str

    @property
    def name(self) -> str:
        """The setting's name."""
        return self.field.rstrip("_")

    @property
    def option(self) -> Any:
        """What typer knows of it."""
        return self.annotation.__metadata__[0]

    @property
    def kind(self) -> Any:
        """The type of one value, None and lists left out."""
        kinds = get_args(self.annotation.__origin__) or (self.annotation.__origin__,)
        return next(one for one in kinds if one is not NoneType)

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.kind is bool

    @property
    def is_list(self) -> bool:
        """Whether it may stand several times."""
        return get_args(self.kind) == (str,)

    @property
    def takes(self) -> Takes:
        """What stands behind it in a plan."""
        if self.is_list:
            return "list"
        return "text" if self.option.parser else _TAKES[self.kind]

    def read(self, value: Any) -> Any:
        """The value as the group holds it; KvcalcError where it is none."""
        if self.is_switch:
            return switched(self.name, value)
        if self.is_list:
            return [worded(self.name, one) for one in (value if isinstance(value, list) else [value])]
        text = worded(self.name, value)
        return self.option.parser(text) if self.option.parser else self._converted(text)

    def _converted(self, text: str) -> Any:
        try:
            found = self.kind(text)
        except ValueError as error:
            what = "whole number" if self.kind is int else "number"
            raise KvcalcError(f"{self.name}: {shorten(text)!r} is no {what}", f"write {self.name}: 2") from error
        if self.option.min is not None and not found >= self.option.min:
            raise KvcalcError(f"{self.name}: {text} is below {self.option.min}", "check the value")
        return found

    @property
    def declared(self) -> tuple[str, ...]:
        """How the command line spells it; inside Annotated typer takes the first spelling for the default."""
        first = (self.option.default,) if isinstance(self.option.default, str) else ()
        return (*first, *(self.option.param_decls or ())) or (f"--{self.name.replace('_', '-')}",)

    def spellings(self) -> tuple[str, ...]:
        """Its long names with underscores."""
        written = [part for text in self.declared for part in text.split("/")]
        long = [one[2:].replace("-", "_") for one in written if one.startswith("--") and not one.startswith("--no-")]
        return tuple(dict.fromkeys((self.name, *long)))


_TAKES: dict[Any, Takes] = {bool: "switch", int: "whole", float: "number", str: "text", Path: "file"}


def flags_of(group: type[msgspec.Struct]) -> Iterator[Flag]:
    """The flags of a group and of those that it holds."""
    for name in group.__struct_fields__:
        annotation = group.__annotations__[name]
        if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            yield from flags_of(annotation)
        elif name not in OF_THE_VERB:
            yield Flag(name, annotation, group.PANEL)  # type: ignore[attr-defined]


@cache
def all_flags() -> dict[str, Flag]:
    """Every setting's flag by name."""
    found: dict[str, Flag] = {}
    for flag in (one for group in GROUPS for one in flags_of(group)):
        found.setdefault(flag.name, flag)
    return found


@cache
def vocabulary() -> Vocabulary:
    """The words of a plan file."""
    return Vocabulary(
        Setting(flag.name, flag.spellings(), flag.takes, flag.read, flag.option.help or "")
        for flag in all_flags().values()
    )


def filled(group: type[Group], settings: Mapping[str, Given]) -> Group:
    """The group with what these settings say."""
    values: dict[str, Any] = {}
    for name in group.__struct_fields__:
        annotation = group.__annotations__[name]
        if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            values[name] = filled(annotation, settings)
        elif name.rstrip("_") in settings and name not in OF_THE_VERB:
            values[name] = Flag(name, annotation, "").read(settings[name.rstrip("_")].value)
    return group(**values)


def override_flags() -> type[msgspec.Struct]:
    """The flags of `kvcalc check` that go before what a plan says: every setting, as the text that was typed."""
    panels: dict[str, list[Flag]] = {}
    for flag in all_flags().values():
        panels.setdefault(flag.panel, []).append(flag)
    groups = [(f"panel_{place}", _panel(title, flags)) for place, (title, flags) in enumerate(panels.items())]
    return msgspec.defstruct("Overrides", groups, namespace={"PANEL": ""}, frozen=True)


def _panel(title: str, flags: list[Flag]) -> type[msgspec.Struct]:
    fields = [(flag.field, _typed(flag), None) for flag in flags]
    return msgspec.defstruct("Panel", fields, namespace={"PANEL": title}, frozen=True)


def _typed(flag: Flag) -> Any:
    """The same flag without a default, so that what was typed can be told; its text is read with the plan's."""
    option, kind = flag.option, bool if flag.is_switch else list[str] if flag.is_list else str
    made = typer.Option(
        *flag.declared,
        metavar=option.metavar,
        help=option.help,
        autocompletion=option.autocompletion,
        hidden=option.hidden,
    )
    return Annotated[kind | None, made]


def typed_in(overrides: msgspec.Struct) -> dict[str, Given]:
    """What was typed, by the names of settings."""
    found: dict[str, Given] = {}
    for panel in msgspec.structs.asdict(overrides).values():
        for name, value in msgspec.structs.asdict(panel).items():
            if value is not None and value != []:
                found[name.rstrip("_")] = Given(value)
    return found
