"""Overheads that were read off a running engine, in a file: exact bytes in place of bounds."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvcalc.engines.engine import Engine
from kvcalc.errors import KvcalcError, SpecError, UnknownNameError, shorten
from kvcalc.model.files import read_bounded
from kvcalc.sizing.need import CacheSize

SCHEMA = "kvcalc.overheads/1"

TERM_NAMES = ("weights", "activations", "CUDA graphs", "communication", "non-torch", "LoRA", "vision tower")
"""What can lie beside the cache, in the order in which it is shown."""

_MOST_BYTES = 100_000
_MOST_OF_A_TERM = 2**50


class SavedOverheads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes a rank by the name of the term, and the run that they were read from."""

    terms: dict[str, int]
    engine: str
    version: str
    model: str
    gpu: str
    date: str
    tp: Annotated[int, msgspec.Meta(ge=1)] = 1
    pp: Annotated[int, msgspec.Meta(ge=1)] = 1
    ep: Annotated[int, msgspec.Meta(ge=1)] = 1
    schema: Literal["kvcalc.overheads/1"] = "kvcalc.overheads/1"

    def __post_init__(self) -> None:
        _check_terms(self.terms)

    @property
    def origin(self) -> str:
        """The run in words."""
        ranks = "".join(f" {name} {count}" for name, count in self._ranks() if count > 1)
        return f"{self.engine} {self.version} with {self.model} on {self.gpu}{ranks}, {self.date}"

    def differences(self, size: CacheSize, engine: Engine | None, gpu_name: str | None) -> tuple[str, ...]:
        """What was different in the run that they were read from, one sentence each."""
        asked = {"model": size.spec.name, "gpu": gpu_name}
        if engine is not None:
            asked |= {"engine": engine.name, "version": engine.version}
        asked |= {name: str(getattr(size.sharding, name)) for name, _ in self._ranks()}
        return tuple(
            f"the saved overheads are of {name} {here}, and {name} {there} is asked"
            for name, there in asked.items()
            if there is not None and (here := str(getattr(self, name))).casefold() != there.casefold()
        )

    def _ranks(self) -> Iterator[tuple[str, int]]:
        return ((name, getattr(self, name)) for name in ("tp", "pp", "ep"))


def read_overheads(path: str | Path) -> SavedOverheads:
    """The overheads of a file; SpecError for a file that is none, with what is wrong and where."""
    import yaml

    hint = "kvcalc reconcile --save writes such a file, docs/overheads.md shows one"
    raw = read_bounded(Path(path), _MOST_BYTES, "file of overheads", hint, hint)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(raw, Loader=loader)  # noqa: S506 - both loaders are safe
        return msgspec.convert(_checked(document), SavedOverheads)
    except yaml.YAMLError as error:
        raise SpecError(f"{path} is no YAML", hint) from error
    except msgspec.ValidationError as error:
        raise SpecError(f"{path}: {error}", hint) from error
    except KvcalcError as error:
        raise SpecError(f"{path}: {error.message}", error.hint) from error


def _checked(document: Any) -> Any:
    """The document; KvcalcError where its schema is another one, before anything else is said about it."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise KvcalcError(
            f"its schema is {schema!r}" if schema else "it states no schema",
            f"a file of overheads has schema: {SCHEMA}",
        )
    if isinstance(document.get("terms"), dict):
        _check_terms(document["terms"])
    # YAML reads a date, and a release of two numbers, as what they look like.
    return document | {name: str(document[name]) for name in ("date", "version") if name in document}


def _check_terms(terms: Mapping[Any, Any]) -> None:
    """KvcalcError that names the term which is none, or which no bytes are given for."""
    for name, count in terms.items():
        if name not in TERM_NAMES:
            raise UnknownNameError("term", str(name), TERM_NAMES, f"terms are {', '.join(TERM_NAMES)}")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_OF_A_TERM:
            raise KvcalcError(f"term {name}: {shorten(str(count))} bytes", "a whole number of bytes, 0 or more")


def write_overheads(path: str | Path, saved: SavedOverheads, *, force: bool = False) -> None:
    """Write a file that `read_overheads` takes; KvcalcError where it exists and `force` is not set."""
    import yaml

    target = Path(path)
    if target.exists() and not force:
        raise KvcalcError(f"{target} exists", "use --force to overwrite it")
    document = {
        "schema": SCHEMA,
        **{key: value for key, value in msgspec.to_builtins(saved).items() if key != "schema"},
    }
    try:
        target.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise KvcalcError(f"{target}: {error.strerror}", "check the path") from error
