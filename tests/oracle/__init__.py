"""What transformers itself keeps: bytes of its cache after a prefill, for any config.json that it can build.

    python -m tests.oracle CONFIG.json [--tokens N]... [--batch B] [--dtype bfloat16] [--device meta|cpu] [--json]

The library builds the model, runs it and fills its own cache; this module adds up the tensors that it finds there and
knows no formula. On the meta device that needs no weights. A config's quantization is left out: it asks for packages.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvcalc.errors import KvcalcError, shorten


@dataclass(frozen=True)
class LayerRun:
    """Neighbouring layers, first to last, that hold the same; `layer_bytes` is of one, all sequences together."""

    part: str  # self or cross where a model has both
    kind: str
    first: int
    last: int
    tensors: dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape
    layer_bytes: int


@dataclass(frozen=True)
class OracleAnswer:
    """Bytes in the cache of all sequences together, the whole model's parameter count, and which layers hold what."""

    kv_bytes: int
    parameters: int
    layers: tuple[LayerRun, ...]


def cache_bytes(
    config: dict[str, Any], tokens: int, batch: int, dtype: str = "bfloat16", device: str = "meta"
) -> OracleAnswer:
    """Bytes that the library's cache holds after a prefill of `tokens` in each of `batch` sequences."""
    model = built(config, dtype, "meta")
    parameters = sum(weight.numel() for weight in model.parameters())
    if device == "meta":
        with values_made_up():
            layers = held_after_prefill(model, tokens, batch)
    else:
        layers = held_on_cpu(config, tokens, batch, dtype)
    kv_bytes = sum(run.layer_bytes * (run.last - run.first + 1) for run in layers)
    return OracleAnswer(kv_bytes, parameters, layers)


def libraries() -> tuple[Any, Any]:
    """torch and transformers, offline and quiet, or an error that says how to get them."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise KvcalcError(f"the oracle needs {error.name}", "pip install 'kvcalc[oracle]'") from error
    transformers.logging.set_verbosity_error()
    return torch, transformers


def built(config: dict[str, Any], dtype: str, device: str) -> Any:
    """The library's own model for a config, ready to run; the text side of one that also sees or hears."""
    torch, _ = libraries()
    whole = library_config(config)
    reasons = ["it has no class that generates text"]
    for choice in (text_side(whole), whole):
        for auto in classes_for(choice):
            for attention in ("sdpa", "eager"):
                try:
                    with torch.device(device):
                        made = auto.from_config(choice, dtype=getattr(torch, dtype), attn_implementation=attention)
                    return made.eval()
                except Exception as error:
                    reasons.append(in_short(error))
    raise KvcalcError(f"transformers cannot build this {whole.model_type}: {reasons[:2][-1]}")


def library_config(config: dict[str, Any]) -> Any:
    """The config as the library reads it."""
    _, transformers = libraries()
    name = str(config.get("model_type"))
    known = transformers.CONFIG_MAPPING
    if name not in known:
        version = transformers.__version__
        raise KvcalcError(f"transformers {version} knows no model_type {shorten(name)!r}", "give a model's config.json")
    plain = {key: value for key, value in config.items() if key not in ("auto_map", "quantization_config")}
    try:
        return known[name].from_dict(json.loads(json.dumps(plain)))
    except Exception as error:
        raise KvcalcError(f"transformers does not take this config of {name}: {in_short(error)}") from error


def text_side(config: Any) -> Any:
    """The part of a config that describes the text decoder."""
    if config.is_encoder_decoder:
        return config  # else the answer would be a decoder without cross attention
    return getattr(config, "thinker_config", config).get_text_config(decoder=True)


def classes_for(config: Any) -> list[Any]:
    """The library's generating classes that take a config, those with an encoder first where it has one."""
    _, transformers = libraries()
    names = ["AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModel"]
    if config.is_encoder_decoder:
        names = ["AutoModelForSpeechSeq2Seq", "AutoModelForSeq2SeqLM", *names]
    autos = [getattr(transformers, name) for name in names]
    return [auto for auto in autos if type(config) in auto._model_mapping]


def held_after_prefill(model: Any, tokens: int, batch: int) -> tuple[LayerRun, ...]:
    """Run one forward pass that fills a cache, and say what the cache holds."""
    torch, transformers = libraries()
    name, device = model.config.model_type, model.device.type
    try:
        with torch.no_grad():
            output = model(**inputs_of(model, tokens, batch), use_cache=True)
    except Exception as error:
        hint = "try --device cpu" if device == "meta" else ""
        raise KvcalcError(f"{name} does not run on {device}: {in_short(error)}", hint) from error
    caches = [value for value in output.values() if isinstance(value, transformers.Cache)]
    caches += [output[key] for key in ("cache", "cache_params", "state") if key in output]
    if not caches:
        raise KvcalcError(f"{name} returns no cache: it keeps its states to itself, or has none")
    return tuple(runs_of(caches[0]))


def inputs_of(model: Any, tokens: int, batch: int) -> dict[str, Any]:
    """The tensors of one prefill: `tokens` for the decoder, and as many for an encoder unless it hears sound."""
    torch, _ = libraries()
    ids = torch.ones((batch, tokens), dtype=torch.long, device=model.device)
    if not model.config.is_encoder_decoder:
        return {"input_ids": ids}
    if model.main_input_name != "input_features":
        return {"input_ids": ids, "decoder_input_ids": ids}
    # An encoder of sound takes all its positions at once, two frames for each.
    frames = (batch, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    return {"input_features": ids.new_zeros(frames, dtype=model.dtype), "decoder_input_ids": ids}


@contextlib.contextmanager
def values_made_up() -> Iterator[None]:
    """Answer questions about the values of meta tensors, which have none: only their shapes are wanted here."""
    torch, _ = libraries()
    tensor = torch.Tensor
    answers = {tensor.item: 1, tensor.__bool__: False, tensor.__int__: 1, tensor.__index__: 1, tensor.__float__: 1.0}

    def answer(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in answers and args[0].is_meta:
            return answers[func]
        if func is tensor.tolist and args[0].is_meta:
            return torch.zeros(args[0].shape, dtype=args[0].dtype, device="cpu").tolist()
        if func is tensor.__getitem__ and getattr(args[1], "shape", None) == () and args[1].is_meta:
            return args[0][0]
        return func(*args, **(kwargs or {}))

    mode = importlib.import_module("torch.overrides").TorchFunctionMode
    shapes = importlib.import_module("torch.fx.experimental._config")
    # As if every expert were chosen, else the number of the chosen is no shape.
    with shapes.patch(meta_nonzero_assume_all_nonzero=True), type("MadeUp", (mode,), {"__torch_function__": answer})():
        yield


# Narrowed on the CPU; that a cache does not depend on them is tried by two widths, not taken on trust.
NARROWED = ("vocab_size", "intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size")


def held_on_cpu(config: dict[str, Any], tokens: int, batch: int, dtype: str) -> tuple[LayerRun, ...]:
    """What the cache holds on the CPU, by narrow models where the cache does not depend on what was narrowed."""
    with contextlib.suppress(KvcalcError):
        narrow = [built_on_cpu(narrowed(config, width), dtype) for width in (96, 64)]
        wider, narrower = (held_after_prefill(model, tokens, batch) for model in narrow)
        if wider == narrower:
            return wider
    return held_after_prefill(built_on_cpu(config, dtype), tokens, batch)


def built_on_cpu(config: dict[str, Any], dtype: str) -> Any:
    """A model with weights, if half of the machine's memory holds them."""
    weight_bytes = sum(weight.nbytes for weight in built(config, dtype, "meta").parameters())
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if weight_bytes > machine_bytes // 2:
        raise KvcalcError(f"the weights take {weight_bytes:,} of {machine_bytes:,} bytes of memory", "--device meta")
    return built(config, dtype, "cpu")


def narrowed(value: Any, width: int, key: str = "") -> Any:
    """A config with MLPs and vocabularies of at most `width`, at every depth."""
    if isinstance(value, dict):
        return {name: narrowed(inner, width, name) for name, inner in value.items()}
    if type(value) is int and key.endswith((*NARROWED, "_token_id")):
        return min(value, width - key.endswith("_token_id"))
    return value


def runs_of(cache: Any) -> Iterator[LayerRun]:
    """What a cache holds layer by layer, neighbours joined, then what it holds beside its layers."""
    parts = {"self": "self_attention_cache", "cross": "cross_attention_cache"}
    halves = {part: getattr(cache, name) for part, name in parts.items() if hasattr(cache, name)}
    for part, half in (halves or {"": cache}).items():
        layers = getattr(half, "layers", [])
        one_by_one = [described(part, index, layer, tensors_in(layer)) for index, layer in enumerate(layers)]
        for _, alike in itertools.groupby(one_by_one, key=lambda layer: (layer.kind, layer.tensors)):
            run = list(alike)
            yield replace(run[0], last=run[-1].last)
        inside = {id(tensor) for _, tensor in tensors_in(layers)}
        beside = described(part, 0, half, (found for found in tensors_in(half) if id(found[1]) not in inside))
        if beside.tensors:
            yield beside


def described(part: str, index: int, holder: Any, tensors: Iterable[tuple[str, Any]]) -> LayerRun:
    """One holder's tensors with their bytes; counters, of fewer than two dimensions, are no cache."""
    held = {path: tensor for path, tensor in tensors if tensor.dim() > 1}
    shapes = {path: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for path, tensor in held.items()}
    return LayerRun(part, type(holder).__name__, index, index, shapes, sum(tensor.nbytes for tensor in held.values()))


def tensors_in(holder: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Every tensor that can be reached from an object, once each, with the path to it."""
    seen = set() if seen is None else seen
    if id(holder) in seen or isinstance(holder, type):
        return
    seen.add(id(holder))
    if hasattr(holder, "untyped_storage"):
        yield path, holder
        return
    if isinstance(holder, list | tuple):
        holder = dict(enumerate(holder))
    for key, inner in (holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})).items():
        if key != "config":
            yield from tensors_in(inner, f"{path}.{key}".strip("."), seen)


def in_short(error: Exception) -> str:
    """An error in one line."""
    return shorten(f"{type(error).__name__}: {error}", 200)


def main(arguments: list[str] | None = None) -> int:
    """Print what the cache holds after each prefill; 2 where that cannot be known."""
    asked = parser().parse_args(arguments)
    try:
        if min(asked.batch, *(asked.tokens or [1])) < 1:
            raise KvcalcError("--tokens and --batch are counts of at least 1")
        config = read_config(asked.config)
        for tokens in asked.tokens or [1000]:
            answer = cache_bytes(config, tokens, asked.batch, asked.dtype, asked.device)
            row = {"tokens": tokens, "batch": asked.batch, "dtype": asked.dtype, **asdict(answer)}
            print(json.dumps(row) if asked.json else "\n".join(as_text(row)), flush=True)
    except KvcalcError as error:
        print(f"oracle: {error.message}" + f" ({error.hint})" * bool(error.hint), file=sys.stderr)
        return error.exit_code
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("python -m tests.oracle", description="bytes that transformers' own cache holds")
    made.add_argument("config", type=Path, metavar="CONFIG.json")
    made.add_argument("--tokens", type=int, action="append", metavar="N", help="of each sequence; may be repeated")
    made.add_argument("--batch", type=int, default=1, metavar="B", help="sequences (default 1)")
    made.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    made.add_argument("--device", choices=("meta", "cpu"), default="meta", help="cpu runs narrowed models with weights")
    made.add_argument("--json", action="store_true", help="print one JSON document a line for each --tokens")
    return made


def read_config(path: Path, hint: str = "give a model's config.json") -> dict[str, Any]:
    """A config.json, or another object, as it is written; `hint` says what is wanted."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise KvcalcError(f"cannot read {path}: {in_short(error)}", hint) from error
    if not isinstance(config, dict):
        raise KvcalcError(f"{path} holds no JSON object", hint)
    return config


def as_text(row: dict[str, Any]) -> Iterator[str]:
    """An answer for people: the total, then a line for each run of layers."""
    asked = f"{row['tokens']:,} tokens x {row['batch']:,}, {row['dtype']}"
    yield f"{asked}: {row['kv_bytes']:,} bytes; {row['parameters']:,} parameters"
    for run in row["layers"]:
        shapes = ", ".join(f"{path} {dtype}{list(shape)}" for path, (dtype, shape) in run["tensors"].items())
        where = f"{run['part']} layers {run['first']}-{run['last']}".strip()
        yield f"  {where}: {run['layer_bytes']:,} bytes each, {run['kind']} {shapes}"
