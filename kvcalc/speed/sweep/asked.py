"""What a sweep is asked: which deployments, which contexts and batches on each, and what is told of them."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, size_workload
from kvcalc.speed.calibration import Scales
from kvcalc.speed.kernels import Setting
from kvcalc.speed.pricing import Pricing
from kvcalc.speed.setting import Use, machine_for, make_setting, workload_of
from kvcalc.speed.sweep.axis import refuse_too_many
from kvcalc.speed.sweep.money import Rates
from kvcalc.speed.sweep.room import Room


class Deployment(NamedTuple):
    """A model, how it is used, and the GPU that it is put on; None where only memory is asked about."""

    spec: ModelSpec
    use: Use
    gpu: str | None

    @property
    def gpus(self) -> int:
        """GPUs of one copy of it, data-parallel ranks among them."""
        sharding = self.use.sharding
        return sharding.tp * sharding.pp * (1 if self.use.attention_dp else sharding.dp)

    def size(self, context: int, batch: int) -> CacheSize:
        """What a workload needs."""
        return size_workload(self.spec, workload_of(self.use, context, batch), self.use.sharding)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep. `contexts` are whole ones, prompt and answer; `gpus` are names, none where only memory is asked about.

    `scales` are calibrations by the name of the GPU, on which there may be `notes`.
    """

    specs: tuple[ModelSpec, ...]
    uses: tuple[Use, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    engine: str | None = None
    osl: int = 128
    served: bool = False
    scales: dict[str, Scales] = {}
    rates: Rates = Rates()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse_too_many(self.sides)
        if self.gpus and self.contexts[0] <= self.osl:
            raise KvcalcError(
                f"a context of {self.contexts[0]:,} tokens has no prompt before an answer of {self.osl:,}",
                "a larger --ctx, or a smaller --osl",
            )

    @property
    def sides(self) -> tuple[int, ...]:
        """How many there are of everything that is varied."""
        return len(self.specs), len(self.uses), max(1, len(self.gpus)), len(self.contexts), len(self.batches)

    @property
    def deployments(self) -> Iterator[Deployment]:
        """Every deployment."""
        return (Deployment(spec, use, gpu) for spec, use, gpu in product(self.specs, self.uses, self.gpus or (None,)))

    def contexts_of(self, spec: ModelSpec) -> list[int]:
        """The contexts that a model can be run at; where only memory is asked about, all of them."""
        most = spec.max_context if self.gpus else None
        return [tokens for tokens in self.contexts if most is None or tokens <= most]


class Ready(NamedTuple):
    """A deployment whose figures are known, and what its cards hold."""

    deployment: Deployment
    gpu: str
    setting: Setting
    scales: Scales
    room: Room

    def pricing(self, contexts: object, osl: int) -> Pricing:
        """What loads of these contexts cost; a number or an array."""
        return Pricing(self.setting, self.scales, contexts - osl, osl)  # type: ignore[operator]


def make_ready(deployment: Deployment, asked: Asked) -> Ready | None:
    """The deployment on its GPU; None where it has none.

    KvcalcError where a figure is not known, and for what the engine refuses.
    """
    gpu = deployment.gpu
    if gpu is None:
        return None
    setting = make_setting(deployment.spec, machine_for(gpu, asked.engine, deployment.use), deployment.use)
    room = Room(setting, deployment.use, asked.engine)
    # What an engine refuses at the shortest context it refuses everywhere.
    room.ask(asked.contexts[0], 1)
    return Ready(deployment, gpu, setting, asked.scales.get(gpu, Scales()), room)
