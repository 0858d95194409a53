"""What requests are like, and the distributions that come nearest to their lengths, as a report."""

from typing import TYPE_CHECKING, Any, cast

from kvcalc.report import Column, Report, Table
from kvcalc.workload.answer import trace_document
from kvcalc.workload.fitting import Fit, fit_lengths
from kvcalc.workload.summary import summarise
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    from kvcalc.workload.documents import DescribedDocument, FitDocument

SCHEMA = "kvcalc.trace/1"


def described(trace: Trace, seed: int | None, *, with_fits: bool, notes: tuple[str, ...] = ()) -> Report:
    """A trace in figures, and `with_fits` what it could be drawn from."""
    fits = {"--isl": fit_lengths(trace.prompt_tokens), "--osl": fit_lengths(trace.output_tokens)} if with_fits else {}
    found = summarise(trace)
    document: DescribedDocument = {
        "schema": SCHEMA,
        "trace": trace_document(trace, seed),
        "fits": {flag: [_fit(one) for one in several] for flag, several in fits.items()},
        "notes": list(notes),
    }
    lines = [
        " ".join(["to draw such requests:", *(f"{flag} {of[0].distribution.spelling}" for flag, of in fits.items())])
    ]
    if found.rate_per_second is not None:
        cv = "" if found.gap_cv is None or abs(found.gap_cv - 1) < _LIKE_POISSON else f",cv={found.gap_cv:.3g}"
        lines[0] += f" --rate {found.rate_per_second:.4g}/s{cv}"
    if any(of[0].distance > _FAR for of in fits.values()):
        lines.append("that is not close: --isl file:TRACE --osl file:TRACE draw from the trace itself")
    return Report(
        document=cast("dict[str, Any]", document),
        title=(trace.name, f"{len(trace):,} requests"),
        tables=(*found.tables(), *([_fits(fits)] if fits else [])),
        lines=tuple(lines) if fits else (),
        notes=notes,
    )


_FAR = 0.1
"""From this KS distance on a fit has another shape than what it was fitted to."""
_LIKE_POISSON = 0.1
"""Gaps whose cv is as near to 1 are written as Poisson."""


def _fit(fit: Fit) -> "FitDocument":
    return {"spelling": fit.distribution.spelling, "distance": fit.distance}


def _fits(fits: dict[str, list[Fit]]) -> Table:
    columns = (Column("flag", "flag"), Column("spelling", "distribution"), Column("distance", "KS distance", "number"))
    rows = [(flag, one.distribution.spelling, one.distance) for flag, several in fits.items() for one in several]
    return Table(columns, rows, "Distributions, the nearest first")
