"""The cases of a plan, asked one by one: figures, a verdict a limit, or why there is no answer."""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import msgspec

from kvcalc import __version__
from kvcalc.engines.fit import Change
from kvcalc.engines.fit_report import engine_name
from kvcalc.errors import KvcalcError
from kvcalc.plan.changes import smallest_change
from kvcalc.plan.documents import CheckDocument, CheckedCaseDocument, ErrorDocument, VerdictDocument
from kvcalc.plan.figures import Number, figures_of
from kvcalc.plan.limits import LIMITS, Judgement, Limit, MustFit
from kvcalc.plan.lock import Use
from kvcalc.plan.reader import Case, Stated
from kvcalc.plan.settings import Vocabulary
from kvcalc.plan.subject import Subject
from kvcalc.sizing.notes import notes_on
from kvcalc.units import plain_number

SCHEMA = "kvcalc.check/1"


class Asked(msgspec.Struct, frozen=True):
    """A case as a subject, and notes on how its settings were read."""

    subject: Subject
    notes: tuple[str, ...]


Ask = Callable[[Case, bool], Asked]
"""From a case to what it asks; whether its speed is needed too. KvcalcError where that is no question."""


class Checked(msgspec.Struct, frozen=True):
    """The document of a plan, and what each answered case rests on."""

    document: CheckDocument
    uses: tuple[Use, ...]


_FLAG = re.compile(r"--([a-z][a-z-]+)")


class Checker:
    """Asks every case; equal limits of one subject are judged once."""

    def __init__(self, ask: Ask, vocabulary: Vocabulary, strict: bool = False) -> None:
        self.ask, self.vocabulary, self.strict = ask, vocabulary, strict
        self.uses: list[Use] = []
        self._judged: dict[tuple[int, str, object], tuple[Judgement, Change | None]] = {}

    def check(self, plan: Path, cases: Sequence[Case]) -> Checked:
        """Every case of the plan."""
        found = [self._case(case) for case in cases]
        passed = all(case["error"] is None and all(one["passed"] for one in case["verdicts"]) for case in found)
        document: CheckDocument = {
            "schema": SCHEMA,
            "kvcalc": __version__,
            "plan": str(plan),
            "passed": passed,
            "cases": found,
            "baseline": None,
            "lock": None,
            "notes": [],
        }
        return Checked(document, tuple(self.uses))

    def _case(self, case: Case) -> CheckedCaseDocument:
        needs_speed = any(stated.limit.kind.needs == "speed" for stated in case.limits.values())
        document = _unanswered(case)
        try:
            asked = self.ask(case, needs_speed)
            self._answer(document, case, asked)
        except KvcalcError as error:
            line = self._line(error, case)
            document["error"] = {"file": str(case.file), "line": line, "message": error.message, "hint": error.hint}
        return document

    def _line(self, error: KvcalcError, case: Case) -> int:
        """Where a mistake stands: where it says itself, else where the first flag that it names is set."""
        if isinstance(error, PlacedError):
            return error.line
        named = _FLAG.search(error.message)
        setting = self.vocabulary.find(named[1]) if named else None
        given = case.settings.get(setting.name) if setting else None
        return given.line if given and given.line else case.line

    def _answer(self, document: CheckedCaseDocument, case: Case, asked: Asked) -> None:
        subject, outcome = asked.subject, asked.subject.outcome
        budget = outcome.plan.budget
        document["model"] = subject.plan.spec.name
        document["engine"] = engine_name(outcome)
        document["gpu"] = budget.gpu
        document["gpus"] = outcome.plan.gpus if budget.total_bytes is not None else None
        limits = _with_fit(case, subject)
        bounded = {stated.limit.figure for name, stated in limits.items() if name != MustFit.name()}
        document["verdicts"] = [self._verdict(case, subject, limits[name]) for name in LIMITS if name in limits]
        document["figures"] = dict(figures_of(subject, bounded))
        document["notes"] = [*asked.notes, *(note.text for note in notes_on(subject.size))]
        speed = subject.question is not None
        self.uses.append(Use(model=subject.plan.spec, engine=document["engine"], gpu=_listed(subject), speed=speed))
        document["error"] = self._strictness(case, document["verdicts"])

    def _verdict(self, case: Case, subject: Subject, stated: Stated) -> VerdictDocument:
        judged, change = self._judge(subject, stated.limit)
        return {
            "limit": stated.limit.name(),
            "bound": _plain(stated.limit.bound),
            "value": None if judged.value is None else _plain(judged.value),
            "unit": "" if isinstance(stated.limit.bound, bool) else stated.limit.kind.unit,
            "margin": judged.margin,
            "passed": judged.passed,
            "certain": judged.certain,
            "basis": judged.basis,
            "rule": judged.rule,
            "change": None if change is None else _in_words(change),
            "file": str(case.file),
            "line": stated.line,
        }

    def _judge(self, subject: Subject, limit: Limit) -> tuple[Judgement, Change | None]:
        key = (id(subject), limit.name(), limit.bound)
        if key not in self._judged:
            judged = limit.judge(subject)
            self._judged[key] = judged, None if judged.passed else smallest_change(limit, subject)
        return self._judged[key]

    def _strictness(self, case: Case, verdicts: Sequence[VerdictDocument]) -> ErrorDocument | None:
        resting = [one for one in verdicts if one["basis"] == "assumed"] if self.strict else []
        if not resting:
            return None
        names = ", ".join(one["limit"] for one in resting)
        return {
            "file": str(case.file),
            "line": resting[0]["line"],
            "message": f"--strict: {names} of {case.name}: assumed",
            "hint": "overheads: and calibration: name figures of your own; kv_cache_memory: a pool",
        }


def _unanswered(case: Case) -> CheckedCaseDocument:
    return {
        "name": case.name,
        "model": case.model,
        "engine": None,
        "gpu": None,
        "gpus": None,
        "settings": {name: given.value for name, given in case.settings.items()},
        "figures": {},
        "verdicts": [],
        "error": None,
        "notes": [],
        "file": str(case.file),
        "line": case.line,
    }


def _with_fit(case: Case, subject: Subject) -> Mapping[str, Stated]:
    """The limits of a case, `must_fit` among them where memory is named and nothing else is said."""
    name = MustFit.name()
    stated = case.limits.get(name)
    for limit in case.limits.values():
        if not subject.has_memory and limit.limit.kind.needs in ("memory", "search"):
            if limit.limit.bound is False:
                continue
            message = f"{limit.limit.name()} is about memory, and {case.name} names none"
            raise PlacedError(message, "add gpu: h100-sxm, gpu_memory: 80GiB or kv_cache_memory: 40GiB", limit.line)
    if stated is None:
        return {**case.limits, **({name: Stated(MustFit(True), case.line)} if subject.has_memory else {})}
    return case.limits if stated.limit.bound else {key: one for key, one in case.limits.items() if key != name}


class PlacedError(KvcalcError):
    """A mistake of a plan that belongs to one line of it."""

    def __init__(self, message: str, hint: str, line: int) -> None:
        super().__init__(message, hint)
        self.line = line


def _listed(subject: Subject) -> str | None:
    """The card where it is one of the list."""
    from kvcalc.hardware.gpus import load_gpus

    name = subject.plan.budget.gpu
    return name if any(gpu.name == name for gpu in load_gpus()) else None


def _plain(value: Number | bool) -> int | float | bool:
    return value if isinstance(value, bool) else plain_number(Fraction(value))


def _in_words(change: Change) -> str:
    """`--batch 11 (batch 11 instead of 16)`."""
    becomes, asked = (f"{one:,}" if isinstance(one, int) else one for one in (change.becomes, change.asked))
    return f"{change.flag} ({change.what} {becomes} instead of {asked})"
