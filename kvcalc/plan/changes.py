"""The smallest single change after which a limit is kept: every one that is offered was computed and holds."""

from collections.abc import Callable, Iterator
from functools import cache

from kvcalc.cache.formats import find_format
from kvcalc.engines.fit import COUNTS, Change, cache_formats, change_of_cards
from kvcalc.engines.held import largest
from kvcalc.engines.plan import Plan
from kvcalc.errors import KvcalcError
from kvcalc.plan.limits import (
    CACHE_FORMAT,
    LESS_BATCH,
    LESS_CONTEXT,
    MORE_BATCH,
    MORE_GPUS,
    MORE_TP,
    WEIGHTS_FORMAT,
    Judgement,
    Limit,
)
from kvcalc.plan.subject import Subject

Search = Callable[[Limit, Subject], Iterator[Change]]

MOST_BATCH = 2**16
MOST_TP = 64


def smallest_change(limit: Limit, subject: Subject) -> Change | None:
    """The one that takes the least of what was asked away, or adds the least; None where no single one helps.

    Of equal ones the first of the limit's own order.
    """
    best: Change | None = None
    for way in limit.changes:
        found = _cards(way, limit, subject, best) if way in _PLANS else _WAYS[way](limit, subject)
        best = min([*([best] if best else []), *found], key=_share, default=None)
    return best


def _share(change: Change) -> float:
    return change.share


def _less_context(limit: Limit, subject: Subject) -> Iterator[Change]:
    yield from _less("context", "--ctx", "context_tokens", limit, subject)


def _less_batch(limit: Limit, subject: Subject) -> Iterator[Change]:
    yield from _less("batch", "--batch", "batch", limit, subject)


def _less(what: str, flag: str, field: str, limit: Limit, subject: Subject) -> Iterator[Change]:
    asked = getattr(subject.plan.workload, field)
    most = largest(lambda count: limit.holds(subject.asking(**{field: count})), asked - 1)
    if most:
        yield Change(what=what, flag=f"{flag} {most}", asked=asked, becomes=most, share=1 - most / asked)


def _more_batch(limit: Limit, subject: Subject) -> Iterator[Change]:
    """The smallest batch that gives enough, as far as it fits."""
    asked = subject.plan.workload.batch

    @cache
    def found(more: int) -> Judgement | None:
        try:
            return limit.judge(subject.asking(batch=asked + more))
        except KvcalcError:
            return None

    def runs(more: int) -> bool:
        finding = found(more)
        return finding is not None and finding.value is not None

    def gives_enough(more: int) -> bool:
        finding = found(more)
        return finding is not None and finding.passed

    room = largest(runs, MOST_BATCH)
    more = largest(lambda count: not gives_enough(count), room) + 1
    if more <= room:
        becomes = asked + more
        yield Change(what="batch", flag=f"--batch {becomes}", asked=asked, becomes=becomes, share=more / asked)


def _cache_format(limit: Limit, subject: Subject) -> Iterator[Change]:
    """The largest smaller format of the cache that helps."""
    size = subject.size
    for name in cache_formats(subject.plan):
        varied = subject.asking(kv_dtype=find_format(name).name)
        if limit.holds(varied) and varied.size.bytes_per_sequence < size.bytes_per_sequence:
            share = 1 - varied.size.bytes_per_sequence / size.bytes_per_sequence
            asked = size.workload.kv_dtype
            yield Change(what="KV format", flag=f"--kv-dtype {name}", asked=asked, becomes=name, share=share)
            return


def _weights_format(limit: Limit, subject: Subject) -> Iterator[Change]:
    """The largest smaller format of the weights that helps."""
    held, asked = subject.size.weight_bytes or 0, subject.size.weights_format
    for name in subject.plan.engine.weight_formats:
        varied = subject.asking(weights=find_format(name).name)
        if limit.holds(varied) and 0 < (varied.size.weight_bytes or 0) < held:
            share = 1 - (varied.size.weight_bytes or 0) / held
            yield Change(what="weights' format", flag=f"--weights {name}", asked=asked, becomes=name, share=share)
            return


def _cards(way: str, limit: Limit, subject: Subject, best: Change | None) -> Iterator[Change]:
    """The fewest cards that help; none where the best of the other changes takes a smaller share."""
    for plan in _PLANS[way](subject.plan):
        change = change_of_cards(subject.plan, plan)
        if best is not None and best.share <= change.share:
            return
        if limit.holds(subject.on(plan)):
            yield change
            return


def _more_gpus(plan: Plan) -> Iterator[Plan]:
    """Card by card, tensor parallelism first; a pool that was given is no matter of cards."""
    if plan.budget.total_bytes is not None:
        for count in COUNTS:
            yield from plan.on_cards(count)


def _more_tp(plan: Plan) -> Iterator[Plan]:
    """Twice the tensor parallelism, and twice that; where layers are spread instead there is none."""
    tp = MOST_TP if plan.engine.spreads_layers else plan.sharding.tp
    while (tp := 2 * tp) <= MOST_TP:
        yield plan.on(tp=tp)


_WAYS: dict[str, Search] = {
    LESS_CONTEXT: _less_context,
    LESS_BATCH: _less_batch,
    MORE_BATCH: _more_batch,
    CACHE_FORMAT: _cache_format,
    WEIGHTS_FORMAT: _weights_format,
}
_PLANS: dict[str, Callable[[Plan], Iterator[Plan]]] = {MORE_GPUS: _more_gpus, MORE_TP: _more_tp}
"""Those that take other cards, in the order of how many."""
