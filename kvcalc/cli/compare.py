"""kvcalc compare: models, formats and engines, or two recorded runs."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kvcalc.cli.compared import Flags, compare_answers, has_workload, refuse_flags
from kvcalc.cli.completion import complete_format
from kvcalc.cli.emit import emit
from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.engines import ask_engines
from kvcalc.cli.options import Models, OutputOptions, RequestOptions, ShardingOptions, given_in, verb
from kvcalc.cli.request import Asked, ask_about, load_asked
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import default_context
from kvcalc.units import parse_percent

if TYPE_CHECKING:
    from kvcalc.engines.engine import Engine

KvDtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--kv-dtype",
        "--kv-cache-dtype",
        metavar="FORMATS",
        help="One case a format: bf16,fp8, or the flag several times.",
        autocompletion=complete_format,
    ),
]
FailOn = Annotated[
    str | None,
    typer.Option("--fail-on", metavar="PERCENT", help="Exit 1 where a figure got worse by more: 5%."),
]


@verb
def compare(
    models: Models,
    *,
    request: RequestOptions,
    engine: EngineOptions,
    sharding: ShardingOptions,
    output: OutputOptions,
    kv_dtype: KvDtypes = None,
    fail_on: FailOn = None,
) -> int:
    """Models, formats, engines, plans, saved answers or recorded runs side by side, with ratios to the first."""
    given = [*_given(request), *_given(engine), *_given(sharding), *(["--kv-dtype"] if kv_dtype else [])]
    if _are_runs(models):
        return _compare_runs(models, given, fail_on, output)
    if fail_on is not None or any(has_workload(name) for name in models):
        refuse_flags(given, models)
        return compare_answers(models, Flags(request, engine, sharding, _formats(kv_dtype)), fail_on, output)
    if engine.engine is not None:
        engines_asked = [
            one
            for model, form in product(models, _formats(kv_dtype))
            for one in ask_engines(model, request, form, engine, sharding)
        ]
        return _compare_engines(engines_asked, engine.kv_cache_memory, output)
    engine.refuse_others(())
    from kvcalc.sizing.compare import compare_report

    specs = [load_asked(model, request) for model in models]
    context = default_context(specs)
    asked = [ask_about(spec, request, form, sharding, context) for spec in specs for form in _formats(kv_dtype)]
    notes = tuple(dict.fromkeys(note for one in asked for note in one.notes))
    emit(compare_report([one.size for one in asked]), output, notes)
    return 0


def _compare_engines(asked: "list[tuple[Asked, Engine]]", memory: int | None, output: OutputOptions) -> int:
    """Every model in every format in every engine; what differs is said against the first."""
    from kvcalc.engines.compare import Case, compare_engines

    cases = [
        Case(one.size, engine.allocate(one.size), None if memory is None else engine.capacity(one.size, memory))
        for one, engine in asked
    ]
    emit(compare_engines(cases), output, tuple(dict.fromkeys(note for one, _ in asked for note in one.notes)))
    return 0


def _are_runs(names: list[str]) -> bool:
    """Whether it is runs alone that are to be compared, sample by sample."""
    if len(names) > _TWO or not all(name.casefold().endswith(".json") for name in names):
        return False
    from kvcalc.profiler.record import is_run_file

    return all(is_run_file(name) for name in names)


def _compare_runs(names: list[str], flags: list[str], fail_on: str | None, output: OutputOptions) -> int:
    from kvcalc.profiler.comparison import THRESHOLD, compare_runs
    from kvcalc.profiler.record import read_run

    if len(names) != _TWO:
        raise KvcalcError(f"runs are compared two at a time, not {len(names)}", "kvcalc compare old.json new.json")
    if flags:
        raise KvcalcError(f"{', '.join(flags)}: a run has its own workload", "only --fail-on and output flags apply")
    threshold = THRESHOLD if fail_on is None else parse_percent(fail_on, "--fail-on")
    first, second = names
    report = compare_runs(read_run(first), read_run(second), (first, second), threshold)
    emit(report, output)
    return 0 if fail_on is None else report.exit_code


_TWO = 2


def _given(group: msgspec.Struct) -> Iterator[str]:
    """The flags of `group` that somebody gave."""
    return (f"--{name.strip('_').replace('_', '-')}" for name, value in given_in(group).items() if value)


def _formats(given: list[str] | None) -> list[str]:
    """One request a format; an item that names components (index=bf16) is one request as a whole."""
    return [form for item in given or ["auto"] for form in ([item] if "=" in item else item.split(","))]
