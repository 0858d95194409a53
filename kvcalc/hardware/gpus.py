"""Accelerators by name, and by what a driver prints.

The numbers stand in gpus.yaml, which says what each field counts. Units are base units: bytes, bytes a second
(decimal, as vendors print bandwidth), operations a second without sparsity.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvcalc.errors import KvcalcError, UnknownNameError

NumberFormat = Literal["fp16", "bf16", "fp8", "fp4", "int8"]
"""The formats in which vendors state matrix rates; they are rates of a unit, not layouts of a cache."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number, the key of its source, and whether that source still waits for a second one."""

    value: Annotated[int, msgspec.Meta(gt=0)]
    source: str
    unverified: bool = False


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One accelerator; a figure that is None, or a format without a rate, is unknown.

    `link` goes to other accelerators, `link_axis` along one axis of a torus, `cpu_link` to the CPU of the same
    module: each one direction, all links of the card together.
    """

    name: str
    aliases: tuple[str, ...] = ()
    driver_names: tuple[str, ...] = ()
    shared_driver_names: tuple[str, ...] = ()
    memory_label_gb: Figure | None = None
    driver_memory_bytes: Figure | None = None
    bandwidth_bytes_per_second: Figure | None = None
    dense_flops_per_second: dict[NumberFormat, Figure] = {}
    l2_bytes: Figure | None = None
    sm_count: Figure | None = None
    link_bytes_per_second: Figure | None = None
    link_axis_bytes_per_second: Figure | None = None
    cpu_link_bytes_per_second: Figure | None = None
    pcie_bytes_per_second: Figure | None = None
    note: str = ""

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Every known number with the name of its field; a rate as `dense_flops_per_second.bf16`."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, Figure):
                yield field, value
        for form, rate in self.dense_flops_per_second.items():
            yield f"dense_flops_per_second.{form}", rate


class Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What gpus.yaml holds: the sources by key, and the accelerators."""

    sources: dict[str, str]
    gpus: tuple[Gpu, ...]

    def __post_init__(self) -> None:
        for gpu in self.gpus:
            for field, figure in gpu.figures():
                if figure.source not in self.sources:
                    raise ValueError(f"{gpu.name}: {field} names the source {figure.source!r}, which is not listed")


def load_gpus() -> tuple[Gpu, ...]:
    """Every accelerator, in the order of the file."""
    return _registry().gpus


def load_sources() -> Mapping[str, str]:
    """Where numbers come from: a sentence for every key that a figure's `source` can be."""
    return _registry().sources


@cache
def _registry() -> Registry:
    return read_registry((Path(__file__).parent / "gpus.yaml").read_text(encoding="utf-8"))


def read_registry(text: str) -> Registry:
    """A registry from YAML; msgspec.ValidationError for an unknown key, a wrong type or an unlisted source."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return msgspec.convert(yaml.load(text, Loader=loader), Registry)  # noqa: S506 - both loaders are safe


def find_gpu(name: str) -> Gpu:
    """The accelerator called `name`: its name, an alias, or what drivers print for it and for no other.

    Only letters and digits count, in any case, and a leading NVIDIA does not. UnknownNameError with near names
    where nothing answers, KvcalcError where a driver prints that name for several cards.
    """
    key = _key(name)
    if key in _by_name():
        return _by_name()[key]
    sharing = [gpu.name for gpu in load_gpus() if key in map(_key, gpu.shared_driver_names)]
    if sharing:
        raise KvcalcError(f"{name!r} is what drivers print for more than one GPU", f"name one: {' or '.join(sharing)}")
    family = [gpu.name for gpu in load_gpus() if key and key in _key(gpu.name)]
    known = [spelling for gpu in load_gpus() for spelling in (gpu.name, *gpu.aliases, *gpu.driver_names)]
    raise UnknownNameError("GPU", name, known, f"of that family: {', '.join(family)}" if family else "")


@cache
def _by_name() -> dict[str, Gpu]:
    return {_key(spelling): gpu for gpu in load_gpus() for spelling in (gpu.name, *gpu.aliases, *gpu.driver_names)}


def match_device(device_name: str, memory_bytes: int | None = None) -> Gpu | None:
    """The entry of a running device, by what its driver prints and the memory that it shows in all, in bytes.

    None where no entry or more than one fits: a slice of a card, a sibling with other memory, a name that several
    cards share while the memory is not known.
    """
    key = _key(device_name)
    fitting = [gpu for gpu in load_gpus() if _prints(gpu, key, memory_bytes) and _holds(gpu, memory_bytes)]
    return fitting[0] if len(fitting) == 1 else None


def _prints(gpu: Gpu, key: str, memory_bytes: int | None) -> bool:
    names = gpu.driver_names if memory_bytes is None else (*gpu.driver_names, *gpu.shared_driver_names)
    return key in map(_key, names)


def _holds(gpu: Gpu, memory_bytes: int | None) -> bool:
    """Whether `memory_bytes` can be all of this card's memory.

    A device shows less than its driver's usual total where ECC takes 1/16 (GDDR cards) and CUDA sets some percent
    aside. Where that total is unknown, the label's GB may be 10^9 or 2^30 B.
    """
    if memory_bytes is None:
        return True
    if gpu.driver_memory_bytes is not None:
        least = most = gpu.driver_memory_bytes.value
    elif gpu.memory_label_gb is not None:
        least, most = gpu.memory_label_gb.value * 10**9, gpu.memory_label_gb.value * 2**30
    else:
        return False
    return least * _LEAST_SHOWN <= memory_bytes <= most * _MOST_SHOWN


_LEAST_SHOWN, _MOST_SHOWN = 0.9, 1.01


def _key(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB`, `a100_sxm4 80gb` -> `a100sxm480gb`: old drivers and people leave NVIDIA out."""
    return "".join(filter(str.isalnum, name.casefold())).removeprefix("nvidia")
