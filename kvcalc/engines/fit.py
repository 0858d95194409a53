"""The three questions about a pool, each one monotone search: largest context, most sequences, fewest GPUs."""

from collections.abc import Iterator, Sequence

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.engines.engine import Allocation
from kvcalc.engines.held import largest
from kvcalc.engines.plan import Bounds, End, Outcome, Plan, evaluate
from kvcalc.errors import KvcalcError
from kvcalc.hardware.gpus import load_gpus

MOST_CONTEXT = 2**24
"""The longest context that is tried where the model states no limit, in tokens."""

MOST_GPUS = 128
FEW_GPUS = 16
"""Up to here every count is tried, then multiples of 8."""
COUNTS = (*range(1, FEW_GPUS + 1), *range(FEW_GPUS + 8, MOST_GPUS + 1, 8))


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change after which a plan fits. `share` is how much of what was asked it takes away, or adds in cards."""

    what: str
    flag: str
    asked: int | str
    becomes: int | str
    share: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, what comes of it, and what was searched for.

    `fewest` is None where no number of cards carries it, or cards were not asked about.
    """

    outcome: Outcome
    held: Allocation
    longest_context: int
    most_sequences: int
    fewest: Outcome | None
    changes: tuple[Change, ...] = ()


def answer(plan: Plan) -> Answer:
    """What comes of `plan`, and the three questions; KvcalcError for what its engine refuses."""
    outcome = evaluate(plan)
    found = Answer(
        outcome=outcome,
        held=plan.engine.allocate(outcome.size),
        longest_context=largest_context(plan),
        most_sequences=most_sequences(outcome),
        fewest=fewest_gpus(plan) if plan.budget.total_bytes is not None else None,
    )
    return found if outcome.fits else msgspec.structs.replace(found, changes=smallest_changes(found))


def outcome_or_none(plan: Plan) -> Outcome | None:
    """What comes of `plan`, None where its engine or its model refuses it."""
    try:
        outcome = evaluate(plan)
        _ = outcome.capacity  # an engine refuses when it is asked
    except KvcalcError:
        return None
    return outcome


def largest_context(plan: Plan) -> int:
    """The longest context in tokens at which the batch runs at once, at most the model's own; 0 for none."""
    return largest_contexts(plan, ("expected",))[0]


def largest_contexts(plan: Plan, ends: Sequence[End]) -> list[int]:
    """The same for ends of the pool's bounds."""
    tried: dict[int, Outcome | None] = {}
    most = longest_tried(plan)

    def outcome_at(tokens: int) -> Outcome | None:
        if tokens not in tried:
            tried[tokens] = outcome_or_none(plan.asking(context_tokens=tokens))
        return tried[tokens]

    def longest(end: End) -> int:
        def holds(tokens: int) -> bool:
            outcome = outcome_at(tokens)
            return outcome is not None and outcome.fits_at(end)

        return most if holds(most) else largest(holds, most)

    return [longest(end) for end in ends]


def longest_tried(plan: Plan) -> int:
    """The longest context in tokens that is asked about: the model's own, or a longer one that was asked for."""
    return max(plan.spec.max_context or MOST_CONTEXT, plan.workload.context_tokens)


def most_sequences(outcome: Outcome) -> int:
    """The most sequences of the context that run at once, over all data-parallel ranks; 0 for none."""
    return most_sequences_of(outcome, ("expected",))[0]


def most_sequences_of(outcome: Outcome, ends: Sequence[End]) -> list[int]:
    """The same for ends of the pool's bounds.

    What the pool carries, unless a larger batch leaves a smaller pool: the activations of whole prompts grow with it.
    """
    plan = outcome.plan
    if not plan.engine.batch_moves_capacity:
        return [outcome.sequences_at(end) for end in ends]
    pools = {plan.workload.batch: outcome.pool}

    def pool_at(batch: int) -> Bounds:
        if batch not in pools:
            pools[batch] = evaluate(plan.asking(batch=batch)).pool
        return pools[batch]

    def most(end: End) -> int:
        def holds(batch: int) -> bool:
            varied = outcome_or_none(plan.asking(batch=batch))
            return varied is not None and varied.fits_at(end)

        carried = outcome.sequences_at(end)
        larger = max(plan.workload.batch, carried + 1)
        if getattr(pool_at(1), end) == getattr(pool_at(larger), end):
            return carried
        return largest(holds, max(plan.workload.batch, carried))

    return [most(end) for end in ends]


def fewest_gpus(plan: Plan) -> Outcome | None:
    """The plan on as few cards as carry it: tensor parallelism first, then pipeline stages; None where none do."""
    for count in COUNTS:
        for spread in plan.on_cards(count):
            outcome = outcome_or_none(spread)
            if outcome is not None and outcome.fits:
                return outcome
    return None


def smallest_changes(answer: Answer) -> tuple[Change, ...]:
    """Every single change that makes a plan fit which does not, each computed, the smallest first."""
    outcome, work = answer.outcome, answer.outcome.plan.workload
    found = [*_less("context", "--ctx", work.context_tokens, answer.longest_context)]
    found += [*_less("batch", "--batch", work.batch, answer.most_sequences), *_formats(outcome)]
    found += [] if answer.fewest is None else [change_of_cards(outcome.plan, answer.fewest.plan)]
    return tuple(sorted(found, key=lambda change: change.share))


def _less(what: str, flag: str, asked: int, most: int) -> Iterator[Change]:
    if 0 < most < asked:
        yield Change(what=what, flag=flag, asked=asked, becomes=most, share=1 - most / asked)


def _formats(outcome: Outcome) -> Iterator[Change]:
    """The largest format of the cache, and of the weights, under which it fits."""
    engine, size = outcome.plan.engine, outcome.size
    for name in cache_formats(outcome.plan):
        varied = outcome_or_none(outcome.plan.asking(kv_dtype=find_format(name).name))
        if varied and varied.fits and varied.size.bytes_per_sequence < size.bytes_per_sequence:
            share = 1 - varied.size.bytes_per_sequence / size.bytes_per_sequence
            yield Change(what="KV format", flag="--kv-dtype", asked=size.workload.kv_dtype, becomes=name, share=share)
            break
    for name in engine.weight_formats:
        varied = outcome_or_none(outcome.plan.asking(weights=find_format(name).name))
        held, now = size.weight_bytes or 0, (varied.size.weight_bytes or 0) if varied else 0
        if varied and varied.fits and now < held:
            share = 1 - now / held
            yield Change(what="weights' format", flag="--weights", asked=size.weights_format, becomes=name, share=share)
            break


def cache_formats(plan: Plan) -> list[str]:
    """Smaller formats of the cache that the engine and the card take, the largest first."""
    return [name for name in plan.engine.kv_formats if _is_read_on(plan.budget.gpu, name)]


NEEDS_FP4_UNITS = {"nvfp4"}
"""Formats of a cache that kernels read on cards with FP4 units alone (vLLM and SGLang: SM100 and later)."""


def _is_read_on(gpu: str | None, form: str) -> bool:
    """Whether a card's kernels read a cache in that format; of a card that is not known, nothing is said."""
    found = next((one for one in load_gpus() if one.name == gpu), None)
    return form not in NEEDS_FP4_UNITS or found is None or "fp4" in found.dense_flops_per_second


def change_of_cards(plan: Plan, found: Plan) -> Change:
    """The cards, and the flags that spread the model over them; other ranks where they are no more than before."""
    named = (("tp", found.sharding.tp, plan.sharding.tp), ("pp", found.sharding.pp, plan.sharding.pp))
    flags = [f"--{name} {now}" for name, now, was in named if now != was]
    flag = f"--gpus {found.gpus}" if plan.engine.spreads_layers else " ".join(flags)
    if found.gpus > plan.gpus:
        share = (found.gpus - plan.gpus) / plan.gpus
        return Change(what="GPUs", flag=flag, asked=plan.gpus, becomes=found.gpus, share=share)
    return Change(what="ranks", flag=flag, asked=_ranks(plan), becomes=_ranks(found), share=0)


def _ranks(plan: Plan) -> str:
    return f"tp {plan.sharding.tp} x pp {plan.sharding.pp}"
