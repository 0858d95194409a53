"""What is wrong with a spec, said so that it can be mended: file, line, key, and the nearest right name."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.cache.kinds import KINDS
from kvcalc.cache.recurrent import StateEntry
from kvcalc.errors import SpecError, nearest, shorten
from kvcalc.model.located import LocatedDict, LocatedList, at, line_of
from kvcalc.model.spec import MLP_KINDS, Assumed, Document, LayerEntry

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_FIELD = re.compile(r"field `(\w+)`")


def located_error(text: str, root: Any, section: str, path: Path, line: int) -> SpecError:
    """msgspec's complaint as one located line with the nearest right name."""
    message, _, where = text.partition(" - at ")
    steps = [int(index) if index else key for key, index in _STEP.findall(where)]
    holder, value, line = _walk(root, steps, line)
    struct = _struct_at(value, steps, section)
    field = _FIELD.search(message)
    if field and "unknown field" in message:
        return _unknown_key(field[1], value, struct, path, line)
    if field and "missing required" in message:
        return SpecError(f"{at(path, line)}{field[1]}: is missing{_in_kind(value)}", _needed_by(struct))
    if steps and steps[-1] == "kind":
        options = MLP_KINDS if _is_mlp(steps, section) else KINDS
        return SpecError(f"{at(path, line)}unknown kind {shorten(str(value))!r}", _offer(str(value), options, "kinds"))
    return SpecError(f"{at(path, line)}{_named_step(steps, holder)}{_plain(message, value)}", _hint_for(message))


def _unknown_key(key: str, value: Any, struct: type[msgspec.Struct] | None, path: Path, line: int) -> SpecError:
    known = ["kind", *struct.__struct_encode_fields__] if struct else ["kind"]
    where = at(path, value.lines.get(key, line))
    return SpecError(f"{where}unknown key {key}{_in_kind(value)}", _offer(key, known, "keys here"))


def _offer(name: str, known: Iterable[str], what: str) -> str:
    near = nearest(name, known)
    return f"did you mean {' or '.join(near)}?" if near else f"{what}: {', '.join(known)}"


def _needed_by(struct: type[msgspec.Struct] | None) -> str:
    required = [field.encode_name for field in msgspec.structs.fields(struct) if field.required] if struct else ["kind"]
    return f"needed here: {', '.join(required)}"


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


def _struct_at(value: Any, steps: Sequence[str | int], section: str) -> type[msgspec.Struct] | None:
    """The struct that the language expects at the end of a path; None where its kind is not known."""
    names = [step for step in steps if isinstance(step, str)]
    last = names[-1] if names else section
    kind = value.get("kind") if isinstance(value, LocatedDict) else None
    if last in ("mixer", "mixers"):
        return KINDS.get(str(kind))
    if last in ("mlp", "mlps"):
        return MLP_KINDS.get(str(kind))
    return _PLAIN_STRUCTS.get(last, LayerEntry)


_PLAIN_STRUCTS: dict[str, type[msgspec.Struct]] = {"document": Document, "states": StateEntry, "assumed": Assumed}


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
    """`Expected int >= 1` as `0 is no whole number >= 1`."""
    if not message.startswith("Expected"):
        return message
    wanted = message.removeprefix("Expected ").replace("`", "").partition(", got")[0]
    for word, plain in _PLAIN_WORDS.items():
        wanted = wanted.replace(word, plain)
    return f"{_yaml_word(value)} is no {wanted}"


_PLAIN_WORDS = {
    " | null": "",
    " | ": " or ",
    "int": "whole number",
    "str": "name",
    "object": "mapping",
    "array": "list",
}


def _yaml_word(value: Any) -> str:
    if isinstance(value, LocatedDict | LocatedList):
        return "a mapping" if isinstance(value, LocatedDict) else "a list"
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return shorten(str(value))


def _hint_for(message: str) -> str:
    if "int" in message:
        return "counts are whole numbers of at least 1 and at most 10^9"
    return "the spec language is described in docs/spec.md" if message.startswith("Expected") else ""


def find_line(node: Any, key: str, value: object) -> int:
    """The line where `key` stands, holding `value` or holding it in a list or a pattern."""
    found = _search(node, key, value, set())
    return line_of(node) if found is None else found


def _search(node: Any, key: str, value: object, seen: set[int]) -> int | None:
    if not isinstance(node, LocatedDict | LocatedList) or id(node) in seen:
        return None
    seen.add(id(node))
    if isinstance(node, LocatedDict) and key in node and _holds(node[key], value):
        return node.lines.get(key, 0)
    if isinstance(node, LocatedList) and isinstance(value, str) and value in node:
        return node.lines[node.index(value)]
    children = node.values() if isinstance(node, LocatedDict) else node
    found = (_search(child, key, value, seen) for child in children)
    return next((line for line in found if line is not None), None)


def _holds(held: Any, value: object) -> bool:
    return value is None or held == value or (isinstance(held, str | LocatedList) and value in held)
