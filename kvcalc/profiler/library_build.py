"""transformers' own model for a config.json: which file is meant, and how the library builds what it describes."""

import importlib
import json
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.errors import KvcalcError, shorten
from kvcalc.model.catalog import locate
from kvcalc.model.importers import hub
from kvcalc.model.importers.sources import read_json

if TYPE_CHECKING:
    import torch

ATTENTIONS = ("sdpa", "eager")
"""Tried in this order: not every model has the first."""
CLASSES = ("AutoModelForCausalLM", "AutoModelForImageTextToText")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TAKES = "name a config.json, a folder with one, or a hub id in the local cache"


def require_transformers() -> Any:
    """transformers, quiet and without network; KvcalcError where it is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        message = "--backend transformers needs transformers, which is not installed"
        raise KvcalcError(message, "pip install 'kvcalc[oracle]'") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def find_config(model: str | None, download: bool = False) -> Path:
    """The config.json that `model` means; KvcalcError for what the library cannot build a model from.

    A hub id in the local cache is that repository's config, even where a spec of the catalogue has the same name.
    """
    if model is None:
        raise KvcalcError("--backend transformers runs no model by default", _TAKES)
    path = _on_the_hub(model, download) or locate(model, download)[0]
    file = path / hub.CONFIG_NAME if path.is_dir() else path
    if file.suffix != ".json" or not file.is_file():
        what = "a spec of kvcalc's own" if file.suffix in (".yaml", ".yml") else "no config.json"
        raise KvcalcError(f"--backend transformers: {shorten(model)} is {what}", _TAKES)
    return file


def _on_the_hub(model: str, download: bool) -> Path | None:
    if not hub.looks_like_repo_id(model):
        return None
    return hub.find_in_cache(model) or (hub.download(model) if download else None)


class Plan(NamedTuple):
    """One way to build a model: the class that generates, the config that it takes, the attention that it runs."""

    auto: Any
    config: Any
    attention: str

    def with_random_weights(self, dtype: "torch.dtype", torch_name: str) -> Any:
        """The model on a device, as the library initialises it."""
        import torch

        with torch.device(torch_name):
            return self.auto.from_config(self.config, dtype=dtype, attn_implementation=self.attention)

    def with_weights_of(self, folder: Path, dtype: "torch.dtype") -> Any:
        """The model on the CPU with the checkpoint in `folder`; ValueError where it lacks a weight of this class."""
        model, found = self.auto.from_pretrained(
            folder,
            config=self.config,
            dtype=dtype,
            attn_implementation=self.attention,
            local_files_only=True,
            output_loading_info=True,
        )
        if lacking := sorted(found["missing_keys"]):
            raise ValueError(f"the checkpoint lacks {len(lacking)} tensors, the first {lacking[0]}")
        return model


class Blueprint:
    """The library's model of one config.json in one format, before it takes any memory."""

    def __init__(self, config: Path, dtype: "torch.dtype") -> None:
        self.dtype, self.stated = dtype, read_json(config)
        self.library = require_transformers()
        self.name = shorten(str(self.stated.get("model_type")))
        self.checkpoint = config.parent if _has_weights(config) else None
        if self.checkpoint is not None and self.stated.get("quantization_config"):
            raise KvcalcError(
                f"the weights beside {config} are quantised, and --backend transformers runs plain ones",
                "copy the config.json elsewhere and name the copy: random weights take their place",
            )
        self.plans = self._plans(self._config())

    def _config(self) -> Any:
        """The config as the library reads it; without `auto_map`, so that no code beside it runs."""
        known = self.library.CONFIG_MAPPING
        if self.stated.get("model_type") not in list(known):
            version = self.library.__version__
            raise KvcalcError(f"transformers {version} knows no model_type {self.name!r}", "use --backend reference")
        plain = {key: value for key, value in self.stated.items() if key not in ("auto_map", "quantization_config")}
        try:
            config = known[self.stated["model_type"]].from_dict(json.loads(json.dumps(plain)))
        except Exception as error:
            raise KvcalcError(f"transformers does not take this config of {self.name}: {in_short(error)}") from error
        if config.is_encoder_decoder:
            raise KvcalcError(
                f"{self.name} has an encoder, and --backend transformers runs decoders", "use --backend reference"
            )
        return config

    def _plans(self, config: Any) -> list[Plan]:
        """Every way to build the model: its text side first, then the whole, which holds the same language model."""
        text = getattr(config, "thinker_config", config).get_text_config(decoder=True)
        autos = [getattr(self.library, name) for name in CLASSES]
        found = [
            Plan(auto, part, attention)
            for part in ([config] if text is config else [text, config])
            for auto in autos
            if type(part) in auto._model_mapping
            for attention in ATTENTIONS
        ]
        if not found:
            raise KvcalcError(
                f"transformers has no class that generates text with {self.name}", "use --backend reference"
            )
        return found

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, as their shapes tell on a device without memory."""
        shapes = self._first(lambda plan: plan.with_random_weights(self.dtype, "meta"))
        return sum(weight.nbytes for weight in shapes.parameters())

    def build(self, torch_name: str, seed: int) -> Any:
        """The library's model on a device, from the checkpoint where there is one, else with random weights."""
        import torch

        folder = self.checkpoint
        torch.manual_seed(seed)
        if folder is None:
            return self._first(lambda plan: plan.with_random_weights(self.dtype, torch_name)).eval()
        return self._first(lambda plan: plan.with_weights_of(folder, self.dtype).to(torch_name)).eval()

    def _first(self, make: Callable[[Plan], Any]) -> Any:
        """What the first plan makes that can be made; KvcalcError with the first plan's reason where none can."""
        reasons = []
        for plan in self.plans:
            try:
                return make(plan)
            except Exception as error:
                reasons.append(in_short(error))
        raise KvcalcError(f"transformers cannot build this {self.name}: {reasons[0]}", "use --backend reference")


def _has_weights(config: Path) -> bool:
    """Whether weights lie beside a config.json, be they all there or not; a config of another name has none."""
    return config.name == hub.CONFIG_NAME and any(any(config.parent.glob(pattern)) for pattern in WEIGHTS)


def in_short(error: Exception) -> str:
    """An error of the library in one line."""
    return shorten(f"{type(error).__name__}: {error}", 200)
