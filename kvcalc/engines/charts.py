"""Charts of a card: what lies on it, and which loads its pool carries."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from kvcalc.chart import Axis, Chart, Series
from kvcalc.engines.fit import largest_context, outcome_or_none
from kvcalc.engines.plan import Outcome, Plan
from kvcalc.sizing.charts import contexts_of
from kvcalc.units import counted, memory

if TYPE_CHECKING:
    from kvcalc.engines.documents import FitDocument

_MOST_SAID = 3
"""Cases that a chart's sentence speaks of."""
BATCH, REST, FREE = "KV cache of the batch", "rest of the pool", "left free"


class OnCard(msgspec.Struct, frozen=True):
    """Bytes of one rank, the fullest: what is no cache, its pool, what the batch takes of it, and the card's own."""

    beside: Mapping[str, int]
    pool: int
    held: int
    total: int

    @classmethod
    def of_document(cls, document: "FitDocument") -> "OnCard":
        """As a saved answer of `kvcalc fit` has it."""
        beside = {term["name"]: term["expected_bytes"] for term in document["terms"]}
        gpu, asked = document["gpu"], document["request"]
        # Where an engine spreads layers over cards by itself, its one rank has all of their memory.
        total = gpu["total_bytes"] * max(1, gpu["count"] // (asked["tp"] * asked["pp"] * asked["dp"])) if gpu else 0
        return cls(beside, document["pool_bytes"], document["allocated_bytes"], total)

    @classmethod
    def of_outcome(cls, outcome: Outcome, held: int) -> "OnCard":
        """As a plan comes out whose engine holds so many bytes for the batch."""
        beside = {term.name: term.expected_bytes for term in outcome.terms}
        budget = outcome.plan.budget
        return cls(beside, outcome.pool.expected, held, budget.cards * (budget.total_bytes or 0))

    def parts(self) -> dict[str, int]:
        """What the bytes are taken by, in the order in which they are drawn."""
        taken = {**self.beside, BATCH: self.held, REST: max(0, self.pool - self.held)}
        return {**taken, FREE: max(0, self.total - sum(taken.values()))}

    def says(self, label: str) -> str:
        """How full the pool is, in a sentence."""
        if self.pool <= 0:
            return f"{label} is {memory(-self.pool)} short on a rank before anything is cached."
        share = self.held / self.pool
        return f"{label} takes {memory(self.held)} of a pool of {memory(self.pool)} on a rank, {share:.0%}."


def card_chart(cases: Sequence[tuple[str, OnCard]]) -> Chart:
    """What lies on the fullest rank, a bar a case: what is no cache, the batch's caches, and what is left."""
    rows = [card.parts() for _, card in cases]
    beside = dict.fromkeys(name for row in rows for name in row if name not in (BATCH, REST, FREE))
    labels = [label for label, _ in cases]
    series = tuple(
        Series(name, labels, [row.get(name) for row in rows], "bar", is_dashed=name in (REST, FREE))
        for name in (*beside, BATCH, REST, FREE)
        if any(row.get(name) for row in rows)
    )
    said = [card.says(label) for label, card in cases] if len(cases) <= _MOST_SAID else []
    says = " ".join(said) or "What lies on the fullest rank of each case, and how much of its pool the batch takes."
    axes = Axis("", "text"), Axis("memory of a rank", "bytes")
    return Chart("card", "Memory of a rank", *axes, series, says, is_stacked=True)


def capacity_chart(plans: Sequence[tuple[str, Plan]]) -> Chart:
    """The longest context that so many sequences can have at once, a line a plan."""
    series = tuple(_capacity(label, plan) for label, plan in plans)
    told = tuple(one for one in series if one.x)
    said = [f"{one.name}: {_largest(one)}." for one in told] if len(told) <= _MOST_SAID else []
    says = " ".join(said) or "The longest context that so many sequences can have at once, in each case."
    axes = Axis("sequences at once", "count", is_log=True), Axis("longest context", "tokens", is_log=True)
    return Chart("capacity", "Capacity against batch", *axes, told, says)


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
