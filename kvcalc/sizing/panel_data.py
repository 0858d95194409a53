"""The shape of what a what-if panel computes from: `kvcalc.sizing.whatif` fills it, its script reads it."""

from typing import TypedDict

Exact = int | str
"""A whole number, as text where JavaScript's own numbers would round it."""


class Span(TypedDict):
    """How many entries `n` tokens leave: min(n // ratio, cap), or `cap` from the first token on where `starts_full`."""

    ratio: Exact
    cap: Exact | None
    starts_full: bool


class RowData(TypedDict):
    """Alike components: `layers * (entries * entry_bytes + fixed_bytes)` are stored, for one sequence.

    A step reads `count * min(entries, limit)` entries for each of `reads`, and what is fixed. `says` holds a sentence
    for contexts below `full_at` and one from there on.
    """

    name: str
    layers: int
    format: str
    entry_bytes: Exact
    fixed_bytes: Exact
    span: Span
    reads: list[tuple[Exact | None, int]]
    says: tuple[str, str]
    full_at: Exact


class TermData(TypedDict):
    """`count` alike components on a rank; their entries are split over `split` decode-context ranks, rounded up."""

    count: int
    entry_bytes: Exact
    fixed_bytes: Exact
    span: Span
    split: int


class FormatData(TypedDict):
    """A KV format under its names: what it costs, its rows, and for each TP the terms of every pipeline stage.

    Where a TP cuts an entry as the format cannot be cut, a sentence stands in place of the terms.
    """

    names: list[str]
    label: str
    token_bytes: tuple[Exact, Exact]
    token_text: str
    fixed_text: str
    rows: list[RowData]
    stages: list[list[list[TermData]] | str]


class RanksData(TypedDict):
    """One TP: ranks in all, ranks of a stage, and bytes of the weights on the fullest rank, None where unknown."""

    tp: int
    ranks: int
    stage_ranks: int
    dp: int
    weights_bytes: Exact | None
    weights_text: str


Carried = tuple[Exact, int, str] | str
"""The pool of a rank in bytes, the most sequences that run at once, what both rest on; or why an engine refuses."""


class EngineData(TypedDict):
    """An engine on a card; `pools` by KV format, TP and context."""

    name: str
    pools: list[list[list[Carried]]]


class CaseData(TypedDict):
    """One model under one set of flags. `asked` is what the page shows first."""

    name: str
    stack: str
    command: str
    flags: str
    asked: dict[str, int | str]
    contexts: list[int]
    batches: list[int]
    most_context: int | None
    encoder_tokens: int | None
    formats: list[FormatData]
    ranks: list[RanksData]
    engine: EngineData | None


class WhatIfData(TypedDict):
    """All that a panel shows."""

    cases: list[CaseData]
    most_tokens: Exact
    most_bytes: Exact
