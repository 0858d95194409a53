"""A chart as a page carries it: numbers for the script that draws, a legend of buttons, and a table of the data."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from kvcalc.chart import Axis, Chart, Series
from kvcalc.errors import KvcalcError, printable, shorten
from kvcalc.picture import BLUE, GREEN, ORANGE, PURPLE, RED, SKY
from kvcalc.render.ticks import limits, ticks, words
from kvcalc.report import Column, Table, Value

COLORS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
"""Of series, each of which has a marker of its own too."""
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "x")
_DASHES = ("solid", "longdash", "dashdot", "dot")
_PATTERNS = ("", "/", "x", ".")
"""Of bars, when the colours are used up."""
_LONGEST_NAME = 60
_LEAST_MARKED, _MOST_MARKED = 3, 60
"""Points of the lines that show a marker at each."""


def plotly_script() -> str:
    """The library that draws, as text; KvcalcError where plotly is missing."""
    from importlib.util import find_spec

    if find_spec("plotly") is None:
        raise KvcalcError("a page with charts needs plotly", "pip install 'kvcalc[report]'")
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def drawn(chart: Chart) -> dict[str, Any]:
    """What the page's script is told of a chart: values as they are, ticks and hover text in words."""
    is_bars = any(series.mark == "bar" for series in chart.series)
    across = [value for series in chart.series for value in series.x]
    up = [value for series in chart.series for value in series.y if value is not None]
    sums = _stacked_sums(chart) if is_bars and chart.is_stacked else up
    return {
        "key": chart.key,
        "isBars": is_bars,
        "isStacked": chart.is_stacked,
        "x": _axis(chart.x, across),
        "y": _axis(chart.y, sums),
        "series": [_series(chart, series, place) for place, series in enumerate(chart.series)],
    }


def _stacked_sums(chart: Chart) -> list[int | float]:
    sums: dict[object, int | float] = {}
    for series in chart.series:
        for place, value in zip(series.x, series.y, strict=True):
            sums[place] = sums.get(place, 0) + (value or 0)
    return list(sums.values())


def _axis(axis: Axis, values: Sequence[Any]) -> dict[str, Any]:
    """A category axis keeps the order of its names; a logarithmic one leaves out what has no logarithm."""
    if axis.unit == "text":
        return {"label": _name(axis.label), "type": "category", "categories": list(dict.fromkeys(map(_name, values)))}
    shown = [value for value in values if value > 0 or not axis.is_log] or [1]
    places = ticks(shown, axis)
    return {
        "label": _name(axis.label),
        "type": "log" if axis.is_log else "linear",
        "range": limits(shown, axis.is_log),
        "ticks": [place for place, _ in places],
        "words": [text for _, text in places],
    }


def _name(text: Any) -> str:
    return shorten(printable(str(text)), _LONGEST_NAME)


def _series(chart: Chart, series: Series, place: int) -> dict[str, Any]:
    look = _look(series, place)
    return {
        "name": _name(series.name),
        "mark": series.mark,
        "x": [_name(value) if chart.x.unit == "text" else value for value in series.x],
        "y": list(series.y),
        "hover": list(_hover(chart, series)),
        **look,
    }


def _look(series: Series, place: int) -> dict[str, Any]:
    """What is dashed is a reference or room: in the colour of the ink and without markers."""
    if series.is_dashed:
        return {"color": -1, "marker": None, "dash": "dash", "pattern": ""}
    is_marked = series.mark == "points" or (series.mark == "line" and _LEAST_MARKED <= len(series.x) <= _MOST_MARKED)
    return {
        "color": place % len(COLORS),
        "marker": _MARKERS[place % len(_MARKERS)] if is_marked else None,
        "dash": _DASHES[place % len(_DASHES)],
        "pattern": _PATTERNS[place // len(COLORS) % len(_PATTERNS)],
    }


def _hover(chart: Chart, series: Series) -> Iterator[str]:
    """Name, place and value of each point, a line each, and what the series adds."""
    more = series.hover or [""] * len(series.x)
    for x, y, extra in zip(series.x, series.y, more, strict=True):
        lines = (
            _name(series.name),
            f"{chart.x.label}: {words(x, chart.x.unit)}" if chart.x.label else words(x, chart.x.unit),
            f"{chart.y.label}: {words(y, chart.y.unit)}",
            extra,
        )
        yield "\n".join(shorten(printable(line), 120) for line in lines if line)


def data_table(chart: Chart) -> Table:
    """Every point of a chart, one a row."""
    columns = (
        Column("series", "series"),
        Column("x", chart.x.label, chart.x.unit),
        Column("y", chart.y.label, chart.y.unit),
    )
    rows: list[tuple[Value, ...]] = [
        (series.name, x, y) for series in chart.series for x, y in zip(series.x, series.y, strict=True) if y is not None
    ]
    return Table(columns, rows, f"Data of “{chart.title}”")


def legend(chart: Chart) -> Iterator[str]:
    """A button a series, which shows and hides it; without a script they are names."""
    yield f'<ul class="legend" aria-label="Series of {escape(chart.title)}; press one to hide or show it">'
    for place, series in enumerate(chart.series):
        yield (
            f'<li><button type="button" aria-pressed="true" data-chart="{escape(chart.key)}" data-series="{place}">'
            f"{_swatch(series, place)}<span>{escape(_name(series.name))}</span></button></li>"
        )
    yield "</ul>"


def _swatch(series: Series, place: int) -> str:
    look = _look(series, place)
    color = "var(--ink)" if look["color"] < 0 else f"var(--s{look['color']})"
    shape = _SHAPES.get(look["marker"] or "", "")
    if series.mark == "bar":
        shape = _BAR_SHAPES[bool(series.is_dashed), bool(look["pattern"])]
    line = f'<path d="M0 7H24" stroke-dasharray="{_STROKES[look["dash"]]}"/>' if series.mark == "line" else ""
    return (
        f'<svg class="swatch" width="24" height="14" aria-hidden="true" style="color:{color}">'
        f'<g stroke="currentColor" fill="currentColor" stroke-width="2">{line}{shape}</g></svg>'
    )


_BAR_SHAPES = {
    (False, False): '<rect x="5" y="2" width="14" height="10"/>',
    (False, True): '<path fill="none" d="M5 12L13 2M10 12L18 2M4 8L9 2M15 12L20 6"/>',
    (True, False): '<rect x="5" y="2" width="14" height="10" fill="none" stroke-width="1"/>',
}
_STROKES = {"solid": "none", "dash": "5 3", "longdash": "8 3", "dashdot": "6 2 2 2", "dot": "2 2"}
_SHAPES = {
    "circle": '<circle cx="12" cy="7" r="4" stroke="none"/>',
    "square": '<rect x="8" y="3" width="8" height="8" stroke="none"/>',
    "diamond": '<path stroke="none" d="M12 2l5 5-5 5-5-5z"/>',
    "triangle-up": '<path stroke="none" d="M12 2l5 9H7z"/>',
    "triangle-down": '<path stroke="none" d="M12 12l5-9H7z"/>',
    "cross": '<path stroke="none" d="M10 2h4v3h3v4h-3v3h-4V9H7V5h3z"/>',
    "x": '<path stroke="none" d="M8 2l4 3 4-3 1 1-3 4 3 4-1 1-4-3-4 3-1-1 3-4-3-4z"/>',
}
