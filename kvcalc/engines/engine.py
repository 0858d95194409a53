"""Engines by name: what each would hold for a workload, and by which rules."""

from typing import Protocol

import msgspec

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


class Allocation(msgspec.Struct, frozen=True):
    """What an engine holds for the whole batch on one rank, in bytes, and the rules that differ from the need.

    `parts` add up to `allocated_bytes` where the engine makes caches that differ.
    """

    name: str
    version: str
    allocated_bytes: int
    rules: tuple[str, ...]
    parts: tuple[AllocationPart, ...] = ()


class Engine(Protocol):
    """One engine at the version whose code its rules were read in."""

    name: str
    version: str

    def allocate(self, size: CacheSize) -> Allocation:
        """What it holds for the workload of `size`; KvcalcError for a request that it cannot take."""


def find_engine(text: str) -> Engine:
    """The engine called NAME or NAME@VERSION; a version must be the one whose rules are known, or begin it."""
    from kvcalc.engines.llama_cpp import LlamaCpp
    from kvcalc.engines.transformers import Transformers

    engines: dict[str, Engine] = {engine.name: engine for engine in (Transformers(), LlamaCpp())}
    name, _, version = text.strip().partition("@")
    if name not in engines:
        raise UnknownNameError("engine", name, engines, f"--engine takes {', '.join(engines)}")
    engine = engines[name]
    if version and not f"{engine.version}.".startswith(f"{version}."):
        raise KvcalcError(f"--engine {text}: rules are known for {name} {engine.version}", f"use --engine {name}")
    return engine
