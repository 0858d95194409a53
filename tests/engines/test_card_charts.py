"""Charts of a card, against the search that kvcalc fit does."""

import pytest

from kvcalc.cache.sharding import Sharding
from kvcalc.engines.charts import BATCH, FREE, REST, OnCard, capacity_chart
from kvcalc.engines.engine import find_engine
from kvcalc.engines.fit import largest_context
from kvcalc.engines.plan import Budget, Plan, evaluate
from kvcalc.model.catalog import load
from kvcalc.sizing.need import Workload


def plan(model="llama-8b", engine="vllm", **work):
    budget = Budget.of(gpu="h100-sxm", gpu_memory=None, kv_cache_memory=None)
    load_ = Workload(**{"context_tokens": 8192, "batch": 4, **work})
    return Plan(spec=load(model), workload=load_, sharding=Sharding(), engine=find_engine(engine), budget=budget)


@pytest.mark.parametrize("model", ["llama-8b", "gemma3-27b"])
def test_so_many_sequences_of_so_long_a_context_fit_and_no_more(model):
    asked = plan(model)
    (series,) = capacity_chart([("it", asked)]).series
    assert series.y[0] == largest_context(asked.asking(batch=1))
    for batch, tokens in zip(series.x[1:], series.y[1:], strict=True):
        assert evaluate(asked.asking(batch=batch, context_tokens=tokens)).fits
        assert not evaluate(asked.asking(batch=batch + 1, context_tokens=tokens)).fits


def test_what_never_fits_has_no_line():
    assert capacity_chart([("it", plan("deepseek-v3"))]).series == ()


def test_the_parts_of_a_card_add_up_to_it():
    outcome = evaluate(plan())
    card = OnCard.of_outcome(outcome, outcome.plan.engine.allocate(outcome.size).allocated_bytes)
    parts = card.parts()
    assert sum(parts.values()) == outcome.plan.budget.total_bytes
    assert parts[BATCH] + parts[REST] == outcome.pool.expected
    assert parts[FREE] == outcome.aside_bytes


def test_a_card_that_is_short_says_by_how_much():
    outcome = evaluate(plan("deepseek-v3"))
    assert "short on a rank" in OnCard.of_outcome(outcome, 1).says("it")
