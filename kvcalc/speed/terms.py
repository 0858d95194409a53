"""The terms of a pass: each says which kernels it starts, what they move and what they compute, as seconds."""

from collections.abc import Iterator, Sequence
from typing import Any

from kvcalc.cache.span import at_most
from kvcalc.model.feed_forward import Routed
from kvcalc.speed.kernels import ACTIVATION_BYTES, US, Cost, Pass, Setting, exchange, kernel_cost, matrix_cost
from kvcalc.speed.machine import Machine
from kvcalc.speed.rank import Attending, Stack


class Term:
    """One line of an answer."""

    name = ""

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        """What the layers of `stack` cost in this term."""
        raise NotImplementedError


class Projections(Term):
    """The matrices of every mixer: Q, K, V and O, or a recurrent layer's in and out."""

    name = "projections"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        for matrix, count in stack.mixer.items():
            numbers = setting.numbers.matrices if matrix.copies == 1 else setting.numbers.sides
            yield matrix_cost(self.name, setting.machine, matrix, numbers, step.tokens, count)


class FeedForward(Term):
    """Dense MLPs, shared experts and routers: what every token passes."""

    name = "feed-forward"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        ranks = setting.model.gathered
        for matrix, count in stack.feed_forward.items():
            tokens, numbers = step.tokens * ranks, setting.numbers.matrices
            cost = matrix_cost(self.name, setting.machine, matrix, numbers, tokens, count)
            yield cost._replace(floor_working=cost.floor_working * step.least_share(ranks))


class Experts(Term):
    """Routed experts: the weights of those that the batch reaches, and the work of those that a token chose."""

    name = "experts"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        tokens, share = step.tokens * setting.model.gathered, step.least_share(setting.model.gathered)
        for routed, count in stack.experts.items():
            yield self._cost(setting, routed, count, tokens, tokens * share)

    def _cost(self, setting: Setting, routed: Routed, count: int, tokens: Any, least: Any) -> Cost:
        machine, numbers = setting.machine, setting.numbers.experts
        values = sum(matrix.values for matrix in routed.matrices)
        chosen = tokens * routed.active * routed.held / routed.experts
        # Tokens of one batch are alike, so that they choose fewer distinct experts than if each chose alone.
        spread = machine.free["routing_spread"]
        touched, fewest = (routed.touched(1 + spread * (many - 1)) for many in (tokens, least))
        moved = touched * values * numbers.bytes_per_value
        moved = moved + chosen * sum(matrix.width for matrix in routed.matrices) * ACTIVATION_BYTES
        kernel = machine.kernel(numbers.rate)
        # A matrix unit takes a whole tile of rows, filled or not.
        rows = (chosen**2 + (touched * machine.free["expert_rows"]) ** 2) ** 0.5
        start = (machine.free["experts_us"] + len(routed.matrices) * kernel.start_us) * machine.free["start_share"] * US
        shares = machine.kernels["bf16"].bandwidth_share, kernel.flops_share * machine.free["experts_share"]
        cost = kernel_cost(
            self.name, machine, (count * start, *shares, numbers.rate), count * moved, count * 2 * rows * values
        )
        least_moved, least_worked = fewest * values * numbers.bytes_per_value, 2 * chosen * values * least / tokens
        return cost._replace(
            floor_moving=count * least_moved / machine.bytes_per_second,
            floor_working=count * least_worked / machine.rate(numbers.rate),
        )


class Head(Term):
    """The LM head over the vocabulary's rows of this rank, for one token a sequence."""

    name = "LM head"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        rows = step.sequences if step.is_prompt else step.tokens
        ranks = setting.model.gathered
        cost = matrix_cost(self.name, setting.machine, setting.model.head, setting.numbers.head, rows * ranks, 1)
        yield cost._replace(floor_working=cost.floor_working * step.least_share(ranks))


class Attention(Term):
    """Queries against what the caches keep: a window caps it, a `shared` layer reads it again, top-k bounds it."""

    name = "attention"
    selects = False

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        for one, count in stack.attending:
            if one.selects is self.selects:
                yield self._cost(setting.machine, one, count, step)

    def _cost(self, machine: Machine, one: Attending, count: int, step: Pass) -> Cost:
        kernel, rate = machine.kernels["attention"], machine.plain
        pairs = pairs_of(one, step)
        flops = count * step.sequences * pairs * one.owner.pair_flops(one.q_heads, step.is_prompt)
        entries = read_entries(one, step)
        moved = count * step.sequences * entries * one.entry_bytes
        share = machine.free["prompt_attention_share" if step.is_prompt else "step_attention_share"]
        start = count * kernel.start_us * machine.free["start_share"] * US * self._starts(one)
        cost = kernel_cost(self.name, machine, (start, kernel.bandwidth_share, share, rate), moved, flops, "KV cache")
        seen = count * step.sequences * seen_entries(one, step) * one.entry_bytes
        return cost._replace(floor_moving=seen / machine.bytes_per_second)

    def _starts(self, one: Attending) -> int:
        return int(one.starts_kernel)


class Index(Attention):
    """Sparse attention's keys scored by the index heads, and the selection of the best."""

    name = "index and top-k"
    selects = True

    def _starts(self, one: Attending) -> int:
        return 2


class States(Term):
    """Recurrent states, read and written by every step; a prompt keeps them on chip and works token by token."""

    name = "recurrent states"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        machine = setting.machine
        kernel = machine.kernels["attention"]
        layers = sum(stack.state_bytes.values())
        if not layers:
            return
        moved = 2 * step.sequences * sum(count * size for size, count in stack.state_bytes.items())
        flops = _FLOPS_A_STATE * stack.state_values * step.tokens
        start = layers * kernel.start_us * machine.free["start_share"] * US
        share = machine.free["prompt_attention_share"]
        constants = start, kernel.bandwidth_share, share, machine.plain
        yield kernel_cost(self.name, machine, constants, moved, flops, "KV cache")


_FLOPS_A_STATE = 6
"""A token decays a number of the state, adds an outer product to it and reads it: three multiply-adds."""


class SmallKernels(Term):
    """Norms, rotary, activations, cache writes: their start, and the passes over the hidden state."""

    name = "small kernels"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        machine = setting.machine
        start = stack.layers * (machine.free["small_kernels_us"] + machine.free.get("layer_us", 0)) * US
        passes = stack.layers * machine.free["activation_passes"] * setting.model.hidden * ACTIVATION_BYTES
        moved = step.tokens * (passes + stack.written_bytes)
        kernel = machine.kernels["bf16"]
        constants = start, kernel.bandwidth_share, 1.0, machine.plain
        cost = kernel_cost(self.name, machine, constants, moved, 0.0, "activations")
        # Engines may fuse all of it into the kernels before and behind: only the cache must be written.
        return iter([cost._replace(floor_moving=step.tokens * stack.written_bytes / machine.bytes_per_second)])


class AllReduce(Term):
    """Sums over the ranks that a mixer and a feed-forward part are cut over, behind each of them."""

    name = "all-reduce"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        model = setting.model
        size = step.tokens * model.hidden * ACTIVATION_BYTES
        sums = ((stack.mixers, model.attention_ranks), (stack.layers, 1 if model.attention_dp else model.sharding.tp))
        for count, ranks in sums:
            if ranks > 1 and count:
                yield exchange(self.name, setting.machine, count, ranks, 2 * (ranks - 1) / ranks * size)


class AllToAll(Term):
    """Attention-DP: the tokens of every rank to all others before a feed-forward part, and the sums back."""

    name = "all-to-all"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        model, ranks = setting.model, setting.model.sharding.tp
        if not model.attention_dp or ranks == 1:
            return
        size = step.tokens * model.gathered * model.hidden * ACTIVATION_BYTES
        yield exchange(self.name, setting.machine, 2 * stack.layers, ranks, (ranks - 1) / ranks * size)


class Host(Term):
    """The scheduler, the sampler and the detokeniser: once a step, and for every sequence."""

    name = "host"

    def costs(self, setting: Setting, stack: Stack, step: Pass) -> Iterator[Cost]:
        free = setting.machine.free
        each = free["sequence_us"] + free["sequence_rank_us"] * (setting.model.sharding.tp - 1)
        yield Cost(self.name, (free["step_us"] + each * step.sequences) * US)


def pairs_of(one: Attending, step: Pass) -> Any:
    """Pairs of a query and an entry that one sequence makes in a pass."""
    if step.is_prompt:
        return one.owner.pairs(step.context, one.limit) - one.owner.pairs(step.context - step.new, one.limit)
    return step.new * at_most(one.owner.entries(step.context), one.limit)


def read_entries(one: Attending, step: Pass) -> Any:
    """Entries of one sequence that a pass reads, each once."""
    kept = one.owner.entries(step.context)
    return kept if step.is_prompt else at_most(kept, one.limit)


def seen_entries(one: Attending, step: Pass) -> Any:
    """The fewest entries that a pass can read: of a chunk those that its last query sees."""
    return at_most(one.owner.entries(one.owner.tokens_in_sight(step.context)), one.limit)


LAYER_TERMS = (Projections(), FeedForward(), Experts(), Attention(), Index(), States(), SmallKernels(), AllReduce(),
               AllToAll())  # fmt: skip
"""The terms of every layer."""
ONCE_TERMS = (Head(), Host())
"""The terms of a pass as a whole."""


def pass_costs(setting: Setting, step: Pass) -> list[Cost]:
    """Everything that a pass costs; the upper layers of a model that says so see only the end of a prompt."""
    model = setting.model
    stacks = [(model.lower, step)]
    if model.upper.layers:
        stacks.append((model.upper, step._replace(new=at_most(step.new, model.replay)) if step.is_prompt else step))
    costs = [cost for stack, seen in stacks for term in LAYER_TERMS for cost in term.costs(setting, stack, seen)]
    if step.is_prompt and model.encoder is not None:
        encoded = Pass(step.sequences, model.encoder_tokens, model.encoder_tokens, is_prompt=True)
        costs += [cost for term in LAYER_TERMS for cost in term.costs(setting, model.encoder, encoded)]
    costs += pipeline_costs(setting, step, costs)
    return costs + [cost for term in ONCE_TERMS for cost in term.costs(setting, model.lower, step)]


def draft_costs(setting: Setting, step: Pass) -> list[Cost]:
    """What one token more costs of the layers that draft, and the LM head that picks it."""
    terms = (*LAYER_TERMS, Head())
    drafts = setting.model.drafts
    costs = [] if drafts is None else [cost for term in terms for cost in term.costs(setting, drafts, step)]
    return [cost._replace(term="drafting") for cost in costs]


def pipeline_costs(setting: Setting, step: Pass, layers: Sequence[Cost]) -> list[Cost]:
    """Sends from stage to stage, and what even stages would not wait for: all stages take the time of the fullest."""
    model = setting.model
    stages = model.sharding.pp
    if stages == 1:
        return []
    send = exchange(PIPELINE, setting.machine, stages - 1, 2, step.tokens * model.hidden * ACTIVATION_BYTES)
    uneven = stages * max(model.stage_shares) - 1
    return [send, Cost(PIPELINE, uneven * sum(cost.seconds for cost in layers))]


PIPELINE = "pipeline"
