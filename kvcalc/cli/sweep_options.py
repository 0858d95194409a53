"""The flags of kvcalc sweep: what is varied, what is searched for, and what the answer is written as."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import typer

from kvcalc.cli.completion import complete_format, complete_gpu
from kvcalc.cli.options import Assume, Download, Dtype, EncoderTokens, Overrides, StateDtype


class GridOptions(msgspec.Struct, frozen=True):
    """What is varied: each flag takes a list, a range or a mix of them."""

    PANEL: ClassVar = "Grid (lists 1,2,8; ranges 1K..1M doubling, 1..256*4, 512..8K+512)"
    batch: Annotated[str | None, typer.Option(metavar="COUNTS", help="Sequences at once (1).")] = None
    isl: Annotated[
        str | None, typer.Option("--isl", "--prompt-tokens", metavar="COUNTS", help="Tokens of a prompt (1,024).")
    ] = None
    osl: Annotated[
        str | None, typer.Option("--osl", "--output-tokens", metavar="TOKENS", help="Tokens of an answer (128).")
    ] = None
    ctx: Annotated[
        str | None,
        typer.Option("--ctx", "--context-length", metavar="COUNTS", help="Whole contexts instead of --isl."),
    ] = None
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="GPUs (kvcalc gpus list); none: memory.", autocompletion=complete_gpu),
    ] = None
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINES", help="vllm,sglang@0.5.20,llama.cpp; tensorrt-llm, transformers; gpt-fast, torch."
        ),
    ] = None
    tp: Annotated[
        str | None, typer.Option("--tp", "--tensor-parallel-size", "-tp", metavar="COUNTS", help="Tensor parallel (1).")
    ] = None
    kv_dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-dtype", "--kv-cache-dtype", metavar="FORMATS", help="bf16,fp8", autocompletion=complete_format
        ),
    ] = None
    weights: Annotated[
        list[str] | None, typer.Option(metavar="FORMATS", help="The weights': bf16,fp8; llama.cpp's q4_k_m.")
    ] = None


class SameOptions(msgspec.Struct, frozen=True):
    """What is the same at every point."""

    PANEL: ClassVar = "The same everywhere"
    pp: Annotated[
        int, typer.Option("--pp", "--pipeline-parallel-size", "-pp", metavar="N", help="Pipeline parallel.")
    ] = 1
    dp: Annotated[int, typer.Option("--dp", "--data-parallel-size", "-dp", metavar="N", help="Data parallel.")] = 1
    ep: Annotated[int, typer.Option("--ep", "--expert-parallel-size", metavar="N", help="Expert parallel.")] = 1
    attention_dp: Annotated[
        bool, typer.Option("--attention-dp", help="--dp ranks of --tp keep attention whole and share the rest.")
    ] = False
    dtype: Dtype = None
    state_dtype: StateDtype = None
    encoder_tokens: EncoderTokens = None
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Factors that kvcalc calibrate found (one GPU).")
    ] = None
    set_: Overrides = None
    assume: Assume = False
    download: Download = False


class GoalOptions(msgspec.Struct, frozen=True):
    """What is asked of a loaded server."""

    PANEL: ClassVar = "Under load"
    served: Annotated[bool, typer.Option("--served", help="Tokens/s, TPOT and TTFT of a loaded server.")] = False
    max_ttft: Annotated[str | None, typer.Option(metavar="TIME", help="Most users with TTFT up to 1s.")] = None
    max_tpot: Annotated[str | None, typer.Option(metavar="TIME", help="Most users with TPOT up to 30ms.")] = None
    users: Annotated[str | None, typer.Option(metavar="N", help="Fewest GPUs for so many users at once.")] = None
    rate: Annotated[str | None, typer.Option(metavar="RATE", help="Fewest GPUs for so many requests: 20/s.")] = None
    price: Annotated[list[str] | None, typer.Option(metavar="GPU=PRICE/h", help="What one costs: h100-sxm=2.5/h.")] = (
        None
    )
    power: Annotated[list[str] | None, typer.Option(metavar="GPU=WATTS", help="What one draws: h100-sxm=700W.")] = None


class SweepFormat(StrEnum):
    """What stdout carries, or a file."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    markdown = "markdown"
    parquet = "parquet"


class SweepOutput(msgspec.Struct, frozen=True):
    """What is written, and where."""

    PANEL: ClassVar = "Output"
    format: Annotated[
        SweepFormat | None, typer.Option("--format", help="What stdout carries.", show_default="table")
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to .csv, .jsonl, .parquet, .json.")
    ] = None
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="A picture: .svg or .png.")] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite those files.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes.")] = False
