"""From flags to an engine and the size that it is asked about: each engine reads the workload's flags its own way."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.llama_cpp import ask_llama_cpp, refuse_without_engine
from kvcalc.cli.options import RequestOptions, ShardingOptions, count_or
from kvcalc.cli.request import Asked, ask
from kvcalc.errors import KvcalcError

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
    model: str, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> "tuple[Asked, Engine | None]":
    """The size that the flags ask for, and the engine with its flags; None where no engine was named.

    KvcalcError for a flag of another engine.
    """
    flags = options.given()
    if options.engine is None and not flags:
        refuse_without_engine(options.llama_cpp)
        if options.kv_cache_memory is not None:
            raise KvcalcError("--kv-cache-memory is the pool of an engine", "add --engine vllm, or leave it out")
        return ask(model, request, kv_dtype, sharding), None
    from kvcalc.engines.engine import find_engine

    name = find_engine(options.engine, flags).name
    _refuse_spellings(request, name)
    ask_for: _Asker = _ASKERS.get(name, _ask_plain)
    asked, own = ask_for(model, request, kv_dtype, options, sharding)
    return asked, find_engine(options.engine, flags | own)


def _refuse_spellings(request: RequestOptions, engine: str) -> None:
    """KvcalcError where the workload is spelled in another engine's words: they may mean something else there."""
    own = {meaning: flag for flag, owner, meaning in SPELLINGS.values() if owner == engine}
    for field, (flag, owner, meaning) in SPELLINGS.items():
        if getattr(request, field) is not None and owner != engine:
            raise KvcalcError(f"{flag} is a flag of {owner}", f"{engine}'s is {own.get(meaning, meaning)}")


def _ask_plain(
    model: str, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> tuple[Asked, dict[str, Any]]:
    refuse_without_engine(options.llama_cpp)
    return ask(model, request, kv_dtype, sharding), {}


def _ask_vllm(
    model: str, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> tuple[Asked, dict[str, Any]]:
    """`--max-model-len` is the context of a request, `--max-num-seqs` a limit and not the batch."""
    most = request.max_num_seqs
    plain = msgspec.structs.replace(request, max_num_seqs=None)
    if plain.ctx is None:
        plain = msgspec.structs.replace(plain, ctx=plain.max_model_len, max_model_len=None)
    asked, _ = _ask_plain(model, plain, kv_dtype, options, sharding)
    return asked, {} if most is None else {"max_num_seqs": count_or(most, "--max-num-seqs", 1)}


def _ask_slots(
    model: str, request: RequestOptions, kv_dtype: str, options: EngineOptions, sharding: ShardingOptions
) -> tuple[Asked, dict[str, Any]]:
    return ask_llama_cpp(model, request, kv_dtype, options.llama_cpp, sharding)


_Asker = Callable[[str, RequestOptions, str, EngineOptions, ShardingOptions], tuple[Asked, dict[str, Any]]]
_ASKERS: dict[str, _Asker] = {"vllm": _ask_vllm, "llama.cpp": _ask_slots}
