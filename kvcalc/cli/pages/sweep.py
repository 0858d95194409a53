"""The page of a sweep: of a grid's points, or of what was searched for."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from kvcalc.render.html import Page, Section
from kvcalc.report import Column, Table
from kvcalc.speed.charts import latency_chart, swept_bytes_chart, swept_capacity_chart
from kvcalc.speed.sweep.cells import LOAD, MEMORY, SPEED, WHO
from kvcalc.speed.sweep.documents import SweepDocument
from kvcalc.units import counted

_MOST_SHOWN = 500
"""Rows of the longest table of points."""


def sweep_page(document: SweepDocument) -> Page:
    """The front first, then every point while they are few."""
    asked = document["request"]
    points = cast("Sequence[Mapping[str, Any]]", document["points"])
    answers = cast("Sequence[Mapping[str, Any]]", document["answers"])
    return points_page(
        points,
        answers,
        title=f"Sweep of {', '.join(asked['models'])}",
        facts=[*asked["gpus"], *(f"KV {one}" for one in asked["kv_dtypes"]), f"context {_span(asked['contexts'])}",
               *([f"batch {_span(asked['batches'])}"] if points else [])],
        notes=document["notes"],
    )  # fmt: skip


def _span(counts: Sequence[int]) -> str:
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


def points_page(
    points: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]] = (),
    *,
    title: str,
    facts: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Page:
    """The page of points, however they were written down, and of answers."""
    has_speed = bool(points) and "fits" in points[0]
    found = [latency_chart(points), swept_capacity_chart(points)] if has_speed else []
    found += [swept_bytes_chart(points)] if points else []
    charts = [chart for chart in found if chart]
    front = [point for point in points if point.get("pareto")]
    tables = [_table(front, "Pareto front", _HIDDEN_OF_FRONT)] if front else []
    fits = sum(bool(point.get("fits")) for point in points)
    answer = f"{fits:,} of {counted(len(points), 'point')} fit" if has_speed else counted(len(points), "point")
    if answers:
        served = sum(bool(one["most_users"]) for one in answers)
        answer = f"{served:,} of {counted(len(answers), 'deployment')} serve what was asked"
    few = points if len(points) <= _MOST_SHOWN else []
    return Page(
        title=title,
        facts=facts,
        answer=answer,
        sections=(
            Section("Answers", tables=[_answers_table(answers)] if answers else []),
            Section("Charts", charts=charts),
            Section("Pareto front", tables=tables),
            Section("Every point", tables=[_table(few, "Every point")], is_folded=True),
        ),
        notes=notes,
    )


def _table(points: Sequence[Mapping[str, Any]], title: str, hidden: Sequence[str] = ()) -> Table:
    columns = tuple(one for one in (*WHO, *LOAD, *MEMORY, *SPEED) if one.key not in hidden)
    return Table(columns, [tuple(_cell(point.get(one.key)) for one in columns) for point in points], title).filled()


_HIDDEN_OF_FRONT = ("weights", "osl", "isl", "bytes_per_sequence", "bytes_per_rank", "read_bytes_per_step",
                    "fits", "prefill_seconds", "step_seconds", "tokens_per_second", "pareto")  # fmt: skip


def _cell(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _answers_table(answers: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        *WHO,
        *LOAD[:3],
        Column("most_users", "most users", "count"),
        Column("limited_by", "limited by"),
        Column("copies", "copies", "count"),
        Column("users_per_copy", "users a copy", "count"),
        Column("tpot_seconds", "TPOT", "seconds"),
        Column("ttft_seconds", "TTFT", "seconds"),
        Column("queued_ttft_seconds", "TTFT queued", "seconds"),
        Column("tokens_per_second_per_gpu", "tokens/s a GPU", "number"),
        Column("tokens_per_second_per_user", "a user", "number"),
        Column("cost_per_million_tokens", "cost/M", "number"),
        Column("best", "best"),
    )
    rows = [tuple(_cell(one.get(column.key)) for column in columns) for one in answers]
    return Table(columns, rows, "Answers").filled()
