"""Paged sequences that find the full blocks of their prompts where others left them."""

from collections.abc import Callable
from math import lcm
from typing import TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError
from kvcalc.sizing.blocks import Layout
from kvcalc.workload.policies import Paged
from kvcalc.workload.prefix import PrefixCache, blocks_of
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    from kvcalc.workload.clock import Clock
    from kvcalc.workload.running import Running


class Prefixed(Paged):
    """Paged, with a cache of prefixes: blocks that several read are held once, and stay when nobody reads them.

    Blocks of caches that keep every token are shared. What a window or a state adds is each sequence's own, and is
    taken to be there with the prefix.
    """

    name = "prefixed"

    def __init__(self, trace: Trace, layout: Layout, pool_units: int, most_context: int) -> None:
        super().__init__(trace, layout, pool_units, most_context)
        keeps = [group for group in layout.groups if group.cap is None]
        if not keeps:
            message = "no layer keeps every token: there are no prefixes that stay"
            raise KvcalcError(message, "leave out --prefix-caching")
        self.block_tokens = lcm(*(group.block_tokens for group in keeps))
        # Far behind every window only what keeps all tokens still grows.
        far = self.block_tokens << 40
        self.block_units = int(layout.units(far + self.block_tokens) - layout.units(far))
        self._written: float = (
            layout.written_bytes(far + self.block_tokens) - layout.written_bytes(far)
        ) / layout.bytes_per_unit
        blocks = blocks_of(trace, self.block_tokens)
        self._ids_of = blocks.of
        self._blocks: Callable[[int], int] = blocks.counts.item

    def empty(self) -> None:
        super().empty()
        self.prefixes = PrefixCache()
        self._readers = 0
        """Blocks that sequences read, one that several read counted for each."""

    def held(self, growing: int) -> int:
        return growing + self.block_units * (self.prefixes.pinned - self._readers)

    @property
    def cached(self) -> int:
        return self.block_units * (self.prefixes.held - self.prefixes.pinned)

    def take(self, request: int, tokens: int, growing: int, spare: int) -> int | None:
        ids = self._ids_of(request)
        found = self.growth.units.item(tokens) - self.block_units * self.prefixes.in_use(ids)
        if self.held(growing) + found + spare > self.pool_units:
            return None
        # Those before it in this step have pushed out what stood in their way.
        self._make_room(growing)
        self._readers += len(ids)
        hits = self.prefixes.acquire(ids)
        # The last token is always computed: what comes behind it is read from it.
        return min(hits, (tokens - 1) // self.block_tokens) * self.block_tokens

    def _make_room(self, growing: int) -> None:
        """Forget kept prefixes as far as those that hold `growing` units by their tokens need the room."""
        over = self.cached - (self.pool_units - self.held(growing))
        if over > 0:
            self.prefixes.evict(-(-over // self.block_units))

    def leave(self, request: int, done: int | None = None) -> None:
        ids = self._ids_of(request)
        self._readers -= len(ids)
        self.prefixes.release(ids, None if done is None else done // self.block_tokens)

    def prompt_filled(self, request: int, done: int) -> float:
        # Blocks are there for others before they are computed: they are counted as theirs.
        return max(super().prompt_filled(request, done), self._blocks(request) * self._written)

    @property
    def shared_filled(self) -> float:
        return (self._readers - self.prefixes.pinned) * self._written

    def passed(self, running: "Running", growing: int, steps: int, clock: "Clock") -> None:
        import numpy as np

        seconds, kept, unit = clock.seconds(clock.step - steps, steps), self.cached, self.block_units
        self._add_shared(self.prefixes.pinned, seconds)
        self.shares.spared += unit * (self._readers - self.prefixes.pinned) * seconds
        room = self.pool_units - self.held(growing)
        if kept <= room:
            self.shares.cached += kept * seconds
            return
        self._make_room(growing)
        # Several steps have no prompt in them.
        rooms = np.array([room]) if steps == 1 else self.pool_units - self._held_each(running, clock.step, steps)
        self.shares.cached += clock.over(np.minimum(kept, rooms // unit * unit))

    def _held_each(self, running: "Running", end: int, steps: int) -> Any:
        return self.held(0) + running.units_each(end - steps, steps)

    def count(self, request: int, clock: "Clock", tokens: int, first: int, steps: int) -> None:
        super().count(request, clock, tokens, first, steps)
        # What is shared is counted once while anybody reads it.
        self._add_shared(-self._blocks(request), clock.seconds(first, steps))

    def count_prompt(self, request: int, goal: int, done: int, seconds: float) -> None:
        super().count_prompt(request, goal, done, seconds)
        self._add_shared(-self._blocks(request), seconds)

    def _add_shared(self, blocks: int, seconds: float) -> None:
        self.shares.filled += blocks * self._written * seconds
        self.shares.internal += blocks * (self.block_units - self._written) * seconds
