"""What `kvcalc throughput --format json` prints, key by key; seconds and plain numbers."""

from typing import Literal, TypedDict

from kvcalc.documents import ModelDocument


class LoadDocument(TypedDict):
    """What was asked, as it was understood."""

    gpu: str
    engine: str
    isl: int
    osl: int
    context_tokens: int
    batch: int
    weights: str
    kv_dtype: str
    dtype: str
    shared_prefix_tokens: int
    draft_tokens: int
    acceptance: float
    rate_per_second: float | None
    tp: int
    pp: int
    dp: int
    ep: int
    dcp: int
    attention_dp: bool


class TermDocument(TypedDict):
    """Seconds of one term, and what most of them are spent on; terms of a pass add up to its seconds."""

    name: str
    seconds: float
    limited_by: str


class TimingDocument(TypedDict):
    """An estimate, the bound that full bandwidth and rates set, and the one that nine in ten measurements keep."""

    seconds: float
    lower_seconds: float
    upper_seconds: float
    limited_by: str
    terms: list[TermDocument]


class PrefillDocument(TimingDocument):
    """One prompt on its own."""

    tokens_per_second: float


class DecodeDocument(TypedDict):
    """One step of the batch at the end of the context."""

    step_seconds: float
    lower_seconds: float
    upper_seconds: float
    limited_by: str
    tokens_per_second_total: float
    tokens_per_second_per_sequence: float
    tokens_per_step: float
    compute_bound_batch: int | None
    kv_bound_context_tokens: int | None


class ServedDocument(TypedDict):
    """What users see with `batch` requests at work; `queued_ttft_seconds` is null without a rate, or past capacity."""

    tpot_seconds: float
    tpot_lower_seconds: float
    tpot_upper_seconds: float
    tpot_limited_by: str
    ttft_seconds: float
    ttft_lower_seconds: float
    ttft_upper_seconds: float
    ttft_is_uncertain: Literal[True]
    queued_ttft_seconds: float | None
    utilisation: float | None
    running_sequences: int
    tokens_per_second_total: float
    terms: list[TermDocument]


class ErrorDocument(TypedDict):
    """Sizes of predicted over measured, less 1: their mean (MAPE) and median, as shares."""

    mape: float
    median: float


class AppliedDocument(TypedDict):
    """The factors of time that were applied, by name, and on what they rest; empty and null without a calibration."""

    factors: dict[str, float]
    points: int | None
    date: str | None
    device: str | None
    driver: str | None
    error_before: ErrorDocument | None
    error_left_out: ErrorDocument | None


class ThroughputDocument(TypedDict):
    """kvcalc throughput --format json; `terms` are those of the decode step."""

    schema: str
    model: ModelDocument
    request: LoadDocument
    prefill: PrefillDocument
    decode: DecodeDocument
    served: ServedDocument | None
    terms: list[TermDocument]
    bands: dict[str, float]
    calibration: AppliedDocument
    notes: list[str]


class GroupDocument(TypedDict):
    """A class of predictions (`served, dense`), how many points tell about it, and how far off those were.

    `band` is by what share nine in ten left-out measurements stayed below; null where fewer than nine were left out.
    """

    predicts: str
    points: int
    error_before: ErrorDocument
    error_left_out: ErrorDocument | None
    band: float | None


class MeasuredDocument(TypedDict):
    """One point: where it stands, what was measured, and what is predicted of it plain and calibrated, in seconds.

    `left_out_error` is predicted over measured, less 1, by factors that were fitted without it.
    """

    where: str
    model: str
    precision: str
    kv_precision: str
    tp: int
    pp: int
    dp: int
    ep: int
    batch: int
    isl: int
    osl: int
    metric: str
    value: float
    unit: str
    seconds: float
    plain_seconds: float
    calibrated_seconds: float
    left_out_error: float | None


class CalibrateDocument(TypedDict):
    """kvcalc calibrate --format json, and the file that --calibration reads.

    `factors` are of time, those not named being 1; `strength` is the share of the usual width that they were allowed.
    `bands` are by class of prediction. `left_out_by` says what was left out at once: a configuration, whose rows differ
    in their batch only, or a point.
    """

    schema: str
    gpu: str
    engine: str
    factors: dict[str, float]
    strength: float
    points: int
    date: str
    device: str | None
    driver: str | None
    error_before: ErrorDocument
    error_left_out: ErrorDocument | None
    left_out_by: Literal["configuration", "point"]
    bands: dict[str, float]
    groups: list[GroupDocument]
    measurements: list[MeasuredDocument]
    notes: list[str]


SCHEMAS = {"kvcalc.throughput-1": ThroughputDocument, "kvcalc.calibrate-1": CalibrateDocument}
"""File names of docs/schemas, and what each describes."""
