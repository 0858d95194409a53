"""The GPU that is meant: named, or asked of the driver of this machine."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import msgspec

from kvcalc.errors import KvcalcError, shorten
from kvcalc.hardware.gpus import Gpu, find_gpu, match_device
from kvcalc.units import memory

AUTO = "auto"
"""What stands for the GPU of this machine."""

_NAME_IT = "name the GPU: --gpu h100-sxm, or say --gpu-memory 80GiB"
_TIMEOUT_SECONDS = 20.0
_MIB = 2**20


class NoDriverError(KvcalcError):
    """No driver of a GPU answers on this machine."""


class FoundGpu(msgspec.Struct, frozen=True):
    """A GPU by the name that people read, its entry where it is a listed one, and all its memory in bytes."""

    name: str
    gpu: Gpu | None
    total_bytes: int


def resolve_gpu(text: str, total_bytes: int | None = None) -> FoundGpu:
    """The GPU that `text` names, or that of this machine for `auto`, with the memory that its driver reports.

    `total_bytes` stands where a card has another memory than usual, or one that is sold in several sizes. KvcalcError
    where no driver answers, where no such GPU or more than one is meant, and where its total is not known.
    """
    if text.strip().casefold() == AUTO:
        found, name, detected = detect()
        return FoundGpu(found.name if found else name, found, total_bytes or detected)
    gpu = find_gpu(text)
    return FoundGpu(gpu.name, gpu, total_bytes or usual_total_bytes(gpu))


def usual_total_bytes(gpu: Gpu) -> int:
    """What the driver of this card reports in bytes; KvcalcError where that is not known."""
    if gpu.driver_memory_bytes is not None:
        return gpu.driver_memory_bytes.value
    label = f", {gpu.memory_label_gb.value} GB on its label" if gpu.memory_label_gb else ""
    raise KvcalcError(
        f"what a driver reports of {gpu.name} is not known{label}", "say it: --gpu-memory, as in --gpu-memory 60GiB"
    )


def detect() -> tuple[Gpu | None, str, int]:
    """The entry of this machine's GPU where it is a listed one, the name that its driver prints, and all its bytes.

    nvidia-smi is asked, then rocm-smi. KvcalcError where neither answers, where the machine has several kinds of GPU,
    and where MIG cuts one up.
    """
    devices = set(_ask_nvidia() or _ask_rocm())
    if not devices:
        raise NoDriverError("no NVIDIA or AMD driver answers", _NAME_IT)
    if len(devices) > 1:
        kinds = "; ".join(sorted(_kind(*device) for device in devices))
        raise KvcalcError(f"this machine has more than one kind of GPU: {shorten(kinds, 200)}", _NAME_IT)
    name, total_bytes = devices.pop()
    gpu = match_device(name, total_bytes)
    if total_bytes is not None:
        return gpu, name, total_bytes
    if gpu is None:
        raise KvcalcError(f"the driver does not say how much memory {shorten(name)} has", _NAME_IT)
    return gpu, name, usual_total_bytes(gpu)


_Device = tuple[str, int | None]
"""The name that a driver prints, and all memory in bytes where it tells."""


def _kind(name: str, total_bytes: int | None) -> str:
    return name if total_bytes is None else f"{name} with {memory(total_bytes)}"


def _ask_nvidia() -> list[_Device]:
    """Every GPU of nvidia-smi; empty where it is not there or finds none."""
    answer = _run(("nvidia-smi", "--query-gpu=name,memory.total,mig.mode.current", "--format=csv,noheader,nounits"))
    return [_nvidia_device(line) for line in answer.splitlines() if line.strip()]


def _nvidia_device(line: str) -> _Device:
    """One line of it: `NVIDIA A10G, 23028, [N/A]`; memory in MiB, which a chip that shares the CPU's does not tell."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(("name", "memory", "mig")) or not cells[0] or not _is_memory(cells[1]):
        raise KvcalcError(f"nvidia-smi answers {shorten(line)!r}, which is no GPU", _NAME_IT)
    name, mebibytes, mig = cells
    if mig.casefold() == "enabled":
        raise KvcalcError(
            f"MIG cuts {shorten(name)} up, and a process sees one slice", "say what the slice holds: --gpu-memory 10GiB"
        )
    return name, int(mebibytes) * _MIB if mebibytes.isdecimal() else None


def _is_memory(cell: str) -> bool:
    return int(cell) > 0 if cell.isdecimal() else cell.casefold() in ("[n/a]", "[not supported]")


def _ask_rocm() -> list[_Device]:
    """Every GPU of rocm-smi; empty where it is not there or finds none."""
    answer = _run(("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"))
    if not answer.strip():
        return []
    try:
        cards = [card for key, card in json.loads(answer).items() if key.startswith("card")]
        return [_rocm_device({key.casefold(): value for key, value in card.items()}) for card in cards]
    except (ValueError, KeyError, AttributeError) as error:
        raise KvcalcError(f"rocm-smi answers {shorten(answer)!r}, which is no GPU", _NAME_IT) from error


def _rocm_device(card: dict[str, Any]) -> _Device:
    """`{"Card Series": "AMD Instinct MI300X OAM", "VRAM Total Memory (B)": "206141652992"}`, in any case."""
    return card["card series"], int(card["vram total memory (b)"])


def _run(command: Sequence[str]) -> str:
    """What a driver's tool prints; nothing where it is not there or fails."""
    try:
        done = subprocess.run(  # noqa: S603
            command, check=False, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise KvcalcError(f"{command[0]} does not answer within {_TIMEOUT_SECONDS:g} s", _NAME_IT) from error
    except OSError:
        return ""
    return "" if done.returncode else done.stdout
