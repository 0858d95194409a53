"""Requests served in every case that was asked for, and what goes with that answer."""

from collections.abc import Sequence

from kvcalc.model.spec import ModelSpec
from kvcalc.workload.answer import Answer
from kvcalc.workload.asked import Case
from kvcalc.workload.curves import curves_of
from kvcalc.workload.notes import notes_of
from kvcalc.workload.runs import Run
from kvcalc.workload.trace import Trace


def answer_of(
    spec: ModelSpec, trace: Trace, cases: Sequence[Case], runs: Sequence[Run], *, seed: int | None = None
) -> Answer:
    """The answer that `runs` are, fewer than cases where Ctrl-C came before; with curves and notes."""
    counted = (f"{why}: {count:,}" for why, count in trace.counted.items())
    drawn = [] if seed is None else [f"drawn by --seed {seed}"]
    notes = dict.fromkeys(note for case in cases for note in notes_of(case, trace))
    return Answer(
        spec=spec,
        trace=trace,
        seed=seed,
        runs=tuple(runs),
        curves=tuple(curves_of(trace, cases)),
        asked=len(cases),
        notes=(*counted, *drawn, *notes),
    )
