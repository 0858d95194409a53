"""What one GPU under one engine reaches: shares of its figures, and the time that starting things takes.

The numbers stand in constants.yaml, each with its source.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.errors import KvcalcError, UnknownNameError
from kvcalc.hardware.gpus import Figure, Gpu, find_gpu


class Kernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a kind of kernel reaches: shares of the memory's bandwidth and the units' rate, microseconds to start."""

    bandwidth_share: float
    start_us: float
    flops_share: float = 1.0


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number that no op table says: `of` what it is a share or the time, and where it comes from."""

    value: float
    of: str
    source: str


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By what share nine in ten held-out measurements stay below an estimate."""

    share: float
    source: str


class EngineConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine does otherwise than a server of today; `emulates` where it multiplies all formats in bf16."""

    free: dict[str, float] = {}
    emulates: bool = False
    source: str = ""


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What constants.yaml holds."""

    sources: dict[str, str]
    gpus: dict[str, dict[str, Kernel]]
    families: dict[str, list[str]]
    free: dict[str, Constant]
    engines: dict[str, EngineConstants]
    bands: dict[str, Band]


@cache
def load_constants() -> Constants:
    """Every constant; msgspec.ValidationError for an unknown key."""
    import yaml

    text = (Path(__file__).parent / "constants.yaml").read_text(encoding="utf-8")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return msgspec.convert(yaml.load(text, Loader=loader), Constants)  # noqa: S506 - both loaders are safe


class Machine(msgspec.Struct, frozen=True):
    """A GPU under an engine. Rates are base units; `kernels` by the rate of their format, and `attention`."""

    gpu: Gpu
    engine: str
    bytes_per_second: float
    flops_per_second: dict[str, float]
    kernels: dict[str, Kernel]
    free: dict[str, float]
    link_bytes_per_second: float | None
    link_share: float
    emulates: bool = False
    notes: tuple[str, ...] = ()

    def kernel(self, rate: str) -> Kernel:
        """What matrices reach that are multiplied at the rate of a format; those of bf16 where no table has it."""
        return self.kernels.get(rate, self.kernels["bf16"])

    def rate(self, name: str) -> float:
        """FLOP/s of the units of a format; KvcalcError where the GPU's figure is not known."""
        found = self.flops_per_second.get(name)
        if found is None:
            raise KvcalcError(f"{self.gpu.name}: its {name} rate is not known", "kvcalc gpus show names what is known")
        return found

    @property
    def plain(self) -> str:
        """The rate that attention runs at: bf16, or fp16 where there are no bf16 units."""
        return "bf16" if "bf16" in self.flops_per_second else "fp16"


def find_machine(gpu: str | Gpu, engine: str | None = None, ranks: int = 1) -> Machine:
    """The machine called `gpu` under `engine`, None for a server of today; `ranks` that exchange activations.

    UnknownNameError for an engine without constants, KvcalcError for a GPU without a bandwidth or, where there are
    several ranks, without a link.
    """
    found = find_gpu(gpu) if isinstance(gpu, str) else gpu
    constants = load_constants()
    name = engine_name(engine)
    kernels, notes = _kernels(found, constants)
    free = {key: constant.value for key, constant in constants.free.items()} | constants.engines[name].free
    link, share = _link(found, free, ranks)
    return Machine(
        gpu=found,
        engine=name,
        bytes_per_second=float(_known(found.bandwidth_bytes_per_second, found, "memory bandwidth")),
        flops_per_second={str(rate): float(figure.value) for rate, figure in found.dense_flops_per_second.items()},
        kernels=dict(kernels),
        free=free,
        link_bytes_per_second=link,
        link_share=share,
        emulates=constants.engines[name].emulates,
        notes=notes,
    )


def engine_name(engine: str | None) -> str:
    """The name under which an engine's constants stand, its release left out; None for a server of today."""
    name, known = (engine or SERVER).partition("@")[0].strip().casefold(), load_constants().engines
    if name not in known:
        raise UnknownNameError("engine", name, known, f"known: {', '.join(known)}")
    return name


SERVER = "vllm"
"""The engine where none is named."""


def _kernels(gpu: Gpu, constants: Constants) -> tuple[Mapping[str, Kernel], tuple[str, ...]]:
    if gpu.name in constants.gpus:
        return constants.gpus[gpu.name], ()
    for measured, family in constants.families.items():
        if gpu.name in family:
            return constants.gpus[measured], (
                f"{gpu.name} has no op tables: shares of its peaks are those of {measured}",
            )
    raise KvcalcError(
        f"{gpu.name}: no op table and no family says what kernels reach on it", f"known: {', '.join(constants.gpus)}"
    )


def _known(figure: Figure | None, gpu: Gpu, what: str) -> int:
    if figure is None:
        raise KvcalcError(f"{gpu.name}: its {what} is not known", f"kvcalc gpus show {gpu.name} lists what is known")
    return figure.value


def _link(gpu: Gpu, free: Mapping[str, float], ranks: int) -> tuple[float | None, float]:
    """Bytes a second in one direction to the other ranks, one axis of a torus, and the share that is reached."""
    if ranks == 1:
        return None, 1.0
    link = gpu.link_bytes_per_second or gpu.link_axis_bytes_per_second
    if link is not None:
        return float(link.value), free["link_share"]
    return float(_known(gpu.pcie_bytes_per_second, gpu, "link to other GPUs")), free["pcie_share"]
