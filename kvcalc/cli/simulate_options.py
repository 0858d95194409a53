"""The flags of kvcalc simulate: which requests, which server, how time passes, what is searched for."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import typer

from kvcalc.cli.completion import complete_format, complete_model
from kvcalc.cli.engine_flags import VllmOptions, count, tokens
from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.options import Assume, Download, Dtype, EncoderTokens, Overrides, StateDtype

SimulatedModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="The model (kvcalc models list), or a file; --describe and --fit need none.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
OptionalTrace = Annotated[
    str | None,
    typer.Argument(metavar="[TRACE]", help="Requests: Azure or BurstGPT CSV, Mooncake JSONL.", show_default=False),
]


class TraceOptions(msgspec.Struct, frozen=True):
    """Which requests: a trace, or drawn ones."""

    PANEL: ClassVar = "Requests (docs/traces.md has the spellings)"
    isl: Annotated[
        str | None,
        typer.Option("--isl", "--prompt-tokens", metavar="LENGTHS", help="Prompts: 512, lognormal:mean=1200,p99=8000."),
    ] = None
    osl: Annotated[
        str | None, typer.Option("--osl", "--output-tokens", metavar="LENGTHS", help="Answers: lognormal:mean=200.")
    ] = None
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Arrivals: 20/s, 20/s,cv=3, recorded,speed=2, inf.")
    ] = None
    requests: Annotated[
        int | None, typer.Option(metavar="N", help="So many are drawn (10,000).", parser=count("--requests"))
    ] = None
    prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Shared ones: prefix:groups=100,tokens=2048,zipf=1.1.")
    ] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of what is drawn (20230916).")] = None
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="The first N of the trace.", parser=count("--limit"))
    ] = None
    rate_scale: Annotated[float | None, typer.Option(metavar="X", help="The trace's arrivals X times as fast.")] = None
    policy: Annotated[
        str, typer.Option(metavar="POLICY", help="Above the context limit: reject, truncate, or refuse the trace.")
    ] = "reject"
    sort: Annotated[bool, typer.Option("--sort", help="The trace may stand in any order.")] = False
    describe: Annotated[bool, typer.Option("--describe", help="Say what the requests are like, and no more.")] = False
    fit: Annotated[bool, typer.Option("--fit", help="Fit distributions to the trace, and no more.")] = False


class ServedOptions(msgspec.Struct, frozen=True):
    """The server: what it takes, and how it gives out room. Lists make a setting each."""

    PANEL: ClassVar = "Server (lists a,b make one setting each)"
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len", "--ctx", "--context-length", metavar="TOKENS", help="Longest request, answer included.",
            parser=tokens("--max-model-len"),
        ),
    ] = None  # fmt: skip
    max_num_seqs: Annotated[
        int | None, typer.Option(metavar="N", help="Most requests at once.", parser=count("--max-num-seqs"))
    ] = None
    allocator: Annotated[
        str, typer.Option(metavar="NAMES", help="paged; or contiguous: max, pow2, oracle, places.")
    ] = "paged"
    prefix_caching: Annotated[
        str | None, typer.Option(metavar="on|off|on,off", help="Keep prefixes (on where the trace has some).")
    ] = None
    preemption: Annotated[str, typer.Option(metavar="HOW", help="Of who finds no room to grow: recompute, swap.")] = (
        "recompute"
    )
    watermark: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the pool, that admissions leave free while others run.")
    ] = 0.0
    kv_dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-dtype", "--kv-cache-dtype", metavar="FORMATS", help="KV formats: bf16,fp8.",
            autocompletion=complete_format,
        ),
    ] = None  # fmt: skip
    weights: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="The weights'.", autocompletion=complete_format)
    ] = None
    dtype: Dtype = None
    state_dtype: StateDtype = None
    encoder_tokens: EncoderTokens = None
    set_: Overrides = None
    assume: Assume = False
    download: Download = False
    strict: Annotated[bool, typer.Option("--strict", help="Exit 2 where the pool rests on an assumption.")] = False


class ClockOptions(msgspec.Struct, frozen=True):
    """How time passes: by the throughput model of a GPU unless said otherwise."""

    PANEL: ClassVar = "Time"
    step_time: Annotated[str | None, typer.Option(metavar="TIME", help="Every step takes it: 20ms.")] = None
    time_free: Annotated[bool, typer.Option("--time-free", help="A step is the unit; all wait from the start.")] = False
    calibration: Annotated[Path | None, typer.Option(metavar="FILE", help="Factors that kvcalc calibrate found.")] = (
        None
    )


class FleetOptions(msgspec.Struct, frozen=True):
    """Many servers alike, and what users may wait."""

    PANEL: ClassVar = "Fleet and goals"
    replicas: Annotated[
        int | None, typer.Option(metavar="N", help="Servers alike (1).", parser=count("--replicas"))
    ] = None
    routing: Annotated[str | None, typer.Option(metavar="RULE", help="round-robin, least-loaded, prefix-aware.")] = None
    max_ttft: Annotated[str | None, typer.Option("--max-ttft", metavar="TIME", help="First token within: 1s.")] = None
    max_tpot: Annotated[
        str | None, typer.Option("--max-tpot", metavar="TIME", help="Each further token within: 50ms.")
    ] = None
    find: Annotated[
        str | None, typer.Option(metavar="rate,pool,gpus", help="What to search for under them (all that are).")
    ] = None
    percentile: Annotated[float | None, typer.Option(metavar="P", help="For so many of 100 requests (99).")] = None


class SimulateFormat(StrEnum):
    """What stdout or the file carries."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"
    parquet = "parquet"


class SimulateOutput(msgspec.Struct, frozen=True):
    """What is written, and where."""

    PANEL: ClassVar = "Output"
    format: Annotated[
        SimulateFormat | None,
        typer.Option("--format", help="What is written; Parquet has a row a request.", show_default="table"),
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="x.json, .csv, .md, .parquet instead.")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes, no progress.")] = False
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", help="Settings side by side; -1: all cores.")] = 1
    backend: Annotated[str, typer.Option(metavar="NAME", help="Who runs jobs: loky, ray, dask.")] = "loky"


def listed(flag: str) -> Callable[[str], tuple[int, ...]]:
    """A reader of tokens behind commas."""
    return lambda text: tuple(tokens(flag)(part.strip()) for part in text.split(","))


class PagedVllmOptions(VllmOptions, frozen=True):
    """vLLM's flags, of which two hold without an engine too."""

    PANEL: ClassVar = "vLLM (--engine vllm; --block-size and --max-num-batched-tokens without an engine too)"
    block_size: Annotated[
        Any, typer.Option(metavar="TOKENS,...", help="Tokens of a block (16, MLA 64).", parser=listed("--block-size"))
    ] = None


class PagedEngineOptions(EngineOptions, frozen=True):
    """Which engine, its pool, and the flags of each."""

    vllm: PagedVllmOptions = PagedVllmOptions()
