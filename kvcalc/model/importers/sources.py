"""From a path to a spec document: which kind of file it is, and what its importer makes of it."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.errors import SpecError, printable, shorten
from kvcalc.model.files import read_bounded
from kvcalc.model.spec import Checkpoint

MOST_CONFIG_BYTES = 4 * 2**20
CONFIG = "config.json"


class Imported(msgspec.Struct, frozen=True):
    """A model from somebody else's file: a document of the spec language, and the weights where they lie beside it."""

    document: dict[str, Any]
    checkpoint: Checkpoint | None = None


def is_source(path: str) -> bool:
    """Whether a path names a file or a folder that an importer reads."""
    return path.endswith((".json", ".gguf")) or os.path.isfile(os.path.join(path, CONFIG))  # noqa: PTH113, PTH118


def import_source(path: Path, name: str = "", assume: bool = False) -> Imported:
    """The model of a config.json, a folder with one, or a GGUF; SpecError for what is none of them.

    `name` overrides the one that the path suggests; `assume` takes fields that are not understood as harmless.
    """
    # os.path answers False for a name that no file system takes; Path.is_dir raises.
    file = _file_in(path) if os.path.isdir(path) else path  # noqa: PTH112
    if file.suffix == ".gguf":
        return _from_gguf(file)
    return _from_config(file, name or _name_of(file), assume)


def _file_in(folder: Path) -> Path:
    """The file of a folder that describes its model: a config.json, else a GGUF and its other parts."""
    if (folder / CONFIG).exists():
        return folder / CONFIG
    files = sorted(folder.glob("*.gguf"))
    models = {
        file.name.partition("-00001-of-")[0] for file in files if "-of-" not in file.name or "-00001-of-" in file.name
    }
    if len(models) != 1:
        names = ", ".join(file.name for file in files[:5]) or "neither a config.json nor a GGUF"
        raise SpecError(f"{folder}: holds {names}", "name the file that is meant")
    return files[0]


def _name_of(config: Path) -> str:
    """The folder's name for a config.json, the repository's in a hub cache, the file's own for any other."""
    folder = config.absolute().parent
    in_cache = re.fullmatch(r"models--.+--(.+)", folder.parent.parent.name)
    if config.name == CONFIG and folder.parent.name == "snapshots" and in_cache:
        return printable(in_cache[1])
    return printable(folder.name if config.name == CONFIG else config.stem)


def _from_config(path: Path, name: str, assume: bool) -> Imported:
    from kvcalc.model.importers.hf_config import config_document

    config = read_json(path)
    document, checkpoint = config_document(config, str(path), name, assume), _checkpoint_beside(path, config)
    if checkpoint is None and config.get("quantization_config"):
        assumed = document.setdefault("assumed", {})
        text = "the config says that they are quantised; without the files they are taken to be as wide as its dtype"
        assumed["weights"] = [*assumed.get("weights", []), f"{text} (--weights)"]
    return Imported(document, checkpoint)


def _checkpoint_beside(config: Path, stated: Mapping[str, Any]) -> Checkpoint | None:
    """The weights in the folder of a config.json, where there are any."""
    folder = config.parent
    if config.name != CONFIG:
        return None
    from kvcalc.model.importers.safetensors import holds_weights, read_checkpoint

    return read_checkpoint(folder, stated) if holds_weights(folder) else None


def _from_gguf(path: Path) -> Imported:
    from kvcalc.model.importers.gguf import read_header
    from kvcalc.model.importers.gguf_model import gguf_checkpoint, gguf_document

    header = read_header(path)
    return Imported(gguf_document(header, path), gguf_checkpoint(header))


def read_json(path: Path) -> Mapping[str, Any]:
    """The mapping in a JSON file; SpecError for what is no file, too large, or no mapping."""
    hint = "name a model's config.json"
    return _parsed(read_bounded(path, MOST_CONFIG_BYTES, "config", "name a config.json", hint), path)


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _parsed(raw: bytes, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not JSON ({shorten(str(error))})", "name a model's config.json") from error
    if b"\\ud" in raw.lower() and not _is_text(value):
        raise SpecError(f"{path}: holds half a character (a surrogate)", "name a model's config.json")
    if not isinstance(value, dict):
        raise SpecError(f"{path}: a config is a JSON object", "name a model's config.json")
    return value
