"""kvcalc.lock: what the verdicts of a plan rest on, by version and by digest, so that none moves in silence.

A digest is the SHA-256 of content, not of files. A model counts as it was read, all layers with it, whatever its
comments, sources, aliases and the order of its keys; a GPU by its figures; the constants of the throughput model and
the overheads of engines by what they say. The rules of an engine are code: theirs is the digest of the source, comments
and all, of every module of kvcalc.engines, kvcalc.cache and kvcalc.sizing that the engine's own module and the kinds of
cache reach by imports, beside the release whose rules hold.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import msgspec

from kvcalc import __version__
from kvcalc.errors import KvcalcError, shorten
from kvcalc.model.files import read_bounded
from kvcalc.model.spec import ModelSpec
from kvcalc.plan.documents import LockDocument, LockedEntryDocument

SCHEMA = "kvcalc.lock/1"
LOCK_NAME = "kvcalc.lock"
_MOST_BYTES = 16 * 2**20
_UPDATE = "kvcalc check --update-lock writes it"


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What one case rests on: its model, NAME@VERSION of its engine, its GPU, and whether its speed is asked."""

    model: ModelSpec
    engine: str | None = None
    gpu: str | None = None
    speed: bool = False


class Lock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lock file: kvcalc's version, and a digest by name of all that a plan rests on."""

    schema: str = SCHEMA
    kvcalc: str = __version__
    models: dict[str, str] = {}
    engines: dict[str, str] = {}
    gpus: dict[str, str] = {}
    constants: dict[str, str] = {}

    def entries(self) -> dict[tuple[str, str], str]:
        """Every entry by its kind and name."""
        named = {
            (kind, name): digest
            for kind, entries in zip(_KINDS, (self.models, self.engines, self.gpus, self.constants), strict=True)
            for name, digest in sorted(entries.items())
        }
        return {("kvcalc", "version"): self.kvcalc, **named}


_KINDS = ("model", "engine", "gpu", "constants")


def fingerprint(uses: Sequence[Use]) -> Lock:
    """The lock of a plan whose cases rest on `uses`, as it would be now."""
    models = {id(use.model): use.model for use in uses}.values()
    engines = {use.engine for use in uses if use.engine}
    constants = {"overheads": _overheads_digest()} if any(use.engine and use.gpu for use in uses) else {}
    if any(use.speed for use in uses):
        constants["throughput"] = _throughput_digest()
    return Lock(
        models=_by_name((model.name, model_digest(model)) for model in models),
        engines={engine: engine_digest(engine) for engine in sorted(engines)},
        gpus=_by_name(gpu_digest(gpu) for gpu in {use.gpu for use in uses if use.gpu}),
        constants=constants,
    )


def _by_name(digests: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Digests by name; one name with several contents (a model under overrides) has all of them, in order."""
    found: dict[str, set[str]] = {}
    for name, digest in digests:
        found.setdefault(name, set()).add(digest)
    return {name: " ".join(sorted(found[name])) for name in sorted(found)}


def model_digest(model: ModelSpec) -> str:
    """The digest of an architecture: everything but its aliases and where it was read."""
    content = cast("dict[str, Any]", msgspec.to_builtins(model))
    told = {name: value for name, value in content.items() if name not in ("aliases", "source", "overrides")}
    if model.checkpoint is not None:
        told["checkpoint"] = {**content["checkpoint"], "source": None}
    return _digest(_said(told))


def _said(value: Any) -> Any:
    """The content without keys that say nothing, so that a field that a later version adds moves no digest."""
    if isinstance(value, dict):
        told = {key: one for key, one in value.items() if one is not None and one is not False}
        return {key: _said(one) for key, one in told.items() if one not in ("", [], {}, ())}
    return [_said(one) for one in value] if isinstance(value, list | tuple) else value


def gpu_digest(gpu: str) -> tuple[str, str]:
    """The name of a card, and the digest of its figures."""
    from kvcalc.hardware.gpus import find_gpu

    found = find_gpu(gpu)
    return found.name, _digest({name: figure.value for name, figure in found.figures()})


@cache
def engine_digest(engine: str) -> str:
    """The digest of the rules of NAME@VERSION: of every module that the engine's own reaches, but other engines."""
    from kvcalc.engines.engine import engine_classes

    name = engine.partition("@")[0]
    classes = engine_classes()
    others = {one.__module__ for one in classes.values()} - {classes[name].__module__}
    return _sources_digest(_reached((classes[name].__module__, "kvcalc.cache.kinds"), (*others, *_OVERHEADS)))


_OVERHEADS = tuple(f"kvcalc.engines.{name}" for name in ("activations", "overhead_rules", "overheads"))
"""Modules of what lies beside the cache, which has a digest of its own."""


def _reached(modules: Iterable[str], closed: Iterable[str]) -> list[str]:
    """The modules of rules that `modules` reach by imports, they too, in order; not into those that are closed."""
    seen, ahead = set(closed), list(modules)
    found = []
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            found.append(one)
            ahead += _IMPORT.findall(_source(one))
    return sorted(found)


_IMPORT = re.compile(r"^ *from (kvcalc\.(?:engines|cache|sizing)\.[\w.]+) import", re.MULTILINE)


def _source(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise KvcalcError(
            f"the source of {module} is not here", "a lock needs kvcalc as pip installs it, with its code"
        )
    return Path(spec.origin).read_text(encoding="utf-8")


def _sources_digest(modules: Iterable[str]) -> str:
    return _digest({module: _source(module) for module in modules})


@cache
def _overheads_digest() -> str:
    return _sources_digest(_OVERHEADS)


@cache
def _throughput_digest() -> str:
    from kvcalc.speed.machine import load_constants

    content = {**msgspec.to_builtins(load_constants()), "sources": None}
    return _digest(_said(content))


def _digest(content: Any) -> str:
    return f"sha256:{hashlib.sha256(msgspec.json.encode(content, order='sorted')).hexdigest()}"


def lock_beside(plan: Path) -> Path:
    """Where the lock of a plan lies."""
    return plan.with_name(LOCK_NAME)


def lock_text(lock: Lock) -> str:
    """The lock as JSON, an entry a line, in one order: a review sees what moved."""
    return msgspec.json.format(msgspec.json.encode(lock, order="sorted"), indent=2).decode() + "\n"


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock file, whole or not at all; KvcalcError where that cannot be."""
    draft = path.with_name(f".kvcalc-{os.getpid()}.part")
    try:
        if path.exists() and not path.is_file():
            raise KvcalcError(f"{shorten(str(path), 200)} is no regular file", "move it away")
        draft.write_text(lock_text(lock), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise KvcalcError(f"{shorten(str(path), 200)}: {error.strerror}", "can its folder be written?") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def read_lock(path: Path) -> Lock:
    """The lock in the file at `path`; KvcalcError where there is none, or of another schema."""
    name = shorten(str(path), 200)
    if not path.exists():
        raise KvcalcError(f"there is no {name}", _UPDATE)
    raw = read_bounded(path, _MOST_BYTES, "lock file", _UPDATE, _UPDATE)
    try:
        document = msgspec.json.decode(raw)
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            said = f"its schema is {shorten(repr(schema))}" if schema else f"it states no schema {SCHEMA}"
            raise KvcalcError(f"{name} is no lock that this kvcalc reads: {said}", _UPDATE)
        return msgspec.convert(document, Lock)
    except (msgspec.DecodeError, RecursionError) as error:
        raise KvcalcError(f"{name} is damaged: {error}", f"take it from git, or {_UPDATE}") from error


def compare_lock(path: Path, uses: Sequence[Use], *, locked: bool = True) -> LockDocument:
    """What differs between the lock at `path` and what is installed; it passes unless `locked` asks for no difference.

    KvcalcError for a lock that is not there or cannot be read.
    """
    then, now = read_lock(path).entries(), fingerprint(uses).entries()
    moved = list(_differences(then, now))
    return {"file": str(path), "moved": moved, "passed": not (locked and moved)}


def _differences(then: dict[tuple[str, str], str], now: dict[tuple[str, str], str]) -> Iterator[LockedEntryDocument]:
    for kind, name in {**then, **now}:
        locked, current = then.get((kind, name)), now.get((kind, name))
        if locked != current:
            yield cast("LockedEntryDocument", {"kind": kind, "name": name, "locked": locked, "now": current})
