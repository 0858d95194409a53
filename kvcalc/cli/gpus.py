"""kvcalc gpus list and show."""

from typing import Annotated

import typer

from kvcalc.cli.completion import complete_gpu
from kvcalc.cli.emit import emit
from kvcalc.cli.options import OutputOptions, verb

app = typer.Typer(help="The GPUs whose figures are known: list, show.", no_args_is_help=True)


Pattern = Annotated[str, typer.Argument(metavar="[PATTERN]", help="Part of a name or an alias.", show_default=False)]
Gpu = Annotated[
    str,
    typer.Argument(
        metavar="GPU",
        help="A name, an alias, what a driver prints, or auto: the GPU of this machine.",
        autocompletion=complete_gpu,
        show_default=False,
    ),
]


@app.command("list")
@verb
def list_(output: OutputOptions, pattern: Pattern = "") -> None:
    """Every GPU, or those whose names hold PATTERN: memory, bandwidth, dense rates, links."""
    from kvcalc.sizing.gpus import list_report

    emit(list_report(pattern), output)


@app.command()
@verb
def show(gpu: Gpu, output: OutputOptions) -> None:
    """Every figure of one GPU with its source, and which are not known."""
    from kvcalc.sizing.gpus import show_report

    emit(show_report(gpu), output)
