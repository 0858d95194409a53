"""What is wrong with a spec, said so that it can be mended: file, line, key, and the nearest right name."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcalc.cache.kinds import KINDS
from kvcalc.cache.recurrent import StateEntry
from kvcalc.errors import SpecError, nearest, shorten
from kvcalc.model.located import LocatedDict, LocatedList, at, line_of
from kvcalc.model.spec import MLP_KINDS, Document, LayerEntry

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_FIELD = re.compile(r"field `(\w+)`")


def located_error(text: str, root: Any, section: str, path: Path, line: int) -> SpecError:
    """msgspec's complaint as one located line with the nearest right name."""
    message, _, where = text.partition(" - at ")
    steps = [int(index) if index else key for key, index in _STEP.findall(where)]
    holder, value, line = _walk(root, steps, line)
    known = _known_keys(value, steps, section)
    if "unknown field" in message:
        key = _FIELD.search(message)[1]  # type: ignore[index]
        near = nearest(key, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"keys here: {', '.join(known)}"
        return SpecError(f"{at(path, value.lines.get(key, line))}unknown key {key}{_in_kind(value)}", hint)
    if "missing required" in message:
        key = _FIELD.search(message)[1]  # type: ignore[index]
        return SpecError(f"{at(path, line)}{key}: is missing{_in_kind(value)}", f"keys here: {', '.join(known)}")
    if steps and steps[-1] == "kind":
        options = MLP_KINDS if _is_mlp(steps, section) else KINDS
        near = nearest(str(value), options)
        hint = f"did you mean {' or '.join(near)}?" if near else f"kinds: {', '.join(options)}"
        return SpecError(f"{at(path, line)}unknown kind {shorten(str(value))!r}", hint)
    return SpecError(f"{at(path, line)}{_named_step(steps, holder)}{_plain(message, value)}", _hint_for(message))


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
        return ["kind", *(MLP_KINDS[kind].__struct_encode_fields__ if kind in MLP_KINDS else ())]
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
