"""CUDA: the logic with a made-up device and driver, and the real thing where there is one."""

import pytest

torch = pytest.importorskip("torch")

from fake_cuda import GIB, FakeCuda, FakeNvml  # noqa: E402
from quick import MODELS, prompt, request  # noqa: E402

from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.profiler import cuda as module  # noqa: E402
from kvcalc.profiler.cuda import CudaDevice  # noqa: E402
from kvcalc.profiler.device import find_device  # noqa: E402
from kvcalc.profiler.environment import plain_environment  # noqa: E402
from kvcalc.reference.model import ReferenceModel, RunOptions  # noqa: E402
from kvcalc.reference.session import Session  # noqa: E402


def made_up(nvml=None, cuda=None):
    return CudaDevice(1, cuda=cuda or FakeCuda(), nvml=nvml or FakeNvml())


def test_events_are_milliseconds_and_times_are_seconds():
    cuda = FakeCuda()
    assert made_up(cuda=cuda).time(lambda: setattr(cuda, "now", 250.0)) == 0.25


def test_memory_is_what_the_allocator_and_the_driver_say():
    device = made_up()
    assert device.allocated_bytes() == 6 * GIB
    assert device.peak_bytes() == 7 * GIB
    assert device.held_bytes() == (8 * GIB, 50 * GIB)
    # What the allocator keeps and gives to nobody can be had as well: 30 + (8 - 6).
    assert device.available_bytes() == 32 * GIB


def test_the_device_is_chosen_once_and_its_peak_reset():
    cuda = FakeCuda()
    device = made_up(cuda=cuda)
    device.reset_peak()
    assert (device.torch_name, cuda.log) == ("cuda:1", ["device 1", "reset 1"])


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(KvcalcError, match="--device cuda:2: torch finds 2 CUDA devices") as found:
        CudaDevice(2, cuda=FakeCuda(), nvml=FakeNvml())
    assert found.value.hint == "use cuda:0 to cuda:1"


@pytest.mark.parametrize(
    ("rank", "name", "index"), [("1", "cuda", 1), ("1", None, 1), ("1", "cuda:0", 0), (None, "cuda", 0)]
)
def test_each_rank_takes_a_device_of_its_own(monkeypatch, rank, name, index):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "CudaDevice", lambda place: place)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert find_device(name) == index


def test_a_graph_is_warmed_up_on_a_side_stream_before_it_is_recorded():
    cuda = FakeCuda()
    replay = made_up(cuda=cuda).capture(lambda: cuda.log.append("step"))
    replay()
    assert cuda.log[1:] == [
        "side waits for main", "side begins", "step", "step", "step", "side ends", "main waits for side",
        "main begins", "recording begins", "step", "recording ends", "main ends", "replay",
    ]  # fmt: skip


def test_only_the_allocators_own_error_is_out_of_memory():
    device = made_up()
    assert device.is_out_of_memory(FakeCuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not device.is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))


def test_the_driver_tells_clocks_power_and_version():
    document, nvml = plain_environment("cuda"), FakeNvml()
    assert made_up(nvml).describe(document) == []
    assert document["device_name"] == "NVIDIA H200"
    assert document["memory_bytes"] == 141 * GIB
    assert (document["driver"], document["power_watts"]) == ("570.86", 412.5)
    assert document["clocks_mhz"] == {"sm": 1980.0, "memory": 3201.0}
    assert document["throttled"] == []
    assert (nvml.asked, nvml.is_open) == ("GPU-1-2", False)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nvmlClocksThrottleReasonSwPowerCap", "power cap"),
        ("nvmlClocksThrottleReasonHwSlowdown", "hardware slowdown"),
        ("nvmlClocksThrottleReasonSwThermalSlowdown", "heat (software)"),
        ("nvmlClocksThrottleReasonHwThermalSlowdown", "heat (hardware)"),
        ("nvmlClocksThrottleReasonHwPowerBrakeSlowdown", "power brake"),
    ],
)
def test_each_reason_for_throttling_is_said_in_words(name, word):
    bit = getattr(pytest.importorskip("pynvml"), name)
    document = plain_environment("cuda")
    assert made_up(FakeNvml(bit)).describe(document) == [f"the device was throttled: {word}"]
    assert document["throttled"] == [word]


@pytest.mark.parametrize(
    "name", ["nvmlClocksThrottleReasonGpuIdle", "nvmlClocksThrottleReasonApplicationsClocksSetting"]
)
def test_an_idle_device_is_not_throttled(name):
    bit = getattr(pytest.importorskip("pynvml"), name)
    assert made_up(FakeNvml(bit)).describe(plain_environment("cuda")) == []


def test_several_reasons_are_all_said():
    assert len(made_up(FakeNvml(0x04 | 0x40)).describe(plain_environment("cuda"))) == 2


@pytest.mark.parametrize(
    "call",
    ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksEventReasons"],
)
def test_a_driver_that_fails_is_a_doubt_and_no_end(call):
    nvml, document = FakeNvml(fails=call), plain_environment("cuda")
    assert made_up(nvml).describe(document) == ["NVML: Driver/library version mismatch"]
    assert document["device_name"] == "NVIDIA H200"
    assert not nvml.is_open


def test_without_nvml_its_absence_is_a_doubt(monkeypatch):
    monkeypatch.setattr(module, "_load_nvml", lambda: None)
    (doubt,) = CudaDevice(0, cuda=FakeCuda()).describe(plain_environment("cuda"))
    assert doubt.startswith("NVML is not installed")


# ---- on a real device


@pytest.fixture(scope="module")
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return find_device("cuda")


def on(gpu, name):
    """A model of one kind on the device."""
    asked = request(name)
    return ReferenceModel(asked.spec, asked.workload, RunOptions(device=gpu.torch_name))


@pytest.mark.cuda
def test_a_product_takes_as_long_as_its_arithmetic_and_not_as_its_launch(gpu):
    left = torch.rand(8192, 8192, device=gpu.torch_name, dtype=torch.bfloat16)
    few, many = (min(gpu.time(lambda n=n: [left @ left for _ in range(n)]) for _ in range(5)) for n in (4, 16))
    assert 3 < many / few < 5


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["kv", "latent", "window", "index", "mamba2"])
def test_a_recorded_step_gives_what_the_eager_step_gave(gpu, name):
    model, ids = on(gpu, name), prompt(2, 24)
    session = Session(model, 2, 24)
    session.prefill(ids[:, :20])
    for at in range(20, 23):
        session.decode(ids[:, at : at + 1])
    kept = {place: {key: one.clone() for key, one in states.items()} for place, states in session.states.items()}
    eager = session.decode(ids[:, 23:])
    session.rewind(1)
    outputs = []
    step = session.repeatable(ids[:, 23:])
    replay = gpu.capture(lambda: outputs.append(step()))
    for place, states in kept.items():
        for key, one in states.items():
            session.states[place][key].copy_(one)
    replay()
    torch.cuda.synchronize()
    assert torch.allclose(outputs[-1], eager, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"cross"}))
def test_the_allocator_gives_every_storage_rounded_up_to_512_bytes(gpu, name):
    model = on(gpu, name)
    before = gpu.allocated_bytes()
    session = Session(model, 3, 37)
    storages = [one.held.tensor.untyped_storage() for one in session.allocated() if one.held.tensor.is_cuda]
    assert gpu.allocated_bytes() - before == sum(-(-one.nbytes() // 512) * 512 for one in storages)
