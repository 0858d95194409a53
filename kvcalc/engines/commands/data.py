"""YAML as plain text data: what an alias shares is counted wherever it stands, and nothing is constructed."""

from typing import Any

import yaml

from kvcalc.errors import KvcalcError, shorten

MOST_NODES = 100_000
MOST_DEPTH = 60

_HINT = "name a docker-compose file or a manifest of Kubernetes"
_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ["str", "int", "float", "bool", "null", "timestamp", "seq", "map", "merge", "value"]
}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str, where: str) -> list[Any]:
    """Every document, of dicts, lists and the texts of scalars; merge keys are merged.

    KvcalcError for what is no YAML, too deep, or larger than a manifest once its aliases are written out.
    """
    try:
        _check_depth(text, where)
        return [_Plain(where).data(node) for node in yaml.compose_all(text, Loader=_LOADER) if node is not None]
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "control characters"
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise KvcalcError(f"{where}{line}: not YAML: {shorten(str(problem))}", "check the indentation") from error


def _check_depth(text: str, where: str) -> None:
    """Before anything nests: a composer would recurse."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise KvcalcError(f"{where}: nested more than {MOST_DEPTH} deep", _HINT)


class _Plain:
    """One document's nodes as data, with what is left of its allowance."""

    def __init__(self, where: str) -> None:
        self.where, self.left = where, MOST_NODES

    def data(self, node: Any, depth: int = 0) -> Any:
        """The data of a node."""
        self.left -= 1
        if self.left < 0:
            raise KvcalcError(f"{self.where}: aliases expand to more than {MOST_NODES:,} values", _HINT)
        if depth > MOST_DEPTH:
            raise KvcalcError(f"{self.where}: an alias stands inside of itself", _HINT)
        if node.tag not in _TAGS:
            raise KvcalcError(
                f"{self.where}: the tag {shorten(node.tag)} is not read", "remove it, or give the command"
            )
        if isinstance(node, yaml.SequenceNode):
            return [self.data(child, depth + 1) for child in node.value]
        return self._mapping(node, depth) if isinstance(node, yaml.MappingNode) else node.value

    def _mapping(self, node: Any, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, child in node.value:
            value = self.data(child, depth + 1)
            if key.value == "<<":
                parts = value if isinstance(value, list) else [value]
                merged = {name: one for part in reversed(parts) if isinstance(part, dict) for name, one in part.items()}
            else:
                own[str(key.value)] = value
        return merged | own
