"""Charts of a card: what lies on it, and which loads its pool carries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcalc.chart import Axis, Chart, Series
from kvcalc.engines.fit import largest_context, outcome_or_none
from kvcalc.engines.plan import Plan
from kvcalc.sizing.charts import contexts_of
from kvcalc.units import counted, memory

if TYPE_CHECKING:
    from kvcalc.engines.documents import FitDocument

BATCH, REST, FREE = "KV cache of the batch", "rest of the pool", "left free"


def card_chart(cases: "Sequence[tuple[str, FitDocument]]") -> Chart:
    """What lies on the fullest rank, a bar a case: what is no cache, the batch's caches, and what is left."""
    rows = [card_bytes(document) for _, document in cases]
    names = list(dict.fromkeys(name for row in rows for name in row if name not in (BATCH, REST, FREE)))
    labels = [label for label, _ in cases]
    series = tuple(
        Series(name, labels, [row.get(name) for row in rows], "bar")
        for name in (*names, BATCH, REST, FREE)
        if any(row.get(name) for row in rows)
    )
    says = " ".join(_said(*case) for case in cases) if len(cases) == 1 else "What lies on the fullest rank of each."
    axes = Axis("", "text"), Axis("memory of a rank", "bytes")
    return Chart("card", "Memory of a rank", *axes, series, says, is_stacked=True)


def card_bytes(document: "FitDocument") -> dict[str, int]:
    """Expected bytes of a rank by what takes them; without a card there is the pool alone."""
    beside = {term["name"]: term["expected_bytes"] for term in document["terms"]}
    pool, held, gpu = max(0, document["pool_bytes"]), document["allocated_bytes"], document["gpu"]
    taken = {**beside, BATCH: held, REST: max(0, pool - held)}
    # Where an engine spreads layers over cards by itself, its one rank has all of their memory.
    ranks = document["request"]["tp"] * document["request"]["pp"] * document["request"]["dp"]
    total = gpu["total_bytes"] * max(1, gpu["count"] // ranks) if gpu else 0
    return {**taken, FREE: max(0, total - sum(taken.values()))}


def _said(label: str, document: "FitDocument") -> str:
    held, pool = document["allocated_bytes"], document["pool_bytes"]
    if pool <= 0:
        return f"{label} is {memory(-pool)} short on a rank before anything is cached."
    return f"{label} takes {memory(held)} of a pool of {memory(pool)} on a rank, {held / pool:.0%}."


def capacity_chart(plans: Sequence[tuple[str, Plan]]) -> Chart:
    """The longest context that so many sequences can have at once, a line a plan."""
    series = tuple(_capacity(label, plan) for label, plan in plans)
    most = [f"{one.name}: {_largest(one)}." for one in series[:_MOST_SAID] if one.x]
    axes = Axis("sequences at once", "count", is_log=True), Axis("longest context", "tokens", is_log=True)
    return Chart("capacity", "Capacity against batch", *axes, tuple(one for one in series if one.x), " ".join(most))


_MOST_SAID = 3


def _largest(series: Series) -> str:
    ends = ((int(series.x[place]), int(series.y[place] or 0)) for place in (0, -1))
    return " to ".join(f"{counted(batch, 'sequence')} of {counted(tokens, 'token')}" for batch, tokens in ends)


def _capacity(label: str, plan: Plan) -> Series:
    """At each context what the pool carries, and for each count of sequences the longest such context."""
    outcome = outcome_or_none(plan)
    longest: dict[int, int] = {}
    if outcome is not None:
        alone = largest_context(plan.asking(batch=1))
        longest = {plan.sharding.dp: alone} if alone else {}
        for tokens in contexts_of(outcome.size):
            carried = outcome_or_none(plan.asking(context_tokens=tokens))
            if carried is not None and carried.sequences:
                longest[carried.sequences] = max(tokens, longest.get(carried.sequences, 0))
    batches = sorted(longest)
    return Series(label, batches, [longest[batch] for batch in batches])
