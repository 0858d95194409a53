"""Contiguous room: all that a request may need, in one piece, from its first step to its last."""

from typing import TYPE_CHECKING, Any

from kvcalc.sizing.blocks import Layout
from kvcalc.workload.buddy import RESERVATIONS, Buddy, Place
from kvcalc.workload.policies import Policy
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    from kvcalc.workload.clock import Clock


class Reserved(Policy):
    """All at once and in one piece, by the buddy system, as Orca does in section 6.1 of the paper."""

    grows = False

    def __init__(self, trace: Trace, layout: Layout, pool_units: int, most_context: int) -> None:
        super().__init__(trace, layout, pool_units, most_context)
        self._most: list[int] = self.most_units.tolist()
        self._last: list[int] = self.final.tolist()

    def empty(self) -> None:
        super().empty()
        self._buddy = Buddy(self.pool_units)
        self._places: dict[int, Place] = {}
        self._held = 0

    def _reserves(self, most_context: int) -> Any:
        import numpy as np

        slots, trace = RESERVATIONS[self.name], self.trace
        pairs = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
        return np.array([slots(prompt, output, most_context) for prompt, output in pairs], dtype=np.int64)

    def too_large(self) -> Any:
        # The largest piece of a buddy system is a power of two.
        return self.most_units > 1 << (self.pool_units.bit_length() - 1)

    def held(self, growing: int) -> int:
        return self._held

    def take(self, request: int, tokens: int, growing: int, spare: int) -> int | None:
        units = self._most[request]
        place = self._buddy.take(units)
        if place is None:
            return None
        self._places[request] = place
        self._held += units
        return 0

    def leave(self, request: int, done: int | None = None) -> None:
        self._buddy.free(self._places.pop(request))
        self._held -= self._most[request]

    def count_prompt(self, request: int, goal: int, done: int, seconds: float) -> None:
        self._add(request, self.prompt_filled(request, done) * seconds, seconds)

    def count(self, request: int, clock: "Clock", tokens: int, first: int, steps: int) -> None:
        seconds, curve = clock.seconds(first, steps), self.growth.filled
        self._add(request, clock.integral(curve, tokens, first, steps), seconds)

    def _add(self, request: int, filled: float, seconds: float) -> None:
        last = self.growth.filled.values.item(self._last[request])
        self.shares.filled += filled
        self.shares.reserved += last * seconds - filled
        self.shares.internal += (self._most[request] - last) * seconds


class Max(Reserved):
    """The longest context that the server takes."""

    name = "max"


class Pow2(Reserved):
    """The prompt, and the answer's length rounded up to a power of two."""

    name = "pow2"


class Oracle(Reserved):
    """What the request will turn out to need."""

    name = "oracle"


class Places(Reserved):
    """Places of the longest context, side by side, as slots of llama.cpp are: nothing is rounded."""

    name = "places"

    def empty(self) -> None:
        Policy.empty(self)
        self._held = 0

    def _reserves(self, most_context: int) -> Any:
        import numpy as np

        return np.full(len(self.trace), most_context, dtype=np.int64)

    def too_large(self) -> Any:
        return Policy.too_large(self)

    def take(self, request: int, tokens: int, growing: int, spare: int) -> int | None:
        if self._held + self._most[request] > self.pool_units:
            return None
        self._held += self._most[request]
        return 0

    def leave(self, request: int, done: int | None = None) -> None:
        self._held -= self._most[request]
