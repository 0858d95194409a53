"""Whether a prediction held. Memory always counts, and exactly; time where somebody said how near it must come."""

from collections.abc import Iterator, Sequence
from typing import Literal

from kvcalc.profiler.documents import AllocatorDocument, DecodeDocument, PointDocument, PrefillDocument, VerdictDocument

NOT_FINITE = "NaN or infinity in its outputs"
UNCUT_BYTES = 2**20
"""torch's CUDACachingAllocator.cpp, kSmallSize: a rest as small as that stays with the tensor, and is counted."""
CUDA_TOLERANCE = 0.3
"""How far a decode step on CUDA may lie from bytes / measured bandwidth, unless told otherwise.

A prefill is not judged unasked: attention reaches no square product's rate.
"""


Timed = Literal["prefill", "decode"]
EVERYTHING: tuple[Timed, ...] = ("prefill", "decode")


def judge(
    points: Sequence[PointDocument], tolerance: float | None, judged: Sequence[Timed] = EVERYTHING
) -> VerdictDocument:
    """The verdict on all points; the times of what is `judged` are those of the largest point that was decoded."""
    reasons = [reason for point in points for reason in _memory_reasons(point)]
    memory = "off" if reasons else "exact" if any(point["components"] for point in points) else "not measured"
    slow = list(_time_reasons(points, tolerance, judged)) if tolerance is not None else []
    broken = [f"{where(point)}: {doubt}" for point in points for doubt in point["doubts"] if NOT_FINITE in doubt]
    timed = largest(points)
    is_judged = tolerance is not None and timed is not None and any(timed[what] for what in judged)
    return {
        "memory": memory,  # type: ignore[typeddict-item]
        "time": "not judged" if not is_judged else "off" if slow else "within",
        "tolerance": tolerance,
        "reasons": [*reasons, *slow, *broken],
    }


def exit_code(verdict: VerdictDocument) -> int:
    """1 where something was not as predicted, else 0."""
    return 1 if verdict["reasons"] else 0


def largest(points: Sequence[PointDocument]) -> PointDocument | None:
    """The point that holds the most tokens among those that were decoded, None where none was."""
    finished = [point for point in points if point["decode"] is not None]
    return max(finished, key=lambda point: point["context_tokens"] * point["batch"], default=None)


def where(point: PointDocument) -> str:
    """Which point is meant: `8,192 tokens x 4`."""
    return f"{point['context_tokens']:,} tokens x {point['batch']}"


def _memory_reasons(point: PointDocument) -> Iterator[str]:
    for one in point["components"]:
        if one["measured_bytes"] != one["predicted_bytes"]:
            held = f"{one['measured_bytes']:,} B, predicted {one['predicted_bytes']:,} B"
            yield f"{where(point)}: `{one['name']}` holds {held}"
        counted, predicted = one["counted_read_bytes_per_step"], one["predicted_read_bytes_per_step"]
        if counted is not None and counted != predicted:
            yield f"{where(point)}: a step reads {counted:,} B of `{one['name']}`, predicted {predicted:,} B"
    for rule in point["rules"]:
        if rule["measured_bytes"] != rule["predicted_bytes"]:
            yield (
                f"{where(point)}: {rule['name']} hold {rule['measured_bytes']:,} B, "
                f"predicted {rule['predicted_bytes']:,} B"
            )
    for other in point.get("ranks", [])[1:]:
        if other["measured_bytes"] != other["predicted_bytes"]:
            held = f"{other['measured_bytes']:,} B, predicted {other['predicted_bytes']:,} B"
            yield f"{where(point)}: rank {other['rank']} holds {held}"
    given = point["allocator"]
    if given is not None and given["measured_bytes"] is not None and not _is_as_given(given, given["measured_bytes"]):
        gave = f"{given['measured_bytes']:,} B, predicted {given['predicted_bytes']:,} B"
        yield f"{where(point)}: the allocator gave {gave}"


def _is_as_given(given: AllocatorDocument, measured: int) -> bool:
    """Whether an allocator gave what was predicted, with what it did not cut off the blocks that it took."""
    return 0 <= measured - given["predicted_bytes"] <= given["tensors"] * UNCUT_BYTES


def _time_reasons(points: Sequence[PointDocument], tolerance: float, judged: Sequence[Timed]) -> Iterator[str]:
    point = largest(points)
    if point is None:
        return
    for what in judged:
        series: PrefillDocument | DecodeDocument | None = point[what]
        if series is None:
            continue
        off = _seconds(series) / series["predicted_seconds"] - 1
        if abs(off) > tolerance:
            yield f"{where(point)}: {what} took {off:+.0%} of what was predicted, allowed {tolerance:.0%}"


def _seconds(series: PrefillDocument | DecodeDocument) -> float:
    """What a step takes without the host's overhead, where a graph told."""
    graph = series.get("graph_seconds")
    return graph if isinstance(graph, float) else series["measured_seconds"]
