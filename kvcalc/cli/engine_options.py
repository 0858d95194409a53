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


class SglangOptions(msgspec.Struct, frozen=True):
    """What changes the pools of SGLang; `--context-length` stands with the workload."""

    PANEL: ClassVar = "SGLang (--engine sglang)"
    page_size: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Tokens of a page (1; DSA 64, V4 256).", parser=tokens("--page-size")),
    ] = None
    mem_fraction_static: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="For weights and pools.", parser=share("--mem-fraction-static")),
    ] = None
    max_running_requests: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most requests at once.", parser=count("--max-running-requests")),
    ] = None
    max_total_tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Most tokens of the pool.", parser=tokens("--max-total-tokens")),
    ] = None
    chunked_prefill_size: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Tokens of a prefill step.", parser=tokens("--chunked-prefill-size")),
    ] = None
    swa_full_tokens_ratio: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Window tokens for every token (0.8).", parser=share("--swa-full-tokens-ratio")
        ),
    ] = None
    disable_hybrid_swa_memory: Annotated[
        bool, typer.Option("--disable-hybrid-swa-memory", help="Windows keep every token.")
    ] = False
    mamba_full_memory_ratio: Annotated[
        float | None, typer.Option(metavar="RATIO", help="Memory of states beside that of tokens (0.9).", min=0)
    ] = None
    max_mamba_cache_size: Annotated[
        int | None, typer.Option(metavar="N", help="Slots of states.", parser=count("--max-mamba-cache-size"))
    ] = None
    mamba_radix_cache_strategy: Annotated[
        str | None, typer.Option(metavar="STRATEGY", help="auto, no_buffer, extra_buffer or extra_buffer_lazy.")
    ] = None
    disable_radix_cache: Annotated[bool, typer.Option("--disable-radix-cache", help="No prefix caching.")] = False
    disable_overlap_schedule: Annotated[
        bool, typer.Option("--disable-overlap-schedule", help="No batch prepared ahead.")
    ] = False
    enable_dp_attention: Annotated[
        bool, typer.Option("--enable-dp-attention", help="--dp of the --tp ranks attend to requests of their own.")
    ] = False
    speculative_num_draft_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens that drafts propose.", parser=count("--speculative-num-draft-tokens")),
    ] = None


class EngineOptions(msgspec.Struct, frozen=True):
    """Which engine, its pool, and the flags of each."""

    PANEL: ClassVar = "Engine"

    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="ENGINE",
            help="What it would hold: vllm, sglang, llama.cpp, transformers; or NAME@VERSION.",
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
    sglang: SglangOptions = SglangOptions()
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


GROUPS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama_cpp"}
"""Where the flags of each engine stand."""
