"""A sweep as a report: its document, and the few rows that a screen has room for."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from kvcalc.report import Column, Report, Table
from kvcalc.speed.machine import SERVER
from kvcalc.speed.sweep.asked import Asked
from kvcalc.speed.sweep.cells import LOAD, MEMORY, WHO
from kvcalc.speed.sweep.goals import Answers, Goals
from kvcalc.speed.sweep.grid import PER_GPU, PER_USER, Grid
from kvcalc.speed.sweep.stream import FLAGS, records
from kvcalc.units import SECONDS, decimal

if TYPE_CHECKING:
    from kvcalc.speed.sweep.documents import SweepDocument, SweepRequestDocument

SCHEMA = "kvcalc.sweep/1"
ROWS_SHOWN = 20
Row = dict[str, Any]


def grid_report(grid: Grid) -> Report:
    """The points of a grid that is held, of which a screen shows the front, or the first where there is none."""
    rows = [row for frame in grid.frames() for row in records(frame)]
    front = [row for row in rows if row.get("pareto")]
    front.sort(key=lambda row: (row["model"], row["context_tokens"], -row[PER_USER]))
    chosen = front if grid.asked.gpus else rows
    document = _document(grid.asked, Goals(), grid.notes, points=rows)
    return Report(
        document=document,
        title=tuple(_title(grid.asked, Goals())),
        lines=(*_counted(grid, len(front)), *_cut(chosen)),
        tables=(_table(grid.columns, chosen),),
        notes=grid.notes,
    )


def answers_report(answers: Answers) -> Report:
    """What was searched for, the best first; exit code 1 where no deployment keeps the bounds."""
    rows = [row for frame in answers.frames() for row in records(frame)]
    served = sum(row["copies"] is not None for row in rows)
    what = "serve it" if answers.has_load else "keep the bounds for somebody"
    order = sorted(rows, key=lambda row: (not row["best"], *_rank(row, answers.has_load)))
    return Report(
        document=_document(answers.asked, answers.goals, answers.notes, answers=rows),
        title=tuple(_title(answers.asked, answers.goals)),
        lines=(f"{served} of {len(rows)} deployments {what}", *_cut(order)),
        tables=(_table(answers.columns, order, set() if answers.has_load else {"copies", "users_per_copy"}),),
        notes=answers.notes,
        exit_code=0 if served else 1,
    )


def _rank(row: Row, has_load: bool) -> tuple[bool, float]:
    """What is sorted by: fewest GPUs for a load, else most tokens/s per GPU; last what serves nobody."""
    return row["copies"] is None, (row["gpus"] if has_load else -(row[PER_GPU] or 0)) or 0


def _document(
    asked: Asked, goals: Goals, notes: Sequence[str], points: Sequence[Any] = (), answers: Sequence[Any] = ()
) -> "SweepDocument":
    return {
        "schema": SCHEMA,
        "request": _request(asked, goals),
        "points": list(points),
        "answers": list(answers),
        "notes": list(notes),
    }


def _request(asked: Asked, goals: Goals) -> "SweepRequestDocument":
    use, uses = asked.uses[0], asked.uses
    return {
        "models": [spec.name for spec in asked.specs],
        "gpus": list(asked.gpus),
        "engine": asked.engines[0] if len(asked.engines) == 1 else None,
        "engines": [engine for engine in asked.engines if engine is not None],
        "weights": list(dict.fromkeys(one.weights for one in uses)),
        "kv_dtypes": list(dict.fromkeys(one.kv_dtype for one in uses)),
        "tp": list(dict.fromkeys(one.sharding.tp for one in uses)),
        "pp": use.sharding.pp,
        "dp": use.sharding.dp,
        "ep": use.sharding.ep,
        "attention_dp": use.attention_dp,
        "contexts": list(asked.contexts),
        "osl": asked.osl if asked.gpus else None,
        "batches": [] if goals.is_any else list(asked.batches),
        "served": asked.served or goals.is_any,
        "goals": {
            "max_ttft_seconds": goals.max_ttft,
            "max_tpot_seconds": goals.max_tpot,
            "users": goals.users,
            "rate_per_second": goals.rate,
        },
        "price_per_second": asked.rates.per_second,
        "watts": asked.rates.watts,
    }


def _title(asked: Asked, goals: Goals) -> Iterator[str]:
    yield ", ".join(spec.name for spec in asked.specs)
    if asked.gpus:
        yield f"{', '.join(asked.gpus)} under {', '.join(engine or SERVER for engine in asked.engines)}"
    elif asked.has_engines:
        yield f"under {', '.join(engine or SERVER for engine in asked.engines)}"
    yield f"context {_ends(asked.contexts)}" + (f", {asked.osl:,} of it out" if asked.gpus else "")
    if not goals.is_any:
        yield f"batch {_ends(asked.batches)}"
    for name, bound in (("TTFT", goals.max_ttft), ("TPOT", goals.max_tpot)):
        if bound is not None:
            yield f"{name} at most {decimal(bound, SECONDS)}"
    if goals.users is not None:
        yield f"{goals.users:,} users"
    if goals.rate is not None:
        yield f"{goals.rate:g} requests a second"


def _ends(counts: Sequence[int]) -> str:
    return f"{counts[0]:,}" + (f" to {counts[-1]:,} ({len(counts):,})" if len(counts) > 1 else "")


def _counted(grid: Grid, on_front: int) -> Iterator[str]:
    if not grid.asked.gpus:
        yield f"{grid.points:,} points"
        return
    yield f"{grid.points:,} points, {grid.fitting:,} fit, {on_front:,} on the front of tokens/s per GPU and per user"
    yield "tokens/s are those under load" if grid.asked.served else "tokens/s are those of decode alone"


def _cut(rows: Sequence[Row]) -> Iterator[str]:
    if len(rows) > ROWS_SHOWN:
        yield f"the first {ROWS_SHOWN} of {len(rows):,} rows; -o sweep.csv has all"


def _table(columns: Sequence[Column], rows: Sequence[Row], left_out: AbstractSet[str] = frozenset()) -> Table:
    """The first rows, without what is the same in all, which the title says, and without memory beside speed."""
    names = [column.key for column in (*WHO, *LOAD)]
    left_out = left_out | {key for key in names if len({row.get(key) for row in rows}) <= 1}
    if any(column.key == PER_GPU for column in columns):
        left_out |= FLAGS | {column.key for column in MEMORY}
    kept = tuple(column for column in columns if column.key not in left_out)
    return Table(kept, [tuple(row[column.key] for column in kept) for row in rows[:ROWS_SHOWN]]).filled()
