"""The JSON contract of the verbs about engines and cards, key by key, as in `kvcalc.documents`."""

from typing import Literal, TypedDict

from kvcalc.documents import ModelDocument, RequestDocument

EngineBasis = Literal["exact", "engine rule", "assumed"]


class GpuAskedDocument(TypedDict):
    """Which cards: `total_bytes` of each, as its driver reports it."""

    name: str | None
    total_bytes: int
    count: int


class TermDocument(TypedDict):
    """Bytes of one rank that are no cache; `high_bytes` is null where nobody knows."""

    name: str
    low_bytes: int
    expected_bytes: int
    high_bytes: int | None
    basis: str
    why: str


class CapacityDocument(TypedDict):
    """What the pool of one data-parallel rank carries; `block_tokens` is null where layers differ in it."""

    tokens: int | None
    blocks: int | None
    block_tokens: int | None
    block_sizes: list[int]
    concurrency_at_context: float
    sequences: int
    longest_request: int
    figures: dict[str, int | float]


class ChangeDocument(TypedDict):
    """One change after which the plan fits; `share` is what it takes away of what was asked, or adds in cards."""

    what: str
    flag: str
    asked: int | str
    becomes: int | str
    share: float


class WorstRankDocument(TypedDict):
    """The pipeline stage whose ranks have the smallest pool, and its layers, first and last plus one."""

    stage: int
    layers: list[int]


class FitDocument(TypedDict):
    """kvcalc fit --format json: bytes are those of one rank, the worst one, unless they name all.

    `certain` says whether the answer is the same at both ends of what is not known exactly; `max_batch` counts all
    data-parallel ranks. What was not asked, or has no answer, is null.
    """

    schema: str
    model: ModelDocument
    request: RequestDocument
    gpu: GpuAskedDocument | None
    fits: bool
    certain: bool
    limited_by: str
    terms: list[TermDocument]
    need_bytes: int
    allocated_bytes: int
    pool_bytes: int
    pool_low_bytes: int
    pool_high_bytes: int
    all_ranks_pool_bytes: int
    worst_rank: WorstRankDocument | None
    capacity: CapacityDocument | None
    max_context_tokens: int
    max_batch: int
    min_gpus: int | None
    changes: list[ChangeDocument]
    rules: list[str]
    basis: EngineBasis
    notes: list[str]


class RankOverheadsDocument(TypedDict):
    """What one rank holds beside its cache, in bytes; null is not known.

    `consumed_bytes` are weights and what is not torch's together, where the log sums them up.
    """

    rank: str
    total_bytes: int | None
    weights_bytes: int | None
    non_torch_bytes: int | None
    activation_bytes: int | None
    graphs_bytes: int | None
    communication_bytes: int | None
    consumed_bytes: int | None


class FigureDocument(TypedDict):
    """One figure of a log: `printed` there, the interval that is computed for it (bytes, tokens, a count), the verdict.

    null bounds: nothing is computed. Verdicts: equal; within rounding (of the log's own digits); given (the log says
    nothing that would tell); measured (by the engine); different (`why` names the change that would make it equal);
    contradictory (another line says otherwise); unexplained.
    """

    line: int
    rank: str
    figure: str
    printed: str
    logged: int | float | None
    computed_low: int | float | None
    computed_high: int | float | None
    verdict: str
    why: str


class LogDocument(TypedDict):
    """The log as it was read; `version` is the one that it prints."""

    name: str
    lines: int
    bytes: int
    engine: str
    version: str | None


class ReconcileDocument(TypedDict):
    """kvcalc reconcile --format json; `engine` is the rules and flags that the figures were computed with."""

    schema: str
    log: LogDocument
    model: ModelDocument
    engine: str
    flags: dict[str, int | float | str | bool | None]
    request: RequestDocument
    figures: list[FigureDocument]
    overheads: list[RankOverheadsDocument]
    agrees: bool
    doubts: list[str]
    notes: list[str]


SCHEMAS = {"kvcalc.fit-1": FitDocument, "kvcalc.reconcile-1": ReconcileDocument}
"""File names of docs/schemas, and what each describes."""
