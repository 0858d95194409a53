"""The JSON contract of `kvcalc gpus`: names are versioned; keys may be added, never changed in meaning."""

from typing import TypedDict


class ListedGpuDocument(TypedDict):
    """One GPU; rates are dense, a link counts one direction, and null is not known."""

    name: str
    aliases: list[str]
    memory_label_gb: int | None
    driver_memory_bytes: int | None
    bandwidth_bytes_per_second: int | None
    bf16_flops_per_second: int | None
    fp8_flops_per_second: int | None
    fp4_flops_per_second: int | None
    link_bytes_per_second: int | None


class GpusDocument(TypedDict):
    """kvcalc gpus list --format json."""

    schema: str
    gpus: list[ListedGpuDocument]


class FigureDocument(TypedDict):
    """A number of a GPU and the public source that prints it."""

    figure: str
    value: int
    source: str


class DeviceDocument(TypedDict):
    """What the driver of this machine prints of its GPU."""

    name: str
    total_bytes: int


class GpuDocument(TypedDict):
    """kvcalc gpus show --format json; `device` is there for `auto` alone, and `unknown` names what no source prints."""

    schema: str
    name: str
    aliases: list[str]
    driver_names: list[str]
    figures: list[FigureDocument]
    unknown: list[str]
    note: str
    device: DeviceDocument | None


SCHEMAS = {"kvcalc.gpus-1": GpusDocument, "kvcalc.gpu-1": GpuDocument}
"""File names of docs/schemas, and what each describes."""
