"""PagedAttention (arXiv 2309.06180): what it publishes, and the requests that its moments describe.

The paper gives mean lengths of 161.31 and 337.99 tokens. Its Orca (Max) reserves 299 slots of 2,048 on average, which is
half of a request's answer: answers seen at a random time have E[o^2] / E[o] = 599 tokens, because long ones stay
longer. Both moments hold for lognormal answers of which those past 2,048 tokens with their prompts are left out, as
the paper's context leaves them out. The spread of prompts is not given; they take the same sigma. No allocator has a
setting of its own.
"""

import math
import random
from functools import cache
from statistics import NormalDist

import numpy as np

import kvcalc
from kvcalc.cache.sharding import Sharding
from kvcalc.sizing.blocks import layout_of
from kvcalc.sizing.need import Workload, size_workload
from kvcalc.workload.metrics import metrics_of
from kvcalc.workload.sharing import shared_share
from kvcalc.workload.simulate import Setting, simulate
from kvcalc.workload.trace import Trace

POOL_BYTES, CONTEXT = 12 * 2**30, 2048
PROMPT, OUTPUT, BIASED = 161.31, 337.99, 599.0
REQUESTS = 12_000
TOKEN_STATES = {"max": 20.4, "pow2": 26.8, "oracle": 38.2}
RESERVED = {"max": 13.3, "pow2": 17.9, "oracle": 25.2}
INTERNAL = {"max": 57.3, "pow2": 13.6, "oracle": 0.0}
EXTERNAL = {"max": 8.9, "pow2": 41.6, "oracle": 36.6}
BATCHED = {"max": 7.00, "pow2": 9.81, "oracle": 13.62, "paged": 30.42}
"""Percent of the pool, and requests at once: figures 2 and 13."""

SAVED = {
    ("Alpaca", "parallel sampling"): (6.09, 8.53, 9.79),
    ("Alpaca", "beam search"): (37.56, 53.13, 55.16),
    ("ShareGPT", "parallel sampling"): (16.2, None, 30.5),
    ("ShareGPT", "beam search"): (44.3, None, 66.3),
}
"""Percent of blocks that two, four and six sequences save, section 6.3; of ShareGPT it says from where to where."""
WIDTHS = (2, 4, 6)


def lognormal(draw, mean, ratio):
    """Lengths with E[x^2] / E[x]^2 = ratio."""
    sigma = np.sqrt(np.log(ratio))
    return np.maximum(1, np.rint(draw.lognormal(np.log(mean) - sigma**2 / 2, sigma, REQUESTS))).astype(np.int64)


@cache
def sharegpt(prompt_ratio=BIASED / OUTPUT):
    """Requests whose lengths have the paper's moments after those past the context are left out."""
    prompt_mean, mean, ratio = PROMPT, OUTPUT, BIASED / OUTPUT
    for _ in range(30):
        draw = np.random.default_rng(0)
        prompts, outputs = lognormal(draw, prompt_mean, prompt_ratio), lognormal(draw, mean, ratio)
        fits = prompts + outputs <= CONTEXT
        prompts, outputs = prompts[fits], outputs[fits]
        prompt_mean, mean = prompt_mean * PROMPT / prompts.mean(), mean * OUTPUT / outputs.mean()
        ratio = 1 + (ratio - 1) * (BIASED / ((outputs**2).sum() / outputs.sum())) ** 2
    return Trace(name="ShareGPT", prompt_tokens=prompts, output_tokens=outputs)


@cache
def layout(block_tokens):
    size = size_workload(kvcalc.load("opt-13b"), Workload(context_tokens=1, batch=1), Sharding())
    return layout_of(size, block_tokens)


def setting(allocator, **more):
    blocks = layout(16 if allocator == "paged" else 1)
    return Setting(
        layout=blocks, pool_units=blocks.pool_units(POOL_BYTES), allocator=allocator, max_model_len=CONTEXT, **more
    )


@cache
def served(allocator, prompt_ratio=BIASED / OUTPUT):
    return metrics_of(simulate(sharegpt(prompt_ratio), setting(allocator)))


def at_quantiles(prompt_mean, output_mean, count):
    """Lognormal lengths with these means, at even quantiles, prompts and outputs in no order to each other."""
    sigma = math.sqrt(math.log(BIASED / OUTPUT))
    normal = [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    prompts, outputs = (
        [max(1, round(mean * math.exp(sigma * one - sigma**2 / 2))) for one in normal]
        for mean in (prompt_mean, output_mean)
    )
    random.Random(0).shuffle(prompts)  # noqa: S311
    return list(zip(prompts, outputs, strict=True))


LENGTHS = {"Alpaca": at_quantiles(19.31, 58.45, 150), "ShareGPT": at_quantiles(PROMPT, OUTPUT, 30)}


@cache
def saved(dataset, method):
    """Percent of blocks that each of WIDTHS saves."""
    return [100 * shared_share(LENGTHS[dataset], width, method) for width in WIDTHS]
