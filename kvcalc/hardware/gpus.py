"""Accelerators by name, and by what a driver prints.

The numbers stand in gpus.yaml, which says what each field counts. Units are base units: bytes, bytes a second
(decimal, as vendors print bandwidth), operations a second without sparsity.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvcalc.errors import KvcalcError, UnknownNameError, shorten

NumberFormat = Literal["fp16", "bf16", "fp8", "fp4", "int8"]
"""The formats in which vendors state matrix rates; they are rates of a unit, not layouts of a cache."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number, and the key of the public source that prints it."""

    value: Annotated[int, msgspec.Meta(gt=0)]
    source: str


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


@cache
def find_gpu(name: str) -> Gpu:
    """The accelerator called `name`: its name, an alias, what drivers print for it alone, or words of one name.

    Only letters and digits count, in any case. KvcalcError with what tells them apart where several answer;
    UnknownNameError with near names where none does.
    """
    key, family = _key(name), _family(name)
    found = _by_name().get(key)
    # `h200` is what drivers print for one card, but people say it of two; only `NVIDIA H200` is a driver's word.
    if found is not None and (len(family) <= 1 or key in _own_keys(found) or _is_printed(name)):
        return found
    if len(family) == 1:
        return family[0]
    if family:
        raise KvcalcError(f"{shorten(name)!r} may be any of {len(family)} GPUs", f"name one: {_apart(family)}")
    known = [spelling for gpu in load_gpus() for spelling in (gpu.name, *gpu.aliases, *gpu.driver_names)]
    alike = [gpu.name for gpu in load_gpus() if key and key in _key(gpu.name)]
    raise UnknownNameError("GPU", name, known, f"of that family: {', '.join(alike)}" if alike else _ALL)


_ALL = "kvcalc gpus list shows all; --gpu-memory 80GiB stands for any other"


def gpu_names() -> list[str]:
    """Every name and alias by which a GPU can be asked for, in the order of the file."""
    return [spelling for gpu in load_gpus() for spelling in (gpu.name, *gpu.aliases)]


@cache
def _family(name: str) -> list[Gpu]:
    """The accelerators of whose names every word of `name` is one."""
    words = [word for word in _words(name) if word not in _MAKERS]
    return [gpu for gpu in load_gpus() if words and all(_is_word_of(word, gpu) for word in words)]


def _is_word_of(word: str, gpu: Gpu) -> bool:
    """Whether the name has this word; `sxm` stands for sxm5, and `80` or `80g` for 80gb."""
    endings = r"\d*" if word.isalpha() else "(g?b)?"
    return any(re.fullmatch(re.escape(word) + endings, one) for one in _words(gpu.name))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.casefold())


_MAKERS = {"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon", "google", "intel"}


def _own_keys(gpu: Gpu) -> set[str]:
    return {_key(spelling) for spelling in (gpu.name, *gpu.aliases)}


def _is_printed(name: str) -> bool:
    return name.casefold().strip().startswith("nvidia")


def _apart(gpus: Iterable[Gpu]) -> str:
    """Names, which carry the form, with what else tells them apart: memory, bandwidth and 16-bit rate."""
    return ", ".join(f"{gpu.name} ({', '.join(_marks(gpu))})" for gpu in gpus)


def _marks(gpu: Gpu) -> Iterator[str]:
    if gpu.memory_label_gb is not None:
        yield f"{gpu.memory_label_gb.value} GB"
    if gpu.bandwidth_bytes_per_second is not None:
        yield f"{gpu.bandwidth_bytes_per_second.value / 10**9:,.0f} GB/s"
    if "fp16" in gpu.dense_flops_per_second:
        yield f"{gpu.dense_flops_per_second['fp16'].value / 10**12:,.0f} TFLOP/s"


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
    aside, and 1/15 more where it is off on a card sold with it on. Where that total is unknown, the label's GB may
    be 10^9 or 2^30 B.
    """
    if memory_bytes is None:
        return True
    if gpu.driver_memory_bytes is not None:
        least = gpu.driver_memory_bytes.value
        most = least * 16 / 15
    elif gpu.memory_label_gb is not None:
        least, most = gpu.memory_label_gb.value * 10**9, float(gpu.memory_label_gb.value * 2**30)
    else:
        return False
    return least * _LEAST_SHOWN <= memory_bytes <= most * _MOST_SHOWN


_LEAST_SHOWN, _MOST_SHOWN = 0.9, 1.01


def _key(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB`, `a100_sxm4 80gb` -> `a100sxm480gb`: old drivers and people leave NVIDIA out."""
    return "".join(filter(str.isalnum, name.casefold())).removeprefix("nvidia")
