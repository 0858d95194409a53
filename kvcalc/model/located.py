"""YAML as located data: plain dicts and lists that remember their lines, and nothing executed.

Read from parser events, not through a loader: no recursion to exhaust, no tags to run, aliases are
shared objects whose expanded size is counted before anything could be copied.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kvcalc.errors import SpecError, shorten
from kvcalc.model.files import read_bounded

MOST_BYTES = 2**20
MOST_NODES = 200_000
MOST_DEPTH = 60
MOST_DIGITS = 30
MOST_DOCUMENTS = 1_000

_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class LocatedDict(dict[str, Any]):
    """A mapping that knows the line of each key and its own; line 0 is a value from the command line."""

    line = 0

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class LocatedList(list[Any]):
    """A sequence that knows its own line and the line of each item."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def located(value: Any) -> Any:
    """Plain data as located data without lines: what an importer made stands in no file."""
    if isinstance(value, dict):
        mapping = LocatedDict(0)
        mapping.update({key: located(child) for key, child in value.items()})
        mapping.lines = dict.fromkeys(mapping, 0)
        return mapping
    if isinstance(value, list | tuple):
        sequence = LocatedList(0)
        sequence.extend(located(child) for child in value)
        sequence.lines = [0] * len(sequence)
        return sequence
    return value


def line_of(value: Any) -> int:
    """The line of a mapping or a list, 0 where it has none."""
    return value.line if isinstance(value, LocatedDict | LocatedList) else 0


def at(path: Path, line: int) -> str:
    """`path:line: `, as compilers write it; line 0 is left out."""
    return f"{path}:{line}: " if line else f"{path}: "


class Sort(msgspec.Struct, frozen=True):
    """A sort of YAML file: what it is called, and what stands in it at least."""

    what: str
    needs: str


SPEC = Sort("spec", "a spec needs at least name: and layers:")


def read_documents(path: Path, sort: Sort = SPEC) -> list[LocatedDict]:
    """Every document of a YAML file, each a mapping; SpecError for anything else."""
    documents = [_mapping(document, path, sort) for document in _Builder(read_text(path, sort), str(path)).documents()]
    if not documents:
        raise SpecError(f"{path}: the file is empty", sort.needs)
    if len(documents) > MOST_DOCUMENTS:
        raise SpecError(f"{path}: more than {MOST_DOCUMENTS:,} documents", "a family has a handful")
    return documents


def read_value(text: str) -> Any:
    """One YAML value from the command line; SpecError where it is none."""
    documents = list(_Builder(text, "value").documents())
    if len(documents) > 1:
        raise SpecError("value: one value is expected", "quote it")
    return documents[0] if documents else None


def _mapping(document: Any, path: Path, sort: Sort) -> LocatedDict:
    if not isinstance(document, LocatedDict):
        raise SpecError(f"{path}: a {sort.what} is a mapping of keys", sort.needs)
    return document


def read_text(path: Path, sort: Sort = SPEC) -> str:
    """The text of such a file; SpecError for what is no file, too large, or binary."""
    # os.path answers False for a name that no file system takes; Path.is_dir raises.
    if os.path.isdir(path):  # noqa: PTH112
        raise SpecError(f"{path} is a directory", "name a .yaml file in it")
    raw = read_bounded(
        path, MOST_BYTES, sort.what, f"write the {sort.what} to a file", "repeats are written as repeat: N"
    )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: this is a binary file, not YAML", f"name a .yaml {sort.what}") from error


class _Builder:
    """Builds documents from events with a stack of open containers."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.stack: list[tuple[Any, str | None]] = []
        self.key: list[str | None] = []
        self.anchors: dict[str, tuple[Any, int, int]] = {}
        self.sizes: list[int] = []
        self.depths: list[int] = []
        self.root: Any = None

    def documents(self) -> Iterator[Any]:
        """Yield every document that is not empty."""
        try:
            for event in yaml.parse(self.text, Loader=_LOADER):
                if isinstance(event, yaml.DocumentEndEvent):
                    if self.root is not None:
                        yield self.root
                    self.root, self.anchors = None, {}
                else:
                    self._take(event)
        except yaml.YAMLError as error:
            raise self._syntax_error(error) from error

    def _take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open(event, line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close()
            case yaml.AliasEvent():
                self._add(*self._shared(event.anchor or "", line), line)
            case yaml.ScalarEvent():
                value = self._scalar(event, line)
                if event.anchor:
                    self.anchors[event.anchor] = (value, 1, 0)
                self._add(value, 1, 0, line)

    def _open(self, event: Any, line: int) -> None:
        self._refuse_tag(event, line)
        container = LocatedDict(line) if isinstance(event, yaml.MappingStartEvent) else LocatedList(line)
        self.stack.append((container, event.anchor))
        self.key.append(None)
        self.sizes.append(1)
        self.depths.append(1)

    def _close(self) -> None:
        container, anchor = self.stack.pop()
        self.key.pop()
        size, depth = self.sizes.pop(), self.depths.pop()
        if anchor:
            self.anchors[anchor] = (container, size, depth)
        self._add(container, size, depth, container.line)

    def _shared(self, anchor: str, line: int) -> tuple[Any, int, int]:
        if anchor not in self.anchors:
            raise self._error(
                line, f"*{shorten(anchor)} names no complete anchor above", "anchors stand before their use"
            )
        return self.anchors[anchor]

    def _add(self, value: Any, size: int, depth: int, line: int) -> None:
        """Put a value of so many nodes and levels into the open container; both count through aliases."""
        if not self.stack:
            self.root = value
            return
        self.sizes[-1] += size
        self.depths[-1] = max(self.depths[-1], depth + 1)
        if self.sizes[-1] > MOST_NODES:
            raise self._error(line, f"anchors expand to more than {MOST_NODES:,} values", "use repeat: for repetition")
        if self.depths[-1] > MOST_DEPTH:
            raise self._error(line, f"nested more than {MOST_DEPTH} deep", "a spec needs a handful of levels")
        container = self.stack[-1][0]
        if isinstance(container, LocatedList):
            container.append(value)
            container.lines.append(line)
        elif self.key[-1] is None:
            self.key[-1] = self._new_key(container, value, line)
        else:
            container[self.key[-1]] = value
            self.key[-1] = None

    def _new_key(self, container: LocatedDict, key: Any, line: int) -> str:
        if not isinstance(key, str):
            shown = "a mapping or a list" if isinstance(key, dict | list) else shorten(str(key))
            raise self._error(line, f"a key must be a word, not {shown}", 'quote it, as in "1":')
        if key == "<<":
            raise self._error(line, "merge keys (<<) are not read", "share parts through blocks:, mixers: or anchors")
        if key in container.lines:
            raise self._error(line, f"{key}: stands twice (first on line {container.lines[key]})", "keep one of them")
        container.lines[key] = line
        return key

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Any:
        self._refuse_tag(event, line)
        text = event.value
        if event.style in ("'", '"', "|", ">"):
            return text
        if text in _WORDS:
            return _WORDS[text]
        if text[0] not in _NUMERIC_STARTS:
            return text
        if len(text) > MOST_DIGITS and text.strip("+-").replace("_", "").isdigit():
            raise self._error(line, f"{shorten(text, 20)} has too many digits", "counts stay below 10^15")
        return _number(text)

    def _refuse_tag(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!"):
            raise self._error(line, f"the tag {shorten(event.tag)} is not read", "a spec is plain data: remove the tag")

    def _syntax_error(self, error: yaml.YAMLError) -> SpecError:
        if isinstance(error, yaml.reader.ReaderError):
            line = self.text.count("\n", 0, error.position) + 1
            return self._error(line, "not YAML: control characters are not allowed", "remove them")
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML")
        hint = "indent with spaces" if "tab" in problem or "'\\t'" in problem else "check the indentation"
        return self._error(mark.line + 1 if mark else 1, f"not YAML: {shorten(problem)}", hint)

    def _error(self, line: int, message: str, hint: str) -> SpecError:
        return SpecError(f"{self.where}:{line}: {message}", hint)


_NUMERIC_STARTS = frozenset("+-.0123456789")


def _number(text: str) -> int | float | str:
    """The number that a plain scalar spells, or the text itself where it spells none."""
    bare = text.replace("_", "")
    if bare.lstrip("+-").isdecimal():
        return _converted(int, bare, text)
    return _converted(float, bare.replace(".inf", "inf").replace(".nan", "nan"), text)


def _converted(kind: type[int] | type[float], bare: str, text: str) -> int | float | str:
    try:
        return kind(bare)
    except ValueError:
        return text


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
