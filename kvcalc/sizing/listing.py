"""The catalogue as a whole: what it holds, what a spec says, whether all of it can be read."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

from kvcalc.documents import ListedModelDocument, ModelsDocument
from kvcalc.errors import FormatError, KvcalcError, SpecError, UnknownNameError, shorten
from kvcalc.model.catalog import catalogue_folder, locate
from kvcalc.model.located import read_documents, read_text
from kvcalc.model.parameters import count_parameters
from kvcalc.model.reader import read_specs
from kvcalc.model.spec import ModelSpec
from kvcalc.report import Column, Report, Table, Value
from kvcalc.sizing.need import Workload, make_packer
from kvcalc.sizing.rows import build_rows
from kvcalc.units import plain_number

SCHEMA = "kvcalc.models/1"

_COLUMNS = (
    Column("name", "model"),
    Column("layers", "layers", "count"),
    Column("caches", "caches"),
    Column("bytes_per_token", "a token", "exact bytes"),
    Column("fixed_bytes_per_sequence", "fixed", "exact bytes"),
    Column("parameters", "parameters", "parameters"),
    Column("max_context", "context", "tokens"),
    Column("aliases", "aliases"),
)


def list_report(pattern: str = "") -> Report:
    """The answer of `kvcalc models list`: the models of which a name or an alias holds `pattern`."""
    specs = [spec for path in spec_files([]) for spec in read_specs(path)]
    models = [listed(spec) for spec in specs if _matches(spec, pattern.casefold())]
    if not models:
        raise KvcalcError(f"no model's name holds {shorten(pattern)!r}", "kvcalc models list shows all")
    document: ModelsDocument = {"schema": SCHEMA, "models": models}
    rows = [_cells(model) for model in models]
    # Aliases and the list of caches are for machines: a screen has room for what is compared.
    shown = Table(tuple(_COLUMNS[index] for index in _SHOWN), [[row[index] for index in _SHOWN] for row in rows])
    return Report(
        document=document,
        title=("catalogue", f"{len(rows)} models", "kvcalc models show MODEL prints a spec"),
        tables=(Table(_COLUMNS, rows),),
        shown_tables=(shown,),
    )


_SHOWN = (0, 1, 3, 4, 5, 6)


def _matches(spec: ModelSpec, pattern: str) -> bool:
    return any(pattern in name.casefold() for name in (spec.name, *spec.aliases))


def _cells(model: ListedModelDocument) -> tuple[Value, ...]:
    *figures, _ = cast("dict[str, Value]", model).values()
    return (*figures, " ".join(model["aliases"]))


def listed(spec: ModelSpec) -> ListedModelDocument:
    """One line of the catalogue."""
    rows = build_rows(spec.layers, spec.reads, make_packer(spec, Workload()))
    unknown = any(row.component.needs_encoder_tokens for row in rows)
    return {
        "name": spec.name,
        "layers": len(spec.layers),
        "caches": " + ".join(f"{row.layers} {row.name}" for row in rows),
        "bytes_per_token": plain_number(sum((row.bytes_per_token for row in rows), Fraction(0))),
        "fixed_bytes_per_sequence": None if unknown else sum(row.fixed_bytes for row in rows),
        "parameters": count_parameters(spec).total,
        "max_context": spec.max_context,
        "aliases": list(spec.aliases),
    }


def spec_text(name_or_path: str) -> str:
    """The document of one model as it stands in its file, comments and all."""
    path, name = locate(name_or_path)
    names = [document.get("name") for document in read_documents(path)]
    text = read_text(path)
    if not name:
        return text
    if name not in names:
        raise UnknownNameError(f"document in {path}:", name, map(str, names))
    chunks = [chunk for chunk in _BETWEEN_DOCUMENTS.split(text) if _CONTENT.search(chunk)]
    return chunks[names.index(name)].strip("\n") + "\n" if len(chunks) == len(names) else text


_BETWEEN_DOCUMENTS = re.compile(r"^---.*\n", re.MULTILINE)
_CONTENT = re.compile(r"^[^#\s]", re.MULTILINE)


def validate(paths: Sequence[Path]) -> tuple[int, int, list[KvcalcError]]:
    """Files and models read, and every problem found: specs that cannot be read, names claimed twice."""
    files, models = spec_files(paths), 0
    problems: list[KvcalcError] = []
    owners: dict[str, str] = {}
    for path in files:
        try:
            specs = read_specs(path)
            for spec in specs:
                _check_formats(spec, path)
        except KvcalcError as error:
            problems.append(error)
            continue
        models += len(specs)
        problems += list(_claims(specs, path, owners))
    return len(files), models, problems


def _check_formats(spec: ModelSpec, path: Path) -> None:
    """SpecError where a component cannot take the format that the spec itself gives it."""
    try:
        build_rows(spec.layers + spec.draft_layers, spec.reads, make_packer(spec, Workload()))
    except FormatError as error:
        raise SpecError(f"{path}: {spec.name}: {error.message}", error.hint) from error


def _claims(specs: Iterable[ModelSpec], path: Path, owners: dict[str, str]) -> Iterator[SpecError]:
    """Claim every name of `specs` in `owners`; an error for each that is taken."""
    for spec in specs:
        for name in (spec.name, *spec.aliases):
            owner = owners.setdefault(name.casefold(), f"{spec.name} ({path})")
            if owner != f"{spec.name} ({path})":
                yield SpecError(
                    f"{path}: {spec.name} claims {name}, which is {owner}", "a name or alias belongs to one spec"
                )


def spec_files(paths: Sequence[Path]) -> list[Path]:
    """The YAML files that `paths` name, folders opened; the catalogue's where none is named."""
    found: list[Path] = []
    for path in paths or [catalogue_folder()]:
        is_folder = os.path.isdir(path)  # noqa: PTH112 - a name that no file system takes is no folder
        inside = sorted(one for one in path.glob("*") if one.suffix in (".yaml", ".yml")) if is_folder else [path]
        if not inside:
            raise SpecError(f"{path}: no .yaml file in this folder", "name a spec file, or a folder of them")
        found += inside
    return found
