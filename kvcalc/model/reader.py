"""YAML to ModelSpec: strict, every error with its file, its line and what would work."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.errors import KvcalcError, SpecError
from kvcalc.model.feed_forward import AnyMlp, Dense, Moe
from kvcalc.model.located import LocatedDict, at, line_of, located, read_documents
from kvcalc.model.resolve import ResolveError, resolve
from kvcalc.model.spec import Document, LayerEntry, Mixer, ModelSpec

_MLPS: dict[str, type[Any]] = {"dense": Dense, "moe": Moe}

if TYPE_CHECKING:
    from kvcalc.model.importers.sources import Imported

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
    if overrides:
        from kvcalc.model.overrides import apply_overrides

        apply_overrides(document, overrides)
    try:
        parsed = _convert_document(document, path)
        _check_formats(parsed, document, path)
        return resolve(parsed, overrides)
    except ResolveError as error:
        from kvcalc.model.complaints import find_line

        where = at(path, find_line(document, error.key, error.value))
        raise _blaming(SpecError(f"{where}{error.message}", error.hint), path, overrides) from error
    except SpecError as error:
        raise _blaming(error, path, overrides) from error


def read_imported(imported: "Imported", path: Path, overrides: Sequence[str] = ()) -> ModelSpec:
    """The model of an importer's document; its weights are those that lie in the files."""
    spec = read_document(located(imported.document), path, overrides)
    return spec if imported.checkpoint is None else msgspec.structs.replace(spec, checkpoint=imported.checkpoint)


def _blaming(error: SpecError, path: Path, overrides: Sequence[str]) -> SpecError:
    """The same complaint, of the change rather than of the file where a change was made."""
    if not overrides:
        return error
    complaint = error.message.removeprefix(f"{path}:").lstrip("0123456789").removeprefix(": ")
    return SpecError(f"--set {' '.join(overrides)}: {complaint}", error.hint)


def _convert_document(document: LocatedDict, path: Path) -> Document:
    for section, kind in _SECTIONS.items():
        entries = document.get(section)
        for entry in entries.values() if isinstance(entries, LocatedDict) else ():
            _convert(entry, kind, section, path, line_of(entry) or document.lines[section])
    return _convert(document, Document, "document", path, document.line)  # type: ignore[no-any-return]


def _convert(value: Any, kind: Any, section: str, path: Path, line: int) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        from kvcalc.model.complaints import located_error

        raise located_error(str(error), value, section, path, line) from error


def _check_formats(parsed: Document, document: LocatedDict, path: Path) -> None:
    for key in ("dtype", "state_dtype"):
        name = getattr(parsed, key)
        if name is None:
            continue
        try:
            find_format(name, f"{key}:").bulk_bytes(1, key)
        except KvcalcError as error:
            raise SpecError(f"{at(path, document.lines.get(key, 0))}{error.message}", error.hint) from error
