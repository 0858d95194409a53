"""From flags to an engine and the size that it is asked about: each engine reads the workload's flags its own way."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.llama_cpp import ask_llama_cpp
from kvcalc.cli.options import RequestOptions, ShardingOptions, count_or
from kvcalc.cli.request import Asked, ask
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec

if TYPE_CHECKING:
    from kvcalc.engines.engine import Engine

SPELLINGS = {
    "max_model_len": ("--max-model-len", "vllm", "--ctx"),
    "max_num_seqs": ("--max-num-seqs", "vllm", "--batch"),
    "ctx_size": ("-c", "llama.cpp", "--ctx"),
    "parallel": ("-np", "llama.cpp", "--batch"),
}
"""Engines' own spellings of the workload: fields of `RequestOptions`, whose they are, and what says it for all."""


def ask_engine(
    model: str | ModelSpec, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> "tuple[Asked, Engine | None]":
    """The size that the flags ask for, and the engine with its flags; None where no engine was named.

    KvcalcError for a flag of another engine.
    """
    from kvcalc.engines.engine import find_engine

    if options.engine is None:
        options.refuse_others(())
        if options.kv_cache_memory is not None:
            raise KvcalcError("--kv-cache-memory is the pool of an engine", "add --engine vllm, or leave it out")
        return ask(model, request, kv_dtype, sharding), None
    name = find_engine(options.engine).name
    options.refuse_others([name])
    _refuse_spellings(request, name)
    ask_for: _Asker = _ASKERS.get(name, _ask_plain)
    asked, own = ask_for(model, request, kv_dtype, options, sharding)
    return asked, find_engine(options.engine, own)


def ask_engines(
    model: str | ModelSpec, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> "list[tuple[Asked, Engine]]":
    """The same for several engines behind commas: each takes of the flags those that are its own."""
    from kvcalc.engines.engine import find_engine

    texts = [text.strip() for text in (options.engine or "").split(",")]
    names = [find_engine(text).name for text in texts]
    options.refuse_others(names)
    asked = []
    for text, name in zip(texts, names, strict=True):
        size, engine = ask_engine(model, request, kv_dtype, options.only(text, name), sharding)
        asked += [] if engine is None else [(size, engine)]
    return asked


def _refuse_spellings(request: RequestOptions, engine: str) -> None:
    """KvcalcError where the workload is spelled in another engine's words: they may mean something else there."""
    own = {meaning: flag for flag, owner, meaning in SPELLINGS.values() if owner == engine}
    for field, (flag, owner, meaning) in SPELLINGS.items():
        if getattr(request, field) is not None and owner != engine:
            raise KvcalcError(f"{flag} is a flag of {owner}", f"{engine}'s is {own.get(meaning, meaning)}")


def _ask_plain(
    model: str | ModelSpec, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> tuple[Asked, dict[str, Any]]:
    asked = ask(model, request, kv_dtype, sharding)
    return asked, {} if options.engine is None else options.given(options.engine.partition("@")[0].strip().casefold())


def _ask_vllm(
    model: str | ModelSpec, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> tuple[Asked, dict[str, Any]]:
    """`--max-model-len` is the context of a request, `--max-num-seqs` a limit and not the batch."""
    most = request.max_num_seqs
    plain = msgspec.structs.replace(request, max_num_seqs=None)
    if plain.ctx is None:
        plain = msgspec.structs.replace(plain, ctx=plain.max_model_len, max_model_len=None)
    asked, own = _ask_plain(model, plain, kv_dtype, options, sharding)
    return asked, own if most is None else {**own, "max_num_seqs": count_or(most, "--max-num-seqs", 1)}


def _ask_slots(
    model: str | ModelSpec, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> tuple[Asked, dict[str, Any]]:
    return ask_llama_cpp(model, request, kv_dtype, options.llama_cpp, sharding)


_Asker = Callable[[str | ModelSpec, RequestOptions, str, EngineOptions, ShardingOptions], tuple[Asked, dict[str, Any]]]
_ASKERS: dict[str, _Asker] = {"vllm": _ask_vllm, "llama.cpp": _ask_slots}
