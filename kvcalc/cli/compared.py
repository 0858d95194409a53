"""kvcalc compare of answers that were saved: with each other, and with models that are sized here."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvcalc.cli.emit import emit
from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.engines import ask_engine, ask_engines
from kvcalc.cli.options import OutputOptions, RequestOptions, ShardingOptions
from kvcalc.errors import KvcalcError
from kvcalc.units import parse_percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.cli.request import Asked
    from kvcalc.engines.engine import Engine
    from kvcalc.plan.compared import Source
    from kvcalc.plan.documents import CheckDocument
    from kvcalc.plan.results import Answer


class Flags(msgspec.Struct, frozen=True):
    """What sizes the models among the things that are compared."""

    request: RequestOptions
    engine: EngineOptions
    sharding: ShardingOptions
    formats: list[str]


def is_answer(name: str) -> bool:
    """Whether `name` is a file that kvcalc saved, whole or cut short: JSON that says its schema first."""
    file = Path(name)
    if file.suffix.lower() != ".json" or not file.is_file():
        return False
    with file.open("rb") as stream:
        return b'"schema"' in (head := stream.read(_HEAD_BYTES)) and b'"kvcalc.' in head


_HEAD_BYTES = 4096


def has_workload(name: str) -> bool:
    """Whether `name` is a saved answer or a plan, and no model."""
    return is_answer(name) or is_plan(name)


def is_plan(name: str) -> bool:
    """Whether `name` is a plan file: YAML of cases."""
    file = Path(name)
    if file.suffix.lower() not in (".yaml", ".yml") or not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as stream:
        return any(line.startswith("cases:") for line in stream)


def _checked(name: str) -> "CheckDocument":
    """The plan as it is checked here; KvcalcError where a case has no answer."""
    from kvcalc.cli.check import ask_plan

    document = ask_plan(Path(name), {}).document
    for case in document["cases"]:
        error = case["error"]
        if error is not None:
            raise KvcalcError(f"{error['file']}:{error['line']}: {case['name']}: {error['message']}", error["hint"])
    return document


def compare_answers(names: "Sequence[str]", flags: Flags, fail_on: str | None, output: OutputOptions) -> int:
    """Saved answers and models as they are asked about here, figure by figure."""
    from kvcalc.plan.compared import compare_results

    report = compare_results(
        [_source(name, flags) for name in names], None if fail_on is None else parse_percent(fail_on, "--fail-on")
    )
    emit(report, output)
    return report.exit_code


def refuse_flags(given: "Sequence[str]", names: "Sequence[str]") -> None:
    """KvcalcError where flags of a workload are given and everything has one of its own."""
    if given and all(has_workload(name) for name in names):
        message = f"{', '.join(given)}: a saved answer or a plan has its own workload"
        raise KvcalcError(message, "only --fail-on and output flags apply")


def _source(name: str, flags: Flags) -> "Source":
    from kvcalc.plan.compared import Source
    from kvcalc.plan.results import answers_of, read_result

    if is_answer(name):
        return Source(name, answers_of(read_result(Path(name)), name))
    if is_plan(name):
        return Source(name, answers_of(_checked(name), name))
    return Source(name, _sized(name, flags))


def _sized(model: str, flags: Flags) -> "list[Answer]":
    """The model in every format, and in every engine where some are named."""
    from kvcalc.plan.results import answers_of
    from kvcalc.sizing.report import size_document

    cases = []
    for one, engine in _asked(model, flags):
        held = None if engine is None else engine.allocate(one.size).document()
        cases.append({**size_document(one.size), "engine": held})
    if len(cases) == 1:
        return answers_of(cases[0], model)
    return answers_of({"schema": "kvcalc.compare/1", "cases": cases}, model)


def _asked(model: str, flags: Flags) -> "Iterator[tuple[Asked, Engine | None]]":
    for kv_dtype in flags.formats:
        asked = (model, flags.request, kv_dtype, flags.engine, flags.sharding)
        yield from ask_engines(*asked) if flags.engine.engine else [ask_engine(*asked)]
