"""kvcalc simulate: requests against a cache: what it needs, what is waste, who waits."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvcalc.cli.emit import STDOUT, emit, format_of, refuse_existing, say, write_through
from kvcalc.cli.fit import CardOptions, refuse_assumed
from kvcalc.cli.options import OutputFormat, OutputOptions, ShardingOptions, verb
from kvcalc.cli.simulate_ask import Flags, Requests, requests_of, servers_of
from kvcalc.cli.simulate_options import (
    ClockOptions,
    FleetOptions,
    OptionalTrace,
    PagedEngineOptions,
    ServedOptions,
    SimulatedModel,
    SimulateFormat,
    SimulateOutput,
    TraceOptions,
)
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.model.spec import ModelSpec
    from kvcalc.report import Report
    from kvcalc.workload.answer import Answer
    from kvcalc.workload.asked import Case, Server
    from kvcalc.workload.documents import GoalsDocument
    from kvcalc.workload.runs import Run
    from kvcalc.workload.simulate import Progress
    from kvcalc.workload.sought import Sought, Told

INTERRUPTED = 130


@verb
def simulate(
    model: SimulatedModel,
    trace: OptionalTrace = None,
    *,
    requests: TraceOptions,
    served: ServedOptions,
    card: CardOptions,
    clock: ClockOptions,
    fleet: FleetOptions,
    engine: PagedEngineOptions,
    sharding: ShardingOptions,
    output: SimulateOutput,
) -> int:
    """Real requests against a cache: what it needs, how much of that is waste, who waits."""
    form = _form(output)
    if requests.describe or requests.fit:
        return _describe(trace or model, requests, served, output, form)
    flags = Flags(served, clock, card, engine, sharding)
    try:
        answer = _answered(model, trace, requests, flags, fleet, output)
    except KeyboardInterrupt:
        if not output.quiet:
            say("note", "interrupted before a setting was done: nothing is kept")
        raise
    if not answer.is_complete:
        # Whoever presses it again wants to leave at once; when all is written, the code stays what it is.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    code = _show(answer, output, form)
    if not answer.is_complete:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return INTERRUPTED
    return code


def _describe(
    path: str, requests: TraceOptions, served: ServedOptions, output: SimulateOutput, form: SimulateFormat
) -> int:
    from kvcalc.workload.described import described

    drawn = requests.isl is not None or requests.osl is not None
    if requests.fit and drawn:
        raise KvcalcError("--fit fits what was recorded, and requests are drawn here", "name a TRACE, without --isl")
    asked = requests_of(None if drawn else path, requests, served.max_model_len)
    report = described(asked.trace, asked.seed, with_fits=requests.fit, notes=asked.notes)
    _emit(report, output, form)
    return 0


def _answered(
    model: str,
    path: str | None,
    requests: TraceOptions,
    flags: Flags,
    fleet: FleetOptions,
    output: SimulateOutput,
) -> "Answer":
    from kvcalc.model.catalog import load
    from kvcalc.workload.asked import case_of

    served = flags.served
    spec = load(model, served.set_ or (), assume=served.assume, download=served.download)
    limit = served.max_model_len or spec.max_context
    asked = requests_of(path, requests, limit)
    servers = servers_of(spec, flags, limit or asked.trace.longest)
    _refuse_seconds(requests, flags, fleet, servers[0])
    cases = [case_of(server, asked.trace) for server in servers]
    for case in cases if served.strict else ():
        refuse_assumed(case.pool.outcome)
    return _run(spec, asked, cases, fleet, output)


def _refuse_seconds(requests: TraceOptions, flags: Flags, fleet: FleetOptions, server: "Server") -> None:
    """KvcalcError for flags about seconds where steps have none."""
    asked = {
        "--rate": requests.rate,
        "--rate-scale": requests.rate_scale,
        "--max-ttft": fleet.max_ttft,
        "--max-tpot": fleet.max_tpot,
    }
    for flag, value in asked.items():
        if value is not None and not server.is_timed:
            hint = "leave one of them out" if flags.clock.time_free else "add --gpu h100-sxm, or --step-time 20ms"
            why = "--time-free counts steps" if flags.clock.time_free else "a step is the unit of time without a GPU"
            raise KvcalcError(f"{flag} is about seconds, and {why}", hint)


def _run(
    spec: "ModelSpec", asked: Requests, cases: "Sequence[Case]", fleet: FleetOptions, output: SimulateOutput
) -> "Answer":
    from kvcalc.workload.answered import answer_of
    from kvcalc.workload.runs import runs_of

    sought = _sought(fleet, cases[0])
    with _progress(not output.quiet) as (progress, told):
        runs = runs_of(
            asked.trace,
            cases,
            fleet.replicas or 1,
            fleet.routing,
            jobs=output.jobs,
            backend=output.backend,
            progress=progress,
        )
        if not runs:
            raise KeyboardInterrupt
        goals, is_searched = _goals(runs, sought, told)
    answer = answer_of(spec, asked.trace, cases, runs, seed=asked.seed)
    return msgspec.structs.replace(answer, goals=tuple(goals), is_searched=is_searched)


def _sought(fleet: FleetOptions, case: "Case") -> "Sought | None":
    """The limits that were given and what is searched for under them; None where there are none."""
    from kvcalc.speed.sweep.money import parse_seconds
    from kvcalc.workload.goals import Slo
    from kvcalc.workload.sought import SEARCHES, Sought

    limits = {"ttft": fleet.max_ttft, "tpot": fleet.max_tpot}
    seconds = {name: parse_seconds(text, f"--max-{name}") for name, text in limits.items() if text is not None}
    if not seconds:
        for flag, value in (("--percentile", fleet.percentile), ("--find", fleet.find)):
            if value is not None:
                raise KvcalcError(f"{flag} is of --max-ttft and --max-tpot: neither is given", "add --max-ttft 1s")
        return None
    slo = Slo(**seconds, percentile=99.0 if fleet.percentile is None else fleet.percentile)
    usual = [name for name in SEARCHES if name != "gpus" or case.server.plan.budget.total_bytes is not None]
    what = usual if fleet.find is None else [name.strip() for name in fleet.find.split(",")]
    return Sought(slo=slo, what=tuple(what))


def _goals(runs: "Sequence[Run]", sought: "Sought | None", told: "Told") -> "tuple[list[GoalsDocument], bool]":
    """What every run keeps and what would, and whether all of it was found before Ctrl-C."""
    found: list[GoalsDocument] = []
    if sought is None or not all(run.outcome.is_complete for run in runs):
        return found, True
    from kvcalc.workload.sought import goals_of

    try:
        for one in goals_of(runs, sought, told):
            found.append(one)
    except KeyboardInterrupt:
        return found, False
    return found, True


@contextmanager
def _progress(is_shown: bool) -> "Iterator[tuple[Progress | None, Told]]":
    """A bar of requests, and of what is tried, on stderr where that is a terminal, else nothing."""
    if not is_shown or not sys.stderr.isatty():
        yield None, lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        def tell(what: str) -> None:
            bar.update(task, description=f"searching: {what}", total=None)

        yield show, tell


_SUFFIXES = {".parquet": SimulateFormat.parquet}


def _form(output: SimulateOutput) -> SimulateFormat:
    """The format that is asked for; KvcalcError for a file that cannot be written, before any work."""
    from importlib.util import find_spec

    out = None if output.out == STDOUT else output.out
    if out is not None:
        refuse_existing(out, output.force)
    form = output.format or (SimulateFormat.table if out is None else _SUFFIXES.get(out.suffix.lower()))
    form = form or SimulateFormat(format_of(out or STDOUT, more=_SUFFIXES).value)
    if form is SimulateFormat.parquet and out is None:
        raise KvcalcError("Parquet is no text for a terminal", "-o requests.parquet")
    if form is SimulateFormat.parquet and find_spec("pyarrow") is None:
        raise KvcalcError("Parquet needs pyarrow", "pip install 'kvcalc[report]', or write .csv")
    return form


def _show(answer: "Answer", output: SimulateOutput, form: SimulateFormat) -> int:
    from kvcalc.workload.report import simulate_report

    report = simulate_report(answer)
    if form is not SimulateFormat.parquet or output.out is None:
        _emit(report, output, form)
        return report.exit_code
    from kvcalc.workload.frames import write_parquet

    def write(path: Path) -> None:
        write_parquet(answer, path)

    write_through(write, output.out, output.force)
    for note in () if output.quiet else report.notes:
        say("note", note)
    return report.exit_code


def _emit(report: "Report", output: SimulateOutput, form: SimulateFormat) -> None:
    if form is SimulateFormat.parquet:
        raise KvcalcError("Parquet has a row a request, and none is served here", "-o trace.json")
    emit(report, OutputOptions(OutputFormat(form.value), output.out, output.force, output.quiet))
