"""`--set PATH=VALUE`: a known model varied without a file.

A path names keys from the top of the document, as in `mixers.half.ratio` or `layers.0.repeat`; a
list without a number means every item. `mixer.KEY` and `mlp.KEY` mean every component and every
feed-forward part. The change reaches those that state the key; where none does, those that take it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from kvcalc.cache.kinds import KINDS
from kvcalc.errors import KvcalcError, SpecError, UnknownNameError, shorten
from kvcalc.model.feed_forward import MLP_KINDS
from kvcalc.model.located import LocatedDict, LocatedList, read_value
from kvcalc.model.spec import Document, LayerEntry

_EVERYWHERE = {"mixer": ("mixer", "mixers"), "mlp": ("mlp", "mlps")}


def apply_overrides(document: LocatedDict, overrides: Sequence[str]) -> None:
    """Change `document` in place; KvcalcError where a path leads nowhere."""
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not all(path.split(".")):
            raise KvcalcError(f"--set {shorten(override)!r} is not PATH=VALUE", "for example --set mixer.kv_heads=4")
        _set(document, path.split("."), _value(text, override), override)


def _value(text: str, override: str) -> Any:
    try:
        return read_value(text)
    except SpecError as error:
        raise KvcalcError(
            f"--set {shorten(override)}: {error.message}", "a value is YAML: 4, true, bf16, [2, 8]"
        ) from error


def _set(document: LocatedDict, path: list[str], value: Any, override: str) -> None:
    *way, key = path
    holders = list(_holders(document, way))
    stating = [holder for holder in holders if key in holder]
    targets = stating or [holder for holder in holders if key in _keys_of(holder, document)]
    if not targets:
        known = sorted({name for holder in holders for name in _keys_of(holder, document)})
        hint = f"keys there: {', '.join(known)}" if known else f"nothing stands at {'.'.join(way)}"
        if not way and any(key in kind.__struct_encode_fields__ for kind in KINDS.values()):
            hint = f"write mixer.{key} for every mixer"
        raise UnknownNameError(f"key in --set {shorten(override)}:", key, known, hint)
    for holder in targets:
        holder[key] = value
        holder.lines[key] = 0


def _holders(document: LocatedDict, way: list[str]) -> Iterator[LocatedDict]:
    if way and way[0] in _EVERYWHERE and way[0] not in document:
        found = _components(document, _EVERYWHERE[way[0]], "", set())
        yield from (holder for one in found for holder in _descend(one, way[1:]))
    else:
        yield from _descend(document, way)


def _descend(node: Any, way: list[str]) -> Iterator[LocatedDict]:
    """Every mapping at the end of `way`; a list without an index means all of its items."""
    if isinstance(node, LocatedList):
        if way and way[0].isdigit() and int(way[0]) < len(node):
            yield from _descend(node[int(way[0])], way[1:])
        elif not (way and way[0].isdigit()):
            yield from (holder for item in node for holder in _descend(item, way))
    elif isinstance(node, LocatedDict):
        if not way:
            yield node
        elif way[0] in node:
            yield from _descend(node[way[0]], way[1:])


def _components(node: Any, keys: tuple[str, ...], under: str, seen: set[int]) -> Iterator[LocatedDict]:
    """Every mapping with a kind that stands under one of `keys`; shared ones once."""
    if not isinstance(node, LocatedDict | LocatedList) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, LocatedList):
        for item in node:
            yield from _components(item, keys, under, seen)
    elif "kind" in node and under in keys:
        yield node
    else:
        for key, child in node.items():
            yield from _components(child, keys, under if under in _SECTIONS else key, seen)


_SECTIONS = {"mixers", "mlps"}


def _keys_of(holder: LocatedDict, document: LocatedDict) -> Sequence[str]:
    """The keys that the language knows for this mapping."""
    if holder is document:
        return Document.__struct_encode_fields__
    kind = holder.get("kind")
    struct = KINDS.get(kind) or MLP_KINDS.get(kind) if isinstance(kind, str) else LayerEntry
    return struct.__struct_encode_fields__ if struct else ()
