"""What is wrong with a spec, said so that it can be mended: file, line, key, and the nearest right name."""

import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from kvcalc.cache.component import HINT_MARK
from kvcalc.cache.kinds import KINDS
from kvcalc.cache.recurrent import StateEntry
from kvcalc.errors import SpecError, nearest, shorten
from kvcalc.model.feed_forward import MLP_KINDS
from kvcalc.model.located import LocatedDict, LocatedList, at, line_of
from kvcalc.model.spec import Assumed, Document, LayerEntry

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_FIELD = re.compile(r"field `([^`]*)`")


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
    if "[...]" in where:
        value = _first_wrong(value)
    if steps and steps[-1] == "kind":
        options = MLP_KINDS if _is_mlp(steps, section) else KINDS
        return SpecError(f"{at(path, line)}unknown kind {shorten(str(value))!r}", _offer(str(value), options, "kinds"))
    plain, hint = _plain(message, value, _struct_at(holder, steps[:-1], section), steps)
    return SpecError(f"{at(path, line)}{_named_step(steps, holder)}{plain}", hint)


def _unknown_key(key: str, value: Any, struct: type[msgspec.Struct] | None, path: Path, line: int) -> SpecError:
    known = [*_TAGS.get(struct, []), *struct.__struct_encode_fields__] if struct else ["kind"]
    where = at(path, value.lines.get(key, line))
    return SpecError(f"{where}unknown key {key}{_in_kind(value)}", _offer(key, known, "keys here"))


def _offer(name: str, known: Iterable[str], what: str) -> str:
    if name.lower() in _MEANT:
        return f"that is kind: {_MEANT[name.lower()]}"
    near = nearest(name, known)
    return f"did you mean {' or '.join(near)}?" if near else f"{what}: {', '.join(known)}"


_MEANT = {
    "mha": "kv, with as many kv_heads as q_heads",
    "gqa": "kv",
    "mqa": "kv, with kv_heads: 1",
    "attention": "kv",
    "mla": "latent",
    "swa": "kv, with window:",
    "sliding": "kv, with window:",
    "cla": "shared, with source: previous",
    "yoco": "shared, with source: and the id of the global cache",
    "mamba": "mamba1 or mamba2",
    "gdn": "gated_delta",
    "kda": "gated_delta",
    "ssm": "mamba2",
}
"""What people call the kinds."""


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


_TAGS: dict[Any, list[str]] = {struct: ["kind"] for struct in (*KINDS.values(), *MLP_KINDS.values())}
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


def _plain(
    message: str, value: Any, struct: type[msgspec.Struct] | None, steps: Sequence[str | int]
) -> tuple[str, str]:
    """A complaint in plain words, `Expected int >= 1` as `0 is no whole number >= 1`, and its hint."""
    if not message.startswith("Expected"):
        said, _, hint = message.partition(HINT_MARK)
        return (said, hint) if hint else (f"{_yaml_word(value)} is not possible here", _choices(steps, struct))
    if "length >= 1" in message and isinstance(value, LocatedList):
        return "is an empty list", "name at least one"
    if "length >= 1" in message or "regex" in message:
        return f"{_yaml_word(value)} is empty or holds what a name cannot", "names are words without control characters"
    wanted = message.removeprefix("Expected ").replace("`", "").partition(", got")[0]
    for word, plain in _PLAIN_WORDS.items():
        wanted = wanted.replace(word, plain)
    is_count = message.startswith("Expected `int")
    hint = (
        "counts are plain whole numbers: 8192, not 8K" if is_count else "kvcalc models show llama-8b prints an example"
    )
    return f"{_yaml_word(value)} is not a {wanted}", hint


def _first_wrong(holder: Any) -> Any:
    """One value of a mapping whose values msgspec does not tell apart: the first that is no name."""
    values = holder.values() if isinstance(holder, LocatedDict) else ()
    return next((value for value in values if not isinstance(value, str)), holder)


def _choices(steps: Sequence[str | int], struct: type[msgspec.Struct] | None) -> str:
    """The words that a key takes, where it takes only a few."""
    structs = [struct] if struct else [*KINDS.values(), *MLP_KINDS.values()]
    key = steps[-1] if steps else ""
    for one in structs:
        for base in one.__mro__:
            words = get_args(inspect.get_annotations(base).get(str(key)))
            if words and all(isinstance(word, str) for word in words):
                return f"{key}: takes {', '.join(words)}"
    return "kvcalc models show llama-8b prints an example"


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
    shown = shorten(str(value))
    return f'"{shown}", a string,' if isinstance(value, str) and shown.strip("+-").isdigit() else shown


def find_line(node: Any, key: str, value: object) -> int:
    """The line where `key` stands, holding `value` or holding it in a list or a pattern."""
    found = _search(node, key, value, set())
    return line_of(node) if found is None else found


def _search(node: Any, key: str, value: object, seen: set[int]) -> int | None:
    if not isinstance(node, LocatedDict | LocatedList) or id(node) in seen:
        return None
    seen.add(id(node))
    if isinstance(node, LocatedDict) and key in node and _holds(node[key], key, value):
        return node.lines.get(key, 0)
    if isinstance(node, LocatedList) and isinstance(value, str) and value in node:
        return node.lines[node.index(value)]
    children = [node[key] for key in node if key not in _NO_STRUCTURE] if isinstance(node, LocatedDict) else node
    found = (_search(child, key, value, seen) for child in children)
    return next((line for line in found if line is not None), None)


_NO_STRUCTURE = {"name", "aliases", "source", "assumed"}


def _holds(held: Any, key: str, value: object) -> bool:
    in_pattern = key == "pattern" and isinstance(held, str) and isinstance(value, str) and len(value) == 1
    return value is None or held == value or (in_pattern and value in held)
