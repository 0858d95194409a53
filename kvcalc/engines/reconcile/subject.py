"""What a log is about: its engine, the release whose rules hold, and the model that it names."""

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from kvcalc.engines.engine import Engine, engine_classes, find_engine
from kvcalc.engines.logs.pattern import Finding
from kvcalc.engines.logs.reader import Log
from kvcalc.engines.reconcile.settings import Settings, numbers_of
from kvcalc.errors import KvcalcError, UnknownNameError, printable, shorten
from kvcalc.model.spec import ModelSpec

Loader = Callable[[str], ModelSpec]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says beside the log; it counts before what the log says."""

    model: str | None = None
    engine: str | None = None
    """NAME or NAME@VERSION."""
    flags: Callable[[str], dict[str, Any]] = lambda _: {}
    """The flags of an engine that were given, by its name."""
    workload: dict[str, Any] = {}
    total_tokens: int | None = None
    """Of all slots together: llama.cpp's -c."""
    ranks: dict[str, int] = {}
    kv_cache_memory: int | None = None


def engine_name(log: Log, asked: Asked) -> str:
    """The engine whose lines are read; KvcalcError where there are none, or those of several."""
    wanted = None if asked.engine is None else find_engine(asked.engine).name
    if wanted is not None and wanted in log.engines:
        return wanted
    if not log.findings:
        raise KvcalcError(_nothing(log), "it reads the start of vLLM, SGLang, llama.cpp, ollama and TensorRT-LLM")
    if wanted is not None:
        raise KvcalcError(
            f"{log.name} has no lines of {wanted}, but of {' and '.join(log.engines)}", "leave --engine out"
        )
    if len(log.engines) > 1:
        most, *others = (len(log.of(name)) for name in log.engines)
        if most < _CLEARLY_MORE * max(others):
            raise KvcalcError(
                f"{log.name} holds lines of {' and '.join(log.engines)}",
                f"say which is meant: --engine {log.engines[0]}",
            )
    return log.engines[0]


_CLEARLY_MORE = 10


def _nothing(log: Log) -> str:
    if not log.bytes:
        return f"{log.name} is empty"
    if log.has_nul:
        return f"{log.name} is binary, and no line of it is understood"
    return f"{log.name}: none of its {log.lines:,} lines is one of an engine's start"


def rules_for(name: str, version: str | None, asked: Asked) -> tuple[Engine, str]:
    """The engine at the release whose rules hold for the printed version, and what to say about that."""
    if asked.engine is not None and "@" in asked.engine:
        return find_engine(asked.engine), ""
    engines = engine_classes()
    if name not in engines:
        raise KvcalcError(f"no rules of {name} are known", f"rules are known for {', '.join(engines)}")
    kind = engines[name]
    if version is None:
        return (
            kind(),
            f"the log prints no version: the rules are those of {name} {kind.versions[0]} (--engine {name}@...)",
        )
    numbers = [str(number) for number in numbers_of(version)]
    forms = [version, ".".join(numbers), ".".join(numbers[:2])]
    release = next((found for form in forms if form and (found := kind.release(form))), None)
    if release is None:
        near = _nearest(version, kind.versions)
        return kind(version=near), f"no rules of {name} {version} are known: held against it are those of {near}"
    return kind(version=release), ""


def _nearest(version: str, releases: Sequence[str]) -> str:
    """The newest release that is not newer than the version, else the oldest of all; `releases` are newest first."""
    older = [release for release in releases if numbers_of(release) <= numbers_of(version)]
    return [*older, releases[-1]][0]


def printed_version(findings: Sequence[Finding], settings: Settings) -> str | None:
    """The version that the log prints; where it prints two, that of the engine and not of its server."""
    said = settings.text("version")
    return None if said is None else shorten(printable(said), 40)


def model_of(name: str | None, asked: Asked, load: Loader) -> tuple[ModelSpec, str]:
    """The model that was named by the user, else the one that the log names, and what to say about it."""
    if asked.model is not None:
        return load(asked.model), ""
    if name is None:
        raise KvcalcError("the log names no model", "name it: kvcalc reconcile LOG MODEL")
    for spelling in _spellings(name):
        try:
            spec = load(spelling)
        except UnknownNameError:
            continue
        return spec, "" if spelling == name else f"the log's model {_clean(name)} is taken for {spec.name}"
    raise KvcalcError(
        f"the log's model {_clean(name)} is not known here",
        "name one: kvcalc reconcile LOG MODEL (--download fetches a hub id)",
    )


def _clean(name: str) -> str:
    return shorten(printable(name), 80)


_COPY = re.compile(
    r"[-_.](?:fp8|fp4|nvfp4|mxfp4|awq|gptq|int4|int8|w4a16|w8a8|w8a16|bnb|4bit|8bit|autoround|gguf|dynamic)\b.*$", re.I
)
"""What copies with other weights add to a name."""


def _spellings(name: str) -> list[str]:
    """The name, its last part, and that without what names other weights of the same model."""
    windows = "\\" in name
    last = (PureWindowsPath(name) if windows else PurePosixPath(name)).name
    return [one for one in dict.fromkeys([name, last, _COPY.sub("", last)]) if one]
