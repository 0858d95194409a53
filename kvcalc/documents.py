"""The JSON contract: what every verb's document carries, key by key.

Schema names are versioned; keys may be added, never changed in meaning. The JSON Schemas in
docs/schemas are made from these types.
"""

from typing import Literal, TypedDict

Basis = Literal["exact", "assumed"]


class ModelDocument(TypedDict):
    """Which model was meant."""

    name: str
    source: str | None


class RequestDocument(TypedDict):
    """What was asked, as it was understood; `set` lists the overrides."""

    context_tokens: int
    batch: int
    kv_dtype: str
    dtype: str
    state_dtype: str | None
    encoder_tokens: int | None
    draft_layers: int
    engine: str | None
    tp: int
    pp: int
    dp: int
    ep: int
    dcp: int
    set: list[str]


class ComponentDocument(TypedDict):
    """Alike caches of one sequence: layers x (entries x bytes_per_entry + fixed_bytes_per_layer) is their bytes."""

    name: str
    kind: str
    geometry: str
    layers: int
    format: str
    entries_per_sequence: int
    bytes_per_entry: int
    fixed_bytes_per_layer: int
    bytes_per_token: int | float
    bytes_per_sequence: int
    read_bytes_per_step: int


class NeedDocument(TypedDict):
    """Sums over all components; `bytes_per_token` is the growth with every window full."""

    bytes_per_token: int | float
    fixed_bytes_per_sequence: int
    bytes_per_sequence: int
    total_bytes: int
    bytes_per_rank: int
    all_ranks_bytes: int


class KvCacheDocument(NeedDocument):
    """The need of the whole batch; `bytes_per_token` is the growth with every window full."""

    replication: int | float
    read_bytes_per_step: int
    basis: Basis
    read_basis: Basis
    components: list[ComponentDocument]


class WeightsDocument(TypedDict):
    """The weights beside the cache; null where the spec states too little to count them."""

    parameters: int | None
    active_parameters: int | None
    format: str
    bytes: int | None
    basis: Basis


class EnginePartDocument(TypedDict):
    """One cache as the engine makes it: `cells` a stream in each of `layers`; `tensors` splits its bytes by name.

    `devices` splits them by device, the host last; it is empty where devices were not told apart.
    """

    name: str
    layers: int
    cells: int
    streams: int
    bytes: int
    tensors: dict[str, int]
    devices: list[int]


class PoolDocument(TypedDict):
    """What an engine makes of a pool of so many bytes a rank; `tokens` and `max_concurrency` as its log prints them.

    A block takes as many tokens as `block_sizes` says, one of a kind. `blocks_per_request` are those of one request of
    `max_model_len` tokens; `sequences` such requests run at once, `limited_by` what runs out first. Where the pool does
    not take one, the engine does not start, and `longest_request` is what would fit, in tokens. Null is what the engine
    does not count; `figures` are others of its log.
    """

    memory_bytes: int
    tokens: int | None
    sequences: int
    max_concurrency: float
    limited_by: str
    takes_one_request: bool
    longest_request: int
    max_model_len: int
    block_sizes: list[int]
    num_blocks: int | None
    bytes_per_block: int | None
    blocks_per_request: int | None
    figures: dict[str, int | float]
    log: str | None


class EngineDocument(TypedDict):
    """What an engine would hold for the batch on the fullest rank, and its rules that differ from the need.

    `parts` add up to it where the engine makes caches that differ.
    """

    name: str
    version: str
    allocated_bytes: int
    parts: list[EnginePartDocument]
    rules: list[str]
    pool: PoolDocument | None


class SizeDocument(TypedDict):
    """kvcalc size --format json."""

    schema: str
    model: ModelDocument
    request: RequestDocument
    kv_cache: KvCacheDocument
    weights: WeightsDocument
    engine: EngineDocument | None
    notes: list[str]


Scope = Literal["a token", "fixed"]


class TermDocument(TypedDict):
    """One term of the formula: what a token adds, or what stays fixed."""

    name: str
    scope: Scope
    formula: str
    bytes: int | float
    layers: int


class ReadersDocument(TypedDict):
    """How many layers read a cache, and the most entries each of them takes; null for all."""

    layers: int
    most_entries: int | None


class StoredAndReadDocument(TypedDict):
    """What one sequence stores and what one of its decode steps reads."""

    name: str
    stored_bytes: int
    read_bytes: int
    readers: list[ReadersDocument]


class ProjectionsDocument(TypedDict):
    """Tokens projected to K and V, a layer, to reach this context one token at a time."""

    without_cache: int
    with_cache: int
    ratio: float


class SourceDocument(TypedDict):
    """Where a number is written down."""

    number: str
    source: str


class ExplainDocument(NeedDocument):
    """kvcalc explain --format json."""

    schema: str
    model: ModelDocument
    request: RequestDocument
    terms: list[TermDocument]
    stored_and_read: list[StoredAndReadDocument]
    projections: ProjectionsDocument
    sources: list[SourceDocument]
    notes: list[str]


class RatiosDocument(TypedDict):
    """A case divided by the first one; null where the first has nothing to divide by."""

    bytes_per_token: float | None
    bytes_per_sequence: float | None
    total_bytes: float | None
    read_bytes_per_step: float | None
    allocated_bytes: float | None


class CaseDocument(SizeDocument):
    """One case of a comparison: a size, and its ratios to the first."""

    ratios: RatiosDocument


class DifferenceDocument(TypedDict):
    """Rules of engines that only one of two cases follows."""

    first: str
    other: str
    only_first: list[str]
    only_other: list[str]


class CompareDocument(TypedDict):
    """kvcalc compare --format json; `differences` are those of engines, each case against the first."""

    schema: str
    cases: list[CaseDocument]
    differences: list[DifferenceDocument]


class ListedModelDocument(TypedDict):
    """One model of the catalogue; fixed bytes are null where they follow the encoder's tokens."""

    name: str
    layers: int
    caches: str
    bytes_per_token: int | float
    fixed_bytes_per_sequence: int | None
    parameters: int | None
    max_context: int | None
    aliases: list[str]


class ModelsDocument(TypedDict):
    """kvcalc models list --format json."""

    schema: str
    models: list[ListedModelDocument]


SCHEMAS = {
    "kvcalc.size-1": SizeDocument,
    "kvcalc.explain-1": ExplainDocument,
    "kvcalc.compare-1": CompareDocument,
    "kvcalc.models-1": ModelsDocument,
}
"""File names of docs/schemas, and what each describes."""
