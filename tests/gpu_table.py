"""The tables of docs/hardware.md, made from kvcalc/hardware/gpus.yaml."""

from collections import Counter
from collections.abc import Callable

from kvcalc.hardware.gpus import Figure, Gpu, load_gpus, load_sources

_COLUMNS = "GPU|also called|memory, GB|driver shows, MiB|bandwidth, GB/s|fp16|bf16|fp8|fp4|int8|L2, MiB|SMs|link, GB/s|PCIe, GB/s"
_FORMATS = ("fp16", "bf16", "fp8", "fp4", "int8")


def _gpus() -> str:
    columns = _COLUMNS.split("|")
    rows = [columns, ["---"] * len(columns), *map(_row, load_gpus())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(gpu: Gpu) -> list[str]:
    names = (*gpu.aliases, *gpu.driver_names, *(f"{name} (shared)" for name in gpu.shared_driver_names))
    links = (
        ("", gpu.link_bytes_per_second),
        ("CPU ", gpu.cpu_link_bytes_per_second),
        ("an axis ", gpu.link_axis_bytes_per_second),
    )
    return [
        f"`{gpu.name}`",
        ", ".join(names),
        _number(gpu.memory_label_gb),
        _number(gpu.driver_memory_bytes, 2**20),
        _number(gpu.bandwidth_bytes_per_second, 10**9),
        *(_number(gpu.dense_flops_per_second.get(form), 10**12) for form in _FORMATS),
        _number(gpu.l2_bytes, 2**20),
        _number(gpu.sm_count),
        ", ".join(f"{label}{_number(figure, 10**9)}" for label, figure in links if figure),
        _number(gpu.pcie_bytes_per_second, 10**9),
    ]


def _number(figure: Figure | None, unit: int = 1) -> str:
    """In `unit`, with `?` behind what was not checked; empty where unknown."""
    if figure is None:
        return ""
    value = figure.value / unit
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _sources() -> str:
    counts = Counter(figure.source for gpu in load_gpus() for _, figure in gpu.figures())
    rows = [f"| `{key}` | {counts[key]} | {text} |\n" for key, text in load_sources().items()]
    return "| source | numbers | |\n|---|---|---|\n" + "".join(rows)


def _notes() -> str:
    notes: dict[str, list[str]] = {}
    for gpu in load_gpus():
        if gpu.note:
            notes.setdefault(gpu.note, []).append(f"`{gpu.name}`")
    return "".join(f"- {', '.join(names)}: {note}.\n" for note, names in notes.items())


GPU_TABLES: dict[str, Callable[[], str]] = {"gpus": _gpus, "gpu_sources": _sources, "gpu_notes": _notes}
