"""kvcalc models list, show and validate."""

from pathlib import Path
from typing import Annotated

import typer

from kvcalc.cli.emit import emit
from kvcalc.cli.options import Model, OutputOptions, verb
from kvcalc.errors import SpecError

app = typer.Typer(help="The catalogue: list, show, validate.", no_args_is_help=True)

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...", help="Spec files or folders; the whole catalogue by default.", show_default=False
    ),
]


Pattern = Annotated[str, typer.Argument(metavar="[PATTERN]", help="Part of a name or an alias.", show_default=False)]


@app.command("list")
@verb
def list_(output: OutputOptions, pattern: Pattern = "") -> None:
    """Every model of the catalogue, or those whose names hold PATTERN, with what a token costs."""
    from kvcalc.sizing.listing import list_report

    emit(list_report(pattern), output)


@app.command()
@verb
def show(model: Model) -> None:
    """The spec of one model, as it stands in its file."""
    from kvcalc.sizing.listing import spec_text

    print(spec_text(model), end="")


@app.command()
@verb
def validate(paths: Paths = None) -> None:
    """Read specs strictly; no two may claim one name."""
    from kvcalc.sizing.listing import validate as validate_specs

    files, models, problems = validate_specs(paths or [])
    if problems:
        raise SpecError("\n       ".join(problem.message for problem in problems), problems[0].hint)
    print(f"{models} model{'s' * (models != 1)} in {files} file{'s' * (files != 1)}: all read, no name claimed twice")
