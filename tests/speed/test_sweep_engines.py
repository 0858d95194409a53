"""Engines as a side of a grid: what they hold and what fits, against each engine asked by itself."""

import pytest

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import engine_classes, find_engine
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import Workload, size_workload
from kvcalc.speed.fitting import sequences_that_fit
from kvcalc.speed.setting import Use, machine_for, make_setting
from kvcalc.speed.sweep import held
from kvcalc.speed.sweep.asked import Asked
from kvcalc.speed.sweep.asking import counts_of, engine_names, listed
from kvcalc.speed.sweep.grid import Grid
from kvcalc.speed.sweep.stream import records

MODELS = ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "qwen3-next-80b-a3b", "deepseek-v4-flash"]
NAMES = ["vllm", "vllm@0.6", "sglang", "tensorrt-llm", "llama.cpp", "transformers"]


def rows_of(asked):
    return [row for frame in Grid(asked).frames() for row in records(frame)]


def allocated(engine, size):
    try:
        return engine.allocate(size).allocated_bytes
    except KvcalcError:
        return None


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sharding", [Sharding(), Sharding(tp=2, dp=2)])
def test_what_an_engine_holds_is_what_it_allocates_for_each_point(model, name, sharding):
    spec, engines = kvcalc.load(model), engine_names([name], is_timed=False)
    contexts, batches = (1, 1000, 4097, 60_000), (1, 3, 8, 100, 300)
    asked = Asked(specs=(spec,), uses=(Use(sharding=sharding),), contexts=contexts, batches=batches, engines=engines)
    engine = find_engine(engines[0])
    wanted = [
        allocated(engine, size_workload(spec, Workload(context, batch), sharding))
        for context in contexts
        for batch in batches
    ]
    if wanted[0] is None:
        with pytest.raises(KvcalcError):
            rows_of(asked)
        return
    rows = rows_of(asked)
    assert [row["allocated_bytes"] for row in rows] == wanted
    assert {row["engine"] for row in rows} == {f"{engine.name}@{engine.version}"}


def test_refused_batches_are_missing_and_said():
    asked = Asked(specs=(kvcalc.load("llama-8b"),), uses=(Use(),), contexts=(512,), batches=tuple(range(254, 260)),
                  engines=("llama.cpp@b11549",))  # fmt: skip
    grid = Grid(asked)
    rows = [row for frame in grid.frames() for row in records(frame)]
    assert [row["allocated_bytes"] is None for row in rows] == [False] * 3 + [True] * 3
    assert any("at most 256 slots" in note for note in grid.notes)


def test_bytes_past_counting_are_refused(monkeypatch):
    monkeypatch.setattr(held, "MOST_BYTES", 10**9)
    with pytest.raises(KvcalcError, match="8 EiB"):
        rows_of(
            Asked(specs=(kvcalc.load("llama-8b"),), uses=(Use(),), contexts=(9000,), batches=(1,), engines=("vllm",))
        )


@pytest.mark.parametrize(
    "name", [name for name, one in engine_classes().items() if not one.batch_moves_capacity] + [None]
)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b"])
def test_where_the_batch_does_not_count_any_batch_gives_the_same_room(name, model):
    use = Use(weights="fp8", sharding=Sharding(tp=2))
    setting = make_setting(kvcalc.load(model), machine_for("h100-sxm", name, use), use)
    found = {
        sequences_that_fit(setting, use, setting.model.size.at(5000, batch), name, 0).sequences
        for batch in (1, 2, 37, 4000)
    }
    assert len(found) == 1
    assert found.pop() > 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sharding", [Sharding(), Sharding(tp=4), Sharding(tp=2, pp=3, dp=2)])
def test_a_size_at_another_point_is_that_of_its_own(model, sharding):
    spec = kvcalc.load(model)
    one = size_workload(spec, Workload(7, 1), sharding)
    _ = one.parameters, one.bytes_per_sequence, one.read_bytes_per_step, one.weight_bytes
    for context, batch in ((1, 1), (513, 9), (100_000, 64)):
        moved, own = one.at(context, batch), size_workload(spec, Workload(context, batch), sharding)
        for name in ("workload", "bytes_per_rank", "all_ranks_bytes", "bytes_per_sequence", "total_bytes",
                     "read_bytes_per_step", "weight_bytes", "bytes_per_token"):  # fmt: skip
            assert getattr(moved, name) == getattr(own, name), name
    with pytest.raises(KvcalcError, match="8 EiB"):
        one.at(10**12, 10**12)


def test_engines_stand_side_by_side_as_each_alone():
    fields = {"specs": (kvcalc.load("llama-8b"),), "uses": (Use(),), "contexts": (2048, 60_000), "batches": (1, 64),
              "gpus": ("h100-sxm5-80gb", "l40s")}  # fmt: skip
    names = engine_names(["vllm@0.24, sglang", "gpt-fast"], is_timed=True)
    assert [name.partition("@")[0] for name in names] == ["vllm", "sglang", "gpt-fast"]
    together = rows_of(Asked(**fields, engines=names))
    alone = [row for name in names for row in rows_of(Asked(**fields, engines=(name,)))]
    unlike = {"pareto"}
    assert [{key: row[key] for key in row.keys() - unlike} for row in together] == [
        {key: row[key] for key in row.keys() - unlike} for row in alone
    ]
    assert len({row["step_seconds"] for row in together if row["fits"]}) > len(together) // 4


def test_names_of_engines():
    assert engine_names(None, is_timed=True) == (None,)
    assert engine_names(["vllm,vllm@0.33"], is_timed=False) == ("vllm@0.33.0",)
    for text, is_timed in (("gpt-fast", False), ("vllm@99", True), ("abacus", True), ("", False)):
        with pytest.raises(KvcalcError):
            engine_names([text], is_timed=is_timed)
    assert listed([" a,b", "a"]) == ["a", "b"]


def test_counts_of_the_python_side():
    assert counts_of("1K..4K", "batch") == (1024, 2048, 4096)
    assert counts_of([8, 1, 8], "batch") == (1, 8)
    for wrong in ([], [0], "1..1000000000+1", "x"):
        with pytest.raises(KvcalcError):
            counts_of(wrong, "batch")


def test_the_frame_is_what_the_command_says(kvcalc):
    import kvcalc as api

    flags = ("--ctx", "1K..4K", "--batch", "1,8", "--kv-dtype", "bf16,fp8", "--engine", "vllm,sglang")
    points = kvcalc("sweep", "llama-8b", "gemma-3-27b", *flags, "--format", "json").json["points"]
    frame = api.sweep(["llama-8b", api.load("gemma-3-27b")], "1K..4K", [1, 8], engines=["vllm", "sglang"],
                      kv_dtypes=["bf16", "fp8"])  # fmt: skip
    assert list(records(frame)) == points
    flags = ("--gpu", "h100-sxm,l40s", "--tp", "1,2", "--ctx", "2304", "--osl", "256", "--served", "--dp", "2")
    points = kvcalc("sweep", "llama-8b", *flags, "--format", "json").json["points"]
    frame = api.sweep("llama-8b", [2304], gpus=["h100-sxm", "l40s"], tp="1,2", osl=256, served=True, dp=2)
    assert list(records(frame)) == points
    with pytest.raises(KvcalcError, match="too many for one document"):
        api.sweep("llama-8b", "1..2000+1", "1..1000+1")
