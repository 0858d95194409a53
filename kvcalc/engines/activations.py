"""What a forward pass of an engine's largest batch holds beside weights and cache: bounds, in bytes of one rank.

Two moments compete. In a layer, every token of the batch has its widest product: what goes up in the MLP. At the end,
every sequence has a row of logits, and sampling copies them in fp32; they are gathered, so tensor parallelism does
not divide them. Workspaces of routed experts stay reserved through both.
"""

from typing import NamedTuple

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.cache.sharding import Sharding
from kvcalc.sizing.need import CacheSize


class Bounds(NamedTuple):
    """Bytes of one rank, at least and at most."""

    low: int
    high: int


class Batch(msgspec.Struct, frozen=True):
    """The largest batch of one pass: `tokens` in it, and rows of logits, at least and at most."""

    tokens: int
    least_rows: int
    most_rows: int


class Sampling(msgspec.Struct, frozen=True):
    """How many fp32 copies of all logits exist at once, at least and at most."""

    least: float
    most: float


_STREAMS = 8
"""At most so many hidden streams of the batch at once: residual, normed, attention's in and out, compiled ones."""

FP32_BYTES = 4


def torch_peak(size: CacheSize, batch: Batch, sampling: Sampling) -> Bounds | None:
    """The peak of an engine that runs in torch; None where the spec lacks a width."""
    spec, sharding = size.spec, size.sharding
    mlps = [layer.mlp for layer in size.layers if layer.mlp is not None]
    if spec.hidden_size is None or spec.vocab_size is None:
        return None
    widths = [mlp.token_width(spec.hidden_size, sharding) for mlp in mlps]
    if any(width is None for width in widths):
        return None
    widest = max((width or 0 for width in widths), default=0)
    experts = Sharding(tp=max(1, sharding.tp // sharding.ep))
    reserved = max((mlp.workspace_width(spec.hidden_size, experts) for mlp in mlps), default=0)
    number = find_format(size.packer.dtype)
    steps = number.bulk_bytes(batch.tokens * widest, "activations")
    workspaces = number.bulk_bytes(batch.tokens * reserved, "workspaces")
    streams = number.bulk_bytes(batch.tokens * spec.hidden_size * _STREAMS, "activations")
    row = spec.vocab_size * FP32_BYTES
    # Some engines keep what goes up and its product in turn, so two thirds of the widest step is sure.
    low = max(steps * 2 // 3, int(batch.least_rows * row * sampling.least))
    return Bounds(low, max(steps, int(batch.most_rows * row * sampling.most)) + workspaces + streams)


def ggml_buffer(size: CacheSize, tokens: int, context_tokens: int, flash_attention: bool) -> Bounds | None:
    """The compute buffer of ggml, planned for a micro-batch of `tokens`: all in fp32, logits of every token.

    ggml-alloc.c reserves the largest moment of the graph. Without flash attention that is often the scores of every
    head over the whole context, with a mask and four streams beside them.
    """
    spec = size.spec
    if spec.hidden_size is None or spec.vocab_size is None:
        return None
    logits = tokens * (spec.vocab_size + spec.hidden_size) * FP32_BYTES
    heads = max((one.queries or 0 for layer in size.layers for one in layer.components), default=0)
    streams = 4 * tokens * spec.hidden_size * FP32_BYTES
    mask = tokens * context_tokens * FP32_BYTES
    scores = 0 if flash_attention else heads * mask
    low = max(logits, scores + streams + mask if scores else 0)
    widths = [layer.mlp.token_width(spec.hidden_size) or 0 for layer in size.layers if layer.mlp]
    reserved = [layer.mlp.workspace_width(spec.hidden_size) for layer in size.layers if layer.mlp]
    steps = tokens * (max(widths, default=0) + max(reserved, default=0)) * FP32_BYTES
    return Bounds(low, low + steps + mask + streams)
