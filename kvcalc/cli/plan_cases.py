"""From a case of a plan to what it asks, through the same groups and functions as `kvcalc fit` and `throughput`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.fit import CardOptions, CommandOptions, budget_of, planned, started_by
from kvcalc.cli.options import KvDtypeOption, RequestOptions, ShardingOptions
from kvcalc.cli.plan_settings import filled
from kvcalc.cli.request import context_flag, load_asked
from kvcalc.cli.started import Started
from kvcalc.cli.throughput import LoadOptions, MachineOptions, NumberOptions, question_of
from kvcalc.engines.plan import Budget, Plan
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import catalogue_index
from kvcalc.model.importers.sources import is_source
from kvcalc.model.spec import ModelSpec
from kvcalc.plan.evaluate import Asked, PlacedError
from kvcalc.plan.reader import Case
from kvcalc.plan.settings import Given
from kvcalc.plan.subject import Subject
from kvcalc.speed.question import Question
from kvcalc.speed.throughput import Load

Settings = Mapping[str, Given]
_LOADING = ("model", "set", "assume", "download")
"""Settings that say which model that is."""


class Asker:
    """Asks the cases of one plan; equal ones are one subject, and a model is loaded once."""

    def __init__(self) -> None:
        self._asked: dict[tuple[object, ...], Asked] = {}
        self._models: dict[tuple[object, ...], ModelSpec] = {}

    def __call__(self, case: Case, needs_speed: bool) -> Asked:
        """What the case asks; KvcalcError where that is no question."""
        key = (needs_speed, *((name, repr(given.value)) for name, given in sorted(case.settings.items())))
        if key not in self._asked:
            self._asked[key] = self._ask(case, in_folder(case), needs_speed)
        return self._asked[key]

    def _ask(self, case: Case, settings: Settings, needs_speed: bool) -> Asked:
        model = self._model(case, settings)
        card = filled(CardOptions, settings)
        started = started_by(
            model,
            _with_prompts(filled(RequestOptions, settings), settings),
            filled(KvDtypeOption, settings),
            filled(EngineOptions, settings),
            filled(CommandOptions, settings),
            filled(ShardingOptions, settings),
        )
        has_memory = not (card.gpu is None and card.gpu_memory is None and started.pool_bytes is None)
        plan = planned(started, budget_of(card, started.pool_bytes), card.gpus) if has_memory else _need(started)
        question = _question(case, settings, plan) if needs_speed else None
        return Asked(Subject(plan, question, has_memory), started.asked.notes)

    def _model(self, case: Case, settings: Settings) -> ModelSpec | None:
        """The model where the case names one, loaded as its settings say."""
        if "model" not in settings:
            return None
        key = tuple(repr(settings[name].value) if name in settings else "" for name in _LOADING)
        if key not in self._models:
            try:
                self._models[key] = load_asked(str(settings["model"].value), filled(RequestOptions, settings))
            except KvcalcError as error:
                raise PlacedError(error.message, error.hint, settings["model"].line or case.line) from error
        return self._models[key]


def _with_prompts(request: RequestOptions, settings: Settings) -> RequestOptions:
    """The request at the whole of a prompt and its answer, where the case names those and nothing names a context.

    A command of an engine has a context of its own.
    """
    if not {"isl", "osl"} & set(settings) or "from" in settings or context_flag(request)[1] is not None:
        return request
    given, usual = filled(LoadOptions, settings), Load()
    return msgspec.structs.replace(request, ctx=str((given.isl or usual.isl) + (given.osl or usual.osl)))


def _need(started: Started) -> Plan:
    """The plan of a case that names no memory."""
    size = started.asked.size
    return Plan(spec=size.spec, workload=size.workload, sharding=size.sharding, engine=started.engine, budget=Budget())


def _question(case: Case, settings: Settings, plan: Plan) -> Question:
    """What `kvcalc throughput` would be asked of the plan's batch, ranks and formats.

    KvcalcError where the case names a context, which is fit's word, and no prompts, or prompts that it has no room for.
    """
    line = next((one.line for one in case.limits.values() if one.limit.kind.needs == "speed"), case.line)
    if "ctx" in settings and "isl" not in settings:
        message = f"{case.name} names a context, and a speed is that of prompts and answers"
        raise PlacedError(message, "add isl: 2K and osl: 256, or whatever is sent", line)
    question = question_of(
        plan.spec,
        filled(LoadOptions, settings),
        filled(KvDtypeOption, settings),
        filled(NumberOptions, settings),
        filled(MachineOptions, settings),
        filled(ShardingOptions, settings),
    )
    load, room = question.load, plan.workload.context_tokens
    if load.isl + load.osl > room:
        message = f"prompts of {load.isl:,} and answers of {load.osl:,} tokens pass the context of {room:,}"
        raise PlacedError(message, f"ctx: {load.isl + load.osl}, or leave the context out", line)
    return msgspec.structs.replace(
        question,
        load=msgspec.structs.replace(question.load, batch=plan.workload.batch),
        use=msgspec.structs.replace(question.use, sharding=plan.sharding, **_formats(plan)),
        engine=question.engine or (None if plan.engine.is_plain else plan.engine.name),
    )


def _formats(plan: Plan) -> dict[str, Any]:
    """The formats of the plan, which a command or an engine's own flags may have named."""
    names = ("weights", "kv_dtype", "dtype", "state_dtype", "encoder_tokens")
    return {name: getattr(plan.workload, name) for name in names}


def in_folder(case: Case) -> dict[str, Given]:
    """The settings of a case with the paths that its file names, which are relative to it; typed ones stay."""
    folder = case.file.parent
    found = dict(case.settings)
    for name, path_of in _PATHS.items():
        if name in found and found[name].line:
            found[name] = Given(path_of(str(found[name].value), folder), found[name].line)
    return found


def _beside(text: str, folder: Path) -> str:
    return os.fspath(folder / text)


def _model_beside(text: str, folder: Path) -> str:
    """A model's file beside the plan; a name of the catalogue goes before a folder that is called like it."""
    beside = os.fspath(folder / text)
    file = beside if os.path.exists(beside) else beside.partition("#")[0]  # noqa: PTH110 - of any text
    is_there = os.path.exists(file) and text.casefold() not in catalogue_index()  # noqa: PTH110
    return beside if is_there or file.endswith(_SUFFIXES) or is_source(beside) else text


_SUFFIXES = (".yaml", ".yml", ".json", ".gguf")


def _command_beside(text: str, folder: Path) -> str:
    """A file that has a command, beside the plan; a command itself stays."""
    return text if len(text.split()) > 1 else os.fspath(folder / text)


_PATHS = {
    "model": _model_beside,
    "overheads": _beside,
    "calibration": _beside,
    "from": _command_beside,
}
"""Settings that name files, and how each is told from what is none."""
