"""A row a request: what came of each, for whoever wants to look further."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.report import Column
from kvcalc.speed.sweep import stream
from kvcalc.workload.answer import Answer
from kvcalc.workload.outcome import REFUSALS
from kvcalc.workload.runs import Run, names_of

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    Column("setting", "setting"),
    Column("request", "request", "count"),
    Column("prompt_tokens", "prompt", "tokens"),
    Column("output_tokens", "answer", "tokens"),
    Column("arrival_seconds", "came", "seconds"),
    Column("admitted_seconds", "admitted", "seconds"),
    Column("first_token_seconds", "first token", "seconds"),
    Column("finished_seconds", "finished", "seconds"),
    Column("preemptions", "preemptions", "count"),
    Column("hit_tokens", "found", "tokens"),
    Column("refused", "refused", "text"),
)
"""Times are steps where no step takes seconds; empty where a request did not come to it."""


def write_parquet(answer: Answer, path: Path) -> None:
    """All requests of all settings, a row group a setting."""
    stream.write_parquet(frames(answer), COLUMNS, path)


def frames(answer: Answer) -> "Iterator[DataFrame]":
    """One frame a setting."""
    for run, name in zip(answer.runs, names_of(answer.runs), strict=True):
        yield frame_of(run, name)


def frame_of(run: Run, name: str) -> "DataFrame":
    """The requests of a run in the order of the trace."""
    import numpy as np
    import pandas as pd

    outcome, requests = run.outcome, run.outcome.requests
    return pd.DataFrame(
        {
            "setting": name,
            "request": np.arange(1, len(outcome.trace) + 1),
            "prompt_tokens": outcome.trace.prompt_tokens,
            "output_tokens": outcome.trace.output_tokens,
            "arrival_seconds": requests.arrival_seconds,
            "admitted_seconds": requests.admitted_seconds,
            "first_token_seconds": requests.first_token_seconds,
            "finished_seconds": requests.finished_seconds,
            "preemptions": requests.preemptions,
            "hit_tokens": requests.hit_tokens,
            "refused": [REFUSALS.get(int(code)) for code in requests.refused],
        }
    )
