"""What vLLM's own planning code makes of a stack of per-layer specs and a budget in bytes.

    VLLM_SRC=FOLDER python -m tests.oracle.vllm CASE.json...

FOLDER holds vLLM's source: `pip download --no-deps vllm==0.33.0`, and the wheel unpacked. Its planner, its specs and the
caches of DeepSeek-V4's layers are loaded from there; whatever else they import is a stand-in without content, so no
kernel and no GPU is needed: torch, and transformers where a case names a layer class of DeepSeek-V4 (`"type": "own"`).
tests/golden/vllm.json and vllm_models.json have cases and their answers; --fill asks all of such a file again.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from kvcalc.errors import KvcalcError

from . import read_config
from .vllm_source import VARIABLE, NoVllmError, Source, fill_in

KINDS = {
    "full": "FullAttentionSpec",
    "mla": "MLAAttentionSpec",
    "sw": "SlidingWindowSpec",
    "sw_mla": "SlidingWindowMLASpec",
    "chunked": "ChunkedLocalAttentionSpec",
    "cross": "CrossAttentionSpec",
    "circular": "CircularBufferSpec",
    "mamba": "MambaSpec",
}
FIELDS = {
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "sliding_window",
    "attention_chunk_size",
    "state_content_bytes",
    "num_head_slots",
    "tokens_per_state",
    "alignment",
    "page_size_padded",
    "cache_dtype_str",
    "dcp_sharded",
    "num_speculative_blocks",
    "num_prefill_checkpoint_blocks",
    "block_stride_alignment",
}
"""Fields of a layer that are its spec's under the same name; a dtype and shapes are read, and all others left out."""


@dataclass(frozen=True)
class Planner:
    """The modules that answer."""

    specs: ModuleType
    planning: ModuleType
    capacity: ModuleType
    torch: ModuleType


def find_planner(folder: str | None = None) -> Planner:
    """vLLM's planning code, from a folder or from the variable's; NoVllmError where neither holds it."""
    found = folder or os.environ.get(VARIABLE)
    if not found or not (root := Path(found)).joinpath("vllm", "v1", "kv_cache_interface.py").exists():
        raise NoVllmError(
            f"{VARIABLE} names no folder with vLLM's source", "pip download --no-deps vllm, and unpack it"
        )
    torch = importlib.import_module("torch")
    if not any(isinstance(finder, Source) for finder in sys.meta_path):
        sys.meta_path.insert(0, Source(root))
        fill_in()
    specs, planning, capacity = (
        importlib.import_module(f"vllm.v1.{name}")
        for name in ("kv_cache_interface", "core.kv_cache_planning", "core.kv_cache_utils")
    )
    _register(specs)
    builder = importlib.import_module("vllm.v1.core.kv_cache_config_builder")
    vars(builder)["get_kv_cache_config_builder"] = lambda _config: planning.DefaultKVCacheConfigBuilder()
    return Planner(specs, planning, capacity, torch)


def _register(specs: ModuleType) -> None:
    """Specs by the type that they are uniform with, as register_all_kvcache_specs of vLLM's managers has them."""
    registry = importlib.import_module("vllm.v1.kv_cache_spec_registry").KVCacheSpecRegistry
    for name in KINDS.values():
        spec = getattr(specs, name)
        base = specs.FullAttentionSpec if issubclass(spec, specs.FullAttentionSpec) else spec
        with contextlib.suppress(ValueError):  # it is there from an earlier call
            registry.register(spec, object, uniform_type_base_spec=base)


def config_of(planner: Planner, case: dict[str, Any]) -> SimpleNamespace:
    """vLLM's configuration, as far as planning reads it."""
    length, overlapping = case["max_model_len"], 2 if case.get("async_scheduling", True) else 1
    batched = case.get("max_num_batched_tokens", 8192)
    layout = planner.specs.KVCacheLayout[case.get("layout", "LBNHC")]
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=length,
            original_max_model_len=case.get("original_max_model_len", length),
            supports_kv_cache_grouping=False,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=case.get("dcp", 1),
            tensor_parallel_size=case.get("tp", 1),
            prefill_context_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=batched,
            disable_hybrid_kv_cache_manager=case.get("disable_hybrid", False),
            max_num_encoder_input_tokens=case.get("max_encoder_len", 0),
        ),
        cache_config=SimpleNamespace(
            block_size=case.get("block_size", 16),
            cache_dtype=case.get("cache_dtype", "auto"),
            num_gpu_blocks_override=case.get("num_gpu_blocks_override"),
            mamba_cache_mode=case.get("mamba_cache_mode", "none"),
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        device_config=SimpleNamespace(device_type="cuda"),
        max_in_flight_tokens=batched * case.get("max_concurrent_batches", overlapping),
        num_speculative_tokens=case.get("num_speculative_tokens", 0),
        num_prefill_lookahead_tokens=case.get("num_prefill_lookahead_tokens", 0),
    )


def plan(case: dict[str, Any], planner: Planner | None = None) -> dict[str, Any]:
    """What vLLM plans for a case; `error` where it would not start with so few bytes."""
    planner = planner or find_planner()
    config = config_of(planner, case)
    workers = _workers(_specs(planner, config, case), case)
    groups = planner.planning.get_global_kv_cache_groups(config, [dict(one) for one in workers])
    needed = planner.planning._max_memory_usage_bytes_from_groups
    builder = planner.planning.DefaultKVCacheConfigBuilder()
    budgets = case["available_bytes"]
    try:
        made = planner.planning.get_kv_cache_configs(
            config, workers, budgets if isinstance(budgets, list) else [budgets], groups
        )
    except ValueError as error:
        names = [[type(group.kv_cache_spec).__name__, len(group.layer_names)] for group in groups]
        return {"error": str(error), "needed_bytes_one_request": needed(builder, config, groups), "groups": names}
    return _answer(planner, config, workers, groups, made) | {
        "needed_bytes_one_request": needed(builder, config, groups)
    }


def _answer(planner: Planner, config: Any, workers: Any, groups: Any, made: Any) -> dict[str, Any]:
    tokens, concurrency = planner.capacity.get_kv_cache_capacity(
        config, planner.capacity.generate_scheduler_kv_cache_config(made)
    )
    block_bytes = planner.planning._pool_bytes_per_block(config, groups)
    return {
        "num_blocks": made[0].num_blocks,
        "bytes_per_block": block_bytes,
        "usable_blocks": made[0].num_blocks - 1,
        "groups": [
            {
                "kind": type(group.kv_cache_spec).__name__,
                "layers": len(group.layer_names),
                "block_size": group.kv_cache_spec.block_size,
                "page_size_bytes": group.kv_cache_spec.page_size_bytes,
                "max_memory_usage_bytes": group.kv_cache_spec.max_memory_usage_bytes(config),
            }
            for group in groups
        ],
        "kv_cache_size_tokens": tokens,
        "max_concurrency": concurrency,
        "page_sizes": sorted({spec.page_size_bytes for specs in workers for spec in specs.values()}),
        "total_pool_bytes": block_bytes * made[0].num_blocks,
        "max_model_len_after_autofit": config.model_config.max_model_len,
    }


def _specs(planner: Planner, config: Any, case: dict[str, Any]) -> dict[str, Any]:
    """The spec of every layer by its name, in the order of the model."""
    kinds = {layer.get("key", str(place)): layer for place, layer in enumerate(case["layers"])}
    order = case.get("pattern") or [key for key, layer in kinds.items() for _ in range(layer.get("count", 1))]
    built = {key: _spec(planner, config, layer) for key, layer in kinds.items()}
    return {f"model.layers.{place}.{key}": built[key] for place, key in enumerate(order)}


def _spec(planner: Planner, config: Any, layer: dict[str, Any]) -> Any:
    if layer["type"] in LAYERS:
        return LAYERS[layer["type"]](planner, config, layer)
    fields = {name: layer[name] for name in FIELDS if layer.get(name) is not None}
    if layer["type"] == "mamba":
        fields["shapes"] = tuple(tuple(shape) for shape in layer["shapes"])
        fields["dtypes"] = tuple(getattr(planner.torch, name) for name in layer["dtypes"])
    else:
        fields["dtype"] = getattr(planner.torch, layer.get("dtype", "bfloat16"))
    return getattr(planner.specs, KINDS[layer["type"]])(block_size=layer.get("block_size", 16), **fields)


def _workers(specs: dict[str, Any], case: dict[str, Any]) -> list[dict[str, Any]]:
    """Layers by pipeline stage, one a budget; left-over layers go to the first stages."""
    stages = len(case["available_bytes"]) if isinstance(case["available_bytes"], list) else 1
    names, each, more = list(specs), len(specs) // stages, len(specs) % stages
    ends = [each * stage + min(stage, more) for stage in range(stages + 1)]
    return [{name: specs[name] for name in names[first:end]} for first, end in pairwise(ends)]


def _own_layer(planner: Planner, config: Any, layer: dict[str, Any]) -> Any:
    """The spec that a layer class of vLLM itself gives: made with `made`, or asked with the attributes of `self`."""
    module_name, _, name = f"vllm.{layer['class']}".rpartition(".")
    module = importlib.import_module(module_name)
    current = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={}),
        attention_config=SimpleNamespace(indexer_sparse_logits=False),
        num_speculative_tokens=config.num_speculative_tokens,
    )
    vars(module)["get_current_vllm_config"] = lambda: current
    vars(module)["dsa_indexer_uses_fp4"] = lambda _config: False
    vars(module)["_use_v41_mxfp8_kv_record"] = lambda: layer.get("is_capability_10", False)
    vars(module)["current_platform"] = SimpleNamespace(is_rocm=lambda: False)
    made = getattr(module, name)
    given = {key: _value(planner, value) for key, value in layer.get("made", layer.get("self", {})).items()}
    if "self" in layer:
        return made.get_kv_cache_spec(SimpleNamespace(**given), config)
    if "cache_config" in made.__init__.__code__.co_varnames:
        given["cache_config"] = config.cache_config
    return made(prefix="layer", **given).get_kv_cache_spec(config)


def _value(planner: Planner, value: Any) -> Any:
    """A value of a case; `torch.uint8` is a dtype."""
    is_dtype = isinstance(value, str) and value.startswith("torch.")
    return getattr(planner.torch, value.removeprefix("torch.")) if is_dtype else value


LAYERS = {"own": _own_layer}


def fill(path: Path, planner: Planner) -> None:
    """Write the answers of all cases of a file that holds them by name, one a line."""
    document = read_config(path, "give a file of cases")
    answers = {name: {**one, "answer": plan(one["case"], planner)} for name, one in document["cases"].items()}
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(one, separators=(',', ':'))}" for name, one in answers.items())
    path.write_text(f'{{"source":{json.dumps(document["source"])},\n"cases":{{\n{lines}\n}}}}\n')


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one answer a line; 2 where vLLM's source is not there."""
    parser = argparse.ArgumentParser("python -m tests.oracle.vllm", description="what vLLM's own planner answers")
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE.json")
    parser.add_argument("--fill", action="store_true", help="the files hold cases by name: write the answers into them")
    asked = parser.parse_args(arguments)
    try:
        planner = find_planner()
        for path in asked.cases:
            if asked.fill:
                fill(path, planner)
            else:
                print(json.dumps(plan(read_config(path, "give a case"), planner)), flush=True)
    except KvcalcError as error:
        print(f"oracle: {error.message} ({error.hint})", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
