"""What `kvcalc check --format json` prints, key by key; seconds, bytes and plain numbers."""

from typing import Any, Literal, TypedDict

Basis = Literal["exact", "engine rule", "calibrated", "assumed"]
Better = Literal["lower", "higher"]
Change = Literal["better", "worse", "same", "undecided"]


class PlaceDocument(TypedDict):
    """Where in a plan file something stands; lines count from 1."""

    file: str
    line: int


class FigureDocument(TypedDict):
    """One figure of a case, between bounds where it is not exact; `better` says which way is good."""

    value: int | float
    low: int | float
    high: int | float
    unit: str
    basis: Basis
    better: Better


class VerdictDocument(PlaceDocument):
    """One limit of a case. `margin` is the share of the bound that is left, below 0 where it is broken.

    `certain` is false where an end of the figure's bounds decides otherwise. `change` is the smallest single change
    that would pass, in words with its flag; null where it passes or no single change does.
    """

    limit: str
    bound: int | float | bool
    value: int | float | bool | None
    unit: str
    margin: float | None
    passed: bool
    certain: bool
    basis: Basis
    rule: str
    change: str | None


class ErrorDocument(PlaceDocument):
    """Why a case cannot be answered."""

    message: str
    hint: str


class CheckedCaseDocument(PlaceDocument):
    """One case of a plan: what it is, its figures by name, and a verdict a limit; `error` where it has none."""

    name: str
    model: str
    engine: str | None
    gpu: str | None
    gpus: int | None
    settings: dict[str, Any]
    figures: dict[str, FigureDocument]
    verdicts: list[VerdictDocument]
    error: ErrorDocument | None
    notes: list[str]


class MovedFigureDocument(TypedDict):
    """A figure of a case beside that of an earlier result; `ratio` is now / before, null where before is 0."""

    case: str
    figure: str
    unit: str
    before: int | float | None
    now: int | float | None
    ratio: float | None
    change: Change


class BrokenLimitDocument(PlaceDocument):
    """A limit of a case that the earlier result passed and that is broken now."""

    case: str
    limit: str


class BaselineDocument(TypedDict):
    """A comparison with an earlier result; `fail_on` is the share that a figure may get worse.

    `moved` lists every figure of the cases that both have, the same ones too.
    """

    file: str
    kvcalc: str
    fail_on: float
    moved: list[MovedFigureDocument]
    newly_broken: list[BrokenLimitDocument]
    added_cases: list[str]
    removed_cases: list[str]
    passed: bool


class LockedEntryDocument(TypedDict):
    """Something that a plan rests on, locked and as it is now; null where it is not there."""

    kind: Literal["kvcalc", "model", "engine", "gpu", "constants"]
    name: str
    locked: str | None
    now: str | None


class LockDocument(TypedDict):
    """How a lock file compares with what is installed; `moved` lists only what differs.

    `passed` is false where something moved and `--locked` asks that nothing does.
    """

    file: str
    moved: list[LockedEntryDocument]
    passed: bool


class CheckDocument(TypedDict):
    """kvcalc check --format json."""

    schema: str
    kvcalc: str
    plan: str
    passed: bool
    cases: list[CheckedCaseDocument]
    baseline: BaselineDocument | None
    lock: LockDocument | None
    notes: list[str]


class MovedDocument(TypedDict):
    """One figure of two answers; `ratio` is the second by the first, null where that is 0."""

    case: str
    first: str
    second: str
    figure: str
    unit: str
    first_value: int | float
    second_value: int | float
    ratio: float | None
    change: Change
    basis: str


class ResultsDocument(TypedDict):
    """kvcalc compare --format json, of saved answers and plans; `only` names cases that not all of them have."""

    schema: str
    sources: list[str]
    fail_on: float | None
    figures: list[MovedDocument]
    differences: list[str]
    only: list[str]
    passed: bool
    notes: list[str]


SCHEMAS = {"kvcalc.check-1": CheckDocument, "kvcalc.compare_results-1": ResultsDocument}
"""File names of docs/schemas, and what each describes."""
