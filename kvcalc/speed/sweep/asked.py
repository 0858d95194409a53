"""What a sweep is asked: which deployments, which contexts and batches on each, and what is told of them."""

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import NamedTuple

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, size_workload
from kvcalc.speed.calibration import Scales
from kvcalc.speed.kernels import Setting
from kvcalc.speed.pricing import Pricing
from kvcalc.speed.rank import RankModel, rank_model
from kvcalc.speed.setting import Use, machine_for, setting_on, workload_of
from kvcalc.speed.sweep.axis import refuse_too_many
from kvcalc.speed.sweep.money import Rates
from kvcalc.speed.sweep.room import Room


class Model(msgspec.Struct, frozen=True, dict=True):
    """A model and how it is used, with what every GPU and every engine share of it."""

    spec: ModelSpec
    use: Use

    @cached_property
    def size(self) -> CacheSize:
        """What one sequence of one token needs; `at` makes any other of it."""
        return size_workload(self.spec, workload_of(self.use, 1, 1), self.use.sharding)

    @cached_property
    def on_rank(self) -> RankModel:
        """The same ready to be priced; KvcalcError where its weights are not known."""
        return rank_model(self.size, self.use.attention_dp)

    @cached_property
    def sizes(self) -> dict[tuple[int, int], CacheSize]:
        """Sizes by context and batch that engines were asked about."""
        return {}


class Deployment(NamedTuple):
    """A model, and the engine and the GPU that it runs on; None for a server of today, and for memory alone."""

    model: Model
    gpu: str | None
    engine: str | None = None

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.model.spec

    @property
    def use(self) -> Use:
        """How it is used."""
        return self.model.use

    def size(self, context: int, batch: int) -> CacheSize:
        """What a workload needs."""
        return self.model.size.at(context, batch)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep. `contexts` are whole ones, prompt and answer; `gpus` are names, none where only memory is asked about.

    `engines` are names with their releases, None where nobody names one.
    `scales` are calibrations by the name of the GPU, on which there may be `notes`.
    """

    specs: tuple[ModelSpec, ...]
    uses: tuple[Use, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    engines: tuple[str | None, ...] = (None,)
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
        deployments = len(self.specs), len(self.uses), len(self.engines), max(1, len(self.gpus))
        return *deployments, len(self.contexts), len(self.batches)

    @property
    def deployments(self) -> Iterator[Deployment]:
        """Every deployment."""
        for spec, use in product(self.specs, self.uses):
            model = Model(spec, use)
            for engine, gpu in product(self.engines, self.gpus or (None,)):
                yield Deployment(model, gpu, engine)

    def points_of(self, deployment: Deployment) -> int:
        """Points of one deployment."""
        return len(self.contexts_of(deployment.spec)) * len(self.batches)

    @property
    def has_engines(self) -> bool:
        """Whether engines were named."""
        return self.engines != (None,)

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
    """The deployment on its GPU; None where it has none and only memory is asked about.

    KvcalcError where a figure is not known, and for what the engine refuses.
    """
    gpu = deployment.gpu
    if gpu is None:
        return None
    model, use, engine = deployment.model, deployment.use, deployment.engine
    setting = setting_on(model.on_rank, machine_for(gpu, engine, use), use)
    room = Room(setting, use, engine, model.sizes)
    # What an engine refuses at the shortest context it refuses everywhere.
    room.ask(asked.contexts[0], 1)
    return Ready(deployment, gpu, setting, asked.scales.get(gpu, Scales()), room)
