"""From points to a calibration: what is refused and by which name, what helps, and what is left alone."""

import math
import random

import pytest

import kvcalc
from kvcalc.errors import KvcalcError
from kvcalc.speed.calibrating import Case, band_of, calibrate
from kvcalc.speed.calibration import Scales, choose_fit
from kvcalc.speed.points import read_points
from kvcalc.speed.setting import Use, decode_costs, machine_for, make_setting, prefill_costs
from kvcalc.speed.timing import floor_seconds

HEADER = "model,precision,gpu,tp,batch,isl,osl,engine,metric,value,unit"
# Llama-3.1-70B fp8 on H100 under vLLM: aiconfigurator@095f58a51c4c, silicon_sample.csv.
ROWS = (
    "llama-3.1-70b,fp8,h100-sxm,4,16,1024,1024,vllm,tpot_ms,13.1922,ms",
    "llama-3.1-70b,fp8,h100-sxm,4,4,1024,8192,vllm,tpot_ms,11.9955,ms",
    "llama-3.1-70b,fp8,h100-sxm,8,16,1024,8192,vllm,tpot_ms,11.584,ms",
    "llama-3.1-70b,fp8,h100-sxm,4,8,8192,1024,vllm,tpot_ms,15.7662,ms",
    "llama-3.1-70b,fp8,h100-sxm,2,64,1024,1024,vllm,tpot_ms,28.7686,ms",
)


@pytest.fixture
def points(tmp_path):
    """Write rows under a header and read them: points("a,b,c", ...)."""

    def write(*rows, header=HEADER, name="m.csv"):
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n")
        return read_points(path)

    return write


def varied(row, **changes):
    cells = dict(zip(HEADER.split(","), row.split(","), strict=True))
    return ",".join({**cells, **changes}.values())


def test_published_points_help_each_other(points):
    found = calibrate(points(*ROWS))
    assert (found.gpu, found.engine, len(found.cases)) == ("h100-sxm5-80gb", "vllm", 5)
    before, after = (sum(map(abs, errors)) for errors in (found.fit.before, found.fit.left_out))
    assert after < before
    assert found.left_out_by == "configuration"


def test_one_point_moves_the_prediction_towards_it_and_not_past_it(points):
    slow = varied(ROWS[0], value="20")
    (case,) = calibrate(points(slow)).cases
    assert case.plain_seconds < case.calibrated_seconds < case.seconds
    assert case.left_out_error is None


def test_points_faster_than_the_bound_are_refused_by_line_and_ratio(points):
    """All matrices of Llama-3.1-8B in bf16 but the embedding are 15.0 GB: 4.48 ms at the 3,350 GB/s of an H100."""
    fast = "llama-3.1-8b,bf16,h100-sxm,1,1,1,64,vllm,decode_tok_s,500,tok/s"
    with pytest.raises(KvcalcError) as refused:
        calibrate(points(ROWS[0], fast))
    assert ":3: 2 ms is 2.24 times as fast as 3,350 GB/s" in refused.value.message
    setting = make_setting(kvcalc.load("llama-3.1-8b"), machine_for("h100-sxm", None, Use()), Use())
    bound = float(floor_seconds(decode_costs(setting, 1, 33)))
    just = varied(fast, value=repr(0.999 / bound))
    assert calibrate(points(just)).cases[0].seconds == pytest.approx(bound / 0.999)
    with pytest.raises(KvcalcError, match=r":2: .* times as fast"):
        calibrate(points(varied(fast, value=repr(1.001 / bound))))


def test_prompts_that_a_cache_may_have_are_no_part_of_the_bound(points):
    """A step of 8 sequences of 8 K reads 15.0 and 8.8 GB, 7.1 ms; seven prompts of 8 K a hundred tokens take longer."""
    row = varied(ROWS[0], model="llama-3.1-8b", precision="bf16", tp="1", batch="8", isl="8192", osl="100", value="7.5")
    assert calibrate(points(row)).cases[0].plain_seconds > 0.012
    with pytest.raises(KvcalcError, match="times as fast"):
        calibrate(points(varied(row, value="7")))


@pytest.mark.parametrize("metric", ["ttft_ms", "prefill_tok_s", "output_tok_s_total"])
def test_prompts_of_a_batch_are_spread_over_attention_ranks(points, metric):
    """Four ranks that take in eight prompts work as long as each does on two, and not on eight."""
    unit = "ms" if metric.endswith("ms") else "tok/s"
    row = f"llama-3.1-8b,bf16,h100-sxm,1,4,8,1024,128,vllm,{metric},300,{unit}"
    header = HEADER.replace("tp,", "tp,dp,")
    built = points(row, header=header)[0].build()
    prompts = built.point.parts[0].costs
    assert prompts == prefill_costs(built.setting, 1024, 0, 2)


def test_points_that_take_far_too_long_are_asked_about(points):
    """13,192.2 us, written as ms."""
    note = next(note for note in calibrate(points(varied(ROWS[0], value="13192.2"))).notes if "slow" in note)
    assert ":2: 971 times as slow" in note
    assert not any("slow" in note for note in calibrate(points(*ROWS)).notes)


def test_several_impossible_points_are_all_named(points):
    fast = [varied(row, value="0.5") for row in ROWS]
    with pytest.raises(KvcalcError, match=r":2: .*; so are .*:3, .*:4, .*:5, 1 more"):
        calibrate(points(*fast))


def test_contradictory_points_are_named(points):
    with pytest.raises(KvcalcError, match=r"m.csv:2 and .*m.csv:4 contradict each other: tpot_ms 13.1922 and 26.4"):
        calibrate(points(ROWS[0], ROWS[1], varied(ROWS[0], value="26.4")))
    # Less than twice is noise, and repetitions are left out together.
    found = calibrate(points(ROWS[0], varied(ROWS[0], value="26.3")))
    assert found.fit.left_out == ()


def test_points_of_several_machines_are_mixed_up_unless_one_is_chosen(points):
    mixed = points(
        *ROWS[:2], varied(ROWS[2], gpu="b200"), varied(ROWS[3], engine="sglang"), varied(ROWS[3], gpu="abacus")
    )
    with pytest.raises(KvcalcError, match=r"points of 3 gpus: h100-sxm5-80gb \(3\), b200-sxm \(1\), abacus \(1\)"):
        calibrate(mixed)
    with pytest.raises(KvcalcError, match=r"points of 2 engines: vllm \(2\), sglang \(1\)"):
        calibrate(mixed, gpu="h100-sxm")
    assert len(calibrate(mixed, gpu="h100-sxm", engine="vllm").cases) == 2
    with pytest.raises(KvcalcError, match="no point of --gpu l40s"):
        calibrate(mixed, gpu="l40s")
    with pytest.raises(KvcalcError, match=r"m.csv:6: unknown GPU 'abacus'"):
        calibrate(mixed[4:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "s"}, "tpot_ms in 's'"),
        ({"metric": "tpot"}, "unknown metric 'tpot'"),
        ({"value": "nan"}, "tpot_ms nan"),
        ({"value": "-3"}, "tpot_ms -3"),
        ({"value": ""}, "missing required field `value`"),
        ({"batch": "max"}, "batch 'max'"),
        ({"batch": "0"}, "batch '0'"),
        ({"tp": "-1"}, "tp '-1'"),
        ({"osl": "0"}, "tpot_ms with osl 0"),
        ({"model": "llama-9"}, "llama-9"),
        ({"precision": "fp7"}, "fp7"),
        ({"model": "x,y"}, "12 cells under 11 columns"),
    ],
)
def test_rows_that_are_no_measurement(points, change, message):
    with pytest.raises(KvcalcError, match=":3: ") as refused:
        calibrate(points(ROWS[0], varied(ROWS[1], **change)))
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("header", "message", "hint"),
    [
        (HEADER.replace("batch", "batch_size"), "no column batch", "is batch_size meant as batch?"),
        (HEADER.replace("isl", "input_tokens"), "no column isl", "needed: model, precision"),
        (HEADER + ",kv_precison", "column kv_precison is not known, and kv_precision is absent", "rename it"),
        (HEADER + ",tp", "column tp stands twice", "keep one"),
        (HEADER.replace(",", ";"), "not separated by commas", "save it with commas"),
        ("", "no column model", "needed"),
    ],
)
def test_columns_that_are_wrong(points, header, message, hint):
    with pytest.raises(KvcalcError) as refused:
        points(ROWS[0], header=header)
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_files_that_are_no_points(tmp_path, points):
    with pytest.raises(KvcalcError, match="has no row"):
        points()
    with pytest.raises(KvcalcError, match="No such file"):
        read_points(tmp_path / "missing.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KvcalcError, match="is no text"):
        read_points(tmp_path / "bytes.csv")


def test_date_device_and_driver_come_from_the_rows(points):
    header = HEADER + ",date,device,driver"
    found = calibrate(
        points(ROWS[0] + ",2026-04-05,NVIDIA H100,550", ROWS[1] + ",2026-04-06,NVIDIA H100,560", header=header)
    )
    assert (found.date.isoformat(), found.device, found.driver) == ("2026-04-06", "NVIDIA H100", "550, 560")
    with pytest.raises(KvcalcError, match="date 'today'"):
        points(ROWS[0] + ",today,,", header=header)


def test_factors_that_do_harm_are_left_at_one(points):
    """Half of the settings take 1.6 times, the others 1 / 1.6 of what is predicted: whatever is learned is wrong."""
    machine = machine_for("h100-sxm", None, Use())
    setting = make_setting(kvcalc.load("llama-3.1-8b"), machine, Use(weights="int4"))
    rows = []
    for place, batch in enumerate((1, 1, 2, 2, 4, 4)):
        seconds = float(sum(cost.seconds for cost in decode_costs(setting, batch, 1024 + place)))
        seconds *= 1.6 if place % 2 else 1 / 1.6
        rows.append(
            f"llama-3.1-8b,int4,h100-sxm,1,{batch},{1024 + place},1,vllm,decode_tok_s_total,{batch / seconds},tok/s"
        )
    found = calibrate(points(*rows))
    assert (found.fit.strength, found.fit.scales, found.fit.left_out) == (0.0, Scales(), found.fit.before)
    assert any("all factors are 1" in note for note in found.notes)


def test_a_choice_is_never_worse_on_what_is_left_out(points):
    chance = random.Random(5)  # noqa: S311
    built = [one.build() for one in points(*ROWS)]
    for _ in range(5):
        noisy = [made.point._replace(seconds=made.point.seconds * chance.lognormvariate(0, 0.4)) for made in built]
        fit = choose_fit(noisy)
        sizes = [sum(abs(math.log1p(error)) for error in errors) for errors in (fit.left_out, fit.before)]
        assert sizes[0] <= sizes[1]


def test_the_band_is_the_conformal_one():
    """Of n left-out errors the ceil(0.9 (n + 1))-th, as Lei et al. (arXiv 1604.04173) have it; nine are the fewest."""

    def cases(errors):
        return [Case(None, None, 1.0, 1.0, 1 / (1 + over) - 1) for over in errors]

    assert band_of(cases([0.1] * 8)) is None
    assert band_of(cases([place / 100 for place in range(1, 10)])) == pytest.approx(0.09)
    assert band_of(cases([place / 100 for place in range(1, 20)])) == pytest.approx(0.18)
    assert band_of(cases([-0.1] * 20)) == 0
    assert band_of([Case(None, None, 1.0, 1.0, None)] * 20) is None
