"""kvcalc models list, show and validate."""

from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import typer

from kvcalc.cli.emit import emit, write_text
from kvcalc.cli.options import Model, OutputOptions, verb
from kvcalc.errors import SpecError

app = typer.Typer(help="The catalogue: list, show, validate, import.", no_args_is_help=True)

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...", help="Spec files or folders; the whole catalogue by default.", show_default=False
    ),
]


Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A config.json, a folder with one, a GGUF or a hub id.")]


class ImportOptions(msgspec.Struct, frozen=True):
    """Where the spec is written."""

    PANEL: ClassVar = "Output"

    assume: Annotated[bool, typer.Option("--assume", help="Take fields that are not understood as harmless.")] = False
    download: Annotated[bool, typer.Option("--download", help="Fetch a hub id's config.json.")] = False
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to a file instead.")] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False


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


@app.command("import")
@verb
def import_(source: Source, output: ImportOptions) -> None:
    """A config.json, a folder with one, a GGUF or a hub id as a YAML spec."""
    from kvcalc.model.importers.export import imported_yaml

    write_text(imported_yaml(source, output.assume, output.download), output.out, output.force)


@app.command()
@verb
def validate(paths: Paths = None) -> None:
    """A strict reading of specs, of which no two may claim one name."""
    from kvcalc.sizing.listing import validate as validate_specs

    files, models, problems = validate_specs(paths or [])
    if problems:
        raise SpecError("\n       ".join(problem.message for problem in problems), problems[0].hint)
    print(f"{models} model{'s' * (models != 1)} in {files} file{'s' * (files != 1)}: all read, no name claimed twice")
