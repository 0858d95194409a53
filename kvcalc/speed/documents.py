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


class CalibrationDocument(TypedDict):
    """The factors of time that were applied, by name, and how many points they rest on; empty where there are none."""

    factors: dict[str, float]


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
    calibration: CalibrationDocument
    notes: list[str]


SCHEMAS = {"kvcalc.throughput-1": ThroughputDocument}
"""File names of docs/schemas, and what each describes."""
