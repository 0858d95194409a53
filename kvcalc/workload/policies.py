"""How sequences get their room in a pool: reserved as a whole at the start, or block by block as they grow."""

from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from kvcalc.sizing.blocks import Layout
from kvcalc.workload.growth import Growth, growth_of
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    from kvcalc.workload.clock import Clock
    from kvcalc.workload.running import Running


class Shares(msgspec.Struct):
    """Unit seconds of a pool, by the words of arXiv 2309.06180, section 3.1, and those of the prefixes kept for others.

    `filled` hold tokens, `reserved` will, `internal` never do. A block that several sequences read is in `filled` once;
    `spared` are what all of them would need beside it.
    """

    filled: float = 0.0
    reserved: float = 0.0
    internal: float = 0.0
    cached: float = 0.0
    spared: float = 0.0


class Policy:
    """One way to give out the units of a pool."""

    name: ClassVar[str]
    grows: ClassVar[bool]
    """Whether a sequence's units follow its tokens."""

    def __init__(self, trace: Trace, layout: Layout, pool_units: int, most_context: int) -> None:
        self.pool_units, self.trace = pool_units, trace
        self.prompts: list[int] = trace.prompt_tokens.tolist()
        self.outputs: list[int] = trace.output_tokens.tolist()
        self.final = trace.prompt_tokens + trace.output_tokens - 1
        """Tokens that a sequence holds in its last step: what it makes last is never read again."""
        self.reserves = self._reserves(most_context)
        self.growth: Growth = growth_of(layout, max(1, int(max(self.reserves.max(), self.final.max()))))
        self.empty()

    def empty(self) -> None:
        """Begin with nothing held and nothing counted."""
        self.shares = Shares()

    def another(self) -> "Policy":
        """The same for one more pool, an empty one; they share their tables."""
        other = copy(self)
        other.empty()
        return other

    def _reserves(self, most_context: int) -> Any:
        """Tokens that each request takes room for, at the end at the latest."""
        raise NotImplementedError

    @property
    def most_units(self) -> Any:
        """What each request holds at most, in units."""
        return self.growth.units[self.reserves]

    def too_large(self) -> Any:
        """Which requests never fit."""
        return self.most_units > self.pool_units

    def held(self, growing: int) -> int:
        """Units that sequences hold, where those that grow have `growing` by their tokens alone."""
        raise NotImplementedError

    @property
    def cached(self) -> int:
        """Units that nobody holds but that keep a prefix; they give way to any need."""
        return 0

    def take(self, request: int, tokens: int, growing: int, spare: int) -> int | None:
        """Admit a sequence if `spare` units stay free; how many of its tokens are there already, None for no room."""
        raise NotImplementedError

    def leave(self, request: int, done: int | None = None) -> None:
        """Give back all of it; a prompt that goes before it is complete says how many tokens are `done`."""

    def prompt_filled(self, request: int, done: int) -> float:
        """Units of the tokens of a prompt of which `done` are computed."""
        return self.growth.filled.values.item(done)

    @property
    def shared_filled(self) -> float:
        """Units of tokens that sequences share: what counting them for each of them counts too often."""
        return 0.0

    def passed(self, running: "Running", growing: int, steps: int, clock: "Clock") -> None:
        """So many steps passed, in the last of which sequences have `growing` units by their tokens.

        Prefixes that stood in their way go.
        """

    def count_prompt(self, request: int, goal: int, done: int, seconds: float) -> None:
        """Add what a sequence held in a step after which `done` of its `goal` first tokens were computed."""
        raise NotImplementedError

    def count(self, request: int, clock: "Clock", tokens: int, first: int, steps: int) -> None:
        """Add what a sequence held in so many steps from `first` on, with `tokens` tokens in the first of them."""
        raise NotImplementedError


class Paged(Policy):
    """Blocks as they are needed (PagedAttention); nothing is shared."""

    name = "paged"
    grows = True

    def __init__(self, trace: Trace, layout: Layout, pool_units: int, most_context: int) -> None:
        import numpy as np

        super().__init__(trace, layout, pool_units, most_context)
        filled = self.growth.filled.values
        # From so many tokens on a sequence has units that it never fills.
        self._ends: list[int] = np.searchsorted(self.growth.units, filled[self.final], "right").tolist()
        self._last: list[int] = self.final.tolist()

    def _reserves(self, most_context: int) -> Any:
        return self.final

    def held(self, growing: int) -> int:
        return growing

    def take(self, request: int, tokens: int, growing: int, spare: int) -> int | None:
        return 0 if growing + self.growth.units.item(tokens) + spare <= self.pool_units else None

    def count_prompt(self, request: int, goal: int, done: int, seconds: float) -> None:
        units = self.growth.units.item(goal)
        internal = max(0.0, units - self.growth.filled.values.item(self._last[request]))
        self._add(request, units * seconds, self.prompt_filled(request, done) * seconds, internal * seconds)

    def count(self, request: int, clock: "Clock", tokens: int, first: int, steps: int) -> None:
        curve, held = self.growth.filled, clock.integral(self.growth.held, tokens, first, steps)
        filled, internal = clock.integral(curve, tokens, first, steps), 0.0
        behind = max(0, self._ends[request] - tokens)
        if behind < steps:
            begun, rest = first + behind, steps - behind
            last = curve.values.item(self._last[request])
            internal = clock.integral(self.growth.held, tokens + behind, begun, rest) - last * clock.seconds(
                begun, rest
            )
        self._add(request, held, filled, internal)

    def _add(self, request: int, held: float, filled: float, internal: float) -> None:
        self.shares.filled += filled
        self.shares.internal += internal
        self.shares.reserved += held - filled - internal
