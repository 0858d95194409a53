"""Decode attention of the reference layers against its roofline and against the best single torch kernel.

    python benchmarks/decode.py [MIB]

One layer a kind, its cache of MIB (512 by default) filled with noise, one token a sequence. The roofline is the larger
of bytes / measured read bandwidth and FLOPs / measured GEMM rate, both taken in the same run; every figure is the
best of interleaved rounds. Budgets hold for fp32: 0.75 of the roofline for MHA, 0.55 for other kinds, and at most 10%
slower than the best kernel. What must gather or unpack prints its ratio only. So does the roofline of eight to 32 query
heads over one KV head: a product so narrow runs at half of torch's GEMM rate in every kernel that it has.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvcalc.cache.sharding import WHOLE
from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document, ModelSpec
from kvcalc.profiler.device import CpuDevice
from kvcalc.profiler.machine import measure_machine
from kvcalc.profiler.ops import Call, attention_calls
from kvcalc.reference.attend import attend
from kvcalc.reference.model import ReferenceModel
from kvcalc.reference.session import Session
from kvcalc.sizing.need import Workload, size_workload

ROUNDS = 7
HIDDEN = 512


@dataclass
class Case:
    """One kind: its mixers, the batch, the format, and the share of the roofline that it must reach.

    None asks for nothing; 0 asks to keep up with the best kernel alone.
    """

    name: str
    mixers: list[Any]
    batch: int = 4
    dtype: str = "fp32"
    kv_dtype: str = "auto"
    page: int | None = None
    least: float | None = 0.55


GQA = {"kind": "kv", "q_heads": 32, "kv_heads": 8, "head_dim": 128}
MLA = {"kind": "latent", "q_heads": 16, "latent_dim": 512, "rope_dim": 64, "nope_head_dim": 128, "v_head_dim": 128}
V4 = {"kind": "latent", "latent_dim": 448, "rope_dim": 64}
CASES = [
    Case("MHA", [{"kind": "kv", "q_heads": 16, "kv_heads": 16, "head_dim": 128}], least=0.75),
    Case("GQA 4:1", [GQA]),
    Case("MQA 8:1", [{"kind": "kv", "q_heads": 8, "kv_heads": 1, "head_dim": 128}], batch=8, least=0.0),
    Case("window", [{**GQA, "window": "all"}]),
    Case("chunk", [{**GQA, "chunk": "all"}]),
    Case("CLA", [GQA, {"kind": "shared", "source": "previous", "q_heads": 32}]),
    Case("cross", [[{**GQA, "window": 1}, {"kind": "cross", "q_heads": 32, "kv_heads": 8, "head_dim": 128}]]),
    Case("MLA 128 heads", [{**MLA, "q_heads": 128}], batch=2),
    Case("MLA 16 heads", [MLA], batch=8, least=0.0),
    Case("ratio 4", [{**GQA, "ratio": 4}]),
    Case("top-k", [[{**GQA, "top_k": 512}, {"kind": "index", "q_heads": 8, "head_dim": 64}]], least=None),
    Case("V4 window + ratio 4", [[{**V4, "q_heads": 16, "window": 128}, {**V4, "ratio": 4}]], least=None),
    Case("GQA bf16", [GQA], dtype="bf16", least=None),
    Case("MLA bf16", [MLA], batch=8, dtype="bf16", least=None),
    Case("GQA paged 16", [GQA], page=16, least=None),
    Case("GQA fp8", [GQA], kv_dtype="fp8", least=None),
    Case("GQA q8_0", [GQA], kv_dtype="q8_0", least=None),
    Case("GQA nvfp4", [GQA], kv_dtype="nvfp4", least=None),
]


def main(mebibytes: int) -> int:
    """Print a line a case; 1 where one misses its budget."""
    device = CpuDevice()
    print(f"{'case':22}{'MiB':>6}{'GB/s':>8}{'roofline':>10}{'best kernel':>13}  kernel of the attention")
    missed = [case.name for case in CASES if not _run(case, mebibytes, device)]
    print(f"below budget: {', '.join(missed)}" if missed else "every budget is kept")
    return 1 if missed else 0


def _run(case: Case, mebibytes: int, device: CpuDevice) -> bool:
    tokens = _tokens_for(case, mebibytes)
    session = _filled(case, tokens)
    calls = attention_calls(session, torch.ones(case.batch, 1, dtype=torch.long))
    call = max(calls, key=lambda one: one.bytes)
    machine = measure_machine(device, session.model.dtype, case.dtype)
    bound = max(call.bytes / machine["read_bytes_per_second"], call.flops / machine["gemm_flops_per_second"])
    ours, kernels = _interleaved(call)
    reached, beside = bound / ours, (min(kernels) / ours if kernels else None)
    kernel = device.kernel_of(lambda: attend(*call.arguments))
    shown = "-" if beside is None else f"{beside:.2f}"
    print(f"{case.name:22}{call.bytes >> 20:>6}{call.bytes / ours / 1e9:>8.1f}{reached:>10.2f}{shown:>13}  {kernel}")
    return case.least is None or (reached >= case.least and (beside is None or beside >= LEAST_BESIDE))


LEAST_BESIDE = 0.9


def _interleaved(call: Call) -> tuple[float, list[float]]:
    """The best seconds of our attention, and of each single kernel over the same tensors, round by round."""
    actions = [lambda: attend(*call.arguments), *_kernels(call)]
    for action in actions:
        action()
    rounds = [[_timed(action) for action in actions] for _ in range(ROUNDS)]
    ours, *others = [min(times) for times in zip(*rounds, strict=True)]
    return ours, others


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _kernels(call: Call) -> list[Callable[[], object]]:
    """Single kernels over the very tensors, the group of queries folded; none where the cache is no view."""
    q, (seen, *others), _, scale, _ = call.arguments
    (piece, *more) = seen.pieces
    if others or more or seen.choice is not None or not piece.is_view:
        return []
    values = piece.read(slice(0, piece.count))
    k, v = values[0], values[-1] if seen.value_width is None else values[-1][..., : seen.value_width]
    folded = q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])
    return [
        lambda: scaled_dot_product_attention(folded, k, v, scale=scale),
        lambda: ((folded @ k.transpose(-1, -2)) * scale).softmax(-1) @ v,
    ]


def _spec(case: Case, tokens: int) -> ModelSpec:
    text = msgspec.json.encode(case.mixers).replace(b'"all"', str(tokens).encode())
    layers = [{"mixer": mixer} for mixer in msgspec.json.decode(text)]
    document = {"name": case.name, "hidden_size": HIDDEN, "dtype": case.dtype, "layers": layers}
    return resolve(msgspec.convert(document, Document))


def _workload(case: Case, tokens: int) -> Workload:
    return Workload(context_tokens=tokens, batch=case.batch, kv_dtype=case.kv_dtype, encoder_tokens=tokens)


def _tokens_for(case: Case, mebibytes: int) -> int:
    """Tokens whose largest cache is as big as asked."""
    probe = 2**16
    largest = max(
        row.stored_bytes(probe) for row in size_workload(_spec(case, probe), _workload(case, probe), WHOLE).rows
    )
    return int(probe * mebibytes * 2**20 / (largest * case.batch))


def _filled(case: Case, tokens: int) -> Session:
    """A session one token before the end of its context, its caches full of noise."""
    model = ReferenceModel(_spec(case, tokens), _workload(case, tokens))
    session = Session(model, case.batch, tokens, page=case.page)
    for cache in session.caches.values():
        cache.fill(tokens - 1)
    session.length = tokens - 1
    return session


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 512))
