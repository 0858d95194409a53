"""An engine's pools in a what-if panel are the answers of `kvcalc fit` at every stop."""

import pytest

import kvcalc as api
from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import find_engine
from kvcalc.engines.fit import most_sequences
from kvcalc.engines.plan import Budget, Plan, evaluate
from kvcalc.engines.whatif import plan_case
from kvcalc.sizing.need import Workload


def plan_of(engine, **sharding):
    return Plan(
        spec=api.load("llama-3.1-8b"),
        workload=Workload(context_tokens=60_000, batch=2),
        sharding=Sharding(**sharding),
        engine=find_engine(engine),
        budget=Budget(pool_bytes=20 * 2**30),
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_every_stop_is_what_fit_answers(engine):
    plan = plan_of(engine, dp=2)
    case = plan_case("x", plan, tps=(1, 4))
    assert [form["names"][0] for form in case["formats"]] == ["auto", "fp8", "nvfp4"]
    for form, by_rank in zip(case["formats"], case["engine"]["pools"], strict=True):
        for ranks, stops in zip(case["ranks"], by_rank, strict=True):
            for tokens, stop in zip(case["contexts"], stops, strict=True):
                varied = plan.on(tp=ranks["tp"]).asking(kv_dtype=form["names"][0], context_tokens=tokens)
                outcome = evaluate(varied)
                assert stop == (20 * 2**30, most_sequences(outcome), outcome.basis)
    assert 60_000 in case["contexts"]


def test_an_engine_without_ranks_keeps_its_one():
    case = plan_case("x", plan_of("llama.cpp"), formats=())
    assert [ranks["tp"] for ranks in case["ranks"]] == [1]


def test_what_an_engine_refuses_is_said_where_it_refuses():
    case = plan_case("x", plan_of("transformers"), tps=(1, 2))
    one, two = case["engine"]["pools"][0]
    assert all(len(stop) == 3 for stop in one)
    assert set(two) == {"transformers holds a dynamic cache on one rank here"}
