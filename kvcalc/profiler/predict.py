"""What sizing predicts of a run, in the run's own rows: bytes of each component on this rank, and of each own rule.

Nothing here looks at a tensor. What the reference holds by rules of its own is worked out from the same
components by the formula that stands beside each rule.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.formats import find_format
from kvcalc.cache.layout import Part, joined
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.rows import Row, rows_by_place

INDEX_BYTES = 8


class Predicted(NamedTuple):
    """Bytes of one row for the batch on one rank."""

    row: Row
    stored_bytes: int
    read_bytes: int


class Prediction:
    """The rows of one size, as one rank holds them."""

    def __init__(self, size: CacheSize, page: int | None) -> None:
        self.size, self.page = size, page
        self.batch, self.tokens = size.workload.batch, size.workload.context_tokens
        self.rows = [self._on_rank(row) for row in size.rows]
        self.row_of = rows_by_place(size.layers, size.packer)

    def _on_rank(self, row: Row) -> Row:
        packer, sharding = self.size.packer, self.size.sharding
        return msgspec.structs.replace(
            row,
            bytes_per_entry=packer.entry_bytes(row.component, sharding),
            fixed_bytes_per_layer=packer.state_bytes(row.component, sharding),
        )

    def components(self) -> list[Predicted]:
        """Every row at the end of the context."""
        return [
            Predicted(row, int(row.stored_bytes(self.tokens)) * self.batch, self.read_bytes(row)) for row in self.rows
        ]

    def read_bytes(self, row: Row, tokens: int | None = None) -> int:
        """Bytes of `row` that one decode step of the batch reads once `tokens` tokens are kept.

        Sizing counts a chunk at its peak; a step reads it as far as it is filled.
        """
        seen = row.component.tokens_in_sight(self.tokens if tokens is None else tokens)
        return int(row.read_bytes(seen)) * self.batch

    def step_bytes(self, tokens: int) -> int:
        """Bytes of all caches that the decode step to `tokens` tokens reads."""
        return sum(self.read_bytes(row, tokens) for row in self.rows)

    def rules(self) -> dict[str, tuple[str, int]]:
        """What the reference holds beside every component: the rule in words, and its bytes on this rank."""
        found: dict[str, tuple[str, int]] = {}
        for name, rule, count in self._each_rule():
            found[name] = rule, found.get(name, (rule, 0))[1] + count
        return found

    def _each_rule(self) -> Iterator[tuple[str, str, int]]:
        log = self.batch * self.tokens * INDEX_BYTES
        yield "token log", "8 B a token: the tokens that the caches were built from", log
        encoder = max((row.component.span.cap or 0 for row in self.rows if row.component.is_encoder_fed), default=0)
        if encoder:
            values = self.batch * encoder * (self.size.spec.hidden_size or 0)
            yield "encoder input", "the encoder's output, in the model's format", values * self._value_bytes
        for row in self.rows:
            for rule in self._rules_of(row):
                name, words, per_layer = rule
                yield name, words, row.layers * per_layer

    def _rules_of(self, row: Row) -> Iterator[tuple[str, str, int]]:
        component, entries = row.component, int(row.entries(self.tokens))
        if component.span.cap is not None and component.keeps_entries and not component.is_encoder_fed:
            yield "window positions", "8 B for each slot of a ring", entries * INDEX_BYTES
        if component.span.ratio > 1:
            yield "open rows", _OPEN_ROWS, self.batch * self._open_row_bytes(component)
        scales = self.batch * self._slots(row) * self._scale_bytes(row)
        if scales:
            yield "scales", "fp32 for each head vector, outside the cache", scales
        if self.page is not None and component.grows:
            yield from self._page_rules(row, self._slots(row) - entries, self.page)

    def _slots(self, row: Row) -> int:
        """Entries that are allocated, those of a last block that nobody fills among them."""
        entries = int(row.entries(self.tokens))
        paged = self.page if row.component.grows else None
        return entries if paged is None else -(-entries // paged) * paged

    def _open_row_bytes(self, component: Component) -> int:
        rows = component.span.ratio - 1 + (component.span.ratio if component.overlaps else 0)
        width = sum(part.heads * part.width for part in component.parts(self.size.sharding))
        return rows * 2 * width * self._value_bytes

    @property
    def _value_bytes(self) -> int:
        """Bytes of one number in the model's format."""
        return find_format(self.size.packer.dtype).bulk_bytes(1, "a number")

    def _vectors(self, row: Row) -> list[Part]:
        """The vectors that are stored: K and V, or one that is both."""
        return joined(row.component.parts(self.size.sharding))

    def _scale_bytes(self, row: Row) -> int:
        form = row.entry_format
        return 0 if form is None else sum(one.heads * form.scale_bytes_for(one.name) for one in self._vectors(row))

    def _page_rules(self, row: Row, unfilled: int, page: int) -> Iterator[tuple[str, str, int]]:
        pages = self._slots(row) // page
        tables = self.batch * pages * len(self._vectors(row)) * INDEX_BYTES
        yield "block table", "8 B for each block of each vector of a sequence", tables
        padding = self.batch * unfilled * row.bytes_per_entry
        yield "page padding", f"the rest of the last block of {page}", padding


_OPEN_ROWS = "values and gates of tokens whose entry is not complete, in the model's format"
