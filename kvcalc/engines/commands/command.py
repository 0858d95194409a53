"""What a command line says: whose it is, the model, the workload in kvcalc's words, and the engine's own flags."""

from pathlib import Path
from typing import Any

import msgspec

from kvcalc.engines.commands.arguments import Given
from kvcalc.engines.commands.words import Word


class EngineCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One command that runs an engine, read.

    Nothing of the command is dropped: each flag stands in `workload` or `flags`, or by its text in one of the lists.
    """

    engine: str
    """As `--engine` takes it: `vllm`, or `vllm@0.19.1` where an image says its release."""
    model: str
    """As the command names it: a hub id, a path, a GGUF."""
    workload: dict[str, str] = {}
    """kvcalc's long flags of the workload by name, each with its text: `{"ctx": "8192", "tp": "4"}`."""
    flags: dict[str, Any] = {}
    """The engine's own flags by the names of its fields."""
    gpus: tuple[str, ...] = ()
    """Devices by their numbers or UUIDs, where the command names them."""
    gpu_count: int | None = None
    """None where the command does not say, and for all that there are."""
    ignored: tuple[str, ...] = ()
    """Flags that change no memory."""
    unsupported: tuple[str, ...] = ()
    """Flags that change memory in a way that is not counted."""
    unknown: tuple[str, ...] = ()
    """Flags that the engine's parser does not have."""
    notes: tuple[str, ...] = ()
    """What else an answer should say."""

    @property
    def engine_name(self) -> str:
        """The engine without its release."""
        return self.engine.partition("@")[0]


class Devices(msgspec.Struct, frozen=True):
    """The devices that a command is given: named ones, so many, or (neither) all."""

    names: tuple[str, ...] = ()
    count: int | None = None

    @classmethod
    def named(cls, text: str) -> "Devices":
        """From a list as CUDA_VISIBLE_DEVICES has it: `0,1`, `all`, or nothing."""
        if text.strip() in ("all", "void"):
            return cls()
        names = tuple(filter(None, (one.strip() for one in text.split(","))))
        return cls(names, len(names))


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """A run of an engine as it was found in a text, its arguments not read yet."""

    engine: str
    """The key of its table: an engine, or ollama."""
    program: str
    arguments: tuple[Word, ...]
    env: dict[str, Word] = {}
    extra: tuple[Given, ...] = ()
    """Flags that a file sets beside the arguments."""
    version: str = ""
    devices: Devices = Devices()
    where: str = ""
    """The line or the service that it stands in."""
    folder: Path | None = None
    """Where the files lie that it names."""
