"""vLLM's own modules, loaded from an unpacked wheel, and empty ones in the place of all others that they import."""

import importlib
import importlib.util
import logging
from abc import ABCMeta
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from kvcalc.errors import KvcalcError

VARIABLE = "VLLM_SRC"

LOADED = {
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.core.kv_cache_config_builder",
    "vllm.v1.core.kv_cache_planning",
    "vllm.v1.core.kv_cache_utils",
    "vllm.utils.math_utils",
    "vllm.models.deepseek_v4.attention",
    "vllm.models.deepseek_v4.compressor",
    "vllm.models.deepseek_v41.attention",
    "vllm.models.deepseek_v41.compressor",
    "vllm.models.minimax_m3.common.indexer",
    "vllm.v1.attention.backends.mla.sparse_swa",
}
"""Modules that are what they are; all others of vLLM are stand-ins."""


class NoVllmError(KvcalcError):
    """vLLM's source is not there."""


class StandIn(ABCMeta):
    """The type of an empty class: its attributes are empty classes too, and its calls give one, or decorate nothing.

    vLLM's own classes derive from such; they are what they are.
    """

    def __getattr__(cls, name: str) -> "StandIn":
        if name.startswith("__") or "is_empty" not in cls.__dict__:
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if "is_empty" not in cls.__dict__:
            return super().__call__(*arguments, **named)
        return arguments[0] if len(arguments) == 1 and not named and callable(arguments[0]) else stand_in(cls.__name__)

    def __getitem__(cls, _key: Any) -> "StandIn":
        return cls


def stand_in(name: str) -> StandIn:
    """An empty class of that name."""
    return StandIn(name, (), {"is_empty": True})


class StandInModule(ModuleType):
    """A module in which every name is an empty class."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(name)
        setattr(self, name, made)
        return made


class Source(MetaPathFinder, Loader):
    """Finds vLLM's modules: those that are loaded in its folder, all others as stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != "vllm" and not name.startswith("vllm."):
            return None
        if name in LOADED:
            return importlib.util.spec_from_file_location(
                name, self.folder.joinpath(*name.split(".")).with_suffix(".py")
            )
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


@dataclass(frozen=True)
class MultipleOf:
    """vLLM's own class of this name, in a module that is a stand-in."""

    base: int


class _Logger:
    """A logger whose `info_once` and the like are `info`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name.removesuffix("_once"))


def fill_in() -> None:
    """The few names of stand-in modules that planning really calls."""
    made = {
        "vllm.utils.torch_utils": {"get_dtype_size": lambda dtype: dtype.itemsize},
        "vllm.utils.mem_utils": {"format_gib": lambda size: str(round(size / 2**30, 2))},
        "vllm.logger": {"init_logger": _Logger},
        "vllm.v1.attention.backend": {"MultipleOf": MultipleOf},
        "vllm.v1.hisparse.layout": {"get_hisparse_kv_cache_groups": lambda *_: None},
    }
    for module, names in made.items():
        vars(importlib.import_module(module)).update(names)
