"""What a log reveals beside the cache, rank by rank, and what `kvcalc fit --overheads FILE` takes of it."""

from collections.abc import Sequence
from datetime import date
from typing import cast

from kvcalc.engines.documents import RankOverheadsDocument
from kvcalc.engines.logs.pattern import Finding, Printed
from kvcalc.engines.overheads_file import SavedOverheads
from kvcalc.engines.reconcile.question import Question
from kvcalc.errors import KvcalcError
from kvcalc.units import memory

TERMS = {
    "weights_bytes": "weights",
    "activation_bytes": "activations",
    "graphs_bytes": "CUDA graphs",
    "communication_bytes": "communication",
    "non_torch_bytes": "non-torch",
}
"""Keys of the figures, and what `kvcalc fit` calls them."""

TOTAL, CONSUMED, ESTIMATE = "total_bytes", "consumed_bytes", "graphs_estimate_bytes"
KEYS = (TOTAL, *TERMS, CONSUMED)

UNKNOWN = "unknown"


def overheads_of(findings: Sequence[Finding]) -> list[RankOverheadsDocument]:
    """Bytes of every rank or device, the last line of each kind; what no line says is null."""
    ranks: dict[str, dict[str, int]] = {}
    is_estimated = any(said.text == "enabled" for one in findings for said in _all(one, "graphs_profile"))
    estimates = {one.rank: int(said.number) for one in findings for said in _all(one, ESTIMATE)}
    for one in findings:
        numbers = {key: said.value for key, said in one.values.items() if key in KEYS and said.value is not None}
        taken = {key: max(0, int(number)) for key, number in numbers.items()}
        if not taken:
            continue
        held = ranks.setdefault(next((said.text for said in _all(one, "device")), one.rank), {})
        if CONSUMED in taken and "weights_bytes" in held:
            taken.setdefault("non_torch_bytes", max(0, taken[CONSUMED] - held["weights_bytes"]))
        if is_estimated and {"activation_bytes", "graphs_bytes"} <= set(taken):
            # vLLM 0.33, gpu_worker.py: peak_activation_memory has the estimate of the graphs in it.
            estimate = estimates.get(one.rank, 0)
            taken |= {"activation_bytes": max(0, taken["activation_bytes"] - estimate), "graphs_bytes": estimate}
        held.update(taken)
    return [
        cast("RankOverheadsDocument", {"rank": rank, **{key: held.get(key) for key in KEYS}})
        for rank, held in ranks.items()
    ]


def _all(one: Finding, key: str) -> list[Printed]:
    return [one.values[key]] if key in one.values else []


def saved_overheads(findings: Sequence[Finding], question: Question, version: str | None) -> SavedOverheads:
    """The terms of the rank that holds most beside its cache; KvcalcError where the log says nothing of any."""
    found = [cast("dict[str, int | None]", rank) for rank in overheads_of(findings)]
    ranks = [{name: held for key, name in TERMS.items() if (held := rank[key]) is not None} for rank in found]
    terms = max(ranks, key=lambda held: sum(held.values()), default={})
    if not terms:
        raise KvcalcError(
            "--save: the log says nothing of what lies beside the cache", "give the log from its start on"
        )
    totals = [total for rank in found if (total := rank[TOTAL])]
    sharding = question.sharding
    return SavedOverheads(
        terms=terms,
        engine=question.engine.name,
        version=version or UNKNOWN,
        model=question.spec.name,
        gpu=f"a card of {memory(max(totals))}" if totals else UNKNOWN,
        date=date.today().isoformat(),
        tp=sharding.tp,
        pp=sharding.pp,
        ep=sharding.ep,
    )
