"""kvcalc sweep: grids of models, formats, GPUs, ranks, batches and contexts, and what is searched for over them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kvcalc.cli.emit import STDOUT, emit, format_of, refuse_existing, say, write_file, write_through
from kvcalc.cli.options import Models, OutputFormat, OutputOptions, given_in, tokens_or, verb
from kvcalc.cli.progress import Watch
from kvcalc.cli.sweep_options import GoalOptions, GridOptions, SameOptions, SweepFormat, SweepOutput
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.model.spec import ModelSpec
    from kvcalc.report import Report
    from kvcalc.speed.calibrated import CalibrationFile
    from kvcalc.speed.setting import Use
    from kvcalc.speed.sweep.asked import Asked
    from kvcalc.speed.sweep.goals import Answers, Goals
    from kvcalc.speed.sweep.grid import Grid


@verb
def sweep(models: Models, *, grid: GridOptions, same: SameOptions, goals: GoalOptions, output: SweepOutput) -> int:
    """Grids over models, formats, engines, GPUs, ranks, batches and contexts: memory, speed, cost, the Pareto front."""
    form = _form(output)
    asked, searched = _asked(models, grid, same, goals), _goals(goals)
    if searched.is_any:
        return _search(asked, searched, grid, output, form)
    from kvcalc.speed.sweep.axis import refuse_unheld
    from kvcalc.speed.sweep.grid import Grid
    from kvcalc.speed.sweep.picture import picture
    from kvcalc.speed.sweep.report import grid_report

    if form not in _STREAMED:
        refuse_unheld(asked.sides)
    with Watch(output) as watch:
        found = Grid(asked, watch.progress)
        if output.plot is not None:
            write_file(picture(found, output.plot.suffix[1:].lower()), output.plot, output.force)
        if form in _STREAMED:
            _stream(found, output, form)
            return 0
    return _show(grid_report(found), output, form)


def _search(asked: "Asked", goals: "Goals", grid: GridOptions, output: SweepOutput, form: SweepFormat) -> int:
    from kvcalc.speed.sweep.goals import Answers
    from kvcalc.speed.sweep.report import answers_report

    if grid.batch is not None:
        raise KvcalcError("--batch is what --max-ttft, --max-tpot, --users and --rate search for", "leave --batch out")
    if output.plot is not None:
        raise KvcalcError("--plot draws the points of a grid", "leave the goals out, and add --batch 1..256 --served")
    with Watch(output) as watch:
        found = Answers(asked, goals, watch.progress)
    report = answers_report(found)
    if form in _STREAMED:
        _stream(found, output, form)
        return report.exit_code
    return _show(report, output, form)


_STREAMED = {SweepFormat.csv, SweepFormat.jsonl, SweepFormat.parquet}
_SUFFIXES = {".jsonl": SweepFormat.jsonl, ".parquet": SweepFormat.parquet}
_PICTURES = (".svg", ".png")


def _form(output: SweepOutput) -> SweepFormat:
    """The format that is asked for; KvcalcError for files that cannot be written, before any work."""
    out = None if output.out == STDOUT else output.out
    for path in (out, output.plot):
        if path is not None:
            refuse_existing(path, output.force)
    if output.plot is not None and output.plot.suffix.lower() not in _PICTURES:
        raise KvcalcError(f"--plot {output.plot}: a picture is {' or '.join(_PICTURES)}", "--plot sweep.svg")
    form = output.format or (SweepFormat.table if out is None else _SUFFIXES.get(out.suffix.lower()))
    form = form or SweepFormat(format_of(out or STDOUT, more=_SUFFIXES).value)
    if form is SweepFormat.parquet and out is None:
        raise KvcalcError("Parquet is no text for a terminal", "-o sweep.parquet")
    return form


def _stream(found: "Grid | Answers", output: SweepOutput, form: SweepFormat) -> None:
    """Write the rows as they are made."""
    from kvcalc.speed.sweep.stream import write_csv, write_lines, write_parquet

    def write(path: Path) -> None:
        if form is SweepFormat.parquet:
            write_parquet(found.frames(), found.columns, path)
            return
        with path.open("w", encoding="utf-8", newline="") as file:
            write_text(file)

    def write_text(file: IO[str]) -> None:
        (write_csv if form is SweepFormat.csv else write_lines)(found.frames(), file)

    if output.out is None or output.out == STDOUT:
        write_text(sys.stdout)
    else:
        write_through(write, output.out, output.force)
    for note in () if output.quiet else found.notes:
        say("note", note)


def _show(report: "Report", output: SweepOutput, form: SweepFormat) -> int:
    emit(report, OutputOptions(OutputFormat(form.value), output.out, output.force, output.quiet))
    return report.exit_code


def _asked(models: Sequence[str], grid: GridOptions, same: SameOptions, goals: GoalOptions) -> "Asked":
    from kvcalc.hardware.gpus import find_gpu
    from kvcalc.model.catalog import load
    from kvcalc.speed.sweep.asked import Asked
    from kvcalc.speed.sweep.asking import engine_names, listed
    from kvcalc.speed.sweep.money import Rates, parse_powers, parse_prices

    gpus = tuple(dict.fromkeys(find_gpu(name).name for name in listed(grid.gpu)))
    if not gpus:
        _refuse_speed(grid, same, goals)
    named = engine_names(grid.engine, is_timed=bool(gpus))
    specs = tuple(load(name, same.set_ or (), assume=same.assume, download=same.download) for name in models)
    calibrations, engines = _calibrated(same.calibration, gpus, named)
    osl = tokens_or(grid.osl, "--osl", 128)
    contexts, batches, ranks = _axes(specs, grid, osl, gpus, len(engines), goals)
    return Asked(
        specs=specs,
        uses=_uses(grid, same, ranks),
        contexts=contexts,
        batches=batches,
        gpus=gpus,
        engines=engines,
        osl=osl,
        served=goals.served,
        scales={gpu: one.scales for gpu, one in calibrations.items()},
        notes=tuple(dict.fromkeys(one.provenance for one in calibrations.values())),
        rates=Rates(parse_prices(goals.price or (), gpus), parse_powers(goals.power or (), gpus)),
    )


def _refuse_speed(grid: GridOptions, same: SameOptions, goals: GoalOptions) -> None:
    """KvcalcError for a flag that says nothing of memory alone."""
    given = given_in(goals) | given_in(same) | given_in(grid)
    for name in ("served", "max_ttft", "max_tpot", "users", "rate", "price", "power", "calibration",
                 "attention_dp", "weights", "isl", "osl"):  # fmt: skip
        if name in given:
            raise KvcalcError(f"--{name.replace('_', '-')} is about speed, and no GPU is named", "add --gpu h100-sxm")


def _axes(
    specs: "Sequence[ModelSpec]",
    grid: GridOptions,
    osl: int,
    gpus: Sequence[str],
    engines: int,
    goals: GoalOptions,
) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Contexts, batches and tensor-parallel sizes; KvcalcError where there are too many, before they are made."""
    from kvcalc.sizing.need import default_context
    from kvcalc.speed.sweep.asking import kv_formats, weight_formats
    from kvcalc.speed.sweep.axis import parse_axis, refuse_too_many

    if grid.ctx is not None and grid.isl is not None:
        raise KvcalcError("--ctx and --isl both say it: a context is a prompt and its answer", "keep one of them")
    has_load = goals.users is not None or goals.rate is not None
    batches = parse_axis(grid.batch or "1", "--batch", "number")
    ranks = parse_axis(grid.tp or ("1..8" if has_load else "1"), "--tp", "number")
    whole = grid.ctx or (None if gpus else str(default_context(specs)))
    contexts = parse_axis(whole or grid.isl or "1024", "--isl" if whole is None else "--ctx")
    formats = len(kv_formats(grid.kv_dtype)) * len(weight_formats(grid.weights))
    deployments = [len(specs), formats, engines, len(gpus) or 1, ranks.length]
    refuse_too_many([*deployments, contexts.length, batches.length])
    added = osl if whole is None else 0
    return tuple(count + added for count in contexts.values()), tuple(batches.values()), ranks.values()


def _uses(grid: GridOptions, same: SameOptions, ranks: Sequence[int]) -> "tuple[Use, ...]":
    """Formats and tensor-parallel sizes, the latter varied first."""
    from kvcalc.speed.sweep.asking import kv_formats, make_uses, weight_formats

    encoder = same.encoder_tokens
    return make_uses(
        weight_formats(grid.weights),
        kv_formats(grid.kv_dtype),
        ranks,
        pp=same.pp,
        dp=same.dp,
        ep=same.ep,
        dtype=same.dtype,
        state_dtype=same.state_dtype,
        encoder_tokens=None if encoder is None else tokens_or(encoder, "--encoder-tokens", 1),
        attention_dp=same.attention_dp,
    )


def _calibrated(
    path: Path | None, gpus: Sequence[str], engines: "tuple[str | None, ...]"
) -> "tuple[dict[str, CalibrationFile], tuple[str | None, ...]]":
    """The calibration of each GPU, and the engines: those of the calibration where none is named."""
    if path is None:
        return {}, engines
    from kvcalc.speed.calibrated import read_calibration

    found = {gpu: read_calibration(path, gpu, engine) for gpu in gpus for engine in engines}
    return found, tuple(dict.fromkeys(one.engine_for(engine) for one in found.values() for engine in engines))


def _goals(options: GoalOptions) -> "Goals":
    from kvcalc.cli.throughput import parse_rate
    from kvcalc.speed.sweep.goals import Goals
    from kvcalc.speed.sweep.money import parse_seconds
    from kvcalc.units import parse_tokens

    return Goals(
        max_ttft=None if options.max_ttft is None else parse_seconds(options.max_ttft, "--max-ttft"),
        max_tpot=None if options.max_tpot is None else parse_seconds(options.max_tpot, "--max-tpot"),
        users=None if options.users is None else parse_tokens(options.users, "--users", "number"),
        rate=None if options.rate is None else parse_rate(options.rate),
    )
