"""Questions with a limit: most users, fewest GPUs, best tensor parallelism. Each is one monotone search."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.engines.held import largest
from kvcalc.errors import KvcalcError
from kvcalc.report import Column
from kvcalc.speed.crossover import first
from kvcalc.speed.kernels import Cost
from kvcalc.speed.pricing import Pricing, queue_seconds
from kvcalc.speed.setting import seconds_of
from kvcalc.speed.sweep.asked import Asked, Ready
from kvcalc.speed.sweep.cells import LOAD, WHO, who
from kvcalc.speed.sweep.grid import PER_GPU, PER_USER, Prepared, Progress, prepare, silent
from kvcalc.speed.throughput import TTFT_NOTE

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    *WHO,
    *(column for column in LOAD if column.key != "batch"),
    Column("most_users", "most users", "count"),
    Column("limited_by", "limited by"),
    Column("copies", "copies", "count"),
    Column("users_per_copy", "at once", "count"),
    Column("tpot_seconds", "TPOT", "seconds"),
    Column("ttft_seconds", "TTFT", "seconds"),
    Column("queued_ttft_seconds", "TTFT, queued", "seconds"),
    Column("utilisation", "busy", "fraction"),
    Column("tokens_per_second", "tokens/s", "number"),
    Column(PER_GPU, "per GPU", "number"),
    Column(PER_USER, "per user", "number"),
    Column("cost_per_million_tokens", "cost/M", "number"),
    Column("joules_per_token", "J/token", "number"),
    Column("best", "best"),
)


class Goals(NamedTuple):
    """Bounds in seconds on what a user of a loaded server sees, and the load: users at once, or requests a second."""

    max_ttft: float | None = None
    max_tpot: float | None = None
    users: int | None = None
    rate: float | None = None

    @property
    def is_any(self) -> bool:
        """Whether anything is to be searched for."""
        return self != Goals()


class Shared(NamedTuple):
    """A load over copies of a deployment: users at work on each at once; with a rate, TTFT in a queue and how busy."""

    copies: int
    running: int
    queued_ttft: float | None = None
    busy: float | None = None


class Answers:
    """The answer of every deployment at every context, in the order asked."""

    def __init__(self, asked: Asked, goals: Goals, progress: Progress = silent) -> None:
        if goals.users is not None and goals.rate is not None:
            raise KvcalcError("--users and --rate are two ways to say a load", "keep one of them")
        self.asked, self.goals, self.prepared = asked, goals, prepare(asked)
        self.rows = _with_best(list(self._rows(self.prepared, progress)), self.has_load)

    @property
    def has_load(self) -> bool:
        """Whether a load is to be served, rather than as many users as one copy serves."""
        return self.goals.users is not None or self.goals.rate is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be said beside the answers."""
        return (*self.prepared.all_notes, TTFT_NOTE)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the answers."""
        return tuple(column for column in COLUMNS if column.key != "engine" or self.asked.has_engines)

    def frames(self) -> "Iterator[DataFrame]":
        """The answers in one frame; counts that do not apply stay counts."""
        import pandas as pd

        columns = self.columns
        counts = {column.key: "Int64" for column in columns if column.unit in {"count", "tokens"}}
        floats = {column.key: "float64" for column in columns if column.unit in {"seconds", "number", "fraction"}}
        named = [{column.key: row.get(column.key) for column in columns} for row in self.rows]
        yield pd.DataFrame(named, columns=[column.key for column in columns]).astype({**counts, **floats})

    def _rows(self, prepared: Prepared, progress: Progress) -> Iterator[dict[str, Any]]:
        asked = [(placed, context) for placed in prepared.deployments
                 for context in self.asked.contexts_of(placed.deployment.spec)]  # fmt: skip
        for done, ((deployment, ready, _), context) in enumerate(asked, 1):
            if ready is not None:
                yield {**who(deployment, ready), **self._row(ready, context)}
            progress(done, len(asked))

    def _row(self, ready: Ready, context: int) -> dict[str, Any]:
        asked = self.asked
        load = {"isl": context - asked.osl, "osl": asked.osl, "context_tokens": context}
        most, limit = most_users(ready, context, asked.osl, self.goals)
        pricing = ready.pricing(context, asked.osl)
        shared = share_load(pricing, most, self.goals) if most else None
        row = {**load, "most_users": most, "limited_by": limit, "gpus": None}
        return row if shared is None else {**row, **self._figures(ready, pricing, shared)}

    def _figures(self, ready: Ready, pricing: Pricing, shared: Shared) -> dict[str, Any]:
        goals, gpus = self.goals, shared.copies * ready.deployment.use.gpus
        tpot = float(seconds_of(pricing.tpot(shared.running)))
        total = (goals.users or shared.running) / tpot if goals.rate is None else goals.rate * pricing.osl
        return {
            "gpus": gpus,
            "copies": shared.copies,
            "users_per_copy": shared.running,
            "tpot_seconds": tpot,
            "ttft_seconds": float(seconds_of(pricing.ttft(shared.running))),
            "queued_ttft_seconds": shared.queued_ttft,
            "utilisation": shared.busy,
            "tokens_per_second": total,
            PER_GPU: total / gpus,
            PER_USER: 1 / tpot,
            "cost_per_million_tokens": self.asked.rates.cost_per_million(ready.gpu, gpus, total),
            "joules_per_token": self.asked.rates.joules_per_token(ready.gpu, gpus, total),
        }


def most_users(ready: Ready, context: int, osl: int, goals: Goals) -> tuple[int, str]:
    """The most users at once on one copy that fit and keep the bounds, and what one more would break."""
    pricing = ready.pricing(context, osl)
    users, limit = ready.room.most_at_once(context), "memory"
    for name, bound, price in (("TTFT", goals.max_ttft, pricing.ttft), ("TPOT", goals.max_tpot, pricing.tpot)):
        if bound is not None:
            kept = _most_within(bound, price, users)
            users, limit = (kept, name) if kept < users else (users, limit)
    return users, limit


def _most_within(bound: float, price: Callable[[int], list[Cost]], most: int) -> int:
    return largest(lambda batch: bool(seconds_of(price(batch)) <= bound), most)


def share_load(pricing: Pricing, most: int, goals: Goals) -> Shared | None:
    """The load over as few copies as serve it with at most `most` users on each; None where no number does."""
    if goals.rate is not None:
        return _share_rate(pricing, most, goals.rate, goals.max_ttft)
    if goals.users is None:
        return Shared(1, most)
    copies = -(-goals.users // most)
    return Shared(copies, -(-goals.users // copies))


def _share_rate(pricing: Pricing, most: int, rate: float, max_ttft: float | None) -> Shared | None:
    """The fewest copies whose queue, at the batch where it is shortest, keeps TTFT."""
    import numpy as np

    running = np.arange(1.0, most + 1)
    ttft = seconds_of(pricing.ttft(running))
    service = seconds_of(pricing.tpot(running)) * pricing.osl / running

    def queued(copies: int) -> Any:
        busy = rate / copies * service
        waiting = queue_seconds(np.minimum(busy, _BUSY), service)
        return np.where(busy < 1, ttft + waiting, np.inf)

    bound = np.finfo(float).max if max_ttft is None else max_ttft
    copies = first(lambda count: bool(queued(count).min() <= bound))
    if copies is None:
        return None
    place = int(np.argmin(queued(copies)))
    return Shared(copies, place + 1, float(queued(copies)[place]), float(rate / copies * service[place]))


_BUSY = 1 - 1e-12
"""What stands for a share of 1, at which a queue would be divided by zero; the figure is not used."""


def _with_best(rows: list[dict[str, Any]], has_load: bool) -> list[dict[str, Any]]:
    """The rows, each with whether it is the best of its model and context.

    That is the one with the fewest GPUs for a load, and the most tokens/s per GPU without; then the fastest.
    """

    def rank(row: dict[str, Any]) -> tuple[float, float]:
        return row["gpus"] if has_load else -row[PER_GPU], row["tpot_seconds"]

    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["model"], row["context_tokens"]
        if "copies" in row and (key not in best or rank(row) < rank(best[key])):
            best[key] = row
    return [{**row, "best": row is best.get((row["model"], row["context_tokens"]))} for row in rows]
