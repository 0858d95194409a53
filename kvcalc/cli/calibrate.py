"""kvcalc calibrate: factors of time from points that were measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import typer

from kvcalc.cli.completion import complete_gpu
from kvcalc.cli.emit import STDOUT, emit, format_of
from kvcalc.cli.options import OutputFormat, OutputOptions, verb

if TYPE_CHECKING:
    from kvcalc.report import Report

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...", help="CSVs of points, and runs that kvcalc profile -o run.json wrote.", show_default=False
    ),
]


class OfOptions(msgspec.Struct, frozen=True):
    """Of which machine, where several were measured."""

    PANEL: ClassVar = "Machine"
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Points of this GPU alone.", autocompletion=complete_gpu)
    ] = None
    engine: Annotated[str | None, typer.Option(metavar="ENGINE", help="Points of this engine alone.")] = None


@verb
def calibrate(files: Files, *, of: OfOptions, output: OutputOptions) -> None:
    """A few factors of time from measured points, for kvcalc throughput --calibration, with their left-out error."""
    from kvcalc.profiler.measured import read_measured
    from kvcalc.speed.calibrating import calibrate as fit
    from kvcalc.speed.calibration_report import calibration_report

    found, notes = read_measured(files)
    _show(calibration_report(fit(found, of.gpu, of.engine, notes)), output)


def _show(report: "Report", output: OutputOptions) -> None:
    """Where the file is for --calibration, its factors and errors are shown too."""
    emit(report, output)
    out = output.out
    if out not in (None, STDOUT) and not output.format and not output.quiet and format_of(out) is OutputFormat.json:
        emit(report, msgspec.structs.replace(output, out=None, format=OutputFormat.table, quiet=True))
