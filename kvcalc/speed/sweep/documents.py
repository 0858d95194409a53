"""What `kvcalc sweep --format json` prints, key by key; seconds, bytes and plain numbers."""

from typing import NotRequired, TypedDict


class GoalsDocument(TypedDict):
    """What was searched for; null where it was not."""

    max_ttft_seconds: float | None
    max_tpot_seconds: float | None
    users: int | None
    rate_per_second: float | None


class SweepRequestDocument(TypedDict):
    """What was asked, as it was understood; `engine` is null where none or several were.

    `contexts` are prompt and answer; a price is of one second.
    """

    models: list[str]
    gpus: list[str]
    engine: str | None
    engines: list[str]
    weights: list[str | None]
    kv_dtypes: list[str]
    tp: list[int]
    pp: int
    dp: int
    ep: int
    attention_dp: bool
    contexts: list[int]
    osl: int | None
    batches: list[int]
    served: bool
    goals: GoalsDocument
    price_per_second: dict[str, float]
    watts: dict[str, float]


class NamesDocument(TypedDict):
    """Which deployment; weights and GPU only where there is a GPU, the engine where one was named.

    `gpus` are those of all its copies.
    """

    model: str
    weights: NotRequired[str]
    kv_dtype: str
    engine: NotRequired[str]
    gpu: NotRequired[str]
    tp: int
    gpus: NotRequired[int | None]
    isl: NotRequired[int]
    osl: NotRequired[int]
    context_tokens: int


class PointDocument(NamesDocument):
    """One point. Without a GPU the last keys are missing; they are null where the batch does not fit.

    `allocated_bytes` are there without a GPU, where an engine was named: what it holds on the fullest rank, null where
    it refuses. Tokens/s are of decode alone, and under load where TPOT and TTFT were asked for.
    """

    batch: int
    bytes_per_sequence: int
    total_bytes: int
    bytes_per_rank: int
    read_bytes_per_step: int
    allocated_bytes: NotRequired[int | None]
    fits: NotRequired[bool]
    prefill_seconds: NotRequired[float | None]
    step_seconds: NotRequired[float | None]
    tpot_seconds: NotRequired[float | None]
    ttft_seconds: NotRequired[float | None]
    tokens_per_second: NotRequired[float | None]
    tokens_per_second_per_gpu: NotRequired[float | None]
    tokens_per_second_per_user: NotRequired[float | None]
    limited_by: NotRequired[str | None]
    cost_per_million_tokens: NotRequired[float | None]
    joules_per_token: NotRequired[float | None]
    pareto: NotRequired[bool]


class AnswerDocument(NamesDocument):
    """The most users of one copy, what one more would break, and the load over copies; null where none serves it."""

    most_users: int
    limited_by: str
    copies: int | None
    users_per_copy: int | None
    tpot_seconds: float | None
    ttft_seconds: float | None
    queued_ttft_seconds: float | None
    utilisation: float | None
    tokens_per_second: float | None
    tokens_per_second_per_gpu: float | None
    tokens_per_second_per_user: float | None
    cost_per_million_tokens: float | None
    joules_per_token: float | None
    best: bool


class SweepDocument(TypedDict):
    """kvcalc sweep --format json: points of a grid, or answers to what was searched for."""

    schema: str
    request: SweepRequestDocument
    points: list[PointDocument]
    answers: list[AnswerDocument]
    notes: list[str]


SCHEMAS = {"kvcalc.sweep-1": SweepDocument}
"""File names of docs/schemas, and what each describes."""
