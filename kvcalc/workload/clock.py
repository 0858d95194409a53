"""Time while steps pass, and integrals over it: of what a sequence holds, from step to step."""

from typing import TYPE_CHECKING, Any

from kvcalc.workload.steptime import StepCost

if TYPE_CHECKING:
    from kvcalc.workload.growth import Curve


class Clock:
    """Steps of one length. `step` steps are over at `now`."""

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self.step = 0
        self.now = 0.0
        self._each = cost.fixed_seconds or 0.0

    def decode(self, sequences: int, context: int, steps: int, until: float) -> int:
        """Pass so many decoding steps, none that begins at `until` or later; return how many passed."""
        if until < self.now + steps * self._each:
            steps = max(1, min(steps, int(-((self.now - until) // self._each))))
        self.step += steps
        self.now += steps * self._each
        return steps

    def mixed(self, sequences: int, context: int, prefill: int, prefill_context: float, more: float = 0.0) -> None:
        """Pass a step with prompts in it, or one that takes `more` seconds; steps of one length take no longer."""
        self.step += 1
        self.now += self._each

    def seconds(self, first: int, steps: int) -> float:
        """How long so many steps took, from step `first` on."""
        return steps * self._each

    def integral(self, curve: "Curve", tokens: int, first: int, steps: int) -> float:
        """Unit seconds of what `curve` has from `tokens` tokens on, one more in every step from step `first` on."""
        return curve.sum(tokens, steps) * self._each

    def over(self, values: Any) -> float:
        """Value seconds of one value for each of the last steps."""
        return float(values.sum()) * self._each


class VariedClock(Clock):
    """Steps of many lengths, which are kept."""

    def __init__(self, cost: StepCost) -> None:
        import numpy as np

        super().__init__(cost)
        self._seconds = np.empty(1024)

    def decode(self, sequences: int, context: int, steps: int, until: float) -> int:
        first = self.cost.mixed(sequences, context, 0, 0.0)
        # Steps grow with their context: more than these never come before `until`.
        steps = max(1, min(steps, int((until - self.now) / first) + 1)) if until < float("inf") else steps
        if steps == 1:
            self._keep_one(first)
            return 1
        seconds = self.cost.decoding(sequences, context, steps)
        ends = self.now + seconds.cumsum()
        steps = min(steps, int(ends.searchsorted(until)) + 1)
        self._room(steps)
        self._seconds[self.step : self.step + steps] = seconds[:steps]
        self.step += steps
        self.now = float(ends[steps - 1])
        return steps

    def mixed(self, sequences: int, context: int, prefill: int, prefill_context: float, more: float = 0.0) -> None:
        self._keep_one(self.cost.mixed(sequences, context, prefill, prefill_context) + more)

    def _keep_one(self, seconds: float) -> None:
        self._room(1)
        self._seconds[self.step] = seconds
        self.step += 1
        self.now += seconds

    def _room(self, steps: int) -> None:
        import numpy as np

        if self.step + steps > len(self._seconds):
            kept = self._seconds
            self._seconds = np.empty(2 * (self.step + steps))
            self._seconds[: self.step] = kept[: self.step]

    def seconds(self, first: int, steps: int) -> float:
        return float(self._seconds[first : first + steps].sum())

    def integral(self, curve: "Curve", tokens: int, first: int, steps: int) -> float:
        return float(curve.values[tokens : tokens + steps].dot(self._seconds[first : first + steps]))

    def over(self, values: Any) -> float:
        return float(values.dot(self._seconds[self.step - len(values) : self.step]))


def clock_of(cost: StepCost) -> Clock:
    """A clock for steps of this cost."""
    return VariedClock(cost) if cost.fixed_seconds is None else Clock(cost)
