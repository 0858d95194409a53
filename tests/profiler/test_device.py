"""Devices: the CPU's clock and memory, and what is refused with a reason."""

import mmap
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.profiler import device as devices  # noqa: E402
from kvcalc.profiler.device import CpuDevice, container_limit, find_device  # noqa: E402
from kvcalc.profiler.environment import plain_environment  # noqa: E402
from kvcalc.profiler.machine import measure_machine  # noqa: E402


@pytest.fixture(autouse=True)
def threads():
    """Whatever a device set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cpu():
    return CpuDevice(threads=1)


def test_the_clock_measures_the_action_and_nothing_else(cpu):
    ran = []
    assert 0.02 <= cpu.time(lambda: (time.sleep(0.02), ran.append(1))) < 2
    assert ran == [1]
    assert all(cpu.time(int) >= 0 for _ in range(1000))


def test_threads_are_set_and_said(cpu):
    document = plain_environment("cpu")
    cpu.describe(document)
    assert torch.get_num_threads() == document["threads"] == 1
    assert document["device_name"]
    assert document["memory_bytes"] > 0


def test_one_thread_a_processor_shared_by_the_ranks_of_a_machine(monkeypatch):
    processors = CpuDevice().processors
    assert torch.get_num_threads() == processors
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processors * 2))
    CpuDevice()
    assert torch.get_num_threads() == 1


def test_ranks_of_a_machine_share_its_memory(cpu, monkeypatch):
    alone = cpu.available_bytes()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert alone / 8 < cpu.available_bytes() < alone / 2


@pytest.mark.parametrize("threads", [0, -1])
def test_fewer_than_one_thread_is_refused(threads):
    with pytest.raises(KvcalcError, match=f"--threads {threads}: at least 1"):
        CpuDevice(threads)


@pytest.mark.parametrize(
    ("lines", "limit"),
    [
        (["1048576\n"], 2**20),
        (["max\n"], None),
        (["9223372036854771712\n"], None),
        ([], None),
        (["max\n", "4096"], 4096),
    ],
)
def test_a_container_limits_the_memory(tmp_path, monkeypatch, lines, limit):
    paths = [tmp_path / str(place) for place in range(2)]
    for path, line in zip(paths, lines, strict=False):
        path.write_text(line)
    monkeypatch.setattr(devices, "CGROUP_LIMITS", tuple(map(str, paths)))
    assert container_limit() == limit


def test_what_is_available_lies_below_the_container_limit(cpu, monkeypatch):
    limit = cpu.peak_bytes() + 2**24
    monkeypatch.setattr(devices, "container_limit", lambda: limit)
    assert 0 < cpu.available_bytes() <= 2**24 + 2**22


def test_resident_memory_follows_what_is_held(cpu):
    before = cpu.peak_bytes()
    with mmap.mmap(-1, 2**26) as held:
        held.write(b"1" * 2**26)
        assert 2**26 * 0.9 < cpu.peak_bytes() - before < 2**26 * 2.5


def test_a_cpu_counts_no_allocations_and_has_no_graphs(cpu):
    assert (cpu.allocated_bytes(), cpu.granule_bytes, cpu.held_bytes()) == (None, None, (None, None))
    assert cpu.capture(lambda: pytest.fail("was run")) is None


def test_memory_that_torch_cannot_get_is_out_of_memory(cpu):
    with pytest.raises(RuntimeError) as found:
        torch.empty(2**55, dtype=torch.uint8)
    assert cpu.is_out_of_memory(found.value)
    assert cpu.is_out_of_memory(MemoryError())
    assert not cpu.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_the_kernel_that_takes_the_time_is_named(cpu):
    left, one = torch.rand(300, 300), torch.rand(1)
    assert cpu.kernel_of(lambda: (one + one, left @ left)) == "aten.mm.default"
    assert cpu.kernel_of(int) == "unknown"


def test_a_busy_machine_is_doubted(cpu, monkeypatch):
    monkeypatch.setattr(devices.os, "getloadavg", lambda: (1000.0, 0, 0))
    (doubt,) = cpu.describe(plain_environment("cpu"))
    assert doubt.startswith("the machine was busy: a load of 1000.0")
    monkeypatch.setattr(devices.os, "getloadavg", lambda: (0.5, 0, 0))
    assert cpu.describe(plain_environment("cpu")) == []


def test_eviction_touches_more_than_a_cache_every_time(cpu):
    cpu.flush()
    first = cpu._evict
    cpu.flush()
    assert first is cpu._evict
    assert first.nbytes >= 2**28
    assert first[0] == first[-1] == 2


def test_a_machine_is_measured_in_bytes_and_flops_per_second(monkeypatch):
    """A clock that ticks one second for everything: rates are then the bytes and FLOPs themselves."""

    class Slow(CpuDevice):
        def time(self, action):
            action()
            return 1.0

        def available_bytes(self):
            return 0

    monkeypatch.setattr("kvcalc.profiler.machine.LEAST_BYTES", 2**20)
    monkeypatch.setattr("kvcalc.profiler.machine.PROBE_SIDE", {"cpu": 64})
    found = measure_machine(Slow(1), torch.float32, "fp32")
    assert found["read_bytes_per_second"] == 2**20
    assert found["copy_bytes_per_second"] == 2 * 2**20
    assert found["gemm_flops_per_second"] == 2 * 64**3
    assert found["gemm_dtype"] == "fp32"


def test_a_device_is_found_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("cpu", 1).kind == find_device(None, 1).kind == "cpu"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tpu", "no such device"), ("cpu:1", "no such device"), ("cuda:x", "no such device"),
        ("mps", "MPS counts no bytes"), ("cuda", "finds no CUDA device"), ("cuda:1", "finds no CUDA device"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_on_is_refused(monkeypatch, name, why):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(KvcalcError, match=f"--device {name}: .*{why}") as found:
        find_device(name)
    assert "cpu" in found.value.hint


@pytest.mark.parametrize("module", ["torch", "psutil"])
def test_what_is_not_installed_names_the_extra_that_brings_it(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(KvcalcError, match=f"profile needs {module}, which is not installed") as found:
        find_device("cpu")
    assert found.value.hint == "pip install 'kvcalc[profile]'"
