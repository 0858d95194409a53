"""A plan file as cases: strict, every error with its file, its line and what would work."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from kvcalc.errors import KvcalcError, SpecError, nearest, printable, shorten
from kvcalc.model.located import LocatedDict, LocatedList, Sort, at, read_documents
from kvcalc.plan.limits import LIMITS, Limit
from kvcalc.plan.matrix import count, expanded, refuse_many
from kvcalc.plan.settings import Given, Vocabulary, worded

PLAN = Sort("plan", "a plan needs cases:, each with a name: and a model:")
TOP = ("defaults", "limits", "cases")
OF_A_CASE = ("name", "limits", "matrix")


Read = TypeVar("Read")


class Stated(msgspec.Struct, frozen=True):
    """A limit, and the line where it stands."""

    limit: Limit
    line: int


class Case(msgspec.Struct, frozen=True):
    """One case with all that holds for it; `line` is where it begins."""

    name: str
    file: Path
    line: int
    settings: Mapping[str, Given]
    limits: Mapping[str, Stated]

    @property
    def model(self) -> str:
        """The model as the plan names it, empty where a command does."""
        return str(self.settings["model"].value) if "model" in self.settings else ""


class Part(msgspec.Struct, frozen=True):
    """What one mapping of a plan says: settings, axes of its matrix, limits; None takes a default away."""

    settings: dict[str, Given | None]
    axes: dict[str, list[Given]]
    limits: dict[str, Stated | None]


def read_plan(path: Path, vocabulary: Vocabulary, typed: Mapping[str, Given]) -> list[Case]:
    """Every case of the plan at `path`, matrices expanded; `typed` settings go before those of the file.

    SpecError at the first thing that is wrong.
    """
    documents = read_documents(path, PLAN)
    if len(documents) > 1:
        raise SpecError(f"{path}:{documents[1].line}: a second document", "a plan is one: leave --- out")
    return _Reader(path, vocabulary, typed).cases(documents[0])


class _Reader:
    def __init__(self, path: Path, vocabulary: Vocabulary, typed: Mapping[str, Given]) -> None:
        self.path, self.vocabulary, self.typed = path, vocabulary, typed

    def cases(self, document: LocatedDict) -> list[Case]:
        """The cases of the whole file."""
        for key in document:
            if key not in TOP:
                near = nearest(key, TOP)
                self._refuse(document.lines[key], f"unknown key {shorten(key)}", _offer(near, TOP))
        defaults = self._part(self._mapping(document, "defaults"), ("matrix",), "the defaults")
        limits = self._limits(self._mapping(document, "limits"))
        entries = document.get("cases")
        if not isinstance(entries, LocatedList) or not entries:
            line = document.lines.get("cases", 0)
            message = "cases: is no list" if entries else "the plan has no cases"
            self._refuse(line, message, "cases: is a list, as - name: chat with its model: below")
        whole = [self._whole(entry, line, defaults, limits) for entry, line in zip(entries, entries.lines, strict=True)]
        try:
            refuse_many([count(axes) for _, axes in whole])
        except KvcalcError as error:
            self._refuse(document.lines["cases"], error.message, error.hint)
        found = [case for one, axes in whole for case in self._spread(one, axes)]
        self._refuse_twins(found)
        return found

    def _whole(
        self, entry: Any, line: int, defaults: Part, limits: dict[str, Stated | None]
    ) -> tuple[Case, dict[str, list[Given]]]:
        """A case before its matrix is expanded, and that matrix."""
        if not isinstance(entry, LocatedDict):
            self._refuse(line, "a case is a mapping", "- name: chat, and below it model: and settings")
        name = self._name(entry, line)
        own = self._part(entry, OF_A_CASE, f"case {shorten(name)}")
        settings = {key: given for key, given in defaults.settings.items() if key not in own.axes} | own.settings
        axes = {key: values for key, values in defaults.axes.items() if key not in own.settings} | own.axes
        settings |= self.typed
        axes = {key: values for key, values in axes.items() if key not in self.typed}
        if not any(key in axes or settings.get(key) is not None for key in ("model", "from")):
            self._refuse(line, f"case {shorten(name)} has no model", "model: llama-8b; kvcalc models list shows names")
        stated = {key: found for key, found in (limits | own.limits).items() if found is not None}
        given = {key: found for key, found in settings.items() if found is not None}
        return Case(name, self.path, line, given, stated), axes

    def _name(self, entry: LocatedDict, line: int) -> str:
        name = entry.get("name")
        if name is None:
            self._refuse(line, "a case has no name", "each needs a name: of its own")
        text = self._read(entry.lines["name"], worded, "name", name).strip()
        if not text or printable(text) != text:
            self._refuse(
                entry.lines["name"],
                f"name: {printable(shorten(text))!r} is empty or holds control characters",
                "names are words",
            )
        return text

    def _part(self, mapping: LocatedDict, structure: Sequence[str], where: str) -> Part:
        """Settings, matrix and limits of the defaults or of a case."""
        settings: dict[str, Given | None] = {}
        for key, value in mapping.items():
            if key in structure:
                continue
            name, given = self._setting(key, value, mapping.lines[key], structure)
            if name in settings:
                self._refuse(mapping.lines[key], f"{key}: {name} is said already", f"keep one of them in {where}")
            settings[name] = None if value is None else given
        axes = self._axes(self._mapping(mapping, "matrix"))
        for name in axes:
            if name in settings:
                line = mapping.lines["matrix"]
                self._refuse(line, f"{name} stands in the matrix and beside it", f"keep one of them in {where}")
        has_limits = "limits" in structure
        return Part(settings, axes, self._limits(self._mapping(mapping, "limits")) if has_limits else {})

    def _setting(self, key: str, value: Any, line: int, more: Sequence[str]) -> tuple[str, Given]:
        setting = self.vocabulary.find(key)
        if setting is None:
            hint = f"{key} is a limit: put it under limits:" if key.replace("-", "_") in LIMITS else ""
            self._refuse(line, f"unknown key {shorten(key)}", hint or self.vocabulary.near(key, more))
        if value is not None:
            self._read(line, setting.read, value)
        return setting.name, Given(value, line)

    def _axes(self, matrix: LocatedDict) -> dict[str, list[Given]]:
        axes: dict[str, list[Given]] = {}
        for key, values in matrix.items():
            line = matrix.lines[key]
            if not isinstance(values, LocatedList) or not values:
                self._refuse(line, f"matrix: {shorten(key)} has no values", f"a list of them: {shorten(key)}: [1, 2]")
            found = [
                self._setting(key, value, at_line, ()) for value, at_line in zip(values, values.lines, strict=True)
            ]
            name = found[0][0]
            if name in axes:
                self._refuse(line, f"matrix: {name} stands twice", "keep one of them")
            axes[name] = [self._single(name, given) for _, given in found]
        return axes

    def _single(self, name: str, given: Given) -> Given:
        """One value of an axis."""
        if not isinstance(given.value, str | int | float):
            self._refuse(given.line, f"matrix: {name} varies over single values", f"write {name}: [A, B]")
        return given

    def _limits(self, mapping: LocatedDict) -> dict[str, Stated | None]:
        found: dict[str, Stated | None] = {}
        for key, value in mapping.items():
            line, name = mapping.lines[key], key.replace("-", "_")
            if name not in LIMITS:
                hint = "that is a setting: it stands beside limits:" if self.vocabulary.find(key) else ""
                self._refuse(line, f"unknown limit {shorten(key)}", hint or _offer(nearest(name, LIMITS), LIMITS))
            if name in found:
                self._refuse(line, f"{name} stands twice", "keep one of them")
            found[name] = None if value is None else Stated(self._read(line, LIMITS[name].read, value), line)
        return found

    def _mapping(self, holder: LocatedDict, key: str) -> LocatedDict:
        found = holder.get(key)
        if found is None:
            return LocatedDict(0)
        if not isinstance(found, LocatedDict):
            self._refuse(
                holder.lines[key], f"{key}: is no mapping", f"below {key}: stand lines such as {_EXAMPLES[key]}"
            )
        return found

    def _spread(self, case: Case, axes: Mapping[str, Sequence[Given]]) -> Iterator[Case]:
        for name, chosen in expanded(case.name, axes):
            yield msgspec.structs.replace(case, name=name, settings={**case.settings, **chosen})

    def _refuse_twins(self, cases: Sequence[Case]) -> None:
        first: dict[str, int] = {}
        for case in cases:
            if case.name in first:
                before = first[case.name]
                self._refuse(
                    case.line, f"two cases are {shorten(case.name)!r} (first on line {before})", "each needs its own"
                )
            first[case.name] = case.line

    def _read(self, line: int, read: Callable[..., Read], *values: Any) -> Read:
        try:
            return read(*values)
        except KvcalcError as error:
            self._refuse(line, error.message, error.hint)

    def _refuse(self, line: int, message: str, hint: str) -> NoReturn:
        raise SpecError(f"{at(self.path, line)}{message}", hint)


_EXAMPLES = {
    "defaults": "engine: vllm",
    "limits": "max_kv_cache: 40GiB",
    "matrix": "tp: [1, 2]",
}


def _offer(near: Sequence[str], known: Sequence[str] | Mapping[str, Any]) -> str:
    return f"did you mean {' or '.join(near)}?" if near else f"known here: {', '.join(known)}"
