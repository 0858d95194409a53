"""An imported model as a YAML spec that sizes identically."""

from pathlib import Path
from typing import Any

import yaml

from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import locate
from kvcalc.model.importers.sources import import_source


def imported_yaml(source: str, assume: bool, download: bool) -> str:
    """The spec of `source` as YAML text; KvcalcError where it is a spec already."""
    path, name = locate(source, download)
    if path.suffix in (".yaml", ".yml"):
        raise KvcalcError(f"{source} is a spec already", f"kvcalc models show {source} prints it")
    return document_yaml(import_source(Path(path), name, assume).document)


def document_yaml(document: dict[str, Any]) -> str:
    """A document of the spec language as YAML: keys in order, components on one line."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes every value out: anchors would hide that layers are alike."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
