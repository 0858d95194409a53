"""The pool of a server as an engine makes it: the same bytes, blocks and limits as `kvcalc fit` says."""

import msgspec

from kvcalc.engines.engine import BlockPool, Capacity
from kvcalc.engines.plan import Outcome, Plan, evaluate
from kvcalc.errors import KvcalcError
from kvcalc.sizing.blocks import layout_of
from kvcalc.units import memory

BLOCK_TOKENS = 16
"""Of a pool that no engine cuts into blocks: vLLM's own size."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of a plan, the blocks that requests share, and the longest request that is taken, in tokens.

    `block_tokens` are those of what grows, one of a kind of layers.
    """

    outcome: Outcome
    blocks: BlockPool
    longest: int

    @property
    def plan(self) -> Plan:
        """What runs where."""
        return self.outcome.plan

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool on each rank."""
        return self.outcome.pool.expected

    @property
    def block_tokens(self) -> list[int]:
        """Tokens of a block, one of a kind of layers; none where nothing grows."""
        return sorted({group.block_tokens for group in self.blocks.layout.groups})

    @property
    def tokens(self) -> int | None:
        """Tokens that the pool carries by the engine's own count, or in its blocks; None where layers differ."""
        capacity = self.outcome.capacity
        if capacity is not None and capacity.tokens is not None:
            return capacity.tokens
        groups = self.blocks.layout.groups
        if len(groups) != 1 or self.blocks.layout.slot_units or groups[0].cap is not None:
            return None
        return self.blocks.units // groups[0].units * groups[0].block_tokens


def pool_of(plan: Plan, *, block_tokens: int | None = None, reserves: bool = False, is_asked: bool = True) -> Pool:
    """The pool of `plan` for requests of up to its context; `is_asked` says whether somebody asked for that context.

    Blocks are the engine's, or of `block_tokens` tokens where there is none; whoever `reserves` does so token by token.
    KvcalcError where nothing is left for a pool, and where one request of a context that was asked does not fit: the
    engine would not start. A context that nobody asked for becomes the longest that fits.
    """
    outcome = evaluate(plan)
    capacity = _carried(outcome)
    if not capacity.takes_one_request:
        if is_asked or capacity.longest_request < 2:
            raise _too_small(outcome, capacity)
        outcome = evaluate(plan.asking(context_tokens=capacity.longest_request))
    return Pool(
        outcome=outcome,
        blocks=_blocks(outcome, block_tokens, reserves),
        longest=outcome.size.workload.context_tokens,
    )


def _carried(outcome: Outcome) -> Capacity:
    if outcome.capacity is None:
        message = f"nothing is left for a pool: {memory(-outcome.pool.expected)} more are needed beside it"
        raise KvcalcError(message, "more --tp, or a smaller --weights")
    return outcome.capacity


def _too_small(outcome: Outcome, capacity: Capacity) -> KvcalcError:
    context, engine = outcome.size.workload.context_tokens, outcome.plan.engine
    held = engine.allocate(outcome.size).allocated_bytes
    if held <= outcome.pool.expected:
        why = f"no request of {context:,} tokens runs: {capacity.limited_by} run out"
        return KvcalcError(why, f"kvcalc fit shows the pools of {engine.name}")
    who = "" if engine.is_plain else f": {engine.name} does not start"
    message = f"a request of {context:,} tokens needs {held:,} bytes in a pool of {outcome.pool.expected:,}{who}"
    longest = capacity.longest_request
    return KvcalcError(message, f"--max-model-len {longest}, or a larger pool" if longest > 1 else "a larger pool")


def _blocks(outcome: Outcome, block_tokens: int | None, reserves: bool) -> BlockPool:
    engine, size, pool_bytes = outcome.plan.engine, outcome.size, outcome.pool.expected
    found = engine.blocks(size, pool_bytes)
    if not reserves and not engine.is_plain:
        return found
    layout = layout_of(size, 1 if reserves else block_tokens or BLOCK_TOKENS)
    return BlockPool(layout=layout, units=layout.pool_units(pool_bytes), most_sequences=found.most_sequences)
