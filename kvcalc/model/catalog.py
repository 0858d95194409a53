"""Find a spec: by catalogue name, by alias, or by path.

A name is a file name, so one file is opened. An alias is looked up in the heads of the files as
text, which costs a few milliseconds and needs no index that could go stale.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvcalc.errors import KvcalcError, SpecError, UnknownNameError, shorten
from kvcalc.model.located import read_documents
from kvcalc.model.reader import read_document, read_imported
from kvcalc.model.spec import ModelSpec

_HERE = Path(__file__).resolve().parent.parent
_SUFFIXES = (".yaml", ".yml")
_DOCUMENT = re.compile(r"^---.*$", re.MULTILINE)
_NAME = re.compile(r"^name:\s*(\S+)\s*$", re.MULTILINE)
_ALIASES = re.compile(r"^aliases:\s*\[([^\]]*)\]", re.MULTILINE)


def catalogue_folder() -> Path:
    """Where the specs lie: inside the installed package, or beside it in a checkout."""
    installed = _HERE / "model_specs"
    return installed if installed.is_dir() else _HERE.parent / "model_specs"


def load(
    name_or_path: str, overrides: Sequence[str] = (), *, assume: bool = False, download: bool = False
) -> ModelSpec:
    """The model called `name_or_path`: a catalogue name, an alias, a file, or a hub id.

    A file is a YAML spec (`FILE.yaml#NAME` picks one document of several), a config.json or a folder with
    one, or a GGUF; a hub id is looked up in the local hub cache, and fetched where `download` is set.
    `overrides` are `--set` items such as `mixer.kv_heads=4`; `assume` takes fields of a config that are not
    understood as harmless. Raises UnknownNameError with near names, SpecError for a file that cannot be read.
    """
    path, document = locate(name_or_path, download)
    if path.suffix in _SUFFIXES:
        return _from_file(path, document, overrides)
    from kvcalc.model.importers.sources import import_source

    return read_imported(import_source(path, document, assume), path, overrides)


def locate(name_or_path: str, download: bool = False) -> tuple[Path, str]:
    """The file of a model and the name of its document, empty where the file holds only one."""
    wanted = os.fspath(name_or_path).strip()
    if "\0" in wanted:
        raise KvcalcError(f"{shorten(repr(wanted))} is neither a name nor a path", "kvcalc models list")
    for address in _HUB_ADDRESSES:
        wanted = wanted.removeprefix(address)
    return _in_catalogue(wanted.casefold()) or _as_path(wanted) or _on_the_hub(wanted, download)


_HUB_ADDRESSES = ("https://", "huggingface.co/", "hf.co/")


def _in_catalogue(wanted: str) -> tuple[Path, str] | None:
    """The document that claims `wanted`: a file of that name first, then any in which the word occurs.

    The part of a hub id behind the slash is a name too, where nobody claims it as a whole.
    """
    word = wanted.encode(errors="replace")
    by_last_part: tuple[Path, str] | None = None
    for path in sorted(_catalogue_files(), key=lambda path: path.stem != wanted):
        if not word or word not in path.read_bytes().lower():
            continue
        names = _names_in(path)
        if wanted in names:
            return path, names[wanted]
        last_parts = {spelling.rpartition("/")[2]: name for spelling, name in names.items()}
        if by_last_part is None and wanted in last_parts:
            by_last_part = path, last_parts[wanted]
    return by_last_part


def _catalogue_files() -> list[Path]:
    return sorted(catalogue_folder().glob("*.yaml"))


def _names_in(path: Path) -> dict[str, str]:
    """Names and aliases of a file, in lower case, to the name of their document."""
    heads = _heads(path.read_text(encoding="utf-8"))
    return {spelling.casefold(): name for name, aliases in heads for spelling in (name, *aliases)}


def catalogue_names() -> list[str]:
    """Every model name of the catalogue, sorted."""
    return sorted({name for _, name in catalogue_index().values()})


def hub_id(name: str) -> str | None:
    """The first hub id among the aliases of a catalogue model, by any name of it; None where it has none."""
    for path in _catalogue_files():
        for own, aliases in _heads(path.read_text(encoding="utf-8")):
            if name.casefold() in {spelling.casefold() for spelling in (own, *aliases)}:
                return next((alias for alias in aliases if "/" in alias), None)
    return None


def catalogue_spellings() -> list[str]:
    """Every name and alias as it is written, sorted; hub ids behind the short names."""
    heads = [head for path in _catalogue_files() for head in _heads(path.read_text(encoding="utf-8"))]
    spellings = {spelling for name, aliases in heads for spelling in (name, *aliases)}
    return sorted(spellings, key=lambda spelling: ("/" in spelling, spelling.casefold()))


def catalogue_index() -> dict[str, tuple[Path, str]]:
    """Names and aliases, in lower case, to the file and the document's name."""
    return {spelling: (path, name) for path in _catalogue_files() for spelling, name in _names_in(path).items()}


def _heads(text: str) -> Iterator[tuple[str, list[str]]]:
    """The name and the aliases of each document, read as text."""
    for document in _DOCUMENT.split(text):
        name, aliases = _NAME.search(document), _ALIASES.search(document)
        if name:
            yield name[1], [alias.strip() for alias in aliases[1].split(",")] if aliases else []


def _as_path(wanted: str) -> tuple[Path, str] | None:
    """A file that an importer or the reader takes; None where `wanted` is no path."""
    from kvcalc.model.importers.sources import is_source

    if not wanted:
        raise KvcalcError("no model is named", "give a name, an alias or the path of a spec, a config.json or a GGUF")
    if is_source(wanted):
        return Path(wanted), ""
    # A path may hold a # of its own.
    file, _, document = (wanted, "", "") if os.path.isfile(wanted) else wanted.partition("#")  # noqa: PTH113
    # os.path answers False for a name that no file system takes; Path.is_file raises.
    if file.endswith(_SUFFIXES):
        return Path(file), document
    if os.path.isdir(file):  # noqa: PTH112
        raise SpecError(
            f"{shorten(wanted)} is a directory without a config.json", "name a spec, a config.json or a GGUF"
        )
    if os.path.isfile(file):  # noqa: PTH113
        raise SpecError(f"{shorten(wanted)} is no spec, config or GGUF", "their names end in .yaml, .json and .gguf")
    return None


def _on_the_hub(wanted: str, download: bool) -> tuple[Path, str]:
    """The folder of a hub id in the local cache, fetched where that is allowed; UnknownNameError otherwise."""
    from kvcalc.model.importers import hub

    if not hub.looks_like_repo_id(wanted):
        raise UnknownNameError(
            "model", wanted, catalogue_index(), "kvcalc models list shows all; a file's path works too"
        )
    folder = hub.find_in_cache(wanted) or (hub.download(wanted) if download else None)
    if folder is None:
        raise UnknownNameError(
            "model", wanted, catalogue_index(), "it is not in the local hub cache: --download fetches it"
        )
    return folder, wanted.rpartition("/")[2]


def _from_file(path: Path, document: str, overrides: Sequence[str]) -> ModelSpec:
    documents = read_documents(path)
    if len(documents) == 1 and not document:
        return read_document(documents[0], path, overrides)
    names = [str(one.get("name")) for one in documents]
    if document and names.count(document) > 1:
        raise SpecError(
            f"{path}: {names.count(document)} documents are named {shorten(document)}", "each needs its own"
        )
    if not document:
        raise KvcalcError(
            f"{path} holds {len(names)} models", f"pick one: {path}#{shorten(names[0])}; it has {', '.join(names[:20])}"
        )
    if document not in names:
        raise UnknownNameError(f"document in {path}:", document, names, f"it has {', '.join(names)}")
    return read_document(documents[names.index(document)], path, overrides)
