"""A sweep as a picture: tokens/s a GPU against a user with the front, or bytes against context.

Every colour has a marker of its own too. Past them dashes tell lines apart, and deployments that are on no front are
grey together.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError
from kvcalc.picture import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    explain,
    picture_of,
    refuse_without_matplotlib,
)
from kvcalc.speed.sweep.cells import WHO
from kvcalc.speed.sweep.grid import PER_GPU, PER_USER, Grid
from kvcalc.units import counted, memory, memory_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "D"), (RED, "^"), (PURPLE, "v"), (SKY, "P"))
DASHES = ("-", "--", ":", "-.")
MOST_SERIES = len(MARKS) * len(DASHES)
"""Lines that can be told apart."""
MOST_CLOUDS = 2 * len(MARKS)
"""The same of marks, which are filled or hollow."""
_WIDTH_INCHES, _HEIGHT_INCHES = 9, 5
_LEGEND_ROW_INCHES, _LEGEND_COLUMNS = 0.19, 2
MOST_DRAWN = 50_000
"""Points of the largest picture: past it marks only cover one another."""


def picture(grid: Grid, form: str) -> bytes:
    """The points as `svg` or `png`; KvcalcError where matplotlib is missing, there is nothing to draw, or too much."""
    _refuse(grid)
    return picture_of(lambda figure: _draw(figure, grid), (_WIDTH_INCHES, _HEIGHT_INCHES), form)


def _draw(figure: "Figure", grid: Grid) -> None:
    """The points, on a figure that grows with its legend."""
    axes = figure.subplots()
    (_draw_speed if grid.asked.gpus else _draw_memory)(axes, grid)
    explain(axes, _LEGEND_COLUMNS)
    entries = len(axes.get_legend_handles_labels()[0])
    figure.set_figheight(_HEIGHT_INCHES + _LEGEND_ROW_INCHES * -(-entries // _LEGEND_COLUMNS))


def _refuse(grid: Grid) -> None:
    refuse_without_matplotlib()
    if grid.points > MOST_DRAWN:
        raise KvcalcError(f"{grid.points:,} points are too many to draw; at most {MOST_DRAWN:,}", "take larger steps")
    lines = len(grid.prepared.deployments)
    if not grid.asked.gpus and lines > MOST_SERIES:
        raise KvcalcError(
            f"{lines:,} lines cannot be told apart; at most {MOST_SERIES} are drawn", "fewer models or --tp"
        )
    if grid.asked.gpus and not grid.fitting:
        raise KvcalcError("no point fits: there is nothing to draw", "more --tp, or a smaller --batch")


def _draw_speed(axes: "Axes", grid: Grid) -> None:
    """Every point that fits, a deployment a colour, and a line along the front of each model and context."""
    fronts: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    named, others = _on_fronts(_by_deployment(grid))
    for frame in others:
        label = "" if frame is not others[0] else counted(len(others), "other deployment")
        axes.plot(frame[PER_USER], frame[PER_GPU], ".", color=FAINT, markersize=3, alpha=0.5, label=label)
    for place, (name, frame) in enumerate(named):
        color, mark, dash = _look(place)
        filled = color if dash == DASHES[0] else "none"
        axes.plot(frame[PER_USER], frame[PER_GPU], mark, color=color, markerfacecolor=filled, markersize=4, alpha=0.7,
                  label=name)  # fmt: skip
        for row in frame[frame["pareto"]].itertuples():
            fronts[row.model, row.context_tokens].append((getattr(row, PER_USER), getattr(row, PER_GPU)))
    _draw_fronts(axes, fronts)
    what = "under load" if grid.asked.served else "in decode alone"
    axes.set(xlabel=f"tokens/s per user, {what}", ylabel="tokens/s per GPU", title=_title(grid))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def _on_fronts(found: "list[tuple[str, DataFrame]]") -> "tuple[list[tuple[str, DataFrame]], list[DataFrame]]":
    """The deployments that get a colour, and those that are grey: where all do not, those on a front come first."""
    fitting = [(name, frame[frame["fits"]]) for name, frame in found]
    if len(fitting) > MOST_CLOUDS:
        fitting.sort(key=lambda one: -int(one[1]["pareto"].sum()))
    return fitting[:MOST_CLOUDS], [frame for _, frame in fitting[MOST_CLOUDS:]]


def _draw_fronts(axes: "Axes", fronts: dict[Any, list[tuple[float, float]]]) -> None:
    for place, ((model, context), points) in enumerate(fronts.items()):
        label = "" if place else "Pareto front"
        axes.plot(*zip(*sorted(points), strict=True), "-", color=INK, linewidth=1, label=label, zorder=3)
        if len(fronts) > 1:
            axes.annotate(f"{model}, context {context:,}", min(points), xytext=(4, 4), textcoords="offset points")


def _draw_memory(axes: "Axes", grid: Grid) -> None:
    """Bytes of the cache against the context, a colour for every deployment and a line for every batch, on log axes.

    They are those that an engine would hold, where engines are named.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter

    key = "allocated_bytes" if grid.asked.has_engines else "total_bytes"
    of_batches = (
        f", batch {grid.asked.batches[0]:,} to {grid.asked.batches[-1]:,}" if len(grid.asked.batches) > 1 else ""
    )
    for place, (name, frame) in enumerate(_by_deployment(grid)):
        color, mark, dash = _look(place)
        for number, (_, line) in enumerate(frame.dropna(subset=[key]).groupby("batch")):
            label = "" if number else name + of_batches
            axes.plot(line["context_tokens"], line[key].astype(float), mark, linestyle=dash, color=color, markersize=4,
                      linewidth=1.2, label=label)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    held = "KV cache that the engine holds on a rank" if grid.asked.has_engines else "KV cache"
    axes.set(xlabel="context (tokens)", ylabel=held, title=_title(grid))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: memory(int(value), memory_unit(value))))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())


def _look(place: int) -> tuple[str, str, str]:
    """Colour, marker and dashes of the series at this place."""
    color, mark = MARKS[place % len(MARKS)]
    return color, mark, DASHES[place // len(MARKS) % len(DASHES)]


def _by_deployment(grid: Grid) -> "list[tuple[str, DataFrame]]":
    """The points of each deployment, under what tells it from the others."""
    import pandas as pd

    whole = pd.concat(list(grid.frames()), ignore_index=True)
    keys = [column.key for column in WHO if column.key in whole and column.key != "gpus"]
    varied = [key for key in keys if whole[key].nunique() > 1] or ["model"]
    groups = whole.groupby(varied, sort=False)
    return [(", ".join(_named(key, value) for key, value in zip(varied, values, strict=True)), frame)
            for values, frame in groups]  # fmt: skip


def _named(key: str, value: Any) -> str:
    return {"tp": f"tp {value}", "kv_dtype": f"KV {value}"}.get(key, str(value))


def _title(grid: Grid) -> str:
    models = ", ".join(spec.name for spec in grid.asked.specs)
    return " on ".join(filter(None, (models, ", ".join(grid.asked.gpus))))
