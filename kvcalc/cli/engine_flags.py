"""The flags of engines with their own names and meanings, a group an engine; llama.cpp's stand in `llama_cpp`."""

from collections.abc import Callable
from typing import Annotated, ClassVar

import msgspec
import typer

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


def windows(flag: str) -> Callable[[str], tuple[int, ...]]:
    """A reader of windows in tokens, one after the other behind commas."""
    return lambda text: tuple(parse_tokens(part, flag) for part in text.split(","))


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
    disable_hybrid_kv_cache_manager: Annotated[
        bool, typer.Option("--disable-hybrid-kv-cache-manager", help="Windows keep every token.")
    ] = False
    num_gpu_blocks_override: Annotated[
        int | None,
        typer.Option(metavar="N", help="So many blocks instead.", parser=count("--num-gpu-blocks-override")),
    ] = None
    swap_space: Annotated[
        float | None, typer.Option(metavar="GIB", help="Of blocks on the CPU, before 0.20 (4).", min=0)
    ] = None
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "--spec-tokens",
            metavar="N",
            help="Tokens that drafts propose (--draft-layers counts their layers).",
            parser=count("--spec-tokens"),
        ),
    ] = None


class SglangOptions(msgspec.Struct, frozen=True):
    """What changes the pools of SGLang; `--context-length` stands with the workload."""

    PANEL: ClassVar = "SGLang (--engine sglang)"
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


class TensorRtOptions(msgspec.Struct, frozen=True):
    """What changes the pool of TensorRT-LLM."""

    PANEL: ClassVar = "TensorRT-LLM (--engine tensorrt-llm)"
    kv_cache_free_gpu_mem_fraction: Annotated[
        float | None,
        typer.Option(
            "--kv-cache-free-gpu-mem-fraction",
            "--kv-cache-free-gpu-memory-fraction",
            metavar="SHARE",
            help="Of what is free once the model has run (0.9).",
            parser=share("--kv-cache-free-gpu-mem-fraction"),
        ),
    ] = None
    tokens_per_block: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Of a block (32).", parser=tokens("--tokens-per-block"))
    ] = None
    max_tokens_in_paged_kv_cache: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", help="Most tokens of the pool.", parser=tokens("--max-tokens-in-paged-kv-cache")
        ),
    ] = None
    max_seq_len: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Longest request.", parser=tokens("--max-seq-len"))
    ] = None
    max_attention_window: Annotated[
        # typer takes a tuple for several values of a flag, and this is one that is read by itself.
        str | None,
        typer.Option(
            metavar="TOKENS,...", help="Windows of the layers in turn.", parser=windows("--max-attention-window")
        ),
    ] = None
    max_batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Most requests at once (2048).", parser=count("--max-batch-size"))
    ] = None
    max_num_tokens: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Tokens of a step (8192).", parser=tokens("--max-num-tokens"))
    ] = None
    enable_block_reuse: Annotated[
        bool | None,
        typer.Option("--enable-block-reuse/--no-enable-block-reuse", help="Prefix caching (default on)."),
    ] = None


class TransformersOptions(msgspec.Struct, frozen=True):
    """Which cache of transformers, and what shapes it."""

    PANEL: ClassVar = "transformers (--engine transformers)"
    cache_implementation: Annotated[
        str | None, typer.Option(metavar="NAME", help="dynamic, static, quantized or paged.")
    ] = None
    max_cache_len: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="static: made for them.", parser=tokens("--max-cache-len"))
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="quantized: that came one by one.", parser=tokens("--max-new-tokens")),
    ] = None
    cache_backend: Annotated[str | None, typer.Option(metavar="NAME", help="quantized: quanto, hqq or fp8.")] = None
    nbits: Annotated[int | None, typer.Option(metavar="N", help="quantized: bits of a value (4).")] = None
    axis_key: Annotated[int | None, typer.Option(metavar="AXIS", help="quantized: 0, 1 or -1.")] = None
    axis_value: Annotated[int | None, typer.Option(metavar="AXIS", help="quantized: 0, 1 or -1.")] = None
    q_group_size: Annotated[
        int | None, typer.Option(metavar="N", help="quantized: values of a scale (64).", parser=count("--q-group-size"))
    ] = None
    residual_length: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="quantized: kept as they are (128).", parser=tokens("--residual-length")),
    ] = None
    num_blocks: Annotated[
        int | None, typer.Option(metavar="N", help="paged: blocks of all layers.", parser=count("--num-blocks"))
    ] = None
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="paged: tokens of a step (8192).", parser=tokens("--max-batch-tokens")),
    ] = None
    max_requests_per_batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="paged: most at once (1024).", parser=count("--max-requests-per-batch")),
    ] = None
    max_blocks_per_request: Annotated[
        int | None,
        typer.Option(metavar="N", help="paged: of the fast path (32).", parser=count("--max-blocks-per-request")),
    ] = None
    max_memory_percent: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="paged: of what is free (0.9).", parser=share("--max-memory-percent")),
    ] = None
    flash: Annotated[bool | None, typer.Option("--flash/--no-flash", help="paged: Flash Attention.")] = None
