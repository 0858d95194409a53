"""Tiny models of every kind of attention, and the sessions that tests run them in."""

from itertools import pairwise

import msgspec
import torch
import yaml
from hypothesis import strategies as st

from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document
from kvcalc.reference.model import ReferenceModel, RunOptions
from kvcalc.reference.session import Session
from kvcalc.sizing.need import Workload

# Tensors are so small that threads would only wait for each other.
torch.set_num_threads(1)

HIDDEN = 48
TOKENS = 32
ENCODED = 20
BATCH = 2

KV = "{kind: kv, q_heads: 8, kv_heads: 2, head_dim: 16}"
MLA = "{kind: latent, q_heads: 4, latent_dim: 24, rope_dim: 8, nope_head_dim: 16, v_head_dim: 12}"
CHOSEN_MLA = MLA.replace("}", ", top_k: 10}")
WINDOW = "{kind: latent, q_heads: 4, latent_dim: 24, rope_dim: 8, window: 7}"
# Sixteen index heads: no two entries of a few dozen score exactly zero with all of them.
KEYS = "{kind: index, id: keys, q_heads: 16, head_dim: 8, ratio: 2}"
GLOBAL = "{kind: latent, id: global, latent_dim: 24, rope_dim: 8, ratio: 2, top_k: 6}"
FULL = f"[{WINDOW}, {GLOBAL}, {KEYS}]"
REUSE = f"[{WINDOW}, {{kind: shared, source: global}}]"


def reindex(among):
    """A layer of DeepSeek-V4.1 that chooses anew among so many candidates of the last Full layer."""
    return f"[{WINDOW}, {{kind: shared, source: global}}, {{kind: shared, source: keys, top_k: {among}}}]"


def reader(**keys):
    """A layer that reads the cache of the one before it."""
    return {"kind": "shared", "source": "previous", **keys}


def kv(**keys):
    """A layer of grouped-query attention."""
    return {"kind": "kv", "q_heads": 8, "kv_heads": 2, "head_dim": 16, **keys}


# The layers of one model a line.
MODELS = {
    "MHA": [kv(kv_heads=8)],
    "GQA": [kv(), kv()],
    "MQA": [kv(kv_heads=1)],
    "wide values": [kv(v_head_dim=24)],
    "odd widths": [kv(head_dim=15, v_head_dim=7)],
    "window": [kv(window=9), kv(window=1)],
    "window and sinks": [kv(window=9, sinks=2)],
    "window longer than the context": [kv(window=100, sinks=3)],
    "chunk": [kv(chunk=10), kv()],
    "pooled K and V": [kv(ratio=3, v_head_dim=8)],
    "pooled with overlap": [kv(ratio=3, overlap=True)],
    "no entry complete": [kv(ratio=TOKENS + 1)],
    "MLA": [MLA],
    "MLA, low-rank queries": [MLA.replace("}", ", q_rank: 20}")],
    "MLA, wide values": [MLA.replace("v_head_dim: 12", "v_head_dim: 40")],
    "MLA, no rotary part": [MLA.replace("rope_dim: 8", "rope_dim: 0")],
    "MLA, window and sinks": [MLA.replace("}", ", window: 6, sinks: 2}")],
    "flat latent": ["{kind: latent, q_heads: 4, latent_dim: 24, rope_dim: 8}"],
    "V4, chosen": [f"[{WINDOW}, {GLOBAL.replace('}', ', overlap: true}')}, {KEYS.replace('}', ', overlap: true}')}]"],
    "V4, heavily compressed": [f"[{WINDOW}, {{kind: latent, latent_dim: 24, rope_dim: 8, ratio: 8}}]"],
    "V4.1": [FULL, REUSE, reindex(12), REUSE, reindex(9)],
    "V4.1, twice Full": [FULL, REUSE, FULL, REUSE],
    "V4.1, few candidates": [FULL, reindex(4)],
    "two choices": [FULL, f"[{CHOSEN_MLA}, {{kind: index, q_heads: 16, head_dim: 8}}]", REUSE],
    "chosen K and V": [f"[{KV.replace('}', ', top_k: 10}')}, {{kind: index, q_heads: 16, head_dim: 8, q_rank: 12}}]"],
    "GLM": [f"[{CHOSEN_MLA}, {{kind: index, q_heads: 16, head_dim: 8}}]", CHOSEN_MLA],
    "cross": [f"[{KV}, {{kind: cross, q_heads: 4, kv_heads: 4, head_dim: 16, encoder_tokens: {ENCODED}}}]"],
    "CLA": [kv(), reader(q_heads=4), reader(q_heads=8)],
    "CLA of MLA": [MLA, reader(q_heads=4), reader(q_heads=3)],
    "narrow reader": [kv(), reader(q_heads=4, window=5)],
    "narrow reader of a window": [kv(window=9), reader(q_heads=4, window=5)],
    "narrow reader of a chunk": [kv(chunk=9), reader(q_heads=4, window=5)],
    "parallel": [f"[{KV}, {{kind: mamba2, heads: 4, head_dim: 8, state: 8, groups: 2, kernel: 4}}]"],
}

# Models of which a prompt passes the first layers only, and how many those are.
YOCO = {
    "YOCO": (1, [kv(window=5), kv(), reader(q_heads=4)]),
    "YOCO, reader first": (2, [kv(window=5), kv(), reader(q_heads=4)]),
    "YOCO, one upper window": (1, [kv(), kv(window=5)]),
    "YOCO, choice in the upper half": (1, [kv(), f"[{CHOSEN_MLA}, {{kind: index, q_heads: 16, head_dim: 8}}]"]),
    "YOCO, choice from below": (1, [FULL, "{kind: shared, source: global, q_heads: 4}"]),
    "YOCO, window and choice from below": (1, [FULL, REUSE]),
    "YOCO, chosen anew": (1, [FULL, reindex(12).replace(f"{WINDOW}, ", "").replace("global", "global, q_heads: 4")]),
    "YOCO, few candidates": (1, [FULL, reindex(4).replace(f"{WINDOW}, ", "").replace("global", "global, q_heads: 4")]),
    "SambaY": (
        1,
        [f"[{KV}, {{kind: mamba1, inner: 24, state: 4, kernel: 3, dt_rank: 3}}]", reader(q_heads=4), "{kind: gmu}"],
    ),
}


def spec(layers, **keys):
    """A model of `layers`, each a mixer as a spec writes it."""
    mixers = [yaml.safe_load(layer) if isinstance(layer, str) else layer for layer in layers]
    document = {"name": "tiny", "hidden_size": HIDDEN, "dtype": "fp32", "layers": [{"mixer": one} for one in mixers]}
    return resolve(msgspec.convert(document | keys, Document))


def build(layers, exact=torch.float64, kv_dtype="auto", **keys):
    """A running model of `layers`, in float64 unless `exact` is None."""
    workload = Workload(context_tokens=TOKENS, batch=BATCH, kv_dtype=kv_dtype)
    return ReferenceModel(spec(layers, **keys), workload, RunOptions(exact=exact))


def tokens(count=TOKENS, batch=BATCH, seed=0):
    """Random token ids (batch, count)."""
    return torch.randint(0, 1000, (batch, count), generator=torch.Generator().manual_seed(seed))


def encoded(dtype=torch.float64, batch=BATCH):
    """An encoder's output, the same for every call."""
    made = torch.randn(batch, ENCODED, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return made.to(dtype)


def session(model, batch=BATCH, capacity=TOKENS, page=None):
    """A new session of `model`."""
    return Session(model, batch, capacity, page=page, encoded=encoded(model.dtype, batch))


def in_passes(model, ids, sizes, page=None):
    """Hidden states of `ids` after passes of `sizes` tokens each, in a new session."""
    running = session(model, ids.shape[0], ids.shape[1], page)
    return torch.cat([running.prefill(part) for part in ids.split(sizes, dim=1)], dim=1)


def chunkings(total):
    """Ways to cut `total` tokens into passes."""
    cuts = st.sets(st.integers(1, total - 1), max_size=6).map(lambda found: [0, *sorted(found), total])
    return cuts.map(lambda ends: [end - start for start, end in pairwise(ends)])


def near(found, expected, tolerance):
    """Alike to `tolerance`, relative where the numbers are larger than one."""
    assert found.shape == expected.shape
    error = (found.double() - expected).abs() / expected.abs().clamp(min=1)
    assert error.max().item() <= tolerance
