"""Engines by name: what each would hold for a workload, and by which rules."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, cast

import msgspec

from kvcalc.documents import EnginePartDocument, PoolDocument
from kvcalc.errors import KvcalcError, UnknownNameError
from kvcalc.sizing.need import CacheSize


class AllocationPart(msgspec.Struct, frozen=True):
    """One cache as an engine makes it: `cells` a stream in each of `layers`; `tensors` splits its bytes by name."""

    name: str
    layers: int
    cells: int
    streams: int
    bytes: int
    tensors: dict[str, int]

    def document(self) -> EnginePartDocument:
        """The same as machine formats carry it."""
        return cast("EnginePartDocument", msgspec.structs.asdict(self))


class Allocation(msgspec.Struct, frozen=True):
    """What an engine holds for the whole batch on one rank, in bytes, and the rules that differ from the need.

    `parts` add up to `allocated_bytes` where the engine makes caches that differ.
    """

    name: str
    version: str
    allocated_bytes: int
    rules: tuple[str, ...]
    parts: tuple[AllocationPart, ...] = ()
    pool: PoolDocument | None = None


class Engine(Protocol):
    """One engine at the version whose code its rules were read in; `flags` are those of its own, as fields."""

    name: ClassVar[str]
    version: ClassVar[str]
    flags: ClassVar[tuple[str, ...]]

    def allocate(self, size: CacheSize) -> Allocation:
        """What it holds for the workload of `size`; KvcalcError for a request that it cannot take."""


def find_engine(text: str | None, flags: Mapping[str, Any] | None = None) -> Engine:
    """The engine called NAME or NAME@VERSION, with the values of its own flags.

    KvcalcError for a version whose rules are not known, and for a flag that is another engine's.
    """
    from kvcalc.engines.llama_cpp import LlamaCpp
    from kvcalc.engines.transformers import Transformers
    from kvcalc.engines.vllm import Vllm

    engines: dict[str, type[Engine]] = {engine.name: engine for engine in (Transformers, Vllm, LlamaCpp)}
    name, _, version = (text or "").strip().partition("@")
    for flag in flags or {}:
        takers = [one for one, engine in engines.items() if flag in engine.flags]
        if name not in takers:
            whose = f"a flag of {' and '.join(takers)}"
            raise KvcalcError(f"--{flag.replace('_', '-')} is {whose}", f"add --engine {takers[0]}, or leave it out")
    if name not in engines:
        raise UnknownNameError("engine", name, engines, f"--engine takes {', '.join(engines)}")
    engine = engines[name]
    if version and not f"{engine.version}.".startswith(f"{version}."):
        raise KvcalcError(f"--engine {text}: rules are known for {name} {engine.version}", f"use --engine {name}")
    return engine(**(flags or {}))
