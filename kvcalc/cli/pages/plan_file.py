"""The page of a plan file: it is checked, and its cases are drawn beside one another."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kvcalc.chart import Chart
from kvcalc.cli.pages.plan import plan_page
from kvcalc.cli.plan_cases import Asker
from kvcalc.cli.plan_settings import vocabulary
from kvcalc.engines.charts import OnCard, capacity_chart, card_chart
from kvcalc.engines.fit import most_sequences
from kvcalc.errors import KvcalcError
from kvcalc.plan.evaluate import Checker
from kvcalc.plan.reader import Case, read_plan
from kvcalc.plan.subject import Subject
from kvcalc.render.html import Page, Section
from kvcalc.render.whatif import panel
from kvcalc.sizing.charts import breakdown_chart, context_chart
from kvcalc.sizing.report import size_document
from kvcalc.sizing.whatif import whatif_case, whatif_data
from kvcalc.speed.charts import latency_chart, loads, with_front
from kvcalc.speed.question import Question
from kvcalc.speed.setting import Use
from kvcalc.speed.throughput import Load
from kvcalc.units import counted

MOST_DRAWN = 12
"""Cases that are drawn: past it lines and colours only cover one another, and an engine takes its time for each."""
ANSWER_TOKENS = 128
"""Tokens of an answer where a case names a context alone, as `kvcalc sweep` has it."""


class _Drawn(msgspec.Struct, frozen=True):
    """A case that was answered."""

    case: Case
    subject: Subject

    @property
    def name(self) -> str:
        return self.case.name


def plan_file_page(path: Path) -> Page:
    """Verdicts first, then memory, growth, capacity and speed of the cases, and sliders."""
    words, asker = vocabulary(), Asker()
    cases = read_plan(path, words, {})
    document = Checker(asker, words).check(path, cases).document
    answered = [case for case, found in zip(cases, document["cases"], strict=True) if found["error"] is None]
    drawn = [_Drawn(case, _subject(case, asker)) for case in answered[:MOST_DRAWN]]
    if len(answered) > MOST_DRAWN:
        said = f"drawn are the first {MOST_DRAWN} of {counted(len(answered), 'case')} that have an answer"
        document["notes"] = [*document["notes"], said]
    charts = [chart for draw in _CHARTS if (chart := draw(drawn))] if drawn else []
    return plan_page(document, (Section("Charts", charts=charts), Section("What if", panel=_panel(drawn))))


def _subject(case: Case, asker: Asker) -> Subject:
    """What the case asks, with its speed where it names prompts and a card that is known."""
    try:
        return asker(case, "isl" in case.settings).subject
    except KvcalcError:
        return asker(case, False).subject


def _memory(drawn: Sequence[_Drawn]) -> Chart | None:
    return breakdown_chart([(one.name, size_document(one.subject.size)) for one in drawn])


def _cards(drawn: Sequence[_Drawn]) -> Chart | None:
    cards = [
        (one.name, OnCard.of_outcome(one.subject.outcome, one.subject.allocated_bytes))
        for one in drawn
        if one.subject.has_memory
    ]
    return card_chart(cards) if cards else None


def _growth(drawn: Sequence[_Drawn]) -> Chart | None:
    return context_chart([(one.name, one.subject.size) for one in drawn])


def _capacity(drawn: Sequence[_Drawn]) -> Chart | None:
    chart = capacity_chart([(one.name, one.subject.plan) for one in drawn if one.subject.has_memory])
    return chart if chart.series else None


def _speed(drawn: Sequence[_Drawn]) -> Chart | None:
    """Each case with a GPU at more and more sequences, as far as they fit."""
    points = []
    for one in drawn:
        if question := _question(one.subject):
            points += loads(one.name, question, most_sequences(one.subject.outcome))
    return latency_chart(with_front(points), ("case",))


def _question(subject: Subject) -> Question | None:
    """What was asked of the case's speed; of one that names a context alone, prompts that leave room for an answer."""
    plan, gpu = subject.plan, subject.plan.budget.gpu
    if subject.question is not None or gpu is None:
        return subject.question
    work = plan.workload
    answer = min(ANSWER_TOKENS, max(1, work.context_tokens // 2))
    return Question(
        spec=plan.spec,
        gpu=gpu,
        load=Load(isl=max(1, work.context_tokens - answer), osl=answer),
        use=Use(
            weights=work.weights,
            kv_dtype=work.kv_dtype,
            dtype=work.dtype,
            state_dtype=work.state_dtype,
            encoder_tokens=work.encoder_tokens,
            sharding=plan.sharding,
            draft_layers=work.draft_layers,
        ),
        engine=None if plan.engine.is_plain else plan.engine.name,
    )


_CHARTS: tuple[Callable[[Sequence[_Drawn]], Chart | None], ...] = (_memory, _cards, _growth, _capacity, _speed)


def _panel(drawn: Sequence[_Drawn]) -> str:
    """Sliders over the need of every case that is drawn."""
    cases = []
    for one in drawn:
        try:
            plan = one.subject.plan
            cases.append(whatif_case(one.name, plan.spec, plan.workload, plan.sharding))
        except KvcalcError:
            continue
    return panel(whatif_data(cases)) if cases else ""
