"""YAML to ModelSpec: strict, every error with its file, its line and what would work."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.cache.kinds import KINDS
from kvcalc.cache.recurrent import StateEntry
from kvcalc.errors import KvcalcError, SpecError, nearest, shorten
from kvcalc.model.located import LocatedDict, LocatedList, read_documents
from kvcalc.model.overrides import apply_overrides
from kvcalc.model.resolve import ResolveError, resolve
from kvcalc.model.spec import AnyMlp, Dense, Document, LayerEntry, Mixer, Moe, ModelSpec

_MLPS: dict[str, type[Any]] = {"dense": Dense, "moe": Moe}
_SECTIONS = {"blocks": LayerEntry, "mixers": Mixer, "mlps": AnyMlp}


def read_specs(path: Path, overrides: Sequence[str] = ()) -> list[ModelSpec]:
    """Every model of a spec file, in its order; SpecError at the first thing that is wrong."""
    specs = [read_document(document, path, overrides) for document in read_documents(path)]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{path}: two documents are named {name}", "each needs a name of its own")
    return specs


def read_document(document: LocatedDict, path: Path, overrides: Sequence[str] = ()) -> ModelSpec:
    """The model of one document, with `--set` overrides applied first."""
    apply_overrides(document, overrides)
    try:
        parsed = _convert_document(document, path)
        _check_formats(parsed, document, path)
        return resolve(parsed, overrides)
    except ResolveError as error:
        line = _find_line(document, error.key, error.value)
        raise SpecError(f"{_at(path, line)}{error.message}", _with_overrides(error.hint, overrides)) from error
    except SpecError as error:
        raise SpecError(error.message, _with_overrides(error.hint, overrides)) from error


def _with_overrides(hint: str, overrides: Sequence[str]) -> str:
    return "; ".join([hint, f"changed by --set {' '.join(overrides)}"]) if overrides else hint


def _convert_document(document: LocatedDict, path: Path) -> Document:
    for section, kind in _SECTIONS.items():
        entries = document.get(section)
        for entry in entries.values() if isinstance(entries, LocatedDict) else ():
            _convert(entry, kind, section, path, _line_of(entry) or document.lines[section])
    return _convert(document, Document, "document", path, document.line)  # type: ignore[no-any-return]


def _convert(value: Any, kind: Any, section: str, path: Path, line: int) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _friendly(str(error), value, section, path, line) from error


_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_FIELD = re.compile(r"field `(\w+)`")


def _friendly(text: str, root: Any, section: str, path: Path, line: int) -> SpecError:
    """msgspec's complaint as one located line with the nearest right name."""
    message, _, where = text.partition(" - at ")
    steps = [int(index) if index else key for key, index in _STEP.findall(where)]
    holder, value, line = _walk(root, steps, line)
    known = _known_keys(value, steps, section)
    if "unknown field" in message:
        key = _FIELD.search(message)[1]  # type: ignore[index]
        near = nearest(key, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"keys here: {', '.join(known)}"
        return SpecError(f"{_at(path, value.lines.get(key, line))}unknown key {key}{_in_kind(value)}", hint)
    if "missing required" in message:
        key = _FIELD.search(message)[1]  # type: ignore[index]
        return SpecError(f"{_at(path, line)}{key}: is missing{_in_kind(value)}", f"keys here: {', '.join(known)}")
    if steps and steps[-1] == "kind":
        options = KINDS if value in _close_to(value, KINDS) or not _is_mlp(steps, section) else _MLPS
        near = nearest(str(value), options)
        hint = f"did you mean {' or '.join(near)}?" if near else f"kinds: {', '.join(options)}"
        return SpecError(f"{_at(path, line)}unknown kind {shorten(str(value))!r}", hint)
    return SpecError(f"{_at(path, line)}{_named_step(steps, holder)}{_plain(message, value)}", _hint_for(message))


def _close_to(value: Any, options: Iterable[str]) -> list[str]:
    return [value] if value in options else []


def _walk(root: Any, steps: Sequence[str | int], line: int) -> tuple[Any, Any, int]:
    """The container at the end of a path, the value there, and the line of that value."""
    holder, value = None, root
    for step in steps:
        if not isinstance(value, LocatedDict | LocatedList):
            break
        try:
            line = value.lines[step]  # type: ignore[index]
        except (KeyError, IndexError):
            break
        holder, value = value, value[step]  # type: ignore[index]
    return holder, value, line


def _known_keys(value: Any, steps: Sequence[str | int], section: str) -> list[str]:
    names = [step for step in steps if isinstance(step, str)]
    last = names[-1] if names else section
    kind = value.get("kind") if isinstance(value, LocatedDict) else None
    if last == "states":
        return list(StateEntry.__struct_encode_fields__)
    if last in ("mixer", "mixers"):
        return ["kind", *(KINDS[kind].__struct_encode_fields__ if kind in KINDS else ())]
    if _is_mlp(steps, section):
        return ["kind", *(_MLPS[kind].__struct_encode_fields__ if kind in _MLPS else ())]
    return list((Document if last == "document" else LayerEntry).__struct_encode_fields__)


def _is_mlp(steps: Sequence[str | int], section: str) -> bool:
    names = [step for step in steps if isinstance(step, str) and step != "kind"]
    return (names[-1] if names else section) in ("mlp", "mlps")


def _in_kind(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, LocatedDict) else None
    return f" in {kind}" if isinstance(kind, str) else ""


def _named_step(steps: Sequence[str | int], holder: Any) -> str:
    names = [step for step in steps if isinstance(step, str)]
    return f"{names[-1]}: " if names else f"{holder.get('kind', '')} " if isinstance(holder, LocatedDict) else ""


def _plain(message: str, value: Any) -> str:
    if not message.startswith("Expected"):
        return message
    wanted = message.removeprefix("Expected ").replace("`", "").partition(", got")[0]
    return f"{shorten(_yaml_word(value))} is no {wanted.replace('int', 'whole number').replace('str', 'name')}"


def _yaml_word(value: Any) -> str:
    if isinstance(value, LocatedDict):
        return "a mapping"
    if isinstance(value, LocatedList):
        return "a list"
    return {True: "true", False: "false", None: "null"}.get(value, str(value)) if _is_word(value) else str(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _hint_for(message: str) -> str:
    return "" if not message.startswith("Expected") else "write a value of that type, within that bound"


def _check_formats(parsed: Document, document: LocatedDict, path: Path) -> None:
    for key in ("dtype", "state_dtype"):
        name = getattr(parsed, key)
        if name is None:
            continue
        try:
            find_format(name, f"{key}:").bulk_bytes(1, key)
        except KvcalcError as error:
            raise SpecError(f"{_at(path, document.lines.get(key, 0))}{error.message}", error.hint) from error


def _find_line(node: Any, key: str, value: object) -> int:
    """The line where `key` stands, holding `value` or holding it in a list or a pattern."""
    found = _search(node, key, value, set())
    return found if found is not None else _line_of(node)


def _search(node: Any, key: str, value: object, seen: set[int]) -> int | None:
    if not isinstance(node, LocatedDict | LocatedList) or id(node) in seen:
        return None
    seen.add(id(node))
    if isinstance(node, LocatedDict) and key in node and _holds(node[key], value):
        return node.lines.get(key, 0)
    items = list(zip(node, node.lines, strict=True)) if isinstance(node, LocatedList) else []
    for item, line in items:
        if value is not None and item == value and isinstance(item, str):
            return line
    children = node.values() if isinstance(node, LocatedDict) else node
    return next((line for child in children if (line := _search(child, key, value, seen)) is not None), None)


def _holds(held: Any, value: object) -> bool:
    return value is None or held == value or (isinstance(held, str | LocatedList) and value in held)  # type: ignore[operator]


def _line_of(value: Any) -> int:
    return value.line if isinstance(value, LocatedDict | LocatedList) else 0


def _at(path: Path, line: int) -> str:
    return f"{path}:{line}: " if line else f"{path}: "
