"""Asks the planning code of one release of vLLM about random stacks of layers, and writes its answers, one a line.

    python tests/engines/ask_vllm.py FOLDER VERSION COUNT >> tests/golden/vllm_versions.jsonl

FOLDER has that release's `vllm/v1/kv_cache_interface.py`, `vllm/v1/core/kv_cache_utils.py` and the small modules that
they import, unpacked from its wheel; everything heavy is replaced by empty modules. Needs torch.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import random
import re
import sys
import types
from pathlib import Path

FOLDER, VERSION, COUNT = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
GIB = 2**30
OWN = {
    "vllm.v1.kv_cache_interface",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.utils.math_utils",
}
SAID = []


class Anything:
    """Takes every call and has every attribute."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __class_getitem__(cls, key):
        return cls


class Empty(types.ModuleType):
    """A module in which every name is a class of its own."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (Anything,), {}))
        return getattr(self, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The release's own planning modules, and empty ones for the rest of the package."""

    def find_spec(self, name, path=None, target=None):
        if name != "vllm" and not name.startswith("vllm."):
            return None
        file = FOLDER.joinpath(*name.split(".")).with_suffix(".py")
        if name in OWN and file.exists():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = Empty(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


class Log:
    """Keeps what is logged, as it would be printed."""

    def __getattr__(self, name):
        return lambda text, *values, **_: SAID.append(str(text) % values if values else str(text))


def load():
    """The release's interface and planner, with the few helpers that they call from elsewhere."""
    sys.meta_path.insert(0, Finder())
    helpers = {
        "cdiv": lambda count, size: -(-count // size),
        "round_up": lambda count, size: -(-count // size) * size,
        "get_dtype_size": lambda dtype: dtype.itemsize,
        "GiB_bytes": GIB,
        "format_gib": lambda count: f"{round(count / GIB, 2)}",
    }
    for name in ("vllm.utils", "vllm.utils.torch_utils", "vllm.utils.mem_utils", "vllm.utils.mem_constants"):
        vars(importlib.import_module(name)).update(helpers)
    importlib.import_module("vllm.logger").init_logger = lambda name: Log()
    kinds = types.SimpleNamespace(MAMBA2="mamba2")
    importlib.import_module("vllm.v1.attention.backends.registry").MambaAttentionBackendEnum = kinds
    sparse = importlib.import_module("vllm.v1.hisparse.layout")
    sparse.get_hisparse_kv_cache_groups = lambda *args: None
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    planner = importlib.import_module("vllm.v1.core.kv_cache_utils")
    if (FOLDER / "vllm/v1/kv_cache_spec_registry.py").exists():
        register(interface, importlib.import_module("vllm.v1.kv_cache_spec_registry").KVCacheSpecRegistry)
    return interface, planner


def register(interface, registry):
    """As the managers of single types do where they are loaded."""
    for name in ("FullAttentionSpec", "SlidingWindowSpec", "MambaSpec", "ChunkedLocalAttentionSpec"):
        cls = getattr(interface, name)
        registry.register(cls, object, uniform_type_base_spec=cls)
    latent, full = interface.MLAAttentionSpec, interface.FullAttentionSpec
    registry.register(latent, object, uniform_type_base_spec=full)


def config_of(interface, case):
    """What the planner reads of a VllmConfig."""
    space, length = types.SimpleNamespace, case["max_model_len"]
    step = case["max_num_batched_tokens"]
    return space(
        model_config=space(max_model_len=length, original_max_model_len=length),
        parallel_config=space(decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1),
        scheduler_config=space(max_num_batched_tokens=step, disable_hybrid_kv_cache_manager=case["disable_hybrid"]),
        cache_config=space(
            num_gpu_blocks_override=case.get("num_gpu_blocks_override"),
            mamba_cache_mode=case["mamba_cache_mode"],
            block_size=16,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: interface.KVCacheLayout["LBNHC"],
        ),
        attention_config=space(hisparse_config=None),
        num_prefill_lookahead_tokens=0,
        speculative_config=None,
        kv_transfer_config=None,
        max_in_flight_tokens=2 * step,
    )


def spec_of(interface, layer):
    import torch

    fields = {key: value for key, value in layer.items() if key not in ("type", "key", "dtype", "shapes", "dtypes")}
    if layer["type"] == "mamba":
        shapes = tuple(map(tuple, layer["shapes"]))
        return interface.MambaSpec(
            shapes=shapes, dtypes=tuple(getattr(torch, one) for one in layer["dtypes"]), **fields
        )
    names = {"full": "FullAttentionSpec", "sw": "SlidingWindowSpec", "chunked": "ChunkedLocalAttentionSpec"}
    if "use_mla" in interface.AttentionSpec.__dataclass_fields__:
        fields["use_mla"] = layer["type"] == "mla"
        names["mla"] = "FullAttentionSpec"
    cls = getattr(interface, names.get(layer["type"], "MLAAttentionSpec"))
    return cls(dtype=getattr(torch, layer["dtype"]), **fields)


def plan(interface, planner, case):
    """What the release answers: blocks and what its log prints, or why it stops."""
    SAID.clear()
    kinds = {layer["key"]: layer for layer in case["layers"]}
    specs = {f"{place}.{key}": spec_of(interface, kinds[key]) for place, key in enumerate(case["pattern"])}
    stages = [dict(list(specs.items())[first:end]) for first, end in case["stages"]]
    config = config_of(interface, case)
    try:
        if hasattr(planner, "get_kv_cache_configs"):
            made = planner.get_kv_cache_configs(config, stages, list(case["available_bytes"]))
        else:
            budgets = zip(stages, case["available_bytes"], strict=True)
            made = [planner.get_kv_cache_config(config, stage, budget) for stage, budget in budgets]
            planner.unify_kv_cache_configs(made)
    except ValueError as stopped:
        return stop(str(stopped))
    except (NotImplementedError, AssertionError):
        return {"refused": True}
    blocks = min(one.num_blocks for one in made)
    sizes = [len(one.layer_names) for one in made[0].kv_cache_groups]
    answer = {"num_blocks": blocks, "groups": [len(sizes), max(sizes)]}
    if hasattr(planner, "get_kv_cache_capacity"):
        tokens, concurrency = planner.get_kv_cache_capacity(config, made[0])
        return {**answer, "tokens": tokens, "concurrency": f"{concurrency:.2f}"}
    said = "\n".join(SAID)
    tokens = re.search(r"KV cache size: ([\d,]+) tokens", said)
    concurrency = re.search(r"per request: ([\d.]+)x", said)
    return {**answer, "tokens": int(tokens[1].replace(",", "")), "concurrency": concurrency[1]}


def stop(text):
    """The figures of its error message."""
    needed = re.search(r"([\d.]+) GiB KV cache is needed", text)
    if needed is None:
        return {"empty": True} if "No available memory" in text else {"refused": True}
    longest = re.search(r"maximum model length is (\d+)", text)
    return {"needed_gib": float(needed[1]), "longest": int(longest[1]) if longest else None}


def draw(rng):
    """One question: a few kinds of layers, repeated, on one to three stages."""
    shape = rng.choice(["one", "windows", "windows", "chunks", "states", "latents"])
    heads, width = rng.choice([1, 2, 4, 8]), rng.choice([64, 128, 256])
    plain = {"block_size": 16, "num_kv_heads": heads, "head_size": width, "dtype": rng.choice(["bfloat16", "uint8"])}
    layers = [{"key": "a", "type": "full", **plain}]
    if shape == "latents":
        layers = [{"key": "a", "type": "mla", **plain, "num_kv_heads": 1, "head_size": 576}]
        if rng.random() < 0.4:
            layers.append({"key": "b", "type": "sw", **plain, "sliding_window": 512})
    if shape == "one" and rng.random() < 0.5:
        layers.append({**layers[0], "key": "b", "num_kv_heads": heads * rng.choice([1, 2])})
    if shape == "windows":
        count = rng.choice([heads, heads, heads * 2, heads * 3, heads + 1])
        layers.append(
            {"key": "b", "type": "sw", **plain, "num_kv_heads": count, "sliding_window": rng.choice([128, 1024])}
        )
    if shape == "chunks":
        layers.append({"key": "b", "type": "chunked", **plain, "attention_chunk_size": rng.choice([1024, 8192])})
    if shape == "states":
        page = 2 * 16 * heads * width * (2 if plain["dtype"] == "bfloat16" else 1)
        state = {"shapes": [[page // 4 - rng.choice([0, 0, 8])]], "dtypes": ["float32"], "block_size": 10**6}
        layers.append({"key": "b", "type": "mamba", **state, "page_size_padded": rng.choice([page, page, None])})
    disabled = rng.random() < 0.15
    if shape == "windows" and rng.random() < 0.3 and not disabled:  # two windows as one kind end in an assertion
        layers.append({"key": "c", "type": "full", **plain, "sliding_window": 512})
    period, rest = rng.randint(1, 6), layers[1:] or layers
    keys = [
        (layers[0] if place % period == 0 else rest[place % len(rest)])["key"] for place in range(rng.randint(1, 36))
    ]
    pattern = "".join(keys)
    stages = cuts(rng, pattern)
    most = rng.choice([GIB // 64, GIB // 4, 4 * GIB])
    return {
        "layers": layers,
        "pattern": pattern,
        "stages": stages,
        "available_bytes": [rng.randint(1, most)] * len(stages),
        "max_model_len": rng.choice([100, 4096, 32768, 131072]),
        "max_num_batched_tokens": rng.choice([2048, 8192]),
        "disable_hybrid": disabled,
        "mamba_cache_mode": rng.choice(["none", "align"]),
    }


def cuts(rng, pattern):
    """One stage, or two of the same layers: where their groups differ, old releases err in ways of their own."""
    half = len(pattern) // 2
    halves = pattern[:half] == pattern[half:] and rng.random() < 0.7
    return [[0, half], [half, 2 * half]] if halves else [[0, len(pattern)]]


def main():
    interface, planner = load()
    rng = random.Random(VERSION)  # noqa: S311
    for _ in range(COUNT):
        case = draw(rng)
        try:
            answer = plan(interface, planner, case)
        except (AttributeError, TypeError, KeyError) as unknown:  # a kind that the release does not have
            print(f"{VERSION}: {unknown!r}", file=sys.stderr)
            continue
        print(json.dumps({"version": VERSION, "case": case, "answer": answer}, separators=(",", ":")))


if __name__ == "__main__":
    main()
