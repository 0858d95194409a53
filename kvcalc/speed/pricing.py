"""The costs of a load: a prompt, a step, and what a user of a loaded server waits for; numbers and arrays alike."""

from typing import Any, NamedTuple

from kvcalc.speed.calibration import Scales
from kvcalc.speed.kernels import Cost, Setting
from kvcalc.speed.setting import decode_costs, prefill_costs
from kvcalc.speed.timing import scaled

INTERFERENCE = "prefill interference"


class Pricing(NamedTuple):
    """Prompts of `isl` tokens and answers of `osl` on a setting, under the factors of a calibration.

    Tokens, and the batches that are asked about, are numbers or arrays; large arrays are floats, which do not wrap.
    """

    setting: Setting
    scales: Scales
    isl: Any
    osl: Any
    shared_prefix: int = 0
    draft_tokens: int = 0
    tokens_a_step: float = 1.0

    def prompt(self) -> list[Cost]:
        """Taking in one prompt."""
        return self.scales.applied(prefill_costs(self.setting, self.isl - self.shared_prefix, self.shared_prefix))

    def last_step(self, batch: Any) -> list[Cost]:
        """The step at the end of the answers."""
        return self._step(batch, self.isl + self.osl)

    def tpot(self, running: Any) -> list[Cost]:
        """A token of one user: a step of the running batch at the middle of the answers, and prompts taken in."""
        step = _shared_out(self._step(running, self.isl + self.osl // 2), 1 / self.tokens_a_step)
        share = self.setting.machine.free["prefill_share"] * self.scales.of("interference")
        others = running / self.setting.model.sharding.dp - 1
        waited = share * (others + abs(others)) / 2 / self.osl
        return [*step, *scaled(self.prompt(), waited, INTERFERENCE)]

    def ttft(self, running: Any) -> list[Cost]:
        """The first token of one user without a queue: the prompt, and a step that is under way."""
        return [*self.prompt(), *scaled(self.last_step(running), 1.0, "a step under way")]

    def _step(self, batch: Any, context: Any) -> list[Cost]:
        return self.scales.applied(decode_costs(self.setting, batch, context, self.draft_tokens))


def queue_seconds(busy: Any, service: Any) -> Any:
    """Waiting for one server that takes `service` seconds a request and is `busy`, a share below 1, of the time.

    M/D/1: Pollaczek and Khinchine.
    """
    return busy * service / (2 * (1 - busy))


def _shared_out(costs: list[Cost], factor: float) -> list[Cost]:
    """The costs of a step, and their floors, for one token of it."""
    names = ("start", "moving", "working", "floor_moving", "floor_working")
    return [cost._replace(**{name: getattr(cost, name) * factor for name in names}) for cost in costs]
