"""The caches of one component: where new entries go, and what the queries of a pass then see.

Capacities are worked out here, from the span of the component, and never asked of the predictor: the
tensors' bytes are held against it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.reference.codecs import VectorShape
from kvcalc.reference.projections import Keeper
from kvcalc.reference.seen import Fresh, Kept, Ring, Rule, Seen, Stored
from kvcalc.reference.step import Step
from kvcalc.reference.store import Held, Room, Store, make_store

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Turn = Callable[["Tensor", "Tensor"], "Tensor"]


class Plan(NamedTuple):
    """What the caches of one component are made of: vectors and their formats, room for `tokens` tokens."""

    vectors: Sequence[tuple[VectorShape, str]]
    tokens: int
    batch: int
    device: str
    dtype: "torch.dtype"
    exact: "torch.dtype | None" = None
    page: int | None = None

    def stores(self, entries: int, page: int | None = None) -> list[Store]:
        """A store for each vector with room for `entries` entries."""
        room = Room(self.batch, entries, self.device, page)
        return [make_store(form, shape, room, self.dtype, self.exact) for shape, form in self.vectors]


class EntryCache:
    """One entry a token, for every token."""

    rule = Rule()

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stores = plan.stores(plan.tokens, plan.page)

    def append(self, values: "Sequence[Tensor]", past: int) -> Seen:
        """Keep new entries, one tensor (batch, heads, tokens, width) a vector, after `past` tokens."""
        end = past + values[0].shape[2]
        for store, new in zip(self.stores, values, strict=True):
            store.write(slice(past, end), new)
        return Seen((Stored(self.stores, end),), self.rule)

    def values_of(self, keeper: Keeper, x: "Tensor", positions: "Tensor", step: Step) -> "list[Tensor]":
        """What `append` takes for new tokens `x` (batch, tokens, hidden)."""
        return keeper.turned(x, positions)

    def fill(self, tokens: int) -> None:
        """Keep noise for `tokens` tokens in place of passing them, for benchmarks of a single step."""
        for store in self.stores:
            store.fill(self._entries_of(tokens))

    def _entries_of(self, tokens: int) -> int:
        return tokens

    def reset(self) -> None:
        """Forget every token; what was allocated stays."""

    def seek(self, tokens: int) -> None:
        """Let the tokens behind the first `tokens` come again."""

    def held(self) -> list[Held]:
        """Every tensor that was allocated for it."""
        return [held for store in self.stores for held in store.held()]


class Bounded(EntryCache):
    """A ring of the last `window` tokens behind `sinks` first ones, or the tokens of the current `chunk`."""

    def __init__(self, plan: Plan, rule: Rule) -> None:
        import torch

        self.plan, self.rule = plan, rule
        self.capacity = min(plan.tokens, (rule.window or rule.chunk or 0) + rule.sinks)
        # A ring is as small as a page table's reason is large: it stays contiguous.
        self.stores = plan.stores(self.capacity)
        self.where = torch.full((self.capacity,), -1, dtype=torch.long, device=plan.device)
        self.start = self.next = 0

    def append(self, values: "Sequence[Tensor]", past: int) -> Seen:
        tokens = values[0].shape[2]
        if past != self.next:
            self._forget(past)
        self.next = past + tokens
        if tokens == 1:
            self._put_one(values, past)
            return Seen((self._ring(past),), self.rule)
        fresh = Fresh(tuple(s.round_trip(new) for s, new in zip(self.stores, values, strict=True)), past)
        before = self._copies()
        self._put(values, past, past + tokens - 1)
        return Seen((*before, fresh), self.rule)

    def fill(self, tokens: int) -> None:
        import torch

        for store in self.stores:
            store.fill(self.capacity)
        positions = torch.arange(tokens, device=self.where.device)
        kept = positions[self.rule.allowed(positions[-1:], positions)[0]]
        self.where[self._slots(kept)] = kept
        self.next = tokens

    def reset(self) -> None:
        self._forget(0)
        self.next = 0

    def seek(self, tokens: int) -> None:
        self.next = tokens

    def _forget(self, past: int) -> None:
        """Tokens were left out: what is kept no longer joins up with what comes."""
        self.where.fill_(-1)
        self.start = past

    def _put_one(self, values: "Sequence[Tensor]", position: int) -> None:
        """Write one token without asking the device anything, so that a step can be captured as a graph."""
        ring, sinks = self.rule.window or 1, self.rule.sinks
        slot = position if position < sinks else sinks + (position - sinks) % ring
        if self.rule.chunk is not None:
            slot = position % self.rule.chunk
        for store, new in zip(self.stores, values, strict=True):
            store.write(slice(slot, slot + 1), new)
        self.where[slot : slot + 1].fill_(position)

    def _slots(self, positions: "Tensor") -> "Tensor":
        if self.rule.chunk is not None:
            return positions % self.rule.chunk
        ring, sinks = self.rule.window or 1, self.rule.sinks
        return positions.where(positions < sinks, sinks + (positions - sinks) % ring)

    def _put(self, values: "Sequence[Tensor]", first: int, last: int) -> None:
        """Write those of the tokens from `first` to `last` that are still kept after `last`."""
        import torch

        positions = torch.arange(first, last + 1, device=self.where.device)
        stays = self.rule.allowed(positions[-1:], positions)[0]
        kept = positions[stays]
        slots = self._slots(kept)
        for store, new in zip(self.stores, values, strict=True):
            store.scatter(slots, new[:, :, stays])
        self.where[slots] = kept

    def _ring(self, last: int) -> Ring:
        if self.rule.chunk is not None:
            filled = last % self.rule.chunk + 1
            return Ring(self.stores, filled, self.where, self.rule if self.start <= last - filled + 1 else None)
        held = last - self.start + 1
        if self.start == 0:
            return Ring(self.stores, min(held, self.capacity), self.where, self.rule)
        is_full = held >= self.capacity and not self.rule.sinks
        return Ring(self.stores, self.capacity, self.where, self.rule if is_full else None)

    def _copies(self) -> list[Kept]:
        """What the ring holds, copied, since the new tokens overwrite it."""
        import torch

        valid = torch.nonzero(self.where >= 0)[:, 0]
        if not len(valid):
            return []
        values = tuple(store.read(slice(0, self.capacity)).index_select(2, valid) for store in self.stores)
        return [Kept(values, self.where[valid])]

    def held(self) -> list[Held]:
        return [*super().held(), Held("window positions", self.where, 0)]


class Encoded(EntryCache):
    """The encoder's tokens, written once."""

    rule = Rule(is_causal=False)
    is_filled = False

    def values_of(self, keeper: Keeper, x: "Tensor", positions: "Tensor", step: Step) -> "list[Tensor]":
        """The encoder's tokens, projected once."""
        if self.is_filled or step.encoded is None:
            return []
        return keeper.turned(step.encoded[:, : self.plan.tokens], positions)

    def append(self, values: "Sequence[Tensor]", past: int) -> Seen:
        """Keep the encoder's entries the first time; later passes read them."""
        if not self.is_filled:
            super().append(values, 0)
            self.is_filled = True
        return Seen((Stored(self.stores, self.plan.tokens),), self.rule)

    def fill(self, tokens: int) -> None:
        super().fill(self.plan.tokens)
        self.is_filled = True

    def reset(self) -> None:
        self.is_filled = False


class Pooled(EntryCache):
    """One entry for `ratio` tokens, pooled under a learned gate; with `overlap` over the ratio before them too.

    Tokens of an unfinished entry wait in open rows, values and gates side by side: the reference's own rule.
    """

    def __init__(self, plan: Plan, ratio: int, overlap: bool, turns: Sequence[Turn]) -> None:
        import torch

        self.plan, self.ratio, self.turns = plan, ratio, turns
        self.back = ratio if overlap else 0
        self.stores = plan.stores(plan.tokens // ratio, plan.page)
        shapes = [shape for shape, _ in plan.vectors]
        rows = ratio - 1 + self.back
        self.open = [
            torch.zeros(plan.batch, one.heads, rows, 2 * one.width, dtype=plan.dtype, device=plan.device)
            for one in shapes
        ]

    def values_of(self, keeper: Keeper, x: "Tensor", positions: "Tensor", step: Step) -> "list[Tensor]":
        """Values and gates, without positions: those belong to the pooled entries."""
        return keeper.with_gates(x)

    def append(self, values: "Sequence[Tensor]", past: int) -> Seen:
        """Keep new rows of values and gates (batch, heads, tokens, 2 x width) and pool the entries they finish."""
        end = past + values[0].shape[2]
        waiting = past % self.ratio + (self.back if past >= self.ratio else 0)
        first, last = past // self.ratio, end // self.ratio
        for store, rows, new, turn in zip(self.stores, self.open, values, self.turns, strict=True):
            if first == last:
                rows[:, :, waiting : waiting + new.shape[2]] = new
                continue
            import torch

            row = torch.cat([rows[:, :, :waiting], new], dim=2)
            store.write(slice(first, last), self._pool(row, first, last, turn))
            kept = row[:, :, row.shape[2] - (end % self.ratio + self.back) :]
            rows[:, :, : kept.shape[2]] = kept
        return Seen((Stored(self.stores, last, self.ratio),), self.rule)

    def _entries_of(self, tokens: int) -> int:
        return tokens // self.ratio

    def _pool(self, rows: "Tensor", first: int, last: int, turn: Turn) -> "Tensor":
        """Entries `first` to `last` out of rows that begin with the tokens before them that they look back at."""
        import torch

        values, gates = rows.chunk(2, dim=-1)
        reach = self.ratio + self.back
        if self.back and first == 0:
            values = torch.nn.functional.pad(values, (0, 0, self.back, 0))
            gates = torch.nn.functional.pad(gates, (0, 0, self.back, 0), value=float("-inf"))
        groups = last - first
        spread = [
            one[:, :, : (groups - 1) * self.ratio + reach].unfold(2, reach, self.ratio) for one in (values, gates)
        ]
        pooled = (spread[0] * spread[1].softmax(-1)).sum(-1)
        starts = torch.arange(first, last, device=rows.device) * self.ratio
        return turn(pooled, starts)

    def held(self) -> list[Held]:
        return [*super().held(), *(Held("open rows", rows, 0) for rows in self.open)]
