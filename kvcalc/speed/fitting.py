"""Whether the sequences fit the cards, by the rules of the engine where it has any here."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from kvcalc.engines.engine import find_engine
from kvcalc.engines.plain import Plain
from kvcalc.engines.plan import Budget, Outcome, Plan
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.speed.kernels import Setting
from kvcalc.speed.room import most_sequences
from kvcalc.speed.setting import Use
from kvcalc.units import memory


def sequences_that_fit(setting: Setting, use: Use, size: CacheSize, engine: str | None, shared: int) -> "Fitting":
    """Whole sequences of the context of `size` that run at once.

    `shared` tokens of each are kept once. What no engine's rules reach (a card of whose memory only the
    label is known, attention-DP but SGLang's) is counted by `room.most_sequences`.
    """
    gpu = setting.machine.gpu
    has_rules = gpu.driver_memory_bytes is not None and (engine is None or _has_rules(engine))
    flags = _flags(engine, use) if has_rules else None
    if shared or flags is None:
        return Fitting(int(most_sequences(setting, size.workload.context_tokens, shared)), None)
    plan = Plan(
        spec=size.spec,
        workload=size.workload,
        sharding=use.sharding,
        engine=Plain() if engine is None else find_engine(engine, flags),
        budget=Budget.of(gpu=gpu.name, gpu_memory=None, kv_cache_memory=None),
    )
    outcome = Outcome(plan, size)
    return Fitting(outcome.sequences, outcome)


class Fitting(NamedTuple):
    """How many sequences fit, and what an engine's rules make of it; None where they do not reach it."""

    sequences: int
    outcome: Outcome | None

    @property
    def reason(self) -> str:
        """Where that comes from in words."""
        if self.outcome is None:
            return "beside the weights"
        terms = (term for term in self.outcome.terms if term.expected_bytes)
        beside = ", ".join(f"{term.name} {memory(term.expected_bytes)}" for term in terms)
        return f"a pool of {memory(max(0, self.outcome.pool.expected))} a rank beside {beside or 'nothing'}"


def moves_with_batch(engine: str | None) -> bool:
    """Whether how many fit depends on the batch that is asked about."""
    return engine is not None and _has_rules(engine) and find_engine(engine).batch_moves_capacity


@cache
def _has_rules(engine: str) -> bool:
    try:
        find_engine(engine)
    except KvcalcError:
        return False
    return True


def _flags(engine: str | None, use: Use) -> Mapping[str, bool] | None:
    """The flags of attention-DP, which moves weights, where it is asked; None where an engine has no rules for it."""
    if not use.attention_dp:
        return {}
    return None if engine is None else find_engine(engine).attention_dp_flags
