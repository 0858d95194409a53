"""Traces of real requests, read from the forms in which they are published."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.workload.forms import Form, form_of
from kvcalc.workload.limits import (
    CUT_LINE,
    UNSORTED,
    Policy,
    admitted,
    check_limits,
    check_sound,
    refuse_unservable,
    without_failed,
)
from kvcalc.workload.rows import Rows, chosen
from kvcalc.workload.source import Source
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

CHUNK_REQUESTS = 1 << 18


def read_trace(
    path: str | Path,
    *,
    limit: int | None = None,
    max_context: int | None = None,
    policy: Policy = "refuse",
    sort: bool = False,
) -> Trace:
    """The first `limit` requests of a trace that can be served, in order of arrival.

    `policy` says what becomes of a request above `max_context` tokens (prompt and answer) or of 0 tokens: an error,
    its prompt cut behind, or left out; `counted` says how many. With `sort`, requests may stand in any order.
    Errors: a file of no known form, and the first line that is no request, as FILE:LINE.
    """
    if limit is not None and limit < 1:
        raise KvcalcError(f"a trace of {limit} requests", "at least 1")
    source = Source(path)
    chunk = min(limit or CHUNK_REQUESTS, CHUNK_REQUESTS)
    pieces = _pieces(source, max_context, policy, is_sorted=not sort, chunk=CHUNK_REQUESTS if sort else chunk)
    trace = joined(source.name, _up_to(pieces, limit) if limit and not sort else pieces)
    if not len(trace):
        raise KvcalcError(f"{source} has no request{_why(trace.counted)}", "a trace needs at least one request")
    if sort:
        trace = _sorted(trace)
    return _from_zero(trace if limit is None else taken(trace, limit))


def stream_trace(
    path: str | Path,
    *,
    max_context: int | None = None,
    policy: Policy = "refuse",
    chunk_requests: int = CHUNK_REQUESTS,
) -> Iterator[Trace]:
    """A trace in pieces of at most `chunk_requests` requests, for files larger than memory.

    Times count from the first request of the file, so that the pieces follow one another; each one's `counted` are
    its own. Errors as in `read_trace`; nothing can be sorted.
    """
    start: Any = None
    for piece in _pieces(Source(path), max_context, policy, chunk=chunk_requests):
        if piece.arrival_seconds is not None and len(piece):
            start = piece.arrival_seconds[0] if start is None else start
            yield msgspec.structs.replace(piece, arrival_seconds=piece.arrival_seconds - start)
        elif piece.counted:
            yield piece


def joined(name: str, pieces: Iterable[Trace]) -> Trace:
    """One trace of several that follow one another."""
    import numpy as np

    parts = list(pieces)
    counted = sum((Counter(part.counted) for part in parts), Counter[str]())
    ids = [part.prefix_ids for part in parts if part.prefix_ids is not None]
    counts = [np.diff(part.prefix_ends, prepend=0) for part in parts if part.prefix_ends is not None]
    seconds = [part.arrival_seconds for part in parts if part.arrival_seconds is not None]
    return Trace(
        name=name,
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts]),
        output_tokens=np.concatenate([part.output_tokens for part in parts]),
        arrival_seconds=np.concatenate(seconds) if seconds else None,
        prefix_ids=np.concatenate(ids) if ids else None,
        prefix_ends=np.cumsum(np.concatenate(counts)) if counts else None,
        prefix_tokens=max(part.prefix_tokens for part in parts),
        counted=dict(counted),
    )


def taken(trace: Trace, limit: int) -> Trace:
    """The first `limit` requests of a trace."""
    ids, ends = trace.prefix_ids, trace.prefix_ends
    if ids is not None and ends is not None:
        ends = ends[:limit]
        ids = ids[: ends[-1]]
    return msgspec.structs.replace(
        trace,
        prompt_tokens=trace.prompt_tokens[:limit],
        output_tokens=trace.output_tokens[:limit],
        arrival_seconds=None if trace.arrival_seconds is None else trace.arrival_seconds[:limit],
        prefix_ids=ids,
        prefix_ends=ends,
    )


def _pieces(
    source: Source, max_context: int | None, policy: Policy, *, is_sorted: bool = True, chunk: int = CHUNK_REQUESTS
) -> Iterator[Trace]:
    check_limits(policy, max_context)
    form = form_of(source)
    served = partial(_served, source, form, max_context, policy)
    latest = float("-inf")
    for rows in form.rows(source, chunk):
        check_sound(source, rows, form.block_tokens)
        if is_sorted and len(rows):
            latest = _check_order(source, rows, latest)
        yield served(rows)


def _check_order(source: Source, rows: Rows, latest: float) -> float:
    """The last arrival; an error names the first request that arrives before the one above it."""
    import numpy as np

    early = np.diff(rows.seconds, prepend=latest) < 0
    if early.any():
        said = "the request arrives before the one above it"
        source.fail(int(rows.lines[early.argmax()]), said, "--sort puts the requests in order of arrival")
    return float(rows.seconds[-1])


def _served(source: Source, form: Form, max_context: int | None, policy: Policy, rows: Rows) -> Trace:
    counts = Counter({CUT_LINE: int(rows.is_cut)})
    if form.fails_without_answer:
        rows = without_failed(rows, counts)
    if policy == "refuse":
        refuse_unservable(source, rows, max_context)
    rows = admitted(rows, policy, max_context, form.block_tokens, counts)
    return Trace(
        name=source.name,
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        arrival_seconds=rows.seconds,
        prefix_ids=rows.prefix_ids,
        prefix_ends=rows.prefix_ends,
        prefix_tokens=form.block_tokens,
        counted=dict(+counts),
    )


def _up_to(pieces: Iterator[Trace], limit: int) -> Iterator[Trace]:
    for piece in pieces:
        yield piece
        limit -= len(piece)
        if limit <= 0:
            return


def _sorted(trace: Trace) -> Trace:
    """The requests by arrival, equal times as they stood; how many arrived before the line above is counted."""
    import numpy as np

    seconds = trace.arrival_seconds
    early = 0 if seconds is None else int((np.diff(seconds) < 0).sum())
    if seconds is None or not early:
        return trace
    places = np.argsort(seconds, kind="stable")
    ids, ends = chosen(trace.prefix_ids, trace.prefix_ends, places)
    return msgspec.structs.replace(
        trace,
        prompt_tokens=trace.prompt_tokens[places],
        output_tokens=trace.output_tokens[places],
        arrival_seconds=seconds[places],
        prefix_ids=ids,
        prefix_ends=ends,
        counted={**trace.counted, UNSORTED: early},
    )


def _from_zero(trace: Trace) -> Trace:
    seconds = trace.arrival_seconds
    return trace if seconds is None else msgspec.structs.replace(trace, arrival_seconds=seconds - seconds[0])


def _why(counted: dict[str, int]) -> str:
    return "".join(f"; {why}: {count:,}" for why, count in counted.items())
