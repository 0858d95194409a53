"""How long a step of a server takes: by the throughput model, or the same seconds for every step."""

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.speed.calibration import Scales
from kvcalc.speed.kernels import Setting
from kvcalc.speed.pricing import Pricing
from kvcalc.speed.setting import prefill_costs, seconds_of

if TYPE_CHECKING:
    from kvcalc.workload.trace import Seconds


class StepCost(Protocol):
    """Seconds of a step. `context` is the tokens that all decoding sequences hold in it together.

    `prefill_context` is the sum over the prefilled tokens of what each one has before it: n * (kept + n / 2) for n
    tokens behind `kept` ones.
    """

    @property
    def fixed_seconds(self) -> float | None:
        """What every step takes, where none differs."""
        ...

    def mixed(self, sequences: int, context: int, prefill: int, prefill_context: float) -> float:
        """A step that also takes in `prefill` tokens of prompts."""
        ...

    def decoding(self, sequences: int, context: int, steps: int) -> "Seconds":
        """Each of so many steps from this context on, every sequence a token longer in each."""
        ...


class FixedCost(msgspec.Struct, frozen=True):
    """Every step takes the same `fixed_seconds`."""

    fixed_seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.fixed_seconds < float("inf"):
            raise KvcalcError(f"--step-time {self.fixed_seconds}: a step takes some seconds", "write --step-time 20ms")

    def mixed(self, sequences: int, context: int, prefill: int, prefill_context: float) -> float:
        return self.fixed_seconds

    def decoding(self, sequences: int, context: int, steps: int) -> "Seconds":
        import numpy as np

        return np.full(steps, self.fixed_seconds)


_FINENESS = 1.06
"""Neighbours of a table are this far apart: between them times are drawn straight."""
_EVERY_COUNT = 64
"""Batches that stand in the table one by one: kernels' costs bend most where few tokens share them."""


class ModelCost:
    """Steps by the throughput model, from tables that are made once.

    A decoding step is `throughput`'s step of that batch at its mean context. Prompts in a step are priced as so many
    equal ones that come to the same tokens and the same context. A step that does both takes the decoding step and
    the share of the prompts' time that running sequences wait for, and no less than the prompts alone.
    """

    fixed_seconds = None

    def __init__(
        self, setting: Setting, scales: Scales, most_sequences: int, most_tokens: int, most_prefill: int
    ) -> None:
        import numpy as np

        self._contexts = _spaced(1, most_tokens)
        self._sequences = _spaced(1, most_sequences, _EVERY_COUNT)
        # Floats do not wrap.
        tokens, batch = (np.array(side, dtype=float) for side in (self._contexts, self._sequences))
        pricing = Pricing(setting, scales, tokens[None, :], 0)
        self._steps = np.broadcast_to(seconds_of(pricing.last_step(batch[:, None])), (len(batch), len(tokens)))
        self._rows: dict[int, Any] = {}
        self._lists: dict[int, list[float]] = {}
        self._context_array = tokens
        self._waited = setting.machine.free["prefill_share"] * scales.of("interference")
        self._prompts = _Prompts(setting, scales, most_prefill, most_tokens)

    def mixed(self, sequences: int, context: int, prefill: int, prefill_context: float) -> float:
        prompts = self._prompts.seconds(prefill, prefill_context) if prefill else 0.0
        if not sequences:
            return prompts
        return max(self._step(sequences, context) + self._waited * prompts, prompts)

    def decoding(self, sequences: int, context: int, steps: int) -> "Seconds":
        import numpy as np

        if steps == 1:
            return np.array([self._step(sequences, context)])
        means = context / sequences + np.arange(steps)
        seconds: Seconds = np.interp(means, self._context_array, self._row(sequences))
        return seconds

    def _step(self, sequences: int, context: int) -> float:
        row = self._lists.get(sequences)
        if row is None:
            row = self._lists[sequences] = self._row(sequences).tolist()
        place, weight = _between(self._contexts, context / sequences)
        return row[place] * (1 - weight) + row[place + 1] * weight

    def _row(self, sequences: int) -> Any:
        row = self._rows.get(sequences)
        if row is None:
            place, weight = _between(self._sequences, sequences)
            row = self._rows[sequences] = self._steps[place] * (1 - weight) + self._steps[place + 1] * weight
        return row


class _Prompts:
    """Seconds of prefilled tokens, over their number and their mean context."""

    def __init__(self, setting: Setting, scales: Scales, most_prefill: int, most_tokens: int) -> None:
        import numpy as np

        self._tokens, self._means = _spaced(1, most_prefill), [0.5 * one for one in _spaced(1, 2 * most_tokens)]
        tokens, mean = np.array(self._tokens, dtype=float)[:, None], np.array(self._means)[None, :]
        # A mean context below half of the tokens is that of several shorter prompts.
        length = np.minimum(tokens, 2 * mean)
        costs = prefill_costs(setting, length, mean - length / 2, tokens / length)
        table = np.broadcast_to(seconds_of(scales.applied(costs)), (len(self._tokens), len(self._means)))
        self._table: list[list[float]] = table.tolist()

    def seconds(self, tokens: int, context: float) -> float:
        row, down = _between(self._tokens, tokens)
        column, right = _between(self._means, context / tokens)
        upper, lower = self._table[row], self._table[row + 1]
        top = upper[column] * (1 - right) + upper[column + 1] * right
        return top * (1 - down) + (lower[column] * (1 - right) + lower[column + 1] * right) * down


def _spaced(first: int, last: int, singly: int = 16) -> list[int]:
    """Counts from `first` to `last` or further, every one up to `singly`, then ever further apart; at least two."""
    found = [first]
    while found[-1] < last or len(found) < 2:
        found.append(max(found[-1] + 1, int(found[-1] * _FINENESS) if found[-1] >= singly else 0))
    return found


def _between(places: Any, value: float) -> tuple[int, float]:
    """The place below `value`, and how far it is to the next, as a share; the ends where it lies outside."""
    place = min(max(bisect_right(places, value) - 1, 0), len(places) - 2)
    share = (value - places[place]) / (places[place + 1] - places[place])
    return place, min(max(share, 0.0), 1.0)
