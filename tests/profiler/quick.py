"""Runs that take a moment: tiny models, a machine whose peaks are stated, and a CPU with nothing to evict."""

import msgspec
import torch
import yaml

from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document
from kvcalc.profiler.device import CpuDevice
from kvcalc.profiler.point import Bench, PointRun
from kvcalc.profiler.request import ProfileRequest
from kvcalc.reference.build import Rank
from kvcalc.reference.model import ReferenceModel, RunOptions
from kvcalc.sizing.need import Workload

HIDDEN = 64
MACHINE = {
    "read_bytes_per_second": 1e12,
    "copy_bytes_per_second": 1e12,
    "gemm_flops_per_second": 1e15,
    "gemm_dtype": "fp32",
    "specified_bytes_per_second": None,
    "specified_flops_per_second": None,
    "specified_source": None,
}
"""Far above what any CPU does, so that nothing tiny seems to beat it."""

KV = "{kind: kv, q_heads: 4, kv_heads: 2, head_dim: 32}"
MLA = "{kind: latent, q_heads: 4, latent_dim: 128, rope_dim: 32, nope_head_dim: 32, v_head_dim: 32}"
GLOBAL = "{kind: latent, id: global, q_heads: 4, latent_dim: 64, rope_dim: 32, ratio: 2, top_k: 6}"
INDEX = "{kind: index, id: keys, q_heads: 4, head_dim: 32, ratio: 2}"
CROSS = "{kind: cross, q_heads: 2, kv_heads: 2, head_dim: 32, encoder_tokens: 20}"


def with_keys(mixer, keys):
    """The text of a mixer with more keys: with_keys(KV, "window: 9")."""
    return mixer.replace("}", f", {keys}}}")


# One model for every kind that runs, and for every way in which entries are kept and read.
MODELS = {
    "kv": [KV, KV],
    "wide values": [with_keys(KV, "v_head_dim: 64")],
    "window": [with_keys(KV, "window: 9"), KV],
    "sinks": [with_keys(KV, "window: 9, sinks: 2")],
    "chunk": [with_keys(KV, "chunk: 10")],
    "pooled": [with_keys(KV, "ratio: 3")],
    "overlap": [with_keys(KV, "ratio: 3, overlap: true")],
    "latent": [MLA],
    "flat latent": ["{kind: latent, q_heads: 4, latent_dim: 128, rope_dim: 0}"],
    "index": [f"[{GLOBAL}, {INDEX}]", "{kind: shared, source: global, q_heads: 4}"],
    "cross": [f"[{KV}, {CROSS}]"],
    "shared": [KV, "{kind: shared, source: previous, q_heads: 4}", "{kind: shared, source: previous, q_heads: 4, window: 5}"],
    "mamba1": ["{kind: mamba1, inner: 32, state: 4, kernel: 3}"],
    "mamba2": ["{kind: mamba2, heads: 4, head_dim: 8, state: 8, groups: 2, kernel: 4}"],
    "gated_delta": ["{kind: gated_delta, k_heads: 2, v_heads: 4, k_dim: 16, v_dim: 16, kernel: 4}"],
    "linear": ["{kind: linear, heads: 4, k_dim: 16, v_dim: 16}"],
    "short_conv": ["{kind: short_conv, width: 64, kernel: 3}"],
    "rg_lru": ["{kind: rg_lru, width: 64, kernel: 4, heads: 4}"],
    "rwkv": ["{kind: rwkv, hidden: 64, heads: 4, head_dim: 16}"],
    "gmu": ["{kind: mamba1, inner: 32, state: 4, kernel: 3}", "{kind: gmu}"],
}  # fmt: skip


def spec(layers, **keys):
    """A model of `layers`, each a mixer as a spec writes it."""
    mixers = [yaml.safe_load(one) if isinstance(one, str) else one for one in layers]
    document = {"name": "quick", "hidden_size": HIDDEN, "dtype": "fp32", "layers": [{"mixer": one} for one in mixers]}
    return resolve(msgspec.convert(document | keys, Document))


def request(model, contexts=(16,), batches=(2,), kv_dtype="auto", **keys):
    """What a run of `model` (a spec, or the name of one above) is asked."""
    one = spec(MODELS[model]) if isinstance(model, str) else model
    asked = {"seconds_per_point": 5.0, "most_steps": 4, "rank": Rank(), **keys}
    return ProfileRequest(
        spec=one, layers_of_model=len(one.layers), workload=Workload(kv_dtype=kv_dtype), contexts=tuple(contexts),
        batches=tuple(batches), **asked,
    )  # fmt: skip


class QuickCpu(CpuDevice):
    """A CPU on one thread that evicts nothing; whatever the machine holds, `free` bytes are available."""

    def __init__(self, free=2**40):
        super().__init__(threads=1)
        self.free = free

    def available_bytes(self):
        return self.free

    def flush(self):
        pass


def model_of(asked):
    """The layers of a request with random weights."""
    options = RunOptions(rank=asked.rank, with_mlp=asked.with_mlp, seed=asked.seed)
    return ReferenceModel(asked.spec, asked.workload, options)


def point_of(asked, machine=MACHINE, device=None):
    """The only point of a request, measured: its document."""
    ((context, batch),) = asked.grid
    return PointRun(Bench(model_of(asked), device or QuickCpu(), machine, asked), context, batch).run()


def prompt(batch, tokens, seed=0):
    """Random token ids (batch, tokens)."""
    return torch.randint(0, 1000, (batch, tokens), generator=torch.Generator().manual_seed(seed))
