"""Runs as points: the layers that ran, at their times, under their own engine's name; what says nothing is refused."""

import msgspec
import pytest
from sample import run_document

import kvcalc
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import catalogue_names
from kvcalc.model.subset import keep_layers
from kvcalc.profiler.measured import OF_MIXERS, SMALL_KERNELS, read_measured, spec_of
from kvcalc.speed.calibrating import calibrate
from kvcalc.speed.setting import Use, decode_costs, machine_for, make_setting, prefill_costs, seconds_of

H100 = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_045_411_840, "driver": "550.54"}
LAYERS = 2


def gpu_run(model="llama-3.1-8b", scale=1.25, with_mlp=True, **request):
    """A run on an H100 whose layers take `scale` times what is predicted of them."""
    run = run_document(contexts=(1024, 8192), batches=(1, 8))
    spec = keep_layers(kvcalc.load(model), LAYERS)
    run["spec"] = msgspec.json.decode(msgspec.json.encode(spec))
    run["environment"] |= H100
    run["model"]["name"] = model
    run["request"] |= {"dtype": "bf16", "kv_dtype": "auto", "with_mlp": with_mlp, **request}
    use = Use(dtype="bf16")
    setting = make_setting(spec, machine_for("h100-sxm", "torch", use), use)
    for point in run["points"]:
        point["components"][0]["format"] = "bf16"
        context, batch = point["context_tokens"], point["batch"]
        point["decode"]["graph_seconds"] = scale * layer_seconds(decode_costs(setting, batch, context))
        prompt = layer_seconds(prefill_costs(setting, point["prefill"]["tokens"], 0, batch))
        point["prefill"]["median_seconds"] = scale * prompt
    return run


def layer_seconds(costs):
    return float(seconds_of([cost for cost in costs if cost.term not in ("LM head", "host")]))


@pytest.fixture
def read(tmp_path):
    """Write a run, sealed, and read its points."""

    def write(run):
        from kvcalc.profiler.record import seal

        path = tmp_path / "run.json"
        path.write_bytes(msgspec.json.encode(seal(run)))
        return read_measured([path])

    return write


def test_a_run_calibrates_its_own_layers(read):
    found, notes = read(gpu_run())
    calibration = calibrate(found, notes=notes)
    assert (calibration.gpu, calibration.engine, len(calibration.cases)) == ("h100-sxm5-80gb", "torch", 8)
    assert (calibration.date.isoformat(), calibration.device, calibration.driver) == (
        "2026-05-04", "NVIDIA H100 80GB HBM3", "550.54")  # fmt: skip
    for case in calibration.cases:
        assert case.plain_error == pytest.approx(1 / 1.25 - 1)
        assert abs(case.calibrated_seconds / case.seconds - 1) < 0.04
    assert "run.json (8,192 x 8, prefill)" in calibration.cases[6].found.where


def test_a_run_without_feed_forward_parts_starts_fewer_small_kernels(read):
    found, _ = read(gpu_run(with_mlp=False))
    terms = {cost.term: cost.start for one in found[:2] for cost in one.build().point.parts[0].costs}
    whole, _ = read(gpu_run())
    full = {cost.term: cost.start for one in whole[:2] for cost in one.build().point.parts[0].costs}
    assert "feed-forward" not in terms
    assert terms["small kernels"] == pytest.approx(full["small kernels"] * OF_MIXERS / SMALL_KERNELS)
    assert terms["attention"] == full["attention"]


def test_small_kernels_are_those_that_the_reference_starts():
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    from kvcalc.reference.model import ReferenceModel, RunOptions
    from kvcalc.reference.session import Session
    from kvcalc.sizing.need import Workload

    class Counting(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.started = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function._schema.name
            is_view = any(one.alias_info and not one.alias_info.is_write for one in function._schema.returns)
            is_small = not any(word in name for word in ("::mm", "scaled_dot", "arange", "empty", "_unsafe_view"))
            self.started += is_small and not is_view
            return function(*args, **(kwargs or {}))

    def a_layer(with_mlp):
        counts = []
        for layers in (1, 2):
            spec = keep_layers(kvcalc.load("textbook-gqa"), layers)
            model = ReferenceModel(spec, Workload(dtype="bf16"), RunOptions(device="cpu", with_mlp=with_mlp))
            session = Session(model, 2, 64)
            session.prefill(torch.zeros(2, 32, dtype=torch.long))
            step = session.repeatable(torch.zeros(2, 1, dtype=torch.long))
            with Counting() as counting:
                step()
            counts.append(counting.started)
        return counts[1] - counts[0]

    assert (a_layer(True), a_layer(False)) == (SMALL_KERNELS, OF_MIXERS)


@pytest.mark.parametrize("name", catalogue_names())
def test_the_spec_of_a_run_file_is_the_spec_that_ran(name):
    spec = kvcalc.load(name)
    again = spec_of(msgspec.json.decode(msgspec.json.encode(spec)))
    assert again == msgspec.structs.replace(spec, checkpoint=None)


def changed(run, **parts):
    for name, change in parts.items():
        run[name] = {**run[name], **change}
    return run


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (run_document(), "ran on a CPU"),
        (changed(gpu_run(), environment={"device_name": "Abacus 9"}), "no known GPU"),
        (changed(gpu_run(), request={"dtype": "fp32"}), "ran in fp32"),
        (changed(gpu_run(), request={"backend": "openai"}), "does not say on which GPU"),
        (changed(gpu_run(), spec={"layers": [{"mixer": 1}]}), "its spec cannot be read"),
        (gpu_run("gemma-2-9b"), "`window` in many operations"),
        (gpu_run("mamba-2.8b", with_mlp=False), "in many operations"),
        (gpu_run("mixtral-8x7b"), "experts one by one"),
    ],
)
def test_runs_that_say_nothing_of_a_gpu(read, run, message):
    with pytest.raises(KvcalcError, match=r"run.json: ") as refused:
        read(run)
    assert message in refused.value.message


def test_steps_without_a_graph_and_packed_caches_are_left_out_and_noted(read):
    run = gpu_run()
    run["points"][0]["decode"]["graph_seconds"] = None
    found, notes = read(run)
    assert len(found) == 7
    assert "1,024 tokens x 1: a step without a CUDA graph" in notes[0]
    run["points"][0]["components"][0]["format"] = "q8_0"
    found, notes = read(run)
    assert (found, len(notes)) == ([], 1)
    assert "unpacked before they are read" in notes[0]
    with pytest.raises(KvcalcError, match=r"no point to calibrate on: .*unpacked"):
        calibrate(found, notes=notes)


def test_experts_that_did_not_run_are_no_hindrance(read):
    found, _ = read(gpu_run("mixtral-8x7b", with_mlp=False))
    assert {one.build().setting.model.has_experts for one in found} == {False}


def test_a_library_run_is_a_whole_model_under_its_own_name(read):
    found, _ = read(changed(gpu_run(), request={"backend": "transformers"}))
    (costs,) = (one.build().point.parts[0].costs for one in found[1:2])
    assert found[1].row.engine == "transformers"
    assert {"LM head", "host"} <= {cost.term for cost in costs}
