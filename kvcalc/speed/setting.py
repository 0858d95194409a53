"""From a model, a GPU and how they are used to a setting, and from a setting to the costs of a pass."""

from typing import Any

import msgspec

from kvcalc.cache.formats import AUTO
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, Workload, size_workload
from kvcalc.speed.kernels import Cost, Pass, Setting
from kvcalc.speed.machine import Machine, find_machine
from kvcalc.speed.rank import RankModel, rank_model
from kvcalc.speed.terms import draft_costs, pass_costs
from kvcalc.speed.weights import WeightNumbers, file_numbers, weight_numbers


class Use(msgspec.Struct, frozen=True):
    """How a model is used: formats by name (None leaves them to the spec), and how it is spread over GPUs.

    With `attention_dp` data-parallel ranks are taken from the tensor-parallel ones and share all but attention.
    `encoder_tokens` replaces the spec's own.
    """

    weights: str | None = None
    kv_dtype: str = AUTO
    dtype: str | None = None
    state_dtype: str | None = None
    encoder_tokens: int | None = None
    sharding: Sharding = Sharding()
    attention_dp: bool = False
    draft_layers: int = 0

    def __post_init__(self) -> None:
        tp, dp, ep = self.sharding.tp, self.sharding.dp, self.sharding.ep
        if self.attention_dp and (dp == 1 or tp % dp):
            raise KvcalcError(
                f"--attention-dp --tp {tp} --dp {dp}: --dp ranks are taken from the --tp ones, which they divide",
                "write --tp 8 --dp 8 --attention-dp",
            )
        if ep > tp:
            raise KvcalcError(
                f"--ep {ep} --tp {tp}: experts are timed on --tp ranks that share them, and there are fewer",
                f"--tp {ep} --ep {ep}, with --dp {ep} --attention-dp where each keeps attention whole",
            )

    @property
    def gpus(self) -> int:
        """GPUs of one copy of the model, data-parallel ranks among them."""
        ranks = self.sharding
        return ranks.tp * ranks.pp * (1 if self.attention_dp else ranks.dp)


def make_setting(spec: ModelSpec, machine: Machine, use: Use) -> Setting:
    """The model on one rank of `machine`, ready to be priced."""
    return setting_on(model_on_rank(spec, use), machine, use)


def model_on_rank(spec: ModelSpec, use: Use) -> RankModel:
    """What no GPU changes of a setting."""
    return rank_model(size_workload(spec, workload_of(use, 1, 1), use.sharding), use.attention_dp)


def setting_on(model: RankModel, machine: Machine, use: Use) -> Setting:
    """A model of that use on one rank of `machine`."""
    return Setting(model, _numbers(model.size, machine, use, model.has_experts), machine)


def _numbers(size: CacheSize, machine: Machine, use: Use, has_experts: bool) -> WeightNumbers:
    """The numbers that are asked for; else those of the files that the model was read from, or the model's own."""
    if use.weights is None and size.weights_are_files:
        share = (size.weight_bytes or 0) / (size.parameters.total or 1)
        return file_numbers(size.weights_format, share, machine)
    return weight_numbers(use.weights or size.packer.dtype, size.packer.dtype, machine, has_experts)


def workload_of(use: Use, context: int, batch: int) -> Workload:
    """The workload of a use."""
    return Workload(
        context_tokens=context,
        batch=batch,
        kv_dtype=use.kv_dtype,
        dtype=use.dtype,
        weights=use.weights,
        state_dtype=use.state_dtype,
        encoder_tokens=use.encoder_tokens,
        draft_layers=use.draft_layers,
    )


def machine_for(gpu: str, engine: str | None, use: Use) -> Machine:
    """The machine under a use: ranks that exchange activations need a link."""
    return find_machine(gpu, engine, use.sharding.tp * use.sharding.pp)


def decode_costs(setting: Setting, batch: Any, context: Any, drafted: int = 0) -> list[Cost]:
    """One step of `batch` sequences of `context` tokens: on a rank, and a micro-batch of its pipeline.

    It checks `drafted` tokens more a sequence, after the draft layers have made them one by one.
    """
    sharding = setting.model.sharding
    per_rank = -(-batch // (sharding.dp * sharding.pp))
    # A micro-batch may be fuller than others: no more is certain than its share.
    in_all = batch / sharding.pp if setting.model.attention_dp else None
    costs = pass_costs(setting, Pass(per_rank, 1 + drafted, context, is_prompt=False, in_all=in_all))
    one = Pass(per_rank, 1, context, is_prompt=False, in_all=in_all)
    return costs + [cost for _ in range(drafted) for cost in draft_costs(setting, one)]


def prefill_costs(setting: Setting, tokens: Any, kept: Any = 0, batch: Any = 1) -> list[Cost]:
    """A prompt of `tokens` tokens behind `kept` that are in the cache already, `batch` of them at once on a rank."""
    return pass_costs(setting, Pass(batch, tokens, kept + tokens, is_prompt=True))


def seconds_of(costs: list[Cost]) -> Any:
    """All costs together."""
    return sum(cost.seconds for cost in costs)
