"""A page as HTML: one file that loads nothing from elsewhere and in which every word is escaped."""

from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from kvcalc import __version__
from kvcalc.chart import Chart
from kvcalc.errors import printable
from kvcalc.render.drawing import COLORS, data_table, drawn, legend, plotly_script
from kvcalc.render.inline import file_text, script_json
from kvcalc.render.text import table_cells
from kvcalc.report import Table


class Section(msgspec.Struct, frozen=True):
    """A part of a page under one heading; `is_folded` hides it behind a click.

    `panel` is HTML, trusted as it is, with a heading of its own: then it is all that the section has.
    """

    title: str
    lines: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    panel: str = ""
    tables: Sequence[Table] = ()
    is_folded: bool = False


class Page(msgspec.Struct, frozen=True):
    """A name with facts, the answer first, one row of key figures, then why.

    `is_good` colours the answer; None is an answer that is neither good nor bad.
    """

    title: str
    facts: Sequence[str] = ()
    answer: str = ""
    is_good: bool | None = None
    key_figures: Table = Table((), [])
    lines: Sequence[str] = ()
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()


LIGHT = {"ink": "#1f2328", "soft": "#59636e", "ground": "#ffffff", "raised": "#f6f8fa", "line": "#d1d9e0",
         "good": "#00694e", "bad": "#a83f00", "link": "#0b57a4"}  # fmt: skip
DARK = {"ink": "#e6edf3", "soft": "#9aa4af", "ground": "#0d1117", "raised": "#161b22", "line": "#3a424c",
        "good": "#3fc79a", "bad": "#ff9a5c", "link": "#7db7ff"}  # fmt: skip
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
_MOST_PRINTED = 100
"""Rows of the longest chart's data that paper shows too."""


def to_html(page: Page) -> str:
    """The page as HTML; KvcalcError where it has charts and what draws them is not installed."""
    sections = [section for section in page.sections if _says_something(section)]
    charts = [chart for section in sections for chart in section.charts]
    parts = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{_text(page.title)} - kvcalc</title>",
        f"<style>{_style()}</style>\n</head>\n<body>",
        '<a class="skip" href="#content">Skip to the content</a>',
        *_head(page),
        *_contents(sections),
        '<main id="content" tabindex="-1">',
        *_answer(page),
        *(line for place, section in enumerate(sections) for line in _section(section, place)),
        *_notes(page.notes),
        "</main>",
        f"<footer><p>Written by kvcalc {__version__}. This file is complete: it loads nothing.</p></footer>",
        *_scripts(charts),
        "</body>\n</html>\n",
    )
    return "\n".join(parts)


def _says_something(section: Section) -> bool:
    tables = any(table.rows for table in section.tables)
    return bool(section.lines or section.charts or section.panel or tables)


def _style() -> str:
    """The style sheet under its two sets of colours; paper takes the light one."""
    light, dark = (" ".join(f"--{name}: {value};" for name, value in one.items()) for one in (LIGHT, DARK))
    series = " ".join(f"--s{place}: {value};" for place, value in enumerate(COLORS))
    return (
        f":root {{ color-scheme: light dark; {series} {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{file_text('page.css')}"
    )


def _scripts(charts: Sequence[Chart]) -> Iterator[str]:
    yield f"<script>{file_text('print.js')}</script>"
    if charts:
        looks = {"light": {**LIGHT, "series": COLORS}, "dark": {**DARK, "series": COLORS}}
        yield f"<script>{plotly_script()}</script>"
        yield f'<script type="application/json" id="chart-data">{script_json(list(map(drawn, charts)))}</script>'
        yield f'<script type="application/json" id="chart-looks">{script_json(looks)}</script>'
        yield f"<script>{file_text('page.js')}</script>"


def _head(page: Page) -> Iterator[str]:
    yield f"<header><h1>{_text(page.title)}</h1>"
    if page.facts:
        yield f'<p class="facts">{" ".join(f"<span>{_text(fact)}</span>" for fact in page.facts)}</p>'
    yield "</header>"


def _contents(sections: Sequence[Section]) -> Iterator[str]:
    if len(sections) >= _LEAST_CONTENTS:
        yield '<nav aria-label="On this page"><ul>'
        for place, section in enumerate(sections):
            yield f'<li><a href="#section-{place}">{_text(section.title)}</a></li>'
        yield "</ul></nav>"


_LEAST_CONTENTS = 3


def _answer(page: Page) -> Iterator[str]:
    if page.answer:
        kind = {True: " good", False: " bad", None: ""}[page.is_good]
        yield f'<p class="verdict{kind}">{_text(page.answer)}</p>'
    yield from _cards(page.key_figures)
    yield from _list(page.lines, "lines")


def _section(section: Section, place: int) -> Iterator[str]:
    name = f"section-{place}"
    if section.panel:
        yield f'<div id="{name}">{section.panel}</div>'
        return
    if section.is_folded:
        yield f'<details class="part" id="{name}"><summary><h2>{_text(section.title)}</h2></summary>'
    else:
        yield f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{_text(section.title)}</h2>'
    yield from _list(section.lines, "lines")
    for chart in section.charts:
        yield from _chart(chart)
    for table in section.tables:
        if table.rows:
            yield from [f"<h3>{_text(table.title)}</h3>"] if table.title not in ("", section.title) else []
            yield from _table(table, table.title or section.title)
    yield "</details>" if section.is_folded else "</section>"


def _chart(chart: Chart) -> Iterator[str]:
    """Title, what it shows, the drawing, its legend, and the same numbers as a table."""
    key = escape(chart.key)
    yield f'<figure class="chart"><h3 id="{key}-title">{_text(chart.title)}</h3>'
    yield f'<p class="says" id="{key}-says">{_text(chart.says)}</p>'
    yield f'<div class="plot" id="plot-{key}" role="img" aria-labelledby="{key}-title" aria-describedby="{key}-says">'
    yield "<noscript>The drawing needs a browser that runs scripts; its data stand below.</noscript></div>"
    if len(chart.series) > 1:
        yield from legend(chart)
    table = data_table(chart)
    is_long = " data-long" if len(table.rows) > _MOST_PRINTED else ""
    yield f"<details{is_long}><summary>{_text(table.title)}</summary>"
    yield from _table(table, table.title)
    yield "</details></figure>"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield '<section aria-labelledby="notes-title"><h2 id="notes-title">Notes</h2>'
        yield from _list(notes, "notes")
        yield "</section>"


def _text(words: str) -> str:
    return escape(printable(words.strip()))


def _cards(table: Table) -> Iterator[str]:
    """The cells of the first row, each below its heading."""
    if not table.columns:
        return
    yield '<dl class="cards">'
    for column, cell in zip(table.columns, table_cells(table)[0], strict=True):
        yield f"<div><dt>{_text(column.heading)}</dt><dd>{_text(cell)}</dd></div>"
    yield "</dl>"


def _list(items: Sequence[str], name: str) -> Iterator[str]:
    if items:
        yield f'<ul class="{name}">'
        yield from (f"<li>{_text(item)}</li>" for item in items)
        yield "</ul>"


def _is_long(rows: Sequence[Sequence[str]], place: int) -> bool:
    return any(len(row[place]) > _LONGEST_UNBROKEN for row in rows)


_MOST_AT_ONCE = 40
"""Rows of the longest table that is shown whole."""
_LONGEST_UNBROKEN = 28
"""Letters of the longest text of a column whose lines are not broken."""


def _table(table: Table, label: str) -> Iterator[str]:
    """Numbers aligned right; a table that is too wide scrolls by itself, with the keyboard too."""
    cells_of = table_cells(table)
    sides = [
        "number" if column.unit != "text" else "text" if _is_long(cells_of, place) else "name"
        for place, column in enumerate(table.columns)
    ]
    tall = " tall" if len(table.rows) > _MOST_AT_ONCE else ""
    yield f'<div class="wide{tall}" role="region" tabindex="0" aria-label="{_text(label)}"><table>'
    if any(column.heading for column in table.columns):
        heads = zip(sides, table.columns, strict=True)
        cells = "".join(f'<th scope="col" class="{side}">{_text(column.heading)}</th>' for side, column in heads)
        yield f"<thead><tr>{cells}</tr></thead>"
    yield "<tbody>"
    for row in cells_of:
        cells = "".join(f'<td class="{side}">{_text(cell)}</td>' for side, cell in zip(sides, row, strict=True))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"
