"""The flags of engines, with their own names and meanings: each needs its `--engine`."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import msgspec
import typer

from kvcalc.cli.llama_cpp import LlamaCppOptions
from kvcalc.units import parse_memory, parse_share, parse_tokens


def tokens(flag: str) -> Callable[[str], int]:
    """A reader of the tokens behind `flag`."""
    return lambda text: parse_tokens(text, flag)


def count(flag: str) -> Callable[[str], int]:
    """A reader of the count behind `flag`."""
    return lambda text: parse_tokens(text, flag, "number")


def share(flag: str) -> Callable[[str], float]:
    """A reader of a share above 0 and up to 1 behind `flag`."""
    return lambda text: parse_share(text, flag)


def memory(flag: str) -> Callable[[str], int]:
    """A reader of bytes with a unit behind `flag`."""
    return lambda text: parse_memory(text, flag)


class VllmOptions(msgspec.Struct, frozen=True):
    """What changes the pool of vLLM; `--max-model-len` and `--max-num-seqs` stand with the workload."""

    PANEL: ClassVar = "vLLM (--engine vllm; --max-model-len is one request's limit, --max-num-seqs a limit too)"
    block_size: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Tokens of a block (16, MLA 64).", parser=tokens("--block-size")),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Tokens of a step; windows hold them (8192).",
            parser=tokens("--max-num-batched-tokens"),
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of the whole card.", parser=share("--gpu-memory-utilization")),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="A state more (default on)."),
    ] = None


class EngineOptions(msgspec.Struct, frozen=True):
    """Which engine, its pool, and the flags of each."""

    PANEL: ClassVar = "Engine"

    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="ENGINE", help="What it would hold: transformers, vllm, llama.cpp, or NAME@VERSION."
        ),
    ] = None
    kv_cache_memory: Annotated[
        int | None,
        typer.Option(
            "--kv-cache-memory",
            "--kv-cache-memory-bytes",
            metavar="BYTES",
            help="The engine's pool on each rank: 40GiB.",
            parser=memory("--kv-cache-memory"),
        ),
    ] = None
    vllm: VllmOptions = VllmOptions()
    llama_cpp: LlamaCppOptions = LlamaCppOptions()

    def given(self) -> dict[str, Any]:
        """The engines' own flags that somebody gave, by name."""
        return {name: value for group in (self.vllm,) for name, value in _given(group)}


def _given(group: msgspec.Struct) -> list[tuple[str, Any]]:
    values = msgspec.structs.asdict(group).items()
    return [(name, value) for name, value in values if value is not None]
