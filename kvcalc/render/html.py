"""A report as one page: nothing is loaded from elsewhere, nothing runs, and every word is escaped."""

from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from kvcalc.errors import printable
from kvcalc.render.text import table_cells
from kvcalc.report import Report, Table


class Page(msgspec.Struct, frozen=True):
    """What a page shows beside its report: a verdict, one row of key figures, a picture, and tables behind a click.

    `figure` is an SVG element, trusted as it is; where there is none, `figure_note` says why.
    """

    report: Report
    verdict: str
    is_good: bool
    key_figures: Table
    figure: str = ""
    figure_note: str = ""
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()


def to_html(page: Page) -> str:
    """The page as HTML."""
    return _PAGE.format(title=_text(page.report.title[0]), style=_STYLE, body="\n".join(_body(page)))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _body(page: Page) -> Iterator[str]:
    name, *facts = page.report.title
    yield f"<h1>{_text(name)}</h1>"
    yield f'<p class="facts">{"".join(f"<span>{_text(fact)}</span>" for fact in facts)}</p>'
    yield f'<p class="verdict {"good" if page.is_good else "bad"}">{_text(page.verdict)}</p>'
    yield from _cards(page.key_figures)
    yield from _list(page.report.lines, "lines")
    yield from _figure(page)
    if page.report.notes:
        yield "<section><h2>Doubts and notes</h2>"
        yield from _list(page.report.notes, "notes")
        yield "</section>"
    for table in filter(_has_rows, page.tables):
        yield from _section(table)
    for table in filter(_has_rows, page.folded):
        yield f"<details><summary>{_text(table.title)}</summary>"
        yield from _table(table)
        yield "</details>"


def _has_rows(table: Table) -> bool:
    return bool(table.rows)


def _text(words: str) -> str:
    return escape(printable(words.strip()))


def _cards(table: Table) -> Iterator[str]:
    """The cells of the first row, each over its heading."""
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


def _figure(page: Page) -> Iterator[str]:
    if page.figure:
        yield f"<figure>{page.figure}</figure>"
    elif page.figure_note:
        yield f'<p class="absent">{_text(page.figure_note)}</p>'


def _section(table: Table) -> Iterator[str]:
    yield f"<section><h2>{_text(table.title)}</h2>"
    yield from _table(table)
    yield "</section>"


def _table(table: Table) -> Iterator[str]:
    """Numbers aligned right; a table that is too wide scrolls by itself."""
    sides = ["text" if column.unit == "text" else "number" for column in table.columns]
    yield '<div class="wide"><table>'
    if any(column.heading for column in table.columns):
        heads = zip(sides, table.columns, strict=True)
        cells = "".join(f'<th scope="col" class="{side}">{_text(column.heading)}</th>' for side, column in heads)
        yield f"<thead><tr>{cells}</tr></thead>"
    yield "<tbody>"
    for row in table_cells(table):
        cells = "".join(f'<td class="{side}">{_text(cell)}</td>' for side, cell in zip(sides, row, strict=True))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --ground: #ffffff; --raised: #f6f8fa;
  --line: #d1d9e0; --good: #00694e; --bad: #b04300; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --ground: #0d1117; --raised: #161b22;
    --line: #30363d; --good: #3fc79a; --bad: #ff9a5c; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { margin: 0; font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.1rem; }
.facts { margin: .2rem 0 1rem; color: var(--soft); }
.facts span:not(:last-child)::after { content: "\\00b7"; padding: 0 .5em; }
.verdict { margin: 0 0 1.2rem; padding: .6rem .9rem; border-left: 4px solid; background: var(--raised);
  font-weight: 600; }
.good { border-color: var(--good); color: var(--good); }
.bad { border-color: var(--bad); color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.6rem, 1fr)); gap: .6rem; margin: 0 0 1.2rem; }
.cards div { display: flex; flex-direction: column; justify-content: space-between; padding: .6rem .7rem;
  background: var(--raised); border: 1px solid var(--line); border-radius: 6px; }
.cards dt { color: var(--soft); font-size: .85rem; }
.cards dd { margin: 0; font-size: 1rem; white-space: nowrap; font-weight: 600; font-variant-numeric: tabular-nums; }
ul { margin: 0; padding-left: 1.2rem; }
.lines { color: var(--soft); overflow-wrap: anywhere; }
figure { margin: 1.8rem 0 0; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 44rem; height: auto; }
.absent { margin: 1.8rem 0 0; color: var(--soft); font-style: italic; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
td.text { overflow-wrap: break-word; }
details { margin-top: 2.2rem; }
summary { cursor: pointer; font-size: 1.1rem; font-weight: 600; }
details .wide { margin-top: .6rem; }
"""
