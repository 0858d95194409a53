"""Why vLLM holds what it holds, in sentences, and what its log says."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kvcalc.engines.vllm_groups import Group
from kvcalc.engines.vllm_plan import Planner, Pool
from kvcalc.engines.vllm_specs import Chunked, PageSpec, Sliding, SlidingLatent
from kvcalc.units import exact_bytes

GIB = 2**30


def has_chunks(specs: Sequence[PageSpec]) -> bool:
    """Whether a layer attends to its chunk."""
    return any(isinstance(spec, Chunked) for spec in specs)


def release_rules(specs: Sequence[PageSpec], planner: Planner) -> Iterator[str]:
    """What windows and chunks take, and what else the release does that others do not."""
    rules, limits = planner.rules, planner.limits
    if rules.one_table:
        yield "V0: one block table for all layers of attention"
    planned = {type(spec) for group in planner.groups for spec in group.specs}
    local = sorted({_LOCAL[type(spec)] for spec in specs if type(spec) in _LOCAL})
    if local and not planned & set(_LOCAL):
        yield "windows and chunks keep the whole context: the hybrid manager is off"
    elif local:
        whose = _IN_FLIGHT[rules.counts_overlapping_batches]
        yield from (f"{kept} and {limits.in_flight_tokens:,} in flight: {whose}" for kept in local)
    if len(planner.groups) > 1 and rules.check != "groups":
        yield f"whether a request fits is checked by {_CHECKED[rules.check]}, less than it may hold"


_LOCAL: dict[type[PageSpec], str] = {
    Sliding: "a window takes one block and those of W - 1 tokens",
    SlidingLatent: "a window takes one block and those of W - 1 tokens",
    Chunked: "a chunk takes the blocks of its tokens",
}
_IN_FLIGHT = {
    True: "all steps of --max-num-batched-tokens that overlap, by asynchronous scheduling; one before 0.26",
    False: "one step of --max-num-batched-tokens; since 0.26 all that overlap",
}
_CHECKED = {"first group": "the blocks of the first group alone", "layers": "the pages of layers, without padding"}


def block_rules(planner: Planner) -> Iterator[str]:
    """What makes blocks of the bytes: groups, their padding, and what one request claims of each."""
    groups = planner.groups
    count, widest = len(groups), max(len(group.layers) for group in groups)
    sizes = " and ".join(f"{tokens:,}" for tokens in block_sizes(groups))
    yield (
        f"{f'{count} groups of up to {widest} layers share' if count > 1 else _sharing(widest)} a pool of blocks, "
        f"{exact_bytes(max(planner.block_bytes))} each{f', of {sizes} tokens' if sizes else ''}"
    )
    empty = count * widest - sum(len(group.layers) for group in groups)
    is_packed = any(len({spec.page_bytes for spec in group.specs}) > 1 for group in groups)
    if empty and not is_packed:
        yield f"{empty} of the {count * widest} places for a layer are padding and stay empty"
    if is_packed:
        yield "layers of one type and different widths lie side by side in a block"
    if is_packed and count > 1:
        least = min(group.block_bytes for group in groups)
        yield f"a block is as large as its widest group needs; the least takes {exact_bytes(least)} of it"
    claims = Counter(group.request_blocks(planner.limits) for group in groups)
    terms = " + ".join(f"{often} x {blocks:,}" if often > 1 else f"{blocks:,}" for blocks, often in claims.items())
    yield f"blocks that a request claims: {f'{terms} = ' if count > 1 else ''}{planner.request_blocks():,}"


def _sharing(layers: int) -> str:
    return f"{layers} layers share" if layers > 1 else "one layer has"


def block_sizes(groups: Sequence[Group]) -> list[int]:
    """Tokens of a block, of every group that counts in tokens."""
    return sorted({group.block_size for group in groups if group.specs[0].scales_with_block})


def log_lines(pool: Pool, spare: Mapping[str, int], stopped: Mapping[str, int]) -> str:
    """What the log of the release says of a pool: `spare` are blocks on the CPU, `stopped` the figures of its error."""
    concurrency = f"Maximum concurrency for {pool.max_model_len:,} tokens per request: {pool.max_concurrency:.2f}x"
    if pool.rules.one_table:
        blocks = f"# GPU blocks: {pool.num_blocks}, # CPU blocks: {spare['cpu_blocks']}"
        stored = f"the maximum number of tokens that can be stored in KV cache ({pool.tokens})"
        said = [blocks, *[concurrency] * pool.rules.prints_concurrency, *[stored] * bool(stopped)]
        return ", ".join(said)
    if stopped:
        needed, had = (f"{size / GIB:.2f} GiB" for size in (stopped["needed_bytes"], pool.budgets[0]))
        return f"{needed} KV cache is needed, {had} are available, estimated maximum model length is " + str(
            stopped["estimated_max_model_len"]
        )
    return f"GPU KV cache size: {pool.tokens:,} tokens, {concurrency}"
