"""What a device does at best: bytes read, bytes copied, arithmetic. Measured before anything is held against it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcalc.profiler.device import Device
from kvcalc.profiler.documents import MachineDocument

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Action = Callable[[], object]

PROBE_BYTES = {"cpu": 512 * 2**20, "cuda": 4 * 2**30}
"""Far past every cache."""
PROBE_SIDE = {"cpu": 2048, "cuda": 8192}
LEAST_BYTES = 64 * 2**20
REPEATS = 7


def measure_machine(device: Device, dtype: "torch.dtype", dtype_name: str) -> MachineDocument:
    """The best of several runs each of reading, copying and multiplying, in bytes and FLOP per second.

    A copy counts what it reads and what it writes. The multiplication is square, in the type that layers run in.
    """
    import torch

    source = torch.ones(_probe_bytes(device) // 4, device=device.torch_name)
    read = min(_best(device, reader) for reader in _readers(source))
    return {
        "read_bytes_per_second": source.nbytes / read,
        "copy_bytes_per_second": 2 * source.nbytes / _copy_seconds(device, source),
        "gemm_flops_per_second": _gemm_rate(device, dtype),
        "gemm_dtype": dtype_name,
        "specified_bytes_per_second": None,
        "specified_flops_per_second": None,
        "specified_source": None,
    }


def _copy_seconds(device: Device, source: "Tensor") -> float:
    import torch

    target = torch.empty_like(source)
    return _best(device, lambda: target.copy_(source))


def _probe_bytes(device: Device) -> int:
    """As much as shows the memory and not a cache, and no more than an eighth of what is free."""
    return max(LEAST_BYTES, min(PROBE_BYTES[device.kind], device.available_bytes() // 8)) // 4096 * 4096


def _readers(source: "Tensor") -> list[Action]:
    """Two ways to read everything once: which is faster depends on the device."""
    rows = source.view(-1, 1024)
    ones = rows.new_ones(1024)
    return [source.sum, lambda: rows @ ones]


def _gemm_rate(device: Device, dtype: "torch.dtype") -> float:
    import torch

    side = PROBE_SIDE[device.kind]
    left, right = (torch.rand(side, side, device=device.torch_name).to(dtype) for _ in range(2))
    return 2 * side**3 / _best(device, lambda: left @ right)


def _best(device: Device, action: Action) -> float:
    """The shortest of several runs in seconds, after one that is not counted."""
    action()
    return min(device.time(action) for _ in range(REPEATS))
