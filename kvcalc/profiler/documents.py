"""The run file: what `kvcalc profile` measured, key by key. It is what `--format json` prints and `-o run.json` writes.

Seconds of a series are medians with the tenth and ninetieth percentile beside them; the raw samples stand with them,
so that two runs can be held against each other later. `digest` is the SHA-256 of the document without it.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

from kvcalc.documents import ModelDocument

Measured = Annotated[float, msgspec.Meta(gt=0)]
"""Seconds or a rate that something else is divided by."""
Several = msgspec.Meta(min_length=1)


class EnvironmentDocument(TypedDict):
    """Where and with what it ran; null where the machine does not tell."""

    started: str
    command: str
    kvcalc: str
    python: str
    torch: str | None
    platform: str
    device: str
    device_name: str
    threads: int
    memory_bytes: int | None
    driver: str | None
    clocks_mhz: dict[str, float]
    power_watts: float | None
    throttled: list[str]


class MachineDocument(TypedDict):
    """What the device does at best, measured before anything else; specified figures carry their source."""

    read_bytes_per_second: Measured
    copy_bytes_per_second: Measured
    gemm_flops_per_second: Measured
    gemm_dtype: str
    specified_bytes_per_second: float | None
    specified_flops_per_second: float | None
    specified_source: str | None


class RequestedDocument(TypedDict):
    """What was asked, as it was understood."""

    backend: Literal["reference", "transformers", "openai"]
    contexts: Annotated[list[int], Several]
    batches: Annotated[list[int], Several]
    dtype: str
    kv_dtype: str
    layers: int
    layers_of_model: int
    with_mlp: bool
    page_tokens: int | None
    encoder_tokens: int | None
    tp: int
    seed: int
    set: list[str]


class HeldDocument(TypedDict):
    """Bytes of one component for the whole batch on one rank: predicted, and of the tensors' storages."""

    name: str
    kind: str
    format: str
    layers: int
    predicted_bytes: int
    measured_bytes: int
    predicted_read_bytes_per_step: int | None
    counted_read_bytes_per_step: int | None


class RuleDocument(TypedDict):
    """Bytes that the reference holds by a rule of its own, beside every component: open rows, block tables, a log."""

    name: str
    rule: str
    predicted_bytes: int
    measured_bytes: int


class AllocatorDocument(TypedDict):
    """What the caches took from the device's allocator; every tensor is rounded up to `granule_bytes`."""

    tensors: int
    granule_bytes: int
    predicted_bytes: int
    measured_bytes: int | None


class SeriesDocument(TypedDict):
    """Repeated timings of one thing, in seconds."""

    median_seconds: Measured
    p10_seconds: Measured
    p90_seconds: Measured
    samples_seconds: Annotated[list[Measured], Several]


class PrefillDocument(SeriesDocument):
    """A prompt through the layers, from empty caches."""

    measured_seconds: float
    tokens: int
    flops: int
    predicted_seconds: float
    achieved_flops_per_second: float
    flops_fraction: float
    tokens_per_second: float


class DecodeDocument(SeriesDocument):
    """Decode steps at the end of the context; bytes are the weights and the part of the caches that a step reads."""

    measured_seconds: float
    steps: int
    read_bytes_per_step: int
    weight_bytes: int
    flops: int
    predicted_seconds: float
    achieved_bytes_per_second: float
    bandwidth_fraction: float
    specified_fraction: float | None
    overhead_seconds_per_layer: float
    graph_seconds: float | None
    host_seconds: float | None
    tokens_per_second: float


class OpDocument(TypedDict):
    """One operation of a decode step on its own: the best kernel time, and how near it comes to the roofline."""

    name: str
    kernel: str
    calls: int
    seconds: float
    bytes: int
    flops: int
    bytes_per_second: float
    flops_per_second: float
    roofline_fraction: float


class StoppedDocument(TypedDict):
    """Why a point ended early: what was asked for, what there was, and how far it got."""

    reason: str
    reached: str
    asked_bytes: int | None
    available_bytes: int | None


class PointDocument(TypedDict):
    """One context and batch. `replication` is what all ranks hold of the caches, in logical copies."""

    context_tokens: int
    batch: int
    components: list[HeldDocument]
    rules: list[RuleDocument]
    allocator: AllocatorDocument | None
    weight_bytes: int
    peak_bytes: int | None
    reserved_bytes: NotRequired[int | None]
    device_used_bytes: NotRequired[int | None]
    prefill: PrefillDocument | None
    decode: DecodeDocument | None
    ops: list[OpDocument]
    ranks: NotRequired[list[dict[str, Any]]]
    replication: NotRequired[float]
    stopped: StoppedDocument | None
    doubts: list[str]


class ServedDocument(TypedDict):
    """A running server: time to first token, time per output token, and what its metrics say of its cache."""

    url: str
    served_model: str
    ttft: SeriesDocument
    tpot: SeriesDocument
    tokens_per_second: float
    cache: dict[str, Any]


class VerdictDocument(TypedDict):
    """Whether the prediction held: memory always counts, time where a tolerance was given or on CUDA."""

    memory: Literal["exact", "off", "not measured"]
    time: Literal["within", "off", "not judged"]
    tolerance: float | None
    reasons: list[str]


class ProfileDocument(TypedDict):
    """kvcalc profile --format json. At the top stand the figures of the largest point that was finished."""

    schema: str
    model: ModelDocument
    request: RequestedDocument
    environment: EnvironmentDocument
    machine: MachineDocument | None
    components: list[HeldDocument]
    prefill: PrefillDocument | None
    decode: DecodeDocument | None
    points: list[PointDocument]
    served: ServedDocument | None
    verdict: VerdictDocument
    doubts: list[str]
    notes: list[str]
    spec: dict[str, Any]
    digest: str


class PairDocument(TypedDict):
    """One figure of two runs at the same context and batch; `ratio` is the second through the first."""

    context_tokens: int
    batch: int
    what: str
    first_seconds: float
    second_seconds: float
    ratio: float
    verdict: Literal["better", "worse", "same", "undecided"]


class HeldPairDocument(TypedDict):
    """Bytes that one component or one own rule holds in two runs at the same context and batch."""

    context_tokens: int
    batch: int
    name: str
    first_bytes: int
    second_bytes: int
    verdict: Literal["better", "worse", "same"]


class RunsDocument(TypedDict):
    """kvcalc compare a.json b.json --format json: the second run held against the first."""

    schema: str
    first: str
    second: str
    threshold: float
    differences: list[str]
    pairs: list[PairDocument]
    memory: list[HeldPairDocument]
    verdict: Literal["better", "worse", "same", "undecided"]
    notes: list[str]


SCHEMAS = {"kvcalc.profile-1": ProfileDocument, "kvcalc.compare_runs-1": RunsDocument}
"""File names of docs/schemas, and what each describes."""

PROFILE_SCHEMA = "kvcalc.profile/1"
RUNS_SCHEMA = "kvcalc.compare_runs/1"
