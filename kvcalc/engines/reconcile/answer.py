"""Everything that is said about one log: the rows of all its figures, the request behind them, and notes."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import Engine
from kvcalc.engines.llama_cpp import LlamaCpp
from kvcalc.engines.logs.pattern import Finding, Printed
from kvcalc.engines.logs.reader import Log
from kvcalc.engines.reconcile.doubts import doubts
from kvcalc.engines.reconcile.gguf_facts import lacks_latents, spec_from_log
from kvcalc.engines.reconcile.pools import Figure, Pool, lesser_pool, pool_rows
from kvcalc.engines.reconcile.question import Question
from kvcalc.engines.reconcile.row import Row, explained
from kvcalc.engines.reconcile.settings import Settings, contradictions, settings_of
from kvcalc.engines.reconcile.slots import Context, context_question, context_rows, contexts_of
from kvcalc.engines.reconcile.subject import Asked, Loader, engine_name, model_of, printed_version, rules_for
from kvcalc.engines.reconcile.sums import sum_rows
from kvcalc.engines.reconcile.tables import TABLES, Table, groups_of
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import Workload


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The rows in the order of the log, and what they were computed with."""

    log: Log
    findings: list[Finding]
    version: str | None
    """As the log prints it."""
    question: Question
    rows: list[Row]
    doubts: list[str]
    """Where the model does not match, the figures that rule it out."""
    notes: list[str]

    @property
    def agrees(self) -> bool:
        """Whether every figure that is computed is the log's."""
        return not any(row.is_bad for row in self.rows)


def reconcile(log: Log, asked: Asked, load: Loader) -> Answer:
    """The log held against the rules of its engine; KvcalcError where there is nothing to hold."""
    name = engine_name(log, asked)
    findings = log.of(name)
    if name == LlamaCpp.name:
        return _contexts(log, findings, asked, load)
    return _pooled(log, name, findings, asked, load)


def _pooled(log: Log, name: str, findings: list[Finding], asked: Asked, load: Loader) -> Answer:
    table = TABLES[name]
    stages = table.stages(findings)
    settings = settings_of([one for stage in reversed(stages) for one in stage])
    _refuse_silence(log, findings, table.figures(settings))
    version = printed_version(findings, settings)
    engine, about_rules = rules_for(name, version, asked)
    spec, about_model = model_of(settings.text("model"), asked, load)
    own = table.defaults(settings) | settings.flags(type(engine)) | asked.flags(name)
    engine = engine.with_flags(**own)
    question = Question(spec, _workload(settings, asked, spec), _ranks(settings, asked, findings), engine)
    _ = question.size
    is_named = "@" in (asked.engine or "")
    is_told = version is not None or is_named
    releases = [engine.version] if is_told else table.era(findings, engine.versions)
    # Where no version is printed every release of the era is tried before, all figures together.
    is_open = is_named or (is_told and bool(about_rules))
    pools = list(_stages(table, findings, asked, settings))
    question = _best(question, releases, pools, table.figures(settings))
    figures = table.figures(settings)
    found = [row for pool, lines in pools for row in _explained(question, pool, lines, figures, is_open)]
    if not is_told and len(engine.versions) > 1:
        about_rules = f"the log prints no version: its figures are held against the rules of {question.engine.version}"
    rows = [*sum_rows(findings), *(row for stage in stages for row in contradictions(stage)), *found]
    about_ctx = _about_context(settings, asked, spec)
    notes = [*log.notes, *filter(None, (about_rules, about_model, about_ctx)), *_about_others(log, name)]
    return _answer(log, findings, version, question, rows, notes)


_Stage = tuple[Pool, Sequence[Finding]]


def _best(
    question: Question, releases: Sequence[str], stages: Sequence[_Stage], figures: Mapping[str, Figure]
) -> Question:
    """The question under the first of `releases` with which all figures agree, else under the first."""
    asked = [question.under(release) for release in releases]
    for one in asked if len(asked) > 1 else ():
        rows = (row for pool, lines in stages for row in pool_rows(one, pool, lines, figures))
        if not any(row.is_bad for row in rows):
            return one
    return asked[0]


def _explained(
    question: Question, pool: Pool, lines: Sequence[Finding], figures: Mapping[str, Figure], is_release_open: bool
) -> Iterator[Row]:
    """Rows of one pool; those that differ with the one change that explains them."""
    return explained(
        lambda other: pool_rows(other, pool, lines, figures),
        question,
        is_release_open,
        lambda: lesser_pool(question, pool, lines, figures),
    )


def _stages(table: Table, findings: Sequence[Finding], asked: Asked, settings: Settings) -> Iterator[_Stage]:
    """The pools that the lines are about, and the lines of each."""
    exact = asked.kv_cache_memory
    for stage in (stage for group in groups_of(findings) for stage in table.stages(group)):
        pool = table.pool(stage, settings) if exact is None else Pool(exact, exact, is_known=True)
        yield pool, table.named(stage)


def _refuse_silence(log: Log, findings: Sequence[Finding], figures: Container[str]) -> None:
    """KvcalcError where the engine's lines are there, and none about its cache."""
    if not any(key in figures for one in findings for key in one.values):
        kinds = ", ".join(dict.fromkeys(one.kind for one in findings))
        raise KvcalcError(
            f"{log.name} says nothing about a cache: what is understood is {kinds}", "give the log from its start on"
        )


def _workload(settings: Settings, asked: Asked, spec: ModelSpec) -> Workload:
    ctx = asked.workload.get("context_tokens") or settings.count("ctx") or spec.max_context
    if ctx is None:
        raise KvcalcError("the log does not say the longest request", "name it: --ctx")
    said: dict[str, Any] = {"kv_dtype": settings.format("kv_dtype")}
    if (settings.text("draft_method") or "").casefold().endswith("mtp"):
        # The checkpoint's own draft layers; those of another draft model are not in the spec.
        said["draft_layers"] = len(spec.draft_layers)
    for key in ("dtype", "state_dtype"):
        if settings.text(key) is not None:
            said[key] = settings.format(key)
    return Workload(**{**said, **asked.workload, "context_tokens": ctx})


def _ranks(settings: Settings, asked: Asked, findings: Sequence[Finding]) -> Sharding:
    said = {name: settings.count(name) for name in Sharding.__struct_fields__}
    said |= {name: said[name] or _highest(findings, name.upper()) for name in ("tp", "pp")}
    return Sharding(**{name: size for name, size in said.items() if size} | asked.ranks)


def _about_context(settings: Settings, asked: Asked, spec: ModelSpec) -> str:
    """What to say where nothing says the longest request."""
    if "context_tokens" in asked.workload or settings.count("ctx"):
        return ""
    return f"the log does not say the longest request: it is taken for the model's own, {spec.max_context:,} tokens"


def _highest(findings: Sequence[Finding], name: str) -> int:
    """Ranks of that kind up to the highest that prefixes of lines name; 0 beside DP, which may share them out again."""
    words = [one.rank.split() for one in findings if not any(word.startswith("DP") for word in one.rank.split())]
    ranks = [int(word.removeprefix(name)) for own in words for word in own if re.fullmatch(rf"{name}\d{{1,4}}", word)]
    return 1 + max(ranks) if ranks else 0


def _contexts(log: Log, findings: list[Finding], asked: Asked, load: Loader) -> Answer:
    settings = settings_of(findings)
    version = printed_version(findings, settings)
    engine, about_rules = rules_for(LlamaCpp.name, version, asked)
    contexts = contexts_of(findings)
    _refuse_silence(log, findings, ("cache_bytes", "state_bytes", "kv_buffer_bytes", "state_buffer_bytes"))
    asked_of = [_context(one, findings, engine, asked, load) for one in contexts]
    rows = [row for one, question in zip(contexts, asked_of, strict=True) for row in context_rows(one, question)]
    notes = [*log.notes, *filter(None, [about_rules]), *_about_others(log, LlamaCpp.name)]
    return _answer(log, findings, version, asked_of[0], rows, notes)


def _context(context: Context, findings: list[Finding], engine: Engine, asked: Asked, load: Loader) -> Question:
    """The question behind one context; a log's other models are those of its own metadata."""
    is_first = context.model <= 1
    spec = load(asked.model) if asked.model is not None and is_first else _printed_model(findings, context.model)
    if context.is_draft_of(spec):
        spec = msgspec.structs.replace(spec, layers=spec.draft_layers, draft_layers=(), reads=())
    return context_question(context, spec, engine, asked, lacks_latents(findings))


def _printed_model(findings: list[Finding], model: int) -> ModelSpec:
    """The model of the file that was loaded as the `model`th."""
    count, own = 0, list[Finding]()
    for one in findings:
        count += one.kind == "file"
        if max(count, 1) == max(model, 1) and one.kind in {"file", "metadata", "model"}:
            own.append(one)
    return spec_from_log(own)


_MEASURED = (
    "available_bytes",
    "weights_bytes",
    "non_torch_bytes",
    "activation_bytes",
    "graphs_bytes",
    "communication_bytes",
)


def _measured(findings: Sequence[Finding], rows: Sequence[Row]) -> Iterator[Row]:
    """What an engine measured, of what no row speaks yet: no arithmetic gives it, and --save keeps it."""
    spoken = {(row.line, row.rank, row.figure) for row in rows}
    for one in findings:
        for key in _MEASURED:
            is_number = key in one.values and one.values[key].value is not None
            if is_number and (one.line, one.rank, key) not in spoken:
                device = one.values.get("device", Printed("")).text
                yield Row(
                    line=one.line, rank=one.rank or device, figure=key, logged=one.values[key], verdict="measured"
                )


def _about_others(log: Log, name: str) -> Iterator[str]:
    others = [other for other in log.engines if other != name]
    if others:
        yield f"lines of {' and '.join(others)} are in it too, and are left out"


def _answer(
    log: Log, findings: list[Finding], version: str | None, question: Question, rows: list[Row], notes: list[str]
) -> Answer:
    ordered = sorted([*rows, *_measured(findings, rows)], key=lambda row: row.line)
    against = list(doubts(ordered, question.spec.name))
    return Answer(
        log=log, findings=findings, version=version, question=question, rows=ordered, doubts=against, notes=notes
    )
