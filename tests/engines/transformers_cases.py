"""What transformers' own static, quantised and paged caches hold, measured: golden/transformers_caches.json.

    python -m tests.engines.transformers_cases > tests/golden/transformers_caches.json

The library builds each cache, a model of its own fills it, and the tensors found there are added up; nothing here
knows a formula. The quantised cases need optimum-quanto and hqq beside transformers.
"""

import itertools
import json
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import oracle

GOLDEN = Path(__file__).parents[1] / "golden"
GIB = 2**30

QUANTIZED = [
    {
        "config": config,
        "batch": batch,
        "prompt": prompt,
        "generated": generated,
        "cache": {"backend": backend, **options},
    }
    for config, (batch, prompt, generated), (backend, options) in itertools.product(
        ("tiny-llama", "tiny-qwen3", "tiny-deepseek-v3"),
        ((1, 4, 1), (1, 64, 0), (2, 128, 5), (3, 32, 130)),
        (
            ("quanto", {}),
            ("quanto", {"nbits": 2, "q_group_size": 32, "residual_length": 16}),
            ("quanto", {"axis_key": -1, "axis_value": -1, "q_group_size": 16, "residual_length": 32}),
            ("quanto", {"axis_value": -1, "q_group_size": 32, "residual_length": 1}),
            ("hqq", {}),
            ("hqq", {"nbits": 8, "axis_key": 1, "axis_value": 1, "q_group_size": 16}),
            ("hqq", {"nbits": 3, "q_group_size": 32, "residual_length": 64}),
            ("hqq", {"nbits": 1, "axis_key": 1, "q_group_size": 8, "residual_length": 64}),
            ("hqq", {"nbits": 2, "q_group_size": 16, "residual_length": 8}),
            ("fp8", {}),
        ),
    )
]

PAGED = [
    {"config": config, "tp": tp, "tokens": tokens, "gib": gib, "flash": flash, "options": options}
    for (config, tp, tokens), gib, flash, options in itertools.product(
        (
            ("qwen3-32b", 4, 32768),
            ("qwen3-32b", 1, 4000),
            ("llama-3.1-8b", 1, 8192),
            ("gpt-oss-20b", 1, 9000),
            ("gemma-3-27b", 2, 5000),
            ("mistral-7b-v0.1", 1, 5000),
        ),
        (1, 20, 50),
        (True, False),
        ({}, {"page_size": 32, "max_batch_tokens": 1024}, {"num_blocks": 99}),
    )
]


def static_bytes(config, tokens, batch, max_cache_len):
    """Bytes of a StaticCache that a prefill has filled."""
    torch, transformers = oracle.libraries()
    model = oracle.built(config, "bfloat16", "meta")
    config = model.config.get_text_config(decoder=True)
    cache = transformers.StaticCache(config=config, max_cache_len=max_cache_len)
    if model.config.is_encoder_decoder:
        heard = getattr(model.config, "max_source_positions", tokens)
        cache = transformers.EncoderDecoderCache(cache, transformers.StaticCache(config=config, max_cache_len=heard))
    with oracle.values_made_up(), torch.no_grad():
        model(**oracle.inputs_of(model, tokens, batch), use_cache=True, cache=cache)
    return sum(run.layer_bytes * (run.last - run.first + 1) for run in oracle.runs_of(cache))


def quantized_bytes(case):
    """Bytes of a QuantizedCache after a prefill and so many steps, or the error that the library gives."""
    torch, transformers = oracle.libraries()
    model = oracle.built(_tiny(case["config"]), "bfloat16", "cpu")
    cache = transformers.QuantizedCache(config=model.config, **case["cache"])
    ids = torch.ones((case["batch"], case["prompt"]), dtype=torch.long)
    try:
        with torch.no_grad():
            model(input_ids=ids, use_cache=True, cache=cache)
            for _ in range(case["generated"]):
                model(input_ids=ids[:, :1], use_cache=True, cache=cache)
    except (ValueError, AssertionError, RuntimeError) as error:
        return {"error": type(error).__name__}
    held = [(layer.keys, layer.values, layer._quantized_keys, layer._quantized_values) for layer in cache.layers]
    return {"bytes": _bytes_in(held)}


def paged_figures(case):
    """Sectors, blocks and bytes of a PagedAttentionCache under so much memory, and the requests that it stores."""
    torch, _ = oracle.libraries()
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching import cache as paged

    config = oracle.text_side(oracle.library_config(_real(case["config"])))
    config._attn_implementation = "flash_attention_2" if case["flash"] else "sdpa"
    full = list(paged.group_layers_by_attn_type(config)) == ["full_attention"]
    settings = ContinuousBatchingConfig(
        max_memory_percent=0.9,
        max_requests_per_batch=1024,
        max_blocks_per_request=32 if case["flash"] and full else 0,
        use_async_batching=case["flash"],
        **case["options"],
    )
    tensor_parallel = types.SimpleNamespace(
        tp_size=case["tp"], are_kv_heads_tp_ed=lambda: True, tp_all_reduce_min=lambda tensor: None
    )
    paged.get_device_and_memory_breakdown = lambda: (None, case["gib"] * GIB, 0, 0)
    # Two numbers are exchanged between ranks: they need a device that holds values.
    exchanged = torch.tensor
    paged.torch = types.SimpleNamespace(**vars(torch) | {"tensor": lambda values, device, dtype: exchanged(values)})
    try:
        cache = paged.PagedAttentionCache(
            config, settings, torch.device("meta"), tensor_parallel, torch.bfloat16, model_supports_logits_to_keep=True
        )
    except (MemoryError, ValueError) as error:
        return {"error": type(error).__name__}
    finally:
        paged.torch = torch
    needed = {name: one._compute_blocks_needed(0, 0, case["tokens"]) for name, one in cache.cache_allocators.items()}
    return {
        "num_sectors": cache.num_sectors,
        "bytes_per_sector": cache.bytes_per_sector,
        "num_blocks": cache.num_blocks,
        "bytes": cache.cache_tensor.nbytes,
        "requests": cache.count_storable_requests([needed] * 5000),
    }


def _tiny(name):
    return json.loads((GOLDEN / "configs" / f"{name}.json").read_text())


def _real(name):
    rows = map(json.loads, (GOLDEN / "configs.jsonl").read_text().splitlines())
    wanted = next(
        row["config"] for row in json.loads((GOLDEN / "transformers.json").read_text())["rows"] if row["model"] == name
    )
    return next(row["config"] for row in rows if row["name"] == wanted)


def _bytes_in(value):
    """Every number of bytes that can be reached, in wrapped tensors too."""
    if hasattr(value, "__tensor_flatten__"):
        return sum(_bytes_in(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    if hasattr(value, "nbytes"):
        return value.nbytes
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(_bytes_in, inside))


def main():
    """Measure everything and print it."""
    rows = json.loads((GOLDEN / "transformers.json").read_text())["rows"]
    static = []
    for row in {row["model"]: row for row in rows if row["model"]}.values():
        for tokens, length in ((600, 600), (600, 9000)):
            case = {"model": row["model"], "tokens": tokens, "batch": 2, "max_cache_len": length}
            try:
                static.append(case | {"bytes": static_bytes(_real(row["model"]), tokens, 2, length)})
            except Exception as error:
                static.append(case | {"error": type(error).__name__})
    quantized = [case | quantized_bytes(case) for case in QUANTIZED]
    paged = [case | paged_figures(case) for case in PAGED]
    parts = {"static": static, "quantized": quantized, "paged": paged}
    lines = [f'"{name}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]" for name, cases in parts.items()]
    print("{" + ",\n".join(lines) + "}")


if __name__ == "__main__":
    main()
