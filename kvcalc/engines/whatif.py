"""What an engine's pool carries at every stop of a what-if panel, computed here: a page has no engine's rules.

`plan_case(name, plan)` is `kvcalc.sizing.whatif.whatif_case` with the engine's pools beside it.
"""

from collections.abc import Sequence

from kvcalc.engines.fit import most_sequences
from kvcalc.engines.plan import Plan, evaluate
from kvcalc.errors import KvcalcError
from kvcalc.sizing.panel_data import Carried, CaseData
from kvcalc.sizing.whatif import TENSOR_PARALLEL, exact, powers_of_two, whatif_case


def plan_case(
    name: str,
    plan: Plan,
    *,
    model: str | None = None,
    formats: Sequence[str] | None = None,
    tps: Sequence[int] = TENSOR_PARALLEL,
) -> CaseData:
    """One plan; `formats` are those of its engine by default. KvcalcError where the engine refuses the plan itself.

    An engine that splits layers over cards by itself has no ranks, so its TP does not move.
    """
    evaluate(plan)
    case = whatif_case(
        name,
        plan.spec,
        plan.workload,
        plan.sharding,
        model=model,
        formats=plan.engine.kv_formats if formats is None else formats,
        tps=() if plan.engine.spreads_layers else tps,
        contexts=powers_of_two(_SHORTEST, plan.spec.max_context or _LONGEST),
    )
    pools = [[_pools(plan, form["names"][0], ranks["tp"], case) for ranks in case["ranks"]] for form in case["formats"]]
    return {**case, "engine": {"name": _name(plan), "pools": pools}}


_SHORTEST, _LONGEST = 1024, 2**20
"""In tokens. Fewer contexts than where nothing but the need is asked: an engine takes up to a second for each."""


def _name(plan: Plan) -> str:
    engine, budget = plan.engine, plan.budget
    rules = "no engine" if engine.is_plain else f"{engine.name} {engine.version}"
    return rules if budget.gpu is None else f"{rules} on {budget.gpu}"


def _pools(plan: Plan, kv_dtype: str, tp: int, case: CaseData) -> list[Carried]:
    """At every context of the case."""
    varied = plan.asking(kv_dtype=kv_dtype).on(tp=tp)
    return [_carried(varied, tokens) for tokens in case["contexts"]]


def _carried(plan: Plan, tokens: int) -> Carried:
    try:
        outcome = evaluate(plan.asking(context_tokens=tokens))
        return exact(max(0, outcome.pool.expected)), most_sequences(outcome), outcome.basis
    except KvcalcError as error:
        return error.message
