"""A command that starts an engine, as what `kvcalc fit` was asked; flags that were typed go before it."""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.options import KvDtypeOption, RequestOptions, ShardingOptions, given_in
from kvcalc.cli.request import Asked, ask_about, load_asked
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import default_context

if TYPE_CHECKING:
    from kvcalc.engines.commands import EngineCommand
    from kvcalc.engines.engine import Engine


Group = TypeVar("Group", bound=msgspec.Struct)


class Started(msgspec.Struct, frozen=True):
    """What a command asks for: the size, the engine with its flags, its pool in bytes and its cards where it says."""

    asked: Asked
    engine: "Engine"
    pool_bytes: int | None
    gpus: int | None


def ask_started(
    command: "EngineCommand",
    model: str | ModelSpec | None,
    request: RequestOptions,
    kv: KvDtypeOption,
    engine: EngineOptions,
    sharding: ShardingOptions,
) -> Started:
    """What the command asks for, a typed flag in place of its own.

    Where it gives no context the engine takes the model's own. KvcalcError where another engine was typed.
    """
    from kvcalc.engines.engine import find_engine
    from kvcalc.units import parse_memory

    said: dict[str, Any] = dict(command.workload)
    pool = engine.kv_cache_memory or (
        parse_memory(said["kv_cache_memory"], "--kv-cache-memory") if "kv_cache_memory" in said else None
    )
    spec = load_asked(model, request) if model else _named(command, request)
    asked = ask_about(
        spec,
        _laid_over(request, said | _whole(said, ("draft_layers",))),
        _laid_over(kv, said).kv_dtype,
        _laid_over(sharding, _whole(said, ShardingOptions.__struct_fields__)),
        spec.max_context or default_context([spec]),
    )
    text = _engine(command, engine)
    name = find_engine(text).name
    engine.refuse_others([name])
    found = find_engine(text, {**command.flags, **engine.given(name)})
    return Started(Asked(asked.size, (*asked.notes, *_notes(command))), found, pool, command.gpu_count)


def _named(command: "EngineCommand", request: RequestOptions) -> ModelSpec:
    """The model that the command names; where nothing answers to that, the hint says how to name it."""
    try:
        return load_asked(command.model, request)
    except KvcalcError as error:
        if os.path.exists(command.model):  # noqa: PTH110 - of any text, without an error
            raise
        raise KvcalcError(error.message, f"name it before --from: kvcalc fit MODEL --from ...; {error.hint}") from error


def _laid_over(typed: Group, said: dict[str, Any]) -> Group:
    """A group of flags with what a command says wherever nothing was typed."""
    fields = set(typed.__struct_fields__) - set(given_in(typed))
    return msgspec.structs.replace(typed, **{name: said[name] for name in fields & set(said)})


def _whole(said: dict[str, Any], names: Iterable[str]) -> dict[str, int]:
    """The counts of these names."""
    return {name: int(said[name]) for name in names if name in said}


def _engine(command: "EngineCommand", engine: EngineOptions) -> str:
    """The engine of the command, or the release of it that was typed."""
    if engine.engine is None:
        return command.engine
    if engine.engine.partition("@")[0].strip().casefold() != command.engine_name:
        message = f"{engine.engine} is asked for, and the command is {command.engine_name}'s"
        raise KvcalcError(message, f"leave --engine out; --emit {command.engine_name} writes such a command")
    return engine.engine


def _notes(command: "EngineCommand") -> Iterator[str]:
    yield from command.notes
    if command.unsupported:
        yield f"of the command, not counted: {', '.join(command.unsupported)}"
    if command.unknown:
        yield f"of the command, not known to {command.engine_name}: {', '.join(command.unknown)}"
    if command.ignored:
        yield f"of the command, no matter of memory: {', '.join(command.ignored)}"
