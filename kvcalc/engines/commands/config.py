"""Files that a command names: `--config FILE.yaml` of vLLM and SGLang, whose keys are flags."""

import json
from collections.abc import Iterator
from typing import Any

from kvcalc.engines.commands.command import Invocation
from kvcalc.engines.commands.data import read_yaml
from kvcalc.engines.commands.files import read_text_file
from kvcalc.engines.commands.words import Word

_READ_FOR = ("vllm", "sglang")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")


def config_words(found: Invocation) -> tuple[tuple[Word, ...], list[str]]:
    """The file's keys as words that stand before the command's own, and what to say where it is not read."""
    name = _config_of([word.text for word in found.arguments])
    if name is None or found.engine not in _READ_FOR:
        return (), []
    path = None if found.folder is None else found.folder / name
    if path is None or not path.is_file():
        return (), [f"--config {name} is not here, and what it sets is not read"]
    documents = read_yaml(read_text_file(path), str(path))
    keys = documents[0] if documents and isinstance(documents[0], dict) else {}
    return tuple(Word(text) for key, value in keys.items() for text in _words(found.engine, key, value)), [
        f"{path} is read"
    ]


def _config_of(words: list[str]) -> str | None:
    for index, word in enumerate(words):
        if word.startswith("--config="):
            return word.partition("=")[2]
        if word == "--config" and index + 1 < len(words):
            return words[index + 1]
    return None


def _words(engine: str, key: str, value: Any) -> Iterator[str]:
    """As load_config_file of vLLM's argparse_utils.py spells them; SGLang has no switch to turn off."""
    if value in _FALSE:
        yield from [f"--no-{key}"] if engine == "vllm" else []
        return
    yield f"--{key}"
    if isinstance(value, dict):
        yield json.dumps(value)
    elif isinstance(value, list):
        yield from map(str, value)
    elif value not in _TRUE:
        yield value
