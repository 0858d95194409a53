"""Arguments of a server as flags and values, by the names that its own parser knows (flags.yaml)."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kvcalc.engines.commands.words import Word
from kvcalc.errors import KvcalcError, nearest, shorten


class Shapes(msgspec.Struct, frozen=True):
    """The flags of one engine by what they take, without dashes in front."""

    source: str
    values: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    env: dict[str, str] = {}
    """Variables that stand for a flag."""

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return self.values | self.lists | self.switches | self.optional


@cache
def load_shapes() -> dict[str, Shapes]:
    """The flags of every engine."""
    tables = yaml.safe_load((Path(__file__).parent / "flags.yaml").read_text())
    return {name: _shapes(**table) for name, table in tables.items()}


def _shapes(source: str, env: str = "", **names: str) -> Shapes:
    variables = dict(pair.split("=") for pair in env.split())
    return Shapes(source=source, env=variables, **{shape: frozenset(words.split()) for shape, words in names.items()})


class Given(msgspec.Struct, frozen=True):
    """A flag as it was given: its bare `name`, and `values` as words; `shown` is how it stands in the command.

    `path` are the keys behind a dotted name: `--speculative-config.method` has `("method",)`.
    """

    name: str
    shown: str
    values: tuple[Word, ...] = ()
    path: tuple[str, ...] = ()
    is_off: bool = False
    """Whether it stands as `--no-NAME`."""

    def text(self) -> str:
        """Its one value; KvcalcError where it has none, or where the value is not known."""
        if not self.values:
            raise KvcalcError(f"{self.shown} stands without a value", "write the command as the engine takes it")
        if self.values[-1].problem:
            raise KvcalcError(f"{self.shown}: {self.values[-1].problem}", "write its value into the command")
        return self.values[-1].text

    @property
    def said(self) -> str:
        """The flag with its value, for a list."""
        return shorten(" ".join([self.shown, *(one.text for one in self.values)]), 100)


class Arguments(msgspec.Struct, frozen=True):
    """What stands behind a program: its flags in order, positional words, flags nobody knows, and what was left out."""

    given: tuple[Given, ...]
    positionals: tuple[Word, ...]
    unknown: tuple[str, ...]


class Dialect(msgspec.Struct, frozen=True):
    """How one engine's parser reads names.

    `long_name` brings a name behind two dashes into the form of flags.yaml; `equals` whether `--flag=value` is read,
    `abbreviates` whether the beginning of a name will do, `negates` whether `--no-NAME` is the opposite of a switch.
    """

    engine: str
    long_name: Callable[[str], str] = str
    equals: bool = True
    abbreviates: bool = False
    negates: bool = False
    greedy: bool = False
    """Whether a flag takes the next word whatever it looks like."""
    own: frozenset[str] = frozenset()
    """Names with a value that flags.yaml lacks: newer than its source."""
    attached: frozenset[str] = frozenset()
    """Letters whose value may stand right behind them: `-O3`."""
    optional: frozenset[str] = frozenset()
    """Names that older releases have as a switch, and newer ones with a value of `_SWITCH_WORDS`."""

    @property
    def shapes(self) -> Shapes:
        """Its flags."""
        return load_shapes()[self.engine]

    def read(self, words: Sequence[Word]) -> Arguments:
        """The arguments in `words`; KvcalcError where a word that may be a flag is not known."""
        given: list[Given] = []
        positionals: list[Word] = []
        unknown: list[str] = []
        rest = list(reversed(words))
        while rest:
            word = rest.pop()
            if word.problem and not word.text.startswith("-"):
                self._place(word, positionals, unknown)
            elif not _looks_like_flag(word.text):
                positionals.append(word)
            else:
                self._flag(word, rest, given, unknown)
        return Arguments(tuple(given), tuple(positionals), tuple(unknown))

    def _place(self, word: Word, positionals: list[Word], unknown: list[str]) -> None:
        """A word that is not known where a flag could stand; what a script hands on may be empty."""
        if word.text in ("$@", "$*"):
            unknown.append(word.text)
        elif positionals or word.text.startswith(("$(", "`")):
            raise KvcalcError(f"{shorten(word.text)}: {word.problem}", "write what it stands for into the command")
        else:
            positionals.append(word)

    def _flag(self, word: Word, rest: list[Word], given: list[Given], unknown: list[str]) -> None:
        bare, joined = word.text, None
        if self.equals and "=" in bare:
            bare, _, after = bare.partition("=")
            joined = Word(after, word.problem)
        if bare[1:2] in self.attached and bare[2:3].isalnum() and joined is None:
            bare, joined = bare[:2], Word(bare[2:])
        head, *path = bare.split(".") if bare.startswith("--") or "." in bare else [bare]
        name, is_off = self._name(head)
        if name is None:
            follows = joined is None and rest and not _looks_like_flag(rest[-1].text)
            value = [rest.pop()] if follows else [joined] if joined else []
            unknown.append(self._unknown(bare, value))
            return
        takes = () if is_off or joined else tuple(self._values(name, path, rest))
        given.append(Given(name, bare, (joined,) if joined else takes, tuple(path), is_off))

    def _unknown(self, bare: str, values: list[Word]) -> str:
        near = nearest(bare.lstrip("-"), self.shapes.names, 1)
        said = shorten(" ".join([bare, *(one.text for one in values)]), 80)
        return f"{said} (did you mean --{near[0]}?)" if near else said

    def _name(self, head: str) -> tuple[str | None, bool]:
        """The name as flags.yaml has it, None for one that it lacks, and whether the switch is turned off."""
        names = self.shapes.names | self.own
        name = self.long_name(head[2:]) if head.startswith("--") else head[1:]
        if name in names:
            return name, False
        if not head.startswith("--"):
            return None, False
        if self.negates:
            for prefix, other in (("no-", ""), ("disable-", "enable-"), ("enable-", "disable-")):
                opposite = other + name.removeprefix(prefix)
                if name.startswith(prefix) and opposite in self.shapes.switches:
                    return opposite, True
        begins = [one for one in names if len(one) > 2 and one.startswith(name)] if self.abbreviates else []
        return (begins[0] if len(begins) == 1 else None), False

    def _values(self, name: str, path: list[str], rest: list[Word]) -> Iterator[Word]:
        if name in self.optional:
            if rest and rest[-1].text in SWITCH_WORDS:
                yield rest.pop()
        elif name in self.shapes.lists:
            while rest and not _looks_like_flag(rest[-1].text):
                yield rest.pop()
        elif name in self.shapes.values | self.own or path:
            if rest and (self.greedy or not _looks_like_flag(rest[-1].text)):
                yield rest.pop()
        elif name in self.shapes.optional and rest and not _looks_like_flag(rest[-1].text):
            yield rest.pop()


SWITCH_WORDS = {"on": True, "off": False, "auto": True, "1": True, "0": False, "-1": True}
SWITCH_WORDS |= {"true": True, "enabled": True, "false": False, "disabled": False}
"""What -fa of llama.cpp takes: is_truthy, is_falsey and is_autoy of common/arg.cpp; auto counts as on."""


def _looks_like_flag(text: str) -> bool:
    """Whether argparse takes a word for a flag: dashes, and no negative number behind them."""
    return text.startswith("-") and len(text) > 1 and not re.fullmatch(r"-\d+|-\d*\.\d+", text)


def merged_json(given: Sequence[Given]) -> dict[str, Any]:
    """What a flag with JSON and its dotted spellings say together; KvcalcError for what is no JSON mapping."""
    merged: dict[str, Any] = {}
    for one in given:
        if one.path:
            merged[".".join(one.path)] = _json_or_text(one.text())
            continue
        value = _json_or_text(one.text())
        if not isinstance(value, dict):
            raise KvcalcError(f"{one.shown} {shorten(one.text())!r} is no JSON mapping", "quote it: '{\"key\": 1}'")
        merged |= value
    return merged


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
