"""A line through the decode steps of a run: what a step costs whatever it reads, and how fast it reads the rest."""

import statistics
from typing import NamedTuple

from kvcalc.profiler.documents import DecodeDocument, ProfileDocument


class Line(NamedTuple):
    """seconds = overhead_seconds + bytes / bytes_per_second."""

    overhead_seconds: float
    bytes_per_second: float

    def seconds(self, count: float) -> float:
        """What the line says of a step that reads `count` bytes."""
        return self.overhead_seconds + count / self.bytes_per_second


def step_bytes(decode: DecodeDocument) -> int:
    """Bytes of caches and weights that one decode step of the batch reads."""
    return decode["read_bytes_per_step"] + decode["weight_bytes"]


def decode_points(document: ProfileDocument) -> list[tuple[int, float]]:
    """Bytes and median seconds of the decode step of every point that has one."""
    steps = [point["decode"] for point in document["points"]]
    return [(step_bytes(step), step["median_seconds"]) for step in steps if step is not None]


def decode_line(document: ProfileDocument) -> Line | None:
    """The least-squares line through the points; None where it would say nothing of the machine.

    That is where the most bytes are less than twice the least, where more bytes are not slower, where a step of no
    bytes would take less than no time, and where the line reads faster than the measured peak.
    """
    points = decode_points(document)
    counts, seconds = [count for count, _ in points], [time for _, time in points]
    if not counts or max(counts) < _LEAST_SPAN * min(counts):
        return None
    slope, intercept = statistics.linear_regression(counts, seconds)
    if slope <= 0 or intercept < 0:
        return None
    machine = document["machine"]
    return Line(intercept, 1 / slope) if machine is None or 1 / slope <= machine["read_bytes_per_second"] else None


_LEAST_SPAN = 2
"""How many times the least bytes the most must be, for a slope that noise did not make."""
