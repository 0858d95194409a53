"""The page of a recorded run."""

from kvcalc.profiler.charts import run_charts
from kvcalc.profiler.documents import ProfileDocument
from kvcalc.profiler.report import key_figures, profile_report, samples_table
from kvcalc.profiler.tables import environment_table, op_tables
from kvcalc.render.html import Page, Section


def run_page(run: ProfileDocument) -> Page:
    """Verdict, key figures, charts, every table, where it ran, and the raw samples behind a click."""
    shown = profile_report(run)
    verdict, *others = shown.lines
    smaller = op_tables(run)[:-1]
    titles = {table.title for table in smaller}
    told = [table for table in shown.tables[1:] if table.title not in titles]
    name, *facts = shown.title
    return Page(
        title=name,
        facts=facts,
        answer=verdict,
        is_good=not shown.exit_code,
        key_figures=key_figures(run),
        lines=others,
        sections=(
            Section("Charts", charts=tuple(run_charts(run))),
            Section("Tables", tables=told),
            Section("Environment and request", tables=[environment_table(run)]),
            Section("Operations at smaller points", tables=smaller, is_folded=True),
            Section("Raw samples", tables=[samples_table(run)], is_folded=True),
        ),
        notes=shown.notes,
    )
