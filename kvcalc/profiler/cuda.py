"""CUDA: events, graphs, allocator counts, and what the driver says. The only module that names CUDA.

torch gives a ROCm device under the same names; what NVML alone tells is unknown there. `cuda` and `nvml` can be
handed in, so that the logic here is tested where no such device is.
"""

from collections.abc import Callable
from typing import Any

from kvcalc.errors import KvcalcError
from kvcalc.profiler.documents import EnvironmentDocument

THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""nvml.h, nvmlClocksEventReasons; by their bits, since the names differ between releases of nvidia-ml-py."""
WARM_UPS_BEFORE_CAPTURE = 3


class CudaDevice:
    """One CUDA device, timed by events on its current stream."""

    kind = "cuda"
    granule_bytes: int | None = 512
    """torch's CUDACachingAllocator.cpp, kMinBlockSize."""

    def __init__(self, index: int = 0, cuda: Any = None, nvml: Any = None) -> None:
        import torch

        self.cuda = torch.cuda if cuda is None else cuda
        count = self.cuda.device_count()
        if index >= count:
            raise KvcalcError(
                f"--device cuda:{index}: torch finds {count} CUDA devices", f"use cuda:0 to cuda:{count - 1}"
            )
        self.index, self.torch_name = index, f"cuda:{index}"
        self.nvml = nvml or _load_nvml()
        self.cuda.set_device(index)
        self._evict: Any = None

    def time(self, action: Callable[[], object]) -> float:
        start, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def available_bytes(self) -> int:
        free, _ = self.cuda.mem_get_info(self.index)
        idle = self.cuda.memory_reserved(self.index) - self.cuda.memory_allocated(self.index)
        return int(free + idle)

    def allocated_bytes(self) -> int | None:
        return int(self.cuda.memory_allocated(self.index))

    def peak_bytes(self) -> int | None:
        return int(self.cuda.max_memory_allocated(self.index))

    def held_bytes(self) -> tuple[int | None, int | None]:
        free, total = self.cuda.mem_get_info(self.index)
        return int(self.cuda.memory_reserved(self.index)), int(total - free)

    def reset_peak(self) -> None:
        self.cuda.reset_peak_memory_stats(self.index)

    def flush(self) -> None:
        import torch

        if self._evict is None:
            cache_bytes = int(self.cuda.get_device_properties(self.index).L2_cache_size)
            self._evict = torch.zeros(2 * cache_bytes, dtype=torch.uint8, device=self.torch_name)
        self._evict.add_(1)

    def capture(self, action: Callable[[], object]) -> Callable[[], object] | None:
        side = self.cuda.Stream()
        side.wait_stream(self.cuda.current_stream())
        with self.cuda.stream(side):
            for _ in range(WARM_UPS_BEFORE_CAPTURE):
                action()
        self.cuda.current_stream().wait_stream(side)
        graph = self.cuda.CUDAGraph()
        # A capture that fails leaves its stream current: the outer context takes the stream back.
        with self.cuda.stream(self.cuda.current_stream()), self.cuda.graph(graph):
            action()
        return graph.replay

    def kernel_of(self, action: Callable[[], object]) -> str:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as run:
            action()
            self.cuda.synchronize()
        events = run.key_averages()
        return str(max(events, key=lambda event: event.self_device_time_total).key) if events else "unknown"

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, self.cuda.OutOfMemoryError)

    def describe(self, document: EnvironmentDocument) -> list[str]:
        properties = self.cuda.get_device_properties(self.index)
        document["device_name"] = str(properties.name)
        document["memory_bytes"] = int(properties.total_memory)
        if self.nvml is None:
            return ["NVML is not installed: clocks, power and throttling are unknown (pip install nvidia-ml-py)"]
        return self._ask_driver(document)

    def _ask_driver(self, document: EnvironmentDocument) -> list[str]:
        """Clocks, power and reasons for throttling, at the moment of asking."""
        nvml = self.nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return [f"NVML: {error}"]
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{self.cuda.get_device_properties(self.index).uuid}")
            document["driver"] = str(nvml.nvmlSystemGetDriverVersion())
            for name, clock in (("sm", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
                document["clocks_mhz"][name] = float(nvml.nvmlDeviceGetClockInfo(handle, clock))
            document["power_watts"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
            document["throttled"] = self._throttles(handle)
        except nvml.NVMLError as error:
            return [f"NVML: {error}"]
        finally:
            nvml.nvmlShutdown()
        return [f"the device was throttled: {reason}" for reason in document["throttled"]]

    def _throttles(self, handle: Any) -> list[str]:
        reasons = int(self.nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return [what for bit, what in THROTTLES.items() if reasons & bit]


def _load_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
