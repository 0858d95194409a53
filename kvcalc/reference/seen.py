"""What the queries of one pass may attend to: pieces of a cache, and the rule by which a query sees an entry."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from kvcalc.reference.store import Store


class Rule(NamedTuple):
    """Which entries a query sees. An entry stands for the tokens up to its position; all positions are absolute."""

    window: int | None = None
    sinks: int = 0
    chunk: int | None = None
    is_causal: bool = True

    def allowed(self, queries: "Tensor", entries: "Tensor") -> "Tensor":
        """Whether each query (tokens,) sees each entry (entries,): bool (tokens, entries)."""
        asked, kept = queries[:, None], entries[None, :]
        seen = (kept >= 0) & ((kept <= asked) if self.is_causal else (asked >= 0))
        if self.window is not None:
            seen = seen & ((kept > asked - self.window) | (kept < self.sinks))
        if self.chunk is not None:
            seen = seen & (kept // self.chunk == asked // self.chunk)
        return seen

    def first_seen(self, query: int) -> int:
        """The lowest position that a query can see, sinks aside."""
        lowest = 0
        if self.window is not None and not self.sinks:
            lowest = query - self.window + 1
        if self.chunk is not None:
            lowest = max(lowest, query // self.chunk * self.chunk)
        return max(0, lowest)


class Choice(NamedTuple):
    """Entries that an index chose: their `places` (batch, chosen) for one query, or who sees which of all of them.

    `allowed` is bool (batch, tokens, entries); one of the two is None.
    """

    places: "Tensor | None" = None
    allowed: "Tensor | None" = None

    @property
    def chosen(self) -> int:
        """How many entries one query was given."""
        return 0 if self.places is None else self.places.shape[1]

    def last(self, tokens: int) -> "Choice":
        """The same for the last `tokens` queries of a pass. The very last one sees every entry: places suffice."""
        if self.allowed is None:
            return self
        if tokens > 1:
            return Choice(allowed=self.allowed[:, -tokens:])
        return Choice(places=self.allowed[:, -1].nonzero()[:, 1].view(self.allowed.shape[0], -1))


class Piece:
    """Entries in a row. `values` come as one tensor a vector: K and V, or one that is both."""

    is_view = False
    has_own_tokens = False
    """Whether the queries of a pass find their own tokens in it, so that none of them sees nothing."""
    count: int

    def positions(self, slots: slice) -> "Tensor":
        """Absolute position of the last token of each entry in `slots`; -1 where there is none."""
        raise NotImplementedError

    def reach(self, rule: Rule, first_query: int, last_query: int) -> slice:
        """Slots that queries from `first_query` to `last_query` can see at all."""
        return slice(0, self.count)

    def is_all_seen(self, rule: Rule, query: int) -> bool:
        """Whether a query at the end sees every entry, so that no mask is needed."""
        return False

    def read(self, slots: slice) -> "tuple[Tensor, ...]":
        """Values of the entries in `slots`."""
        raise NotImplementedError

    def gather(self, index: "Tensor") -> "tuple[Tensor, ...]":
        """Values of the entries of each sequence at `index` (batch, chosen)."""
        raise NotImplementedError


class Stored(Piece):
    """Entries in the order of their positions in stores: entry j ends with token (j + 1) x stride - 1."""

    def __init__(self, stores: "Sequence[Store]", count: int, stride: int = 1) -> None:
        self.stores, self.count, self.stride = stores, count, stride

    @property
    def is_view(self) -> bool:  # type: ignore[override]
        return all(store.is_view for store in self.stores)

    @property
    def has_own_tokens(self) -> bool:  # type: ignore[override]
        return self.stride == 1

    def positions(self, slots: slice) -> "Tensor":
        import torch

        device = self.stores[0].room.device
        ends = torch.arange(slots.start, slots.stop, device=device) + 1
        return ends * self.stride - 1

    def reach(self, rule: Rule, first_query: int, last_query: int) -> slice:
        if not rule.is_causal:
            return slice(0, self.count)
        low = rule.first_seen(first_query) // self.stride
        return slice(low, max(low, min(self.count, (last_query + 1) // self.stride)))

    def is_all_seen(self, rule: Rule, query: int) -> bool:
        return not rule.is_causal or self.reach(rule, query, query) == slice(0, self.count)

    def read(self, slots: slice) -> "tuple[Tensor, ...]":
        return tuple(store.read(slots) for store in self.stores)

    def gather(self, index: "Tensor") -> "tuple[Tensor, ...]":
        return tuple(store.gather(index) for store in self.stores)


class Ring(Stored):
    """Entries of a ring buffer in the order of their slots, at the positions `where` (slots,).

    A query at the end sees all of them under the rule `full_for`; None where under none.
    """

    has_own_tokens = False

    def __init__(self, stores: "Sequence[Store]", count: int, where: "Tensor", full_for: Rule | None) -> None:
        super().__init__(stores, count)
        self.where, self.full_for = where, full_for

    def positions(self, slots: slice) -> "Tensor":
        return self.where[slots]

    def reach(self, rule: Rule, first_query: int, last_query: int) -> slice:
        return slice(0, self.count)

    def is_all_seen(self, rule: Rule, query: int) -> bool:
        return rule == self.full_for


class Fresh(Piece):
    """Entries at hand as tensors, in order, the first at position `first`: they need not be in a store."""

    is_view = has_own_tokens = True

    def __init__(self, values: "tuple[Tensor, ...]", first: int) -> None:
        self.values, self.first, self.count = values, first, values[0].shape[2]

    def positions(self, slots: slice) -> "Tensor":
        import torch

        return torch.arange(slots.start, slots.stop, device=self.values[0].device) + self.first

    def reach(self, rule: Rule, first_query: int, last_query: int) -> slice:
        low = 0 if rule.sinks else max(0, rule.first_seen(first_query) - self.first)
        return slice(low, max(low, min(self.count, last_query - self.first + 1)))

    def read(self, slots: slice) -> "tuple[Tensor, ...]":
        return tuple(one[:, :, slots] for one in self.values)


class Kept(Piece):
    """What a ring held before it was overwritten: copies, at the positions `where`."""

    is_view = True

    def __init__(self, values: "tuple[Tensor, ...]", where: "Tensor") -> None:
        self.values, self.where, self.count = values, where, values[0].shape[2]

    def positions(self, slots: slice) -> "Tensor":
        return self.where[slots]

    def read(self, slots: slice) -> "tuple[Tensor, ...]":
        return tuple(one[:, :, slots] for one in self.values)


class Seen(NamedTuple):
    """One cache as the queries of a pass see it."""

    pieces: tuple[Piece, ...]
    rule: Rule
    choice: Choice | None = None
    value_width: int | None = None
    """How much of a vector that is K and V at once is the V, None for all of it."""
