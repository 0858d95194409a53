"""What `kvcalc simulate --format json` prints, key by key.

Times are seconds, or steps where `time` says that a step is the unit. Shares are of a pool over all of the time.
"""

from typing import Literal, TypedDict

from kvcalc.documents import ModelDocument


class LengthsDocument(TypedDict):
    """Tokens over requests; `biased_mean` is over tokens, E[x^2] / E[x]."""

    mean: float
    p50: float
    p90: float
    p99: float
    largest: int
    biased_mean: float


class TraceDocument(TypedDict):
    """The requests that were served. `counted` are those left out or changed on reading, by why.

    `seed` is null where nothing was drawn, times where only the order counts, prefixes where none are known.
    """

    name: str
    requests: int
    seed: int | None
    duration_seconds: float | None
    rate_per_second: float | None
    gap_cv: float | None
    prompt_tokens: LengthsDocument
    output_tokens: LengthsDocument
    repeated_prefixes: float | None
    counted: dict[str, int]


class SettingDocument(TypedDict):
    """One server as it was set up; limits are null where there is none. Swaps take no time without a GPU."""

    name: str
    engine: str | None
    gpu: str | None
    gpus: int
    replicas: int
    routing: str | None
    kv_dtype: str
    allocator: str
    prefix_caching: bool
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    watermark: float
    preemption: str
    step_seconds: float | None


class PoolDocument(TypedDict):
    """The pool of one replica on one rank, in units of `bytes_per_unit` that are given out.

    `bytes` is what `kvcalc fit` says; `tokens` what it carries by the engine's count, null where layers differ.
    """

    bytes: int
    units: int
    bytes_per_unit: int
    tokens: int | None
    block_tokens: list[int]
    most_sequences: int | None


class CountsDocument(TypedDict):
    """Requests: what became of them. `unfinished` are those that an interruption cut off, `refused` says why."""

    total: int
    finished: int
    unfinished: int
    refused: dict[str, int]


class SpreadDocument(TypedDict):
    """Times over requests."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    largest: float


class TimesDocument(TypedDict):
    """What users see; null where no request came to it. TPOT is of requests with more than one token."""

    ttft: SpreadDocument | None
    tpot: SpreadDocument | None
    e2e: SpreadDocument | None
    queueing: SpreadDocument | None


class DistributionDocument(TypedDict):
    """The times that such shares of requests are not over: [] where no request came to it."""

    shares: list[float]
    ttft: list[float]
    tpot: list[float]


class AtOnceDocument(TypedDict):
    """Requests at once, over all of the time."""

    running_mean: float
    running_peak: int
    waiting_mean: float
    waiting_peak: int


class SharesDocument(TypedDict):
    """Shares that come to 1 (arXiv 2309.06180, section 3.1). `cached` is of prefixes that nobody reads."""

    token_states: float
    reserved: float
    internal: float
    external: float
    cached: float


class UseDocument(TypedDict):
    """How much of the pool sequences hold, kept prefixes apart; `peak_bytes` is what would have done.

    `p99` is of the looks of the timeline, the others are of every step. `shared` is what would be held in addition
    if sequences shared no prefix.
    """

    mean: float
    p99: float
    peak: float
    peak_bytes: int
    shared: float
    shares: SharesDocument


class PrefixesDocument(TypedDict):
    """Tokens of prompts that were found in the cache, and their share of all that were admitted."""

    hit_rate: float
    hit_tokens: int


class PreemptionsDocument(TypedDict):
    """Sequences that lost their room, and tokens that were computed again for it."""

    count: int
    requests: int
    recomputed_tokens: int


class RatesDocument(TypedDict):
    """What came out, over all of the time; `busy` is the share of it in which a step ran."""

    seconds: float
    steps: int
    busy: float
    requests_per_second: float
    output_tokens_per_second: float


class TimelineDocument(TypedDict):
    """Looks at the server, at most some hundreds, evenly apart: counts, and shares of the pool."""

    seconds: list[float]
    running: list[float]
    waiting: list[float]
    held: list[float]
    cached: list[float]
    token_states: list[float]


class RunDocument(TypedDict):
    """One setting and what came of it. `replicas` are the runs of a fleet, one each, and empty for a single server."""

    setting: SettingDocument
    pool: PoolDocument
    complete: bool
    requests: CountsDocument
    times: TimesDocument
    distribution: DistributionDocument
    at_once: AtOnceDocument
    use: UseDocument
    prefixes: PrefixesDocument | None
    preemptions: PreemptionsDocument
    rates: RatesDocument
    timeline: TimelineDocument
    replicas: list["ReplicaDocument"]


class ReplicaDocument(TypedDict):
    """One server of a fleet."""

    requests: int
    finished: int
    ttft_p99: float | None
    running_mean: float
    pool_peak: float
    hit_rate: float
    busy: float


class HitCurveDocument(TypedDict):
    """Hit rate of an LRU cache of prefixes at every capacity where it changes much; `unlimited` is without a limit."""

    block_tokens: int
    bytes_per_token: float
    capacity_tokens: list[int]
    hit_rates: list[float]
    unlimited: float


class TrialDocument(TypedDict):
    """One simulation of a search: its value, what it breaks, "" for nothing, and its percentiles in seconds."""

    value: float
    breaks: str
    ttft: float
    tpot: float


class SearchDocument(TypedDict):
    """A search for "rate" (requests a second), "pool" (units) or "gpus --tp 2" (replicas), in the order of its trials.

    `value` is null where nothing was found to do, or where all did. `beyond` is one step further and breaks something;
    `odd` are trials on the wrong side of the value.
    """

    what: str
    value: float | None
    beyond: TrialDocument | None
    trials: list[TrialDocument]
    odd: list[TrialDocument]


class GoalsDocument(TypedDict):
    """Limits, whether a setting keeps them, and what was searched for under them.

    Null is what was not searched for, or where nothing keeps them; `any_rate` says that even all requests at once do.
    A fleet's pool is that of a replica. `beyond` says of each search what breaks one step further.
    """

    max_ttft_seconds: float | None
    max_tpot_seconds: float | None
    percentile: float
    meets: bool
    breaks: str
    largest_rate_per_second: float | None
    any_rate: bool
    smallest_pool_bytes: int | None
    fewest_gpus: int | None
    tp: int | None
    replicas: int | None
    beyond: dict[str, str]
    searches: list[SearchDocument]


class SimulateDocument(TypedDict):
    """kvcalc simulate --format json: a run for every setting, all of the same requests."""

    schema: str
    model: ModelDocument
    trace: TraceDocument
    time: Literal["seconds", "steps"]
    runs: list[RunDocument]
    hit_curves: list[HitCurveDocument]
    goals: list[GoalsDocument]
    complete: bool
    notes: list[str]


class FitDocument(TypedDict):
    """A distribution as its flag takes it, and its KS distance to the lengths: 0 is the same, 1 is disjoint."""

    spelling: str
    distance: float


class DescribedDocument(TypedDict):
    """kvcalc simulate --describe and --fit: the nearest distribution first, by the flag that draws them."""

    schema: str
    trace: TraceDocument
    fits: dict[str, list[FitDocument]]
    notes: list[str]


SCHEMAS = {"kvcalc.simulate-1": SimulateDocument, "kvcalc.trace-1": DescribedDocument}
"""File names of docs/schemas, and what each describes."""
