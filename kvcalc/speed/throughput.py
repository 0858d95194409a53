"""How fast a model answers: prefill, decode, and what users of a loaded server see."""

from typing import NamedTuple

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.speed.calibration import Scales
from kvcalc.speed.crossover import cache_bound_context, compute_bound_batch
from kvcalc.speed.fitting import sequences_that_fit
from kvcalc.speed.kernels import Setting
from kvcalc.speed.machine import load_constants
from kvcalc.speed.pricing import Pricing, queue_seconds
from kvcalc.speed.room import NoRoomError
from kvcalc.speed.setting import Use, machine_for, make_setting
from kvcalc.speed.timing import Timing, timing

MOST_DRAFTED = 1000


class Load(msgspec.Struct, frozen=True):
    """What is asked of a server: prompts of `isl` tokens, answers of `osl`, `batch` sequences at once.

    The first `shared_prefix` tokens of every prompt are in the cache already. A step checks `draft_tokens` drafted
    ones, each right with the chance `acceptance`. `rate` is requests a second over all ranks.
    """

    isl: int = 1024
    osl: int = 128
    batch: int = 1
    shared_prefix: int = 0
    draft_tokens: int = 0
    acceptance: float = 0.0
    rate: float | None = None

    def __post_init__(self) -> None:
        for flag, value, least in (("--isl", self.isl, 1), ("--osl", self.osl, 1), ("--batch", self.batch, 1)):
            if value < least:
                raise KvcalcError(f"{flag} {value}: at least {least} is needed", "check the request")
        if not 0 <= self.shared_prefix < self.isl:
            message = f"--shared-prefix {self.shared_prefix}: a prompt of {self.isl} tokens has at least one of its own"
            raise KvcalcError(message, f"from 0 to {self.isl - 1} is possible")
        if not 0 <= self.draft_tokens <= MOST_DRAFTED or not 0 <= self.acceptance <= 1:
            raise KvcalcError(
                f"--draft-tokens {self.draft_tokens} --acceptance {self.acceptance}: a count up to {MOST_DRAFTED:,} "
                "and a share from 0 to 1",
                "write --draft-tokens 3 --acceptance 0.7",
            )
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise KvcalcError(f"--rate {self.rate}: requests a second are a positive number", "write --rate 2/s")

    @property
    def context(self) -> int:
        """Tokens of a sequence at its end."""
        return self.isl + self.osl

    @property
    def tokens_a_step(self) -> float:
        """Tokens that a step yields a sequence, on average: the drafted ones up to the first wrong one, and one more.

        Leviathan et al., arXiv 2211.17192, equation 1.
        """
        return float(sum(self.acceptance**place for place in range(self.draft_tokens + 1)))


class Served(NamedTuple):
    """What a user of a server with `batch` requests at work sees. `running` of them are in the batch at once.

    `ttft` waits in no queue; `queued_ttft_seconds` does, at the rate asked, and is None where the queue only grows.
    """

    tpot: Timing
    ttft: Timing
    running: int
    utilisation: float | None
    queued_ttft_seconds: float | None


class Throughput(msgspec.Struct, frozen=True):
    """An answer, with all that it was asked for."""

    spec: ModelSpec
    setting: Setting
    use: Use
    load: Load
    scales: Scales
    prefill: Timing
    decode: Timing
    served: Served | None
    compute_bound_batch: int | None
    cache_bound_context: int | None
    bands: dict[str, float]
    notes: tuple[str, ...]

    @property
    def running(self) -> int:
        """Sequences in a step: those of the batch that do not wait."""
        return self.load.batch if self.served is None else self.served.running

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences, in decode alone."""
        return self.running * self.tokens_per_second_per_sequence

    @property
    def tokens_per_second_per_sequence(self) -> float:
        """Of one sequence, in decode alone."""
        return self.load.tokens_a_step / self.decode.seconds


def estimate(
    spec: ModelSpec,
    gpu: str,
    load: Load,
    use: Use | None = None,
    *,
    engine: str | None = None,
    served: bool = False,
    scales: Scales | None = None,
    force: bool = False,
) -> Throughput:
    """How fast `spec` runs on `gpu` under `load`.

    KvcalcError where something is not known, where the context passes the model's limit, or where the sequences do
    not fit the cards unless `force` is set (a served batch waits instead).
    """
    use = use or Use()
    if load.draft_tokens and spec.draft_layers and not use.draft_layers:
        use = msgspec.structs.replace(use, draft_layers=len(spec.draft_layers))
    if spec.max_context is not None and load.context > spec.max_context:
        message = f"--isl {load.isl:,} and --osl {load.osl:,} pass the {spec.max_context:,} tokens of {spec.name}"
        raise KvcalcError(message, "lower one of them")
    setting = make_setting(spec, machine_for(gpu, engine, use), use)
    fitting = None if force else _room(setting, load, use, engine, served)
    return _Estimator(setting, load, scales or Scales()).answer(use, served, fitting)


def _room(setting: Setting, load: Load, use: Use, engine: str | None, served: bool) -> int:
    """Sequences that fit; KvcalcError where the batch does not, unless it may wait."""
    size = setting.model.size.at(load.context, load.batch)
    fitting = sequences_that_fit(setting, use, size, engine, load.shared_prefix)
    most = fitting.sequences
    if most < 1 or (most < load.batch and not served):
        many, verb = ("s", "do") if load.batch > 1 else ("", "does")
        asked = f"{load.batch:,} sequence{many} of {load.context:,} tokens {verb} not fit {setting.machine.gpu.name}"
        raise NoRoomError(
            f"{asked}, {most:,} {'does' if most == 1 else 'do'}: {fitting.reason}",
            f"--batch {most}, more --tp, a smaller --kv-dtype, or --force" if most else "more --tp, or --force",
        )
    return most


class _Estimator:
    """The parts of one answer."""

    def __init__(self, setting: Setting, load: Load, scales: Scales) -> None:
        self.setting, self.load, self.scales = setting, load, scales
        self.pricing = Pricing(
            setting, scales, load.isl, load.osl, load.shared_prefix, load.draft_tokens, load.tokens_a_step
        )
        kind = "moe" if setting.model.has_experts else "dense"
        bands = {what: load_constants().bands[f"{what}, {kind}"] for what in ("prefill", "decode", "served", "ttft")}
        self.bands = {what: scales.bands.get(f"{what}, {kind}", band.share) for what, band in bands.items()}

    def answer(self, use: Use, served: bool, fitting: int | None) -> Throughput:
        load, setting = self.load, self.setting
        running = load.batch if fitting is None else min(load.batch, fitting)
        return Throughput(
            spec=setting.model.size.spec,
            setting=setting,
            use=use,
            load=load,
            scales=self.scales,
            prefill=timing(self.pricing.prompt(), self.bands["prefill"]),
            decode=timing(self.pricing.last_step(running), self.bands["decode"]),
            served=self._served(running) if served else None,
            compute_bound_batch=compute_bound_batch(setting, load.context),
            cache_bound_context=cache_bound_context(setting, running),
            bands=self.bands,
            notes=tuple(self._notes(fitting, served)),
        )

    def _served(self, running: int) -> Served:
        load = self.load
        tpot = timing(self.pricing.tpot(running), self.bands["served"])
        ttft = timing(self.pricing.ttft(running), self.bands["ttft"])
        busy = None if load.rate is None else load.rate * tpot.seconds * load.osl / running
        queued = None if busy is None else _queued(ttft.seconds, busy, tpot.seconds * load.osl / running)
        return Served(tpot, ttft, running, busy, queued)

    def _notes(self, fitting: int | None, served: bool) -> list[str]:
        setting, load = self.setting, self.load
        notes = [*setting.machine.notes, *setting.numbers.notes]
        if fitting is not None and fitting < load.batch:
            notes.append(f"{fitting:,} of {load.batch:,} requests fit the cache at once: the others wait")
        if served:
            notes.append(TTFT_NOTE)
        if load.draft_tokens and setting.model.drafts is None:
            notes.append(f"{setting.model.size.spec.name} has no draft layers: drafting itself is taken as free")
        if load.shared_prefix:
            notes.append("a shared prefix saves its prefill and is stored once; a step reads it for every sequence")
        return notes


TTFT_NOTE = (
    "TTFT under load is uncertain: half of 1,657 published ones are past four times a prompt and a step, because who "
    "asks when decides how long a queue is"
)


def _queued(ttft: float, busy: float, service: float) -> float | None:
    return None if busy >= 1 else ttft + queue_seconds(busy, service)
