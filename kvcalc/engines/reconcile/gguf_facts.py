"""The model of a llama.cpp log where nobody names it: its GGUF's metadata, which the loader prints key by key."""

import re
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from kvcalc.engines.logs.pattern import Finding
from kvcalc.errors import KvcalcError
from kvcalc.model.importers.gguf import GgufHeader
from kvcalc.model.importers.gguf_model import gguf_document
from kvcalc.model.importers.sources import Imported
from kvcalc.model.reader import read_imported
from kvcalc.model.spec import ModelSpec

_ARRAY = re.compile(r"arr\[(\w+),(\d+)\]")
_BY_LAYER = {"attention.head_count": "n_head", "attention.head_count_kv": "n_head_kv"}
"""Arrays that the loader cuts short, and the lists in which `print_info` has them whole."""


def spec_from_log(findings: Sequence[Finding]) -> ModelSpec:
    """The model that the metadata of one file describe; KvcalcError where the log has too little of them."""
    printed = {one.values["key"].text: one.values for one in findings if one.kind == "metadata"}
    if "general.architecture" not in printed:
        raise KvcalcError("the log names no model", "name it: kvcalc reconcile LOG MODEL (its .gguf will do)")
    arch = printed["general.architecture"]["text"].text
    facts = {key: said.text for one in findings if one.kind == "model" for key, said in one.values.items()}
    metadata: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for key, said in printed.items():
        array = _ARRAY.fullmatch(said["type"].text)
        value = _value(said["type"].text, said["text"].text) if array is None else _items(array[1], said["text"].text)
        if array is not None and len(value) != int(array[2]):
            lengths[key] = int(array[2])
            value = _items("i32", facts.get(_BY_LAYER.get(key.removeprefix(f"{arch}."), ""), ""))
            if key.startswith(f"{arch}.") and len(value) != int(array[2]):
                raise KvcalcError(
                    f"the log cuts {key} short, and the caches follow from it", "name the model: its .gguf will do"
                )
        if value is not None and value != []:
            metadata[key] = value
    path = _path(findings)
    document = gguf_document(GgufHeader(3, metadata, (), lengths), path)
    return read_imported(Imported(document), path)


def lacks_latents(findings: Sequence[Finding]) -> bool:
    """Whether the metadata are of an MLA model without tensors of its own for it: K and V of every head are kept."""
    keys = {one.values["key"].text.partition(".")[2] for one in findings if one.kind == "metadata"}
    return "attention.kv_lora_rank" in keys and "attention.key_length_mla" not in keys


def _path(findings: Sequence[Finding]) -> Path:
    said = next((one.values["path"].text for one in findings if one.kind == "file"), "model.gguf")
    return Path(PureWindowsPath(said).name if "\\" in said else Path(said).name)


def _value(kind: str, text: str) -> Any:
    """A scalar as it is printed; text stays text."""
    if kind == "bool":
        return text.strip() == "true"
    try:
        return text if kind == "str" else float(text) if kind.startswith("f") else int(text)
    except ValueError:
        return None


def _items(kind: str, text: str) -> list[Any]:
    """The items of an array as far as they are printed whole."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    words = [word.strip() for word in inner.split(",")] if inner else []
    return [] if "..." in text or kind == "str" else [_value(kind, word) for word in words]
