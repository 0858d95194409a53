"""A run file as a machine with 18.2 GB/s and 210 GFLOP/s would write it: two layers of Llama 3.1 8B in fp32."""

import random
import statistics
from typing import Any

from kvcalc.profiler.documents import ProfileDocument
from kvcalc.profiler.record import seal

READ, COPY, GEMM = 18.2e9, 9.3e9, 2.1e11
LAYERS = 2
PROJECTIONS = 4096 * 4096 * 2 + 2 * 4096 * 1024
"""Q and O, K and V: parameters of a layer without its feed-forward part."""
WEIGHT_BYTES = LAYERS * PROJECTIONS * 4
TOKEN_BYTES = LAYERS * 2 * 8 * 128 * 4
OVERHEAD = 42e-6
"""Seconds a layer."""


def run_document(
    contexts: tuple[int, ...] = (1024, 8192, 32768),
    batches: tuple[int, ...] = (1, 4),
    samples: int = 12,
    noise: float = 0.01,
    seed: int = 0,
    **changes: Any,
) -> ProfileDocument:
    """A sealed run over every context and batch; `changes` replace keys of the document."""
    dice = random.Random(seed)  # noqa: S311 - timings, not secrets
    points = [_point(context, batch, samples, noise, dice) for context in contexts for batch in batches]
    last = points[-1] if points else {"components": [], "prefill": None, "decode": None}
    document: Any = {
        "schema": "kvcalc.profile/1",
        "model": {"name": "llama-3.1-8b", "source": "https://huggingface.co/meta-llama/Llama-3.1-8B (config.json)"},
        "request": _request(contexts, batches),
        "environment": _environment(),
        "machine": _machine(),
        "components": last["components"],
        "prefill": last["prefill"],
        "decode": last["decode"],
        "points": points,
        "served": None,
        "verdict": {"memory": "exact", "time": "not judged", "tolerance": None, "reasons": []},
        "doubts": ["decode: p10 to p90 spans 31% of the median, the machine was not quiet"],
        "notes": ["random weights; left out: feed-forward parts (--with-mlp runs them), the embedding, the LM head"],
        "spec": {"name": "llama-3.1-8b", "layers": [{"repeat": 2, "mixer": {"kind": "kv", "kv_heads": 8}}]},
        "digest": "",
        **changes,
    }
    return seal(document)


def _request(contexts: tuple[int, ...], batches: tuple[int, ...]) -> dict[str, Any]:
    return {
        "backend": "reference", "contexts": list(contexts), "batches": list(batches), "dtype": "fp32",
        "kv_dtype": "fp32", "layers": LAYERS, "layers_of_model": 32, "with_mlp": False, "page_tokens": None,
        "encoder_tokens": None, "tp": 1, "seed": 0, "set": [],
    }  # fmt: skip


def _environment() -> dict[str, Any]:
    return {
        "started": "2026-05-04T09:30:00+00:00", "command": "kvcalc profile llama-8b --layers 2 -o run.json",
        "kvcalc": "0.1.0", "python": "3.11.2", "torch": "2.13.0+cpu", "platform": "Linux-6.1-x86_64",
        "device": "cpu", "device_name": "Xeon Platinum 8481C", "threads": 16, "memory_bytes": 137438953472,
        "driver": None, "clocks_mhz": {"cpu": 2700.0}, "power_watts": None, "throttled": [],
    }  # fmt: skip


def _machine() -> dict[str, Any]:
    return {
        "read_bytes_per_second": READ, "copy_bytes_per_second": COPY, "gemm_flops_per_second": GEMM,
        "gemm_dtype": "fp32", "specified_bytes_per_second": None, "specified_flops_per_second": None,
        "specified_source": None,
    }  # fmt: skip


def series(seconds: float, samples: int, noise: float, dice: random.Random) -> dict[str, Any]:
    """Timings around `seconds`."""
    found = [seconds * (1 + abs(dice.gauss(0, noise))) for _ in range(samples)]
    ordered = sorted(found)
    return {
        "median_seconds": statistics.median(found),
        "p10_seconds": ordered[len(ordered) // 10],
        "p90_seconds": ordered[-1 - len(ordered) // 10],
        "samples_seconds": found,
    }


def _point(context: int, batch: int, samples: int, noise: float, dice: random.Random) -> dict[str, Any]:
    cache = context * batch * TOKEN_BYTES
    return {
        "context_tokens": context,
        "batch": batch,
        "components": [
            {
                "name": "kv", "kind": "kv", "format": "fp32", "layers": LAYERS, "predicted_bytes": cache,
                "measured_bytes": cache, "predicted_read_bytes_per_step": cache, "counted_read_bytes_per_step": cache,
            }
        ],
        "rules": [
            {"name": "positions", "rule": "8 B a sequence", "predicted_bytes": 8 * batch, "measured_bytes": 8 * batch}
        ],
        "allocator": {
            "tensors": 2 * LAYERS, "granule_bytes": 64, "predicted_bytes": cache + 64, "measured_bytes": cache + 64
        },
        "weight_bytes": WEIGHT_BYTES,
        "peak_bytes": WEIGHT_BYTES + cache + 2**27,
        "prefill": _prefill(context, batch, min(samples, 5), noise, dice),
        "decode": _decode(cache, context, batch, samples, noise, dice),
        "ops": _ops(cache, context, batch),
        "stopped": None,
        "doubts": [],
    }  # fmt: skip


def _prefill(context: int, batch: int, samples: int, noise: float, dice: random.Random) -> dict[str, Any]:
    flops = batch * LAYERS * context * (2 * PROJECTIONS + 4 * 4096 * context // 2)
    times = series(flops / (0.71 * GEMM), samples, noise, dice)
    seconds = times["median_seconds"]
    return {
        **times, "measured_seconds": seconds, "tokens": context, "flops": flops, "predicted_seconds": flops / GEMM,
        "achieved_flops_per_second": flops / seconds, "flops_fraction": flops / seconds / GEMM,
        "tokens_per_second": batch * context / seconds,
    }  # fmt: skip


def _decode(cache: int, context: int, batch: int, samples: int, noise: float, dice: random.Random) -> dict[str, Any]:
    total = cache + WEIGHT_BYTES
    times = series(LAYERS * OVERHEAD + total / (0.88 * READ), samples, noise, dice)
    seconds = times["median_seconds"]
    return {
        **times, "measured_seconds": seconds, "steps": samples, "read_bytes_per_step": cache,
        "weight_bytes": WEIGHT_BYTES, "flops": batch * LAYERS * (2 * PROJECTIONS + 4 * 4096 * context),
        "predicted_seconds": total / READ, "achieved_bytes_per_second": total / seconds,
        "bandwidth_fraction": total / seconds / READ, "specified_fraction": None,
        "overhead_seconds_per_layer": max(0.0, seconds - total / READ) / LAYERS, "graph_seconds": None,
        "host_seconds": None, "tokens_per_second": batch / seconds,
    }  # fmt: skip


def _ops(cache: int, context: int, batch: int) -> list[dict[str, Any]]:
    attention = batch * LAYERS * 4 * 4096 * context, cache, "attention over kv", "scaled_dot_product_attention", 0.9
    projections = batch * LAYERS * 2 * PROJECTIONS, WEIGHT_BYTES, "projections", "addmm", 0.84
    found = []
    for flops, read, name, kernel, share in (attention, projections):
        seconds = max(read / READ, flops / GEMM) / share
        found.append(
            {
                "name": name, "kernel": kernel, "calls": LAYERS, "seconds": seconds, "bytes": read, "flops": flops,
                "bytes_per_second": read / seconds, "flops_per_second": flops / seconds, "roofline_fraction": share,
            }
        )  # fmt: skip
    return found
