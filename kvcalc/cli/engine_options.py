"""Which engine is asked, its pool, and which flags are whose."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar

import msgspec
import typer

from kvcalc.cli.completion import complete_engine
from kvcalc.cli.engine_flags import (
    SglangOptions,
    TensorRtOptions,
    TransformersOptions,
    VllmOptions,
    memory,
    tokens,
)
from kvcalc.cli.llama_cpp import LlamaCppOptions
from kvcalc.cli.options import given_in
from kvcalc.errors import KvcalcError


class EngineOptions(msgspec.Struct, frozen=True):
    """Which engine, its pool, and the flags of each."""

    PANEL: ClassVar = "Engine"

    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="ENGINE",
            help="vllm, sglang, llama.cpp, tensorrt-llm, transformers; or NAME@VERSION.",
            autocompletion=complete_engine,
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
    page_size: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="sglang, transformers: tokens of a page.", parser=tokens("--page-size")),
    ] = None
    vllm: VllmOptions = VllmOptions()
    sglang: SglangOptions = SglangOptions()
    llama_cpp: LlamaCppOptions = LlamaCppOptions()
    tensorrt_llm: TensorRtOptions = TensorRtOptions()
    transformers: TransformersOptions = TransformersOptions()

    def given(self, engine: str) -> dict[str, Any]:
        """The flags of that engine that somebody gave, by name."""
        own = given_in(getattr(self, GROUPS[engine]))
        shared = {name: getattr(self, name) for name, owners in SHARED.items() if engine in owners}
        return own | {name: value for name, value in shared.items() if value is not None}

    def only(self, text: str, engine: str) -> "EngineOptions":
        """For one of several engines: its own flags, and what holds for all."""
        names = {GROUPS[engine], *(name for name, owners in SHARED.items() if engine in owners)}
        kept = {name: getattr(self, name) for name in names}
        return EngineOptions(engine=text, kv_cache_memory=self.kv_cache_memory, **kept)

    def refuse_others(self, engines: Collection[str]) -> None:
        """KvcalcError for a flag that none of `engines` has."""
        taken = {flag for engine in engines for flag in self.given(engine)}
        for owner in GROUPS:
            for flag in self.given(owner):
                if flag not in taken:
                    spelled = f"--{flag.replace('_', '-')}"
                    raise KvcalcError(f"{spelled} is a flag of {owner}", f"add --engine {owner}, or leave it out")


GROUPS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama.cpp": "llama_cpp",
    "tensorrt-llm": "tensorrt_llm",
    "transformers": "transformers",
}
"""Where the flags of each engine stand."""

SHARED = {"page_size": ("sglang", "transformers")}
"""Flags that several engines call alike."""
