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
    """The least-squares line through the points; None where fewer than two read differently, or more is not slower."""
    points = decode_points(document)
    counts, seconds = [count for count, _ in points], [time for _, time in points]
    if len(set(counts)) < _LEAST_POINTS:
        return None
    slope, intercept = statistics.linear_regression(counts, seconds)
    return Line(intercept, 1 / slope) if slope > 0 else None


_LEAST_POINTS = 2
