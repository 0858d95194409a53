"""Engines with a pool: how each log says its bytes, and which question answers which of its figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

from kvcalc.engines.engine import Capacity
from kvcalc.engines.logs.pattern import GIB, Finding, Printed
from kvcalc.engines.reconcile.pools import Figure, Pool, least_pool
from kvcalc.engines.reconcile.releases import vllm_era
from kvcalc.engines.reconcile.settings import Settings, numbers_of

SWAP_GIB = 4
"""vLLM's --swap-space where nothing is said, a card (EngineArgs of V0)."""

FREE_FRACTION = Fraction(9, 10)
"""TensorRT-LLM's kv_cache_free_gpu_mem_fraction where nothing is said (KvCacheConfig)."""


class Table(msgspec.Struct, frozen=True):
    """One engine: the figures by key, the pool that lines allow, and the lines as the figures name them."""

    figures: Callable[[Settings], Mapping[str, Figure]]
    pool: Callable[[Sequence[Finding], Settings], Pool]
    named: Callable[[Sequence[Finding]], Sequence[Finding]] = lambda findings: findings
    stages: Callable[[Sequence[Finding]], list[Sequence[Finding]]] = lambda findings: [findings]
    """Lines apart that are about pools of different size."""
    era: Callable[[Sequence[Finding], Sequence[str]], Sequence[str]] = lambda _, releases: releases
    """Of all releases those that print such lines."""
    defaults: Callable[[Settings], dict[str, int]] = lambda _: {}
    """Flags that were other by default in the release that is printed."""


def _of(figure: Callable[[Capacity], float | None]) -> Figure:
    return lambda question, pool_bytes: figure(question.capacity(pool_bytes))


def _named(name: str) -> Figure:
    return _of(lambda held: held.figures.get(name))


def _values(findings: Sequence[Finding], *keys: str) -> list[Printed]:
    return [
        one.values[key] for one in findings for key in keys if key in one.values and one.values[key].value is not None
    ]


def _vllm_figures(settings: Settings) -> Mapping[str, Figure]:
    swap = int((settings.number("swap_space") or SWAP_GIB) * GIB)
    return {
        "block_tokens": _of(lambda held: max(held.block_tokens, default=None)),
        "blocks": _of(lambda held: held.num_blocks),
        "cpu_blocks": lambda question, _: question.capacity(swap).num_blocks,
        "tokens": _of(lambda held: held.tokens),
        "concurrency": _of(lambda held: held.max_concurrency),
        "stored_tokens": _of(_stored),
        "needed_bytes": lambda question, _: question.allocation.allocated_bytes,
        # Before 0.29 the message forgets the null block.
        "longest": _of(lambda held: held.figures.get("estimated_max_model_len", held.longest_request)),
    }


def _stored(held: Capacity) -> int | None:
    """raise_if_cache_size_invalid of V0 (worker/worker.py): all blocks, full."""
    return None if held.num_blocks is None else held.num_blocks * max(held.block_tokens, default=0)


def _vllm_pool(findings: Sequence[Finding], settings: Settings) -> Pool:
    """Available memory, or --kv-cache-memory to the byte; an override of the blocks makes both idle."""
    if settings.count("num_gpu_blocks_override"):
        return Pool()
    exact = settings.count("kv_cache_memory")
    if exact:
        return Pool(exact, exact, is_known=True)
    return least_pool(_values(findings, "available_bytes"), (settings.count("pp") or 1) > 1)


def _sglang_figures(_: Settings) -> Mapping[str, Figure]:
    own = ("k_bytes", "v_bytes", "kv_bytes", "full_tokens", "swa_tokens", "mamba_slots", "conv_bytes", "ssm_bytes")
    pools = [f"{prefix}_{name}" for prefix in ("full", "swa") for name in ("k_bytes", "v_bytes", "kv_bytes")]
    drafts = {"draft_conv_bytes": "intermediate_conv_bytes", "draft_ssm_bytes": "intermediate_ssm_bytes"}
    return {
        "tokens": _of(lambda held: held.tokens),
        **{name: _named(name) for name in (*own, *pools, "max_running_requests")},
        **{key: _named(name) for key, name in drafts.items()},
    }


def _sglang_pool(findings: Sequence[Finding], settings: Settings) -> Pool:
    """What is left after the weights, less the share of what was free before (model_runner_kv_cache_mixin.py)."""
    share = settings.number("mem_fraction_static")
    before = {one.rank: one.values["free_bytes"] for one in findings if one.kind == "before"}
    after = {one.rank: one.values["free_bytes"] for one in reversed(findings) if one.kind == "weights"}
    if share is None or not before or before.keys() != after.keys():
        return Pool()
    rest = 1 - share
    pools = [_difference(after[rank], before[rank], rest) for rank in before]
    return least_pool(pools)


def _difference(after: Printed, before: Printed, rest: Fraction) -> Printed:
    return Printed("", after.number - before.number * rest, after.half + before.half * rest)


def _sglang_named(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Lines about the pool of windows, and about that of other layers, say so by their tokens alone."""
    split = {
        one.values[key].value: key.removesuffix("tokens")
        for one in findings
        if one.kind == "windows"
        for key in ("full_tokens", "swa_tokens")
    }
    return [_prefixed(one, split.get(one.values["tokens"].value)) if one.kind == "tokens" else one for one in findings]


def _prefixed(one: Finding, prefix: str | None) -> Finding:
    if prefix is None:
        return one
    return msgspec.structs.replace(one, values={f"{prefix}{key}": said for key, said in one.values.items()})


def _tensorrt_figures(_: Settings) -> Mapping[str, Figure]:
    return {
        "tokens_per_block": _of(lambda held: max(held.block_tokens, default=None)),
        "sequence_blocks": _named("blocks_per_request"),
        "blocks": _of(lambda held: held.num_blocks),
        "tokens": _of(lambda held: held.tokens),
        "token_cost": _of(lambda held: (held.bytes_per_block or 0) / max(held.block_tokens, default=1)),
        "kv_bytes": _of(
            lambda held: None if held.num_blocks is None else held.num_blocks * (held.bytes_per_block or 0)
        ),
    }


def _tensorrt_pool(findings: Sequence[Finding], settings: Settings) -> Pool:
    """What it estimates, or the share of the memory that was free."""
    said = _values(findings, "available_bytes")
    if said:
        return least_pool(said)
    share = settings.number("kv_cache_free_gpu_mem_fraction") or FREE_FRACTION
    return least_pool([Printed("", one.number * share, one.half * share) for one in _values(findings, "free_bytes")])


def _tensorrt_stages(findings: Sequence[Finding]) -> list[Sequence[Finding]]:
    """A small pool to profile with, then the real one behind the line that estimates it (_util.py, KvCacheCreator)."""
    profiled = [place for place, one in enumerate(findings) if one.kind == "peak"]
    if not profiled:
        return [findings]
    return [findings[: profiled[0]], findings[profiled[0] :]]


def _tensorrt_defaults(settings: Settings) -> dict[str, int]:
    """64 tokens a block before 0.18 (kv_cache_config.py and the builder's --tokens_per_block)."""
    version = numbers_of(settings.text("version") or "")
    return {"tokens_per_block": 64} if version and version < (0, 18) else {}


TABLES = {
    "vllm": Table(_vllm_figures, _vllm_pool, era=vllm_era),
    "sglang": Table(_sglang_figures, _sglang_pool, _sglang_named),
    "tensorrt-llm": Table(_tensorrt_figures, _tensorrt_pool, stages=_tensorrt_stages, defaults=_tensorrt_defaults),
}


def groups_of(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    """Findings of the ranks that share a pool: those of one data-parallel rank, with what was said for all."""
    ranks = {word for one in findings for word in one.rank.split() if word.startswith("DP")}
    if len(ranks) < 2:
        yield list(findings)
        return
    for rank in sorted(ranks, key=lambda word: (len(word), word)):
        yield [one for one in findings if rank in one.rank.split()]
