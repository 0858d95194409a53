"""GPUs as a list, and one with the source of every figure."""

from collections.abc import Iterator
from fractions import Fraction
from typing import cast

import msgspec

from kvcalc.errors import KvcalcError, shorten
from kvcalc.hardware.detect import AUTO, detect
from kvcalc.hardware.documents import (
    DeviceDocument,
    FigureDocument,
    GpuDocument,
    GpusDocument,
    ListedGpuDocument,
)
from kvcalc.hardware.gpus import Figure, Gpu, find_gpu, load_gpus, load_sources
from kvcalc.report import Column, Report, Table, Value
from kvcalc.units import exact_bytes, plain

SCHEMA = "kvcalc.gpus/1"
SHOW_SCHEMA = "kvcalc.gpu/1"

_COLUMNS = (
    Column("name", "GPU"),
    Column("aliases", "aliases"),
    Column("memory_label_gb", "GB", "count"),
    Column("driver_memory_bytes", "driver shows", "bytes"),
    Column("bandwidth_bytes_per_second", "GB/s", "rate"),
    Column("bf16_flops_per_second", "bf16", "flops"),
    Column("fp8_flops_per_second", "fp8", "flops"),
    Column("fp4_flops_per_second", "fp4", "flops"),
    Column("link_bytes_per_second", "link GB/s", "rate"),
)
_SCALES = {"rate": 10**9, "flops": 10**12}
# Units stand in the headings, since a screen has no room for them in every cell.
_SHOWN = tuple(
    msgspec.structs.replace(column, unit="count") if column.unit in _SCALES else column for column in _COLUMNS
)


def list_report(pattern: str = "") -> Report:
    """The answer of `kvcalc gpus list`: the GPUs of which a name or an alias holds `pattern`."""
    gpus = [listed(gpu) for gpu in load_gpus() if _matches(gpu, pattern.casefold())]
    if not gpus:
        raise KvcalcError(f"no GPU's name holds {shorten(pattern)!r}", "kvcalc gpus list shows all")
    document: GpusDocument = {"schema": SCHEMA, "gpus": gpus}
    rows = [_cells(gpu) for gpu in gpus]
    return Report(
        document=document,
        title=("GPUs", f"{len(gpus)}", "TFLOP/s dense, links one way", "kvcalc gpus show GPU names the sources"),
        tables=(Table(_COLUMNS, rows),),
        shown_tables=(Table(_SHOWN, [_shown(row) for row in rows]).without("aliases"),),
    )


def _matches(gpu: Gpu, pattern: str) -> bool:
    return any(pattern in name for name in (gpu.name, *gpu.aliases))


def _cells(gpu: ListedGpuDocument) -> tuple[Value, ...]:
    name, _, *figures = cast("dict[str, Value]", gpu).values()
    return (name, " ".join(gpu["aliases"]), *figures)


def _shown(row: tuple[Value, ...]) -> tuple[Value, ...]:
    scaled = zip(row, (_SCALES.get(column.unit, 1) for column in _COLUMNS), strict=True)
    return tuple(Fraction(cell) / scale if isinstance(cell, int) else cell for cell, scale in scaled)


def listed(gpu: Gpu) -> ListedGpuDocument:
    """One line of the list."""
    rates = gpu.dense_flops_per_second
    return {
        "name": gpu.name,
        "aliases": list(gpu.aliases),
        "memory_label_gb": _value(gpu.memory_label_gb),
        "driver_memory_bytes": _value(gpu.driver_memory_bytes),
        "bandwidth_bytes_per_second": _value(gpu.bandwidth_bytes_per_second),
        "bf16_flops_per_second": _value(rates.get("bf16")),
        "fp8_flops_per_second": _value(rates.get("fp8")),
        "fp4_flops_per_second": _value(rates.get("fp4")),
        "link_bytes_per_second": _value(gpu.link_bytes_per_second),
    }


def _value(figure: Figure | None) -> int | None:
    return None if figure is None else figure.value


def show_report(text: str) -> Report:
    """The answer of `kvcalc gpus show`: every figure of the GPU that `text` names, or of this machine for `auto`."""
    gpu, device = _own() if text.strip().casefold() == AUTO else (find_gpu(text), None)
    found = dict(gpu.figures())
    figures = {field: found[field] for field in _WORDS if field in found}
    document: GpuDocument = {
        "schema": SHOW_SCHEMA,
        "name": gpu.name,
        "aliases": list(gpu.aliases),
        "driver_names": [*gpu.driver_names, *gpu.shared_driver_names],
        "figures": [_figure(field, figure) for field, figure in figures.items()],
        "unknown": [field for field in _WORDS if field not in figures],
        "note": gpu.note,
        "device": device,
    }
    rows = [(field, figure.value, load_sources()[figure.source]) for field, figure in figures.items()]
    columns = (Column("figure", "figure"), Column("value", "value"), Column("source", "source"))
    shown = [(_WORDS[field], _print(field, value), source) for field, value, source in rows]
    return Report(
        document=document,
        title=(gpu.name, *_titles(document)),
        tables=(Table(columns, rows),),
        shown_tables=(Table(columns, shown),),
        lines=tuple(_lines(document)),
    )


def _own() -> tuple[Gpu, DeviceDocument]:
    gpu, name, total_bytes = detect()
    if gpu is None:
        raise KvcalcError(
            f"the driver prints {shorten(name)} with {exact_bytes(total_bytes)}, which is none of the GPUs listed",
            "kvcalc gpus list shows them",
        )
    return gpu, {"name": name, "total_bytes": total_bytes}


def _figure(field: str, figure: Figure) -> FigureDocument:
    return {"figure": field, "value": figure.value, "source": load_sources()[figure.source]}


def _titles(document: GpuDocument) -> Iterator[str]:
    names = [*document["aliases"], *document["driver_names"]]
    if names:
        yield f"also {', '.join(names)}"
    if device := document["device"]:
        yield f"this machine: {device['name']}, {exact_bytes(device['total_bytes'])}"


def _lines(document: GpuDocument) -> Iterator[str]:
    if document["unknown"]:
        yield f"not known, or not there: {', '.join(_WORDS[field] for field in document['unknown'])}"
    if document["note"]:
        yield f"note: {document['note']}"


def _print(field: str, value: int) -> str:
    """A figure as people read it, by the unit that its name ends in."""
    if field.startswith("dense_flops"):
        return f"{plain(Fraction(value, _SCALES['flops']))} TFLOP/s"
    if field.endswith("_per_second"):
        return f"{plain(Fraction(value, _SCALES['rate']))} GB/s"
    return exact_bytes(value) if field.endswith("_bytes") else plain(value)


_WORDS = {
    "memory_label_gb": "GB on the label",
    "driver_memory_bytes": "driver shows",
    "bandwidth_bytes_per_second": "bandwidth",
    **{f"dense_flops_per_second.{form}": form for form in ("fp16", "bf16", "fp8", "fp4", "int8")},
    "l2_bytes": "L2",
    "sm_count": "SMs",
    "link_bytes_per_second": "link",
    "link_axis_bytes_per_second": "link along an axis",
    "cpu_link_bytes_per_second": "link to the CPU",
    "pcie_bytes_per_second": "PCIe",
}
"""Every figure that a GPU can have, in the words of the table."""
