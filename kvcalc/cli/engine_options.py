"""The flags of engines, with their own names and meanings: each needs its `--engine`."""

from collections.abc import Callable, Collection
from typing import Annotated, Any, ClassVar

import msgspec
import typer

from kvcalc.cli.llama_cpp import LlamaCppOptions
from kvcalc.cli.options import given_in
from kvcalc.errors import KvcalcError
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

    def own(self, engine: str) -> msgspec.Struct | None:
        """The group of an engine's own flags, None where it has none here."""
        return getattr(self, GROUPS[engine]) if engine in GROUPS else None

    def given(self, engine: str) -> dict[str, Any]:
        """The flags of that engine that somebody gave, by name."""
        group = self.own(engine)
        return {} if group is None else given_in(group)

    def only(self, text: str, engine: str) -> "EngineOptions":
        """For one of several engines: its own flags, and what holds for all."""
        kept = {GROUPS[engine]: self.own(engine)} if engine in GROUPS else {}
        return EngineOptions(engine=text, kv_cache_memory=self.kv_cache_memory, **kept)  # type: ignore[arg-type]

    def refuse_others(self, engines: Collection[str]) -> None:
        """KvcalcError for a flag of an engine that is not one of `engines`."""
        for owner in GROUPS:
            if owner not in engines and self.given(owner):
                flag = next(iter(self.given(owner))).replace("_", "-")
                raise KvcalcError(f"--{flag} is a flag of {owner}", f"add --engine {owner}, or leave it out")


GROUPS = {"vllm": "vllm", "llama.cpp": "llama_cpp"}
"""Where the flags of each engine stand."""
