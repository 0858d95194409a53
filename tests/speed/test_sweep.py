"""Grids against their points answered one by one, fronts against the definition, and limits that one more breaks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import size_workload
from kvcalc.speed.calibration import Scales
from kvcalc.speed.fitting import sequences_that_fit
from kvcalc.speed.setting import Use, machine_for, make_setting, workload_of
from kvcalc.speed.sweep import axis, cells, grid
from kvcalc.speed.sweep.asked import Asked, make_ready
from kvcalc.speed.sweep.axis import Axis, parse_axis, refuse_too_many
from kvcalc.speed.sweep.front import Front
from kvcalc.speed.sweep.goals import Answers, Goals
from kvcalc.speed.sweep.grid import Grid
from kvcalc.speed.sweep.money import Rates, parse_powers, parse_prices, parse_seconds
from kvcalc.speed.sweep.room import Room
from kvcalc.speed.sweep.stream import records
from kvcalc.speed.throughput import Load, estimate

H100, H200 = "h100-sxm5-80gb", "h200-sxm-141gb"
MODELS = ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b", "gpt-oss-20b"]
counts = st.lists(st.integers(1, 3000), min_size=1, max_size=3, unique=True).map(sorted)
contexts = st.lists(st.integers(200, 60_000), min_size=1, max_size=3, unique=True).map(sorted)


def asked(model="llama-3.1-8b", use=None, gpus=(H100,), **changes):
    given = {"contexts": (2304,), "batches": (1, 8, 64), "osl": 256, **changes}
    uses = use if isinstance(use, tuple) else (use or Use(),)
    models = model if isinstance(model, tuple) else (model,)
    engines = (given.pop("engine", None),)
    return Asked(specs=tuple(map(kvcalc.load, models)), uses=uses, gpus=gpus, engines=engines, **given)


def rows_of(found):
    return [row for frame in found.frames() for row in records(frame)]


def single(row, engine=None, served=False, scales=None):
    """The answer of `kvcalc throughput` for a row, None where it refuses because the sequences do not fit."""
    use = Use(weights=row["weights"], kv_dtype=row["kv_dtype"], sharding=Sharding(tp=row["tp"]))
    load = Load(isl=row["isl"], osl=row["osl"], batch=row["batch"])
    try:
        found = estimate(kvcalc.load(row["model"]), row["gpu"], load, use, engine=engine, served=served, scales=scales)
    except KvcalcError as error:
        assert "not fit" in error.message, error.message
        return None
    # A served batch that does not fit waits; a point of a grid is one that runs.
    return None if served and found.served.running < row["batch"] else found


@pytest.mark.parametrize("engine", [None, "vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("served", [False, True])
@settings(max_examples=4)
@given(
    model=st.sampled_from(MODELS),
    batches=counts,
    tokens=contexts,
    kv=st.sampled_from(["auto", "fp8"]),
    tp=st.sampled_from([1, 2, 8]),
)
def test_every_cell_is_the_single_answer(engine, served, model, batches, tokens, kv, tp):
    if engine == "llama.cpp":
        model, kv, tp = "llama-3.1-8b", "auto", 1
    use = Use(weights="bf16" if engine == "llama.cpp" else "fp8", kv_dtype=kv, sharding=Sharding(tp=tp))
    scales = Scales({"bandwidth": 1.2, "host": 0.5})
    question = asked(model, use, contexts=tuple(tokens), batches=tuple(batches), osl=100, served=served, engine=engine,
                     scales={H100: scales})  # fmt: skip
    try:
        rows = rows_of(Grid(question))
    except KvcalcError:
        with pytest.raises(KvcalcError):
            estimate(kvcalc.load(model), H100, Load(isl=tokens[0] - 100, osl=100), use, engine=engine)
        return
    assert len(rows) == len(batches) * len(tokens)
    for row in rows:
        found = single(row, engine, served, scales)
        assert row["fits"] is (found is not None), row
        size = size_workload(kvcalc.load(model), workload_of(use, row["context_tokens"], row["batch"]), use.sharding)
        need = size.bytes_per_sequence, size.total_bytes, size.bytes_per_rank, size.read_bytes_per_step
        assert tuple(row[column.key] for column in cells.MEMORY) == need
        if found is None:
            assert row["step_seconds"] is row["tokens_per_second"] is row["limited_by"] is None
            continue
        each = found.served.tpot if served else found.decode
        assert row["step_seconds"] == pytest.approx(found.decode.seconds, rel=1e-12)
        assert row["prefill_seconds"] == pytest.approx(found.prefill.seconds, rel=1e-12)
        assert row["tokens_per_second_per_user"] == pytest.approx(1 / each.seconds, rel=1e-12)
        assert row["tokens_per_second"] == pytest.approx(row["batch"] / each.seconds, rel=1e-12)
        assert row["tokens_per_second_per_gpu"] == pytest.approx(row["batch"] / each.seconds / tp, rel=1e-12)
        assert row["limited_by"] == each.limited_by
        if served:
            assert row["tpot_seconds"] == pytest.approx(found.served.tpot.seconds, rel=1e-12)
            assert row["ttft_seconds"] == pytest.approx(found.served.ttft.seconds, rel=1e-12)


@pytest.mark.parametrize("model", [*MODELS, "mamba-2.8b", "deepseek-v4-flash"])
@pytest.mark.parametrize("sharding", [Sharding(), Sharding(tp=4), Sharding(tp=2, pp=3, dp=2, dcp=2)])
def test_memory_needs_no_gpu(model, sharding):
    question = asked(model, Use(sharding=sharding), gpus=(), contexts=(1, 127, 4096, 2**20), batches=(1, 7))
    rows = rows_of(Grid(question))
    assert len(rows) == 8
    for row in rows:
        size = size_workload(kvcalc.load(model), workload_of(Use(), row["context_tokens"], row["batch"]), sharding)
        need = size.bytes_per_sequence, size.total_bytes, size.bytes_per_rank, size.read_bytes_per_step
        assert tuple(row[column.key] for column in cells.MEMORY) == need
        assert row.keys() & {"gpu", "weights", "fits", "pareto", "isl"} == set()


def test_a_prompt_of_ten_million_tokens_does_not_wrap():
    """5e13 pairs of 64 heads of 4 x 128 FLOPs in 10 layers are 1.6e19, past 2^63."""
    use = Use(weights="fp8", kv_dtype="fp8", sharding=Sharding(pp=8))
    [row] = rows_of(Grid(asked("minimax-text-01", use, (H200,), contexts=(10_000_000,), batches=(1,))))
    load = Load(isl=10_000_000 - 256, osl=256)
    found = estimate(kvcalc.load("minimax-text-01"), H200, load, use)
    assert row["prefill_seconds"] == pytest.approx(found.prefill.seconds, rel=1e-12)
    assert row["prefill_seconds"] > 10**4


@pytest.mark.parametrize("engine", [None, "vllm", "transformers", "llama.cpp"])
@settings(max_examples=4)
@given(batches=counts, tokens=contexts)
def test_what_fits_is_asked_of_the_engine_point_by_point(engine, batches, tokens):
    use = Use()
    setting = make_setting(kvcalc.load("llama-3.1-8b"), machine_for(H100, engine, use), use)
    room = Room(setting, use, engine)
    for context, count in zip(tokens, room.fitting(tokens, batches), strict=True):
        fits = [
            sequences_that_fit(
                setting,
                use,
                size_workload(setting.model.size.spec, workload_of(use, context, batch), Sharding()),
                engine,
                0,
            ).sequences
            >= batch
            for batch in batches
        ]
        assert fits == [True] * count + [False] * (len(batches) - count)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b"])
def test_every_batch_up_to_the_most_fits(model):
    """Windows fill and stop growing: what fits at one context is no multiple of what fits at another."""
    question = asked(model, gpus=(H200,), engine="vllm")
    [deployment] = question.deployments
    room = make_ready(deployment, question).room
    tokens, batches = [600, 1000, 1500, 3000, 9000, 60_000], range(1, 2000)
    most = [room.most_at_once(context) for context in tokens]
    assert room.fitting(tokens, batches) == [min(count, 1999) for count in most]


def test_a_staircase_needs_fewer_questions_than_points():
    question = asked(contexts=tuple(range(512, 65_537, 512)), batches=(1, 16, 256))
    found = Grid(question)
    [(_, ready, _)] = found.prepared.deployments
    assert 0 < found.fitting < found.points == 128 * 3
    assert len(ready.room._most) < 64


figures = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40)


@given(figures, st.integers(1, 40))
def test_the_front_is_what_no_point_beats(pairs, block):
    points = np.array([*pairs, (math.nan, 99.0)], dtype=float)
    front = Front()
    for start in range(0, len(points), block):
        front.add(points[start : start + block, 0], points[start : start + block, 1])
    beaten = [
        any(x >= a and y >= b and (x, y) != (a, b) for x, y in pairs) or math.isnan(a) for a, b in points.tolist()
    ]
    assert front.holds(points[:, 0], points[:, 1]).tolist() == [not one for one in beaten]


def test_fronts_are_those_of_one_model_and_context():
    question = asked(("llama-3.1-8b", "qwen3-8b"), (Use(sharding=Sharding(tp=1)), Use(sharding=Sharding(tp=4))), (H100, H200),
                     contexts=(2304, 8448), batches=(1, 16, 64, 128), served=True)  # fmt: skip
    rows = rows_of(Grid(question))
    for row in rows:
        rivals = [one for one in rows if one["fits"] and (one["model"], one["isl"]) == (row["model"], row["isl"])]
        mine = row[grid.PER_USER] or 0, row[grid.PER_GPU] or 0
        beaten = any(one[grid.PER_USER] >= mine[0] and one[grid.PER_GPU] >= mine[1]
                     and (one[grid.PER_USER], one[grid.PER_GPU]) != mine for one in rivals)  # fmt: skip
        assert row["pareto"] is (row["fits"] and not beaten)
    assert {(row["model"], row["isl"]) for row in rows if row["pareto"]} == {
        (m, i) for m in ("llama-3.1-8b", "qwen3-8b") for i in (2048, 8192)
    }


def test_blocks_are_only_a_way_to_walk(monkeypatch):
    question = asked(contexts=tuple(range(1000, 1011)), batches=tuple(range(1, 900, 31)), served=True)
    whole = rows_of(Grid(question))
    monkeypatch.setattr(cells, "BLOCK_POINTS", 7)
    monkeypatch.setattr(axis, "MOST_HELD", 100)
    monkeypatch.setattr(grid, "FRAME_POINTS", 1)
    found = Grid(question)
    assert not found.is_held
    assert 0 < found.fitting < found.points
    pieces = list(found.frames())
    assert max(map(len, pieces)) <= 7
    again = [row for frame in pieces for row in records(frame)]

    def key(row):
        return row["context_tokens"], row["batch"]

    assert sorted(again, key=key) == sorted(whole, key=key)


@pytest.mark.parametrize(
    "bounds", [{"max_ttft": 0.5}, {"max_tpot": 0.03}, {"max_ttft": 0.16, "max_tpot": 0.02}, {"max_tpot": 9.0}]
)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_one_more_user_breaks_it(bounds, model):
    question = asked(model, tuple(Use(sharding=Sharding(tp=tp)) for tp in (1, 2)), contexts=(2304, 16_640))
    rows = Answers(question, Goals(**bounds)).rows
    assert len(rows) == 4
    for row in rows:
        most = row["most_users"]
        assert not most or keeps(row, most, bounds)
        assert not keeps(row, most + 1, bounds)
        assert row.get("users_per_copy", 0) == most
        broken = single({**row, "batch": most + 1}, served=True)
        over = set() if broken else {"memory"}
        if broken:
            over |= {"TTFT"} if broken.served.ttft.seconds > bounds.get("max_ttft", math.inf) else set()
            over |= {"TPOT"} if broken.served.tpot.seconds > bounds.get("max_tpot", math.inf) else set()
        assert row["limited_by"] in over


def keeps(row, users, bounds):
    found = single({**row, "batch": users}, served=True)
    return found is not None and (
        found.served.ttft.seconds <= bounds.get("max_ttft", math.inf)
        and found.served.tpot.seconds <= bounds.get("max_tpot", math.inf)
    )


def test_a_load_takes_the_fewest_copies():
    goals = Goals(max_tpot=0.03, users=500)
    rows = Answers(asked(use=tuple(Use(sharding=Sharding(tp=tp)) for tp in (1, 2, 4))), goals).rows
    for row in rows:
        copies, most = row["copies"], row["most_users"]
        assert (copies - 1) * most < 500 <= copies * most
        assert row["users_per_copy"] == math.ceil(500 / copies) <= most
        assert row["gpus"] == copies * row["tp"]
        found = single({**row, "batch": row["users_per_copy"]}, served=True).served
        assert row["tpot_seconds"] == pytest.approx(found.tpot.seconds)
        assert row["ttft_seconds"] == pytest.approx(found.ttft.seconds)
        assert row["tokens_per_second"] == pytest.approx(500 / found.tpot.seconds)
    most = rows[0]["most_users"]
    [even] = Answers(asked(), Goals(max_tpot=0.03, users=3 * most)).rows
    assert (even["copies"], even["users_per_copy"]) == (3, most)
    [best] = [row for row in rows if row["best"]]
    assert best["gpus"] == min(row["gpus"] for row in rows)


@pytest.mark.parametrize("bounds", [{}, {"max_ttft": 0.4}, {"max_ttft": 0.2, "max_tpot": 0.03}])
def test_a_rate_takes_the_fewest_copies(bounds):
    """With one copy fewer, no batch up to the most users keeps TTFT in the queue of `kvcalc throughput --rate`."""
    rate = 40.0
    [row] = Answers(asked(), Goals(rate=rate, **bounds)).rows
    assert row["tokens_per_second"] == pytest.approx(rate * 256)

    def served(copies, users):
        load = Load(isl=2048, osl=256, batch=users, rate=rate / copies)
        return estimate(kvcalc.load(row["model"]), H100, load, served=True).served

    found = served(row["copies"], row["users_per_copy"])
    assert found.queued_ttft_seconds == pytest.approx(row["queued_ttft_seconds"])
    assert found.utilisation == pytest.approx(row["utilisation"])
    assert found.queued_ttft_seconds <= bounds.get("max_ttft", math.inf)
    fewer, tried = row["copies"] - 1, {1, 2, 4, *np.linspace(1, row["most_users"], 12).astype(int).tolist()}
    assert fewer
    for users in tried:
        assert (served(fewer + 1, users).queued_ttft_seconds or math.inf) >= row["queued_ttft_seconds"] * (1 - 1e-9)
        assert (served(fewer, users).queued_ttft_seconds or math.inf) > bounds.get("max_ttft", 1e300)


def test_a_quiet_copy_runs_the_batch_with_the_shortest_wait():
    """A larger batch shortens the queue and lengthens a step: the best of them is neither the first nor the last."""
    [row] = Answers(asked(), Goals(rate=1.0)).rows
    waits = [
        estimate(
            kvcalc.load(row["model"]), H100, Load(2048, 256, users, rate=1.0), served=True
        ).served.queued_ttft_seconds
        for users in (row["users_per_copy"] + step for step in (-1, 0, 1))
    ]
    assert row["copies"] == 1 < row["users_per_copy"] < row["most_users"]
    assert row["queued_ttft_seconds"] == pytest.approx(waits[1])
    assert waits[1] <= min(waits)


def test_what_no_copy_keeps_is_said():
    rows = Answers(asked("llama-3.1-70b", Use(sharding=Sharding(tp=2))), Goals(max_tpot=0.001)).rows
    assert [(row["most_users"], row["limited_by"], row["best"]) for row in rows] == [(0, "TPOT", False)]
    [row] = Answers(asked("llama-3.1-70b"), Goals(users=3)).rows
    assert (row["most_users"], row["limited_by"]) == (0, "memory")
    assert "copies" not in row
    [row] = Answers(asked(), Goals(rate=40.0, max_ttft=0.0411)).rows
    assert row["most_users"] == 0 or row["copies"] > 1


def test_cost_and_energy_by_hand():
    """2 GPUs at 3.60 an hour are 0.002 a second: at 1,000 tokens a second 2 a million. 1,400 W over 1,000 are 1.4 J."""
    rates = Rates({H100: 3.6 / 3600}, {H100: 700.0})
    assert rates.cost_per_million(H100, 2, 1000.0) == pytest.approx(2.0)
    assert rates.joules_per_token(H100, 2, 1000.0) == pytest.approx(1.4)
    assert rates.cost_per_million(H200, 2, 1000.0) is None
    use = Use(sharding=Sharding(tp=2))
    rows = rows_of(Grid(asked(use=use, gpus=(H100, H200), rates=rates)))
    for row in rows:
        cost, joules = row["cost_per_million_tokens"], row["joules_per_token"]
        if row["gpu"] == H200:
            assert cost is joules is None
        else:
            assert cost == pytest.approx(2 * 0.001 / row["tokens_per_second"] * 1e6)
            assert joules == pytest.approx(1400 / row["tokens_per_second"])
    [answer] = Answers(asked(use=use, rates=rates), Goals(rate=30.0)).rows
    assert answer["cost_per_million_tokens"] == pytest.approx(answer["gpus"] * 0.001 / (30 * 256) * 1e6)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", [8]),
        ("1,2,8", [1, 2, 8]),
        ("8,1,1..4", [1, 2, 4, 8]),
        ("1K..1M", [1024 * 2**power for power in range(11)]),
        ("1..256*4", [1, 4, 16, 64, 256]),
        ("1..100*3", [1, 3, 9, 27, 81]),
        ("512..2K+512", [512, 1024, 1536, 2048]),
        ("7..7", [7]),
    ],
)
def test_axes(text, values):
    assert parse_axis(text, "--ctx").values() == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8..1", "runs backwards"),
        ("..8", "is no range"),
        ("1..8*1", "never rises"),
        ("0..8", "at least 1"),
        ("-4", "is not a"),
        ("1,", "is not a"),
        ("1..", "is no range"),
        ("1..8-2", "is not a"),
        ("1..2..3", "is not a"),
        ("64,024", "end of a number"),
        ("nan", "is not a"),
    ],
)
def test_what_is_no_axis(text, message):
    with pytest.raises(KvcalcError) as refused:
        parse_axis(text, "--ctx")
    assert message in refused.value.message


def test_a_billion_points_are_refused_before_they_are_made():
    long = parse_axis("1..1000000000+1", "--batch")
    assert long.length == 10**9
    with pytest.raises(KvcalcError, match="1,000,000,000 points"):
        refuse_too_many([1, long.length])
    with pytest.raises(KvcalcError, match=r"3,000,000,000 points \(3 x 1,000 x 1,000,000\)"):
        asked(
            contexts=range(1000, 2000),
            batches=range(1_000_000),
            use=tuple(Use(sharding=Sharding(tp=tp)) for tp in (1, 2, 4)),
        )
    refuse_too_many([10**4, 10**4])
    assert Axis(((1, 2), (2, 3))).length == 4


def test_a_side_too_large_for_memory_is_refused_before_it_is_made():
    long = parse_axis("1..100000000+1", "--ctx")
    with pytest.raises(KvcalcError) as refused:
        refuse_too_many([1, long.length])
    assert refused.value.message == "a side of 100,000,000 counts; at most 4,000,000 are taken"
    refuse_too_many([10**6, 100])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2.5/h", "names no GPU"),
        ("h100-sxm=2.5", "needs its unit"),
        ("h100-sxm=2.5/d", "needs its unit"),
        ("h100-sxm=-1/h", "above 0"),
        ("h100-sxm=0/h", "above 0"),
        ("h100-sxm=nan/h", "above 0"),
        ("b200-sxm=2/h", "no b200-sxm is asked about"),
        ("abacus=2/h", "abacus"),
        ("h100-sxm=1/h,h100-sxm5-80gb=2/h", "twice"),
    ],
)
def test_what_is_no_price(text, message):
    with pytest.raises(KvcalcError) as refused:
        parse_prices([text], [H100])
    assert message in refused.value.message


def test_prices_powers_and_times():
    assert parse_prices(["h100-sxm=3.6/h"], [H100, H200]) == {H100: pytest.approx(0.001)}
    assert parse_powers(["h100-sxm=0.7kW, h200-sxm=700 W"], [H100, H200]) == {H100: 700, H200: 700}
    assert [parse_seconds(text, "--max-ttft") for text in ("1s", "30ms", "2.5 s")] == pytest.approx([1, 0.03, 2.5])
    for text in ("1", "0s", "-1s", "1min", "", "1e3s"):
        with pytest.raises(KvcalcError):
            parse_seconds(text, "--max-ttft")


def test_deployments_that_cannot_be_are_left_out_with_a_reason():
    question = asked(use=(Use(), Use(sharding=Sharding(pp=64))), batches=(1,))
    found = Grid(question)
    assert found.points == 1
    assert any("is left out" in note and "layers" in note for note in found.notes)
    with pytest.raises(KvcalcError, match="layers"):
        Grid(asked(use=Use(sharding=Sharding(pp=64))))
    with pytest.raises(KvcalcError, match="engine"):
        Grid(asked(engine="abacus"))
    with pytest.raises(KvcalcError, match="spreads layers over devices"):
        Grid(asked(engine="llama.cpp", use=Use(sharding=Sharding(tp=2))))


def test_contexts_past_a_models_limit_are_left_out():
    found = Grid(asked(("llama-3.1-8b", "llama-2-7b"), contexts=(2048, 8192, 2**18), batches=(1,)))
    assert sorted((row["model"], row["context_tokens"]) for row in rows_of(found)) == [
        ("llama-2-7b", 2048), ("llama-3.1-8b", 2048), ("llama-3.1-8b", 8192)]  # fmt: skip
    assert "contexts past the 4,096 tokens of llama-2-7b are left out" in found.notes
    with pytest.raises(KvcalcError, match="every context passes the 4,096 tokens"):
        Grid(asked("llama-2-7b", contexts=(8192,)))
    with pytest.raises(KvcalcError, match="no prompt"):
        asked(contexts=(256,))


def test_gpus_of_a_copy():
    spread = Sharding(tp=8, dp=8, ep=8)
    assert Use(sharding=spread).gpus == 64
    assert Use(sharding=spread, attention_dp=True).gpus == 8
    assert Use(sharding=Sharding(tp=4, pp=2)).gpus == 8


def test_the_most_at_once_is_the_edge():
    for engine in (None, "transformers"):
        question = asked(engine=engine)
        [deployment] = question.deployments
        room = make_ready(deployment, question).room
        most = room.most_at_once(4096)
        assert room.most(4096, most) >= most > 0
        assert room.most(4096, most + 1) < most + 1
