"""A device to measure on: its clock, its memory, and what it says of itself."""

import os
import platform
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from kvcalc.errors import KvcalcError
from kvcalc.profiler.documents import EnvironmentDocument
from kvcalc.profiler.ranks import local_index, local_size

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Device(Protocol):
    """What the profiler asks of a device."""

    kind: str
    torch_name: str
    granule_bytes: int | None
    """What its allocator rounds each tensor up to, None where it keeps no count."""

    def time(self, action: Callable[[], object]) -> float:
        """Seconds that `action` takes on the device, everything queued before it finished."""

    def available_bytes(self) -> int:
        """Bytes that can still be allocated."""

    def allocated_bytes(self) -> int | None:
        """Bytes that its allocator has given to tensors, None where it keeps no count."""

    def peak_bytes(self) -> int | None:
        """The most that was held since `reset_peak`: allocator bytes on CUDA, resident bytes on a CPU."""

    def held_bytes(self) -> tuple[int | None, int | None]:
        """Bytes that its allocator keeps reserved, and bytes in use on the whole device; None where unknown."""

    def reset_peak(self) -> None:
        """Begin to watch for a new peak."""

    def flush(self) -> None:
        """Push earlier data out of caches that are too small for a whole KV cache."""

    def capture(self, action: Callable[[], object]) -> Callable[[], object] | None:
        """`action` recorded once and replayed without the host, None on a device without graphs.

        RuntimeError where it has them and this action cannot be recorded.
        """

    def kernel_of(self, action: Callable[[], object]) -> str:
        """The kernel that takes the most time of `action`, by the name that torch gives it."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` means that memory ran out."""

    def describe(self, document: EnvironmentDocument) -> list[str]:
        """Fill in what the device says of itself; returns doubts, such as throttling."""


class CpuDevice:
    """The processors that this process may use, with one thread each unless told otherwise.

    Ranks that torchrun started on one machine share its processors and its memory alike.
    """

    kind = torch_name = "cpu"
    granule_bytes: int | None = None

    def __init__(self, threads: int | None = None) -> None:
        import torch

        if threads is not None and threads < 1:
            raise KvcalcError(f"--threads {threads}: at least 1 is needed", "leave --threads out for one a processor")
        self.processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(threads or max(1, self.processors // local_size()))
        self._evict = torch.empty(0)

    def time(self, action: Callable[[], object]) -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    def available_bytes(self) -> int:
        import psutil

        free = int(psutil.virtual_memory().available)
        limit = container_limit()
        return (free if limit is None else min(free, limit - self._resident())) // local_size()

    def allocated_bytes(self) -> int | None:
        return None

    def peak_bytes(self) -> int | None:
        return self._resident()

    def _resident(self) -> int:
        import psutil

        return int(psutil.Process().memory_info().rss)

    def held_bytes(self) -> tuple[int | None, int | None]:
        return None, None

    def reset_peak(self) -> None:
        """Resident memory has no peak that can be reset: `peak_bytes` is what is resident when it is asked."""

    def flush(self) -> None:
        import torch

        if not self._evict.numel():
            self._evict = torch.zeros(EVICTING_BYTES // 4)
        self._evict.add_(1.0)

    def capture(self, action: Callable[[], object]) -> Callable[[], object] | None:
        return None

    def kernel_of(self, action: Callable[[], object]) -> str:
        from kvcalc.profiler.dispatch import slowest_op

        return slowest_op(action)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError) or "can't allocate memory" in str(error)

    def describe(self, document: EnvironmentDocument) -> list[str]:
        import psutil
        import torch

        document["device_name"] = _processor_name()
        document["threads"] = torch.get_num_threads()
        document["memory_bytes"] = int(psutil.virtual_memory().total)
        frequency = psutil.cpu_freq()
        if frequency is not None and frequency.current:
            document["clocks_mhz"]["cpu"] = float(frequency.current)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        busy = load > self.processors + torch.get_num_threads()
        return [f"the machine was busy: a load of {load:.1f} on {self.processors} processors"] if busy else []


EVICTING_BYTES = 256 * 2**20


def container_limit() -> int | None:
    """Bytes that the process's container may use, None where there is no limit."""
    for path in CGROUP_LIMITS:
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123 - a kernel's file
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 2**62:
            return int(text)
    return None


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - a kernel's file
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def require_torch() -> Any:
    """torch, or a KvcalcError that says which extra brings it."""
    return _require("torch")


def _require(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise KvcalcError(f"profile needs {module}, which is not installed", "pip install 'kvcalc[profile]'") from error


def find_device(name: str | None, threads: int | None = None) -> Device:
    """The device called `cpu`, `cuda` or `cuda:N`; without a name CUDA where there is one, else the CPU.

    Without N it is the first device, or this rank's own where torchrun started several on a machine.
    """
    torch = require_torch()
    asked = name or ("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = asked.partition(":")
    if kind == "cpu" and not index:
        _require("psutil")
        return CpuDevice(threads)
    if kind == "cuda" and (not index or index.isdigit()):
        if not torch.cuda.is_available():
            raise KvcalcError(f"--device {asked}: torch {torch.__version__} finds no CUDA device", "use --device cpu")
        from kvcalc.profiler.cuda import CudaDevice

        return CudaDevice(int(index or local_index()))
    refused = {"mps": "Apple's MPS counts no bytes that could be held against a prediction"}
    raise KvcalcError(
        f"--device {asked}: {refused.get(kind, 'no such device is known here')}", "use cpu, cuda or cuda:N"
    )
