"""The flags of kvcalc profile."""

from typing import Annotated, ClassVar

import msgspec
import typer

from kvcalc.cli.completion import complete_model
from kvcalc.cli.options import Assume, Download, Dtype, EncoderTokens, Overrides, StateDtype

OptionalModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="What to run, as for size; llama-8b by default.",
        autocompletion=complete_model,
        show_default=False,
    ),
]


class GridOptions(msgspec.Struct, frozen=True):
    """What runs, over which contexts and batches."""

    PANEL: ClassVar = "Workload"
    ctx: Annotated[
        list[str] | None,
        typer.Option("--ctx", "--context-length", metavar="TOKENS", help="Contexts: 2048,8K; or several flags."),
    ] = None
    batch: Annotated[list[str] | None, typer.Option("--batch", metavar="N", help="Batches: 1,8,32.")] = None
    layers: Annotated[
        int | None, typer.Option("--layers", metavar="N", help="Run N of the layers, every distinct one among them.")
    ] = None
    with_mlp: Annotated[bool, typer.Option("--with-mlp", help="Run feed-forward parts and experts too.")] = False
    dtype: Dtype = None
    state_dtype: StateDtype = None
    encoder_tokens: EncoderTokens = None
    page: Annotated[
        str | None, typer.Option("--paged", metavar="TOKENS", help="Paged caches of so many tokens a block.")
    ] = None
    set_: Overrides = None
    assume: Assume = False
    download: Download = False


class MeasureOptions(msgspec.Struct, frozen=True):
    """Where and how it is measured."""

    PANEL: ClassVar = "Measurement"
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N; CUDA where there is one.")
    ] = None
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads (default: one a processor).")] = None
    seconds: Annotated[float, typer.Option(metavar="S", help="Time to spend on the decode steps of a point.")] = 5.0
    tolerance: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Judge times too: 20% off is exit 1. On CUDA 30% by default.")
    ] = None
    tp: Annotated[
        int, typer.Option("--tp", "--tensor-parallel-size", metavar="N", help="Heads over N ranks, under torchrun.")
    ] = 1
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random weights.")] = 0


class BackendOptions(msgspec.Struct, frozen=True):
    """Whose code is measured."""

    PANEL: ClassVar = "Backend"
    backend: Annotated[
        str, typer.Option(metavar="BACKEND", help="reference (own layers), transformers, or openai (a server).")
    ] = "reference"
    url: Annotated[str | None, typer.Option(metavar="URL", help="A server: http://127.0.0.1:8000/v1.")] = None
    served: Annotated[str | None, typer.Option("--served-model", metavar="NAME", help="The server's model.")] = None
    api_key: Annotated[str | None, typer.Option(envvar="KVCALC_API_KEY", metavar="KEY", help="The server's key.")] = (
        None
    )
    output: Annotated[str, typer.Option("--osl", "--output-tokens", metavar="N", help="Tokens out a stream.")] = "64"
