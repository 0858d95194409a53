"""Charts of a run: predicted against measured, decode time against bytes, and the roofline."""

from collections.abc import Iterator
from typing import NamedTuple

from kvcalc.chart import Axis, Chart, Series
from kvcalc.profiler.documents import MachineDocument, ProfileDocument
from kvcalc.profiler.fit import decode_line, decode_points
from kvcalc.profiler.picture import roofline_groups
from kvcalc.profiler.tables import where
from kvcalc.units import BYTE_RATES, FLOP_RATES, SECONDS, counted, decimal

_ROOM = 1.08
"""How far lines go on past the outermost point."""


def run_charts(document: ProfileDocument) -> Iterator[Chart]:
    """The charts that the run has points for."""
    if times := list(_times(document)):
        yield _measured_chart(times)
    if decode_points(document):
        yield _decode_chart(document)
        yield _roofline_chart(document)


class _Time(NamedTuple):
    """Seconds of one thing at one point."""

    what: str
    where: str
    measured: float
    predicted: float


def _times(document: ProfileDocument) -> Iterator[_Time]:
    """Everything that was timed and predicted."""
    for point in document["points"]:
        place = where(point["context_tokens"], point["batch"])
        for what, one in (("decode step", point["decode"]), ("prefill", point["prefill"])):
            if one and one["predicted_seconds"] > 0:
                yield _Time(what, place, one["median_seconds"], one["predicted_seconds"])


def _measured_chart(times: list[_Time]) -> Chart:
    seconds = [value for one in times for value in (one.measured, one.predicted)]
    ends = [min(seconds), max(seconds)]
    worst = max(max(one.measured / one.predicted, one.predicted / one.measured) for one in times)
    says = f"{counted(len(times), 'time')} measured; the farthest from its prediction is {worst:.2f}x off."
    axes = Axis("measured", "seconds", is_log=True), Axis("predicted", "seconds", is_log=True)
    names = dict.fromkeys(one.what for one in times)
    clouds = [_cloud(name, [one for one in times if one.what == name]) for name in names]
    diagonal = Series("predicted = measured", ends, ends, is_dashed=True)
    return Chart("measured", "Predicted against measured", *axes, (*clouds, diagonal), says)


def _cloud(name: str, times: list[_Time]) -> Series:
    measured, predicted = [one.measured for one in times], [one.predicted for one in times]
    return Series(name, measured, predicted, "points", hover=[one.where for one in times])


def _decode_chart(document: ProfileDocument) -> Chart:
    points, line, machine = decode_points(document), decode_line(document), document["machine"]
    most = max(count for count, _ in points) * _ROOM
    series = [Series("measured (median)", [count for count, _ in points], [time for _, time in points], "points")]
    says = "The time of a step against what it reads."
    if line:
        overhead, rate = decimal(line.overhead_seconds, SECONDS), decimal(line.bytes_per_second, BYTE_RATES)
        series.append(Series(f"{overhead} + bytes / {rate}", [0, most], [line.seconds(0), line.seconds(most)]))
        says = f"A step takes {overhead} and what it reads at {rate}."
    if machine:
        peak = machine["read_bytes_per_second"]
        name = f"bytes / {decimal(peak, BYTE_RATES)}, the measured peak"
        series.append(Series(name, [0, most], [0.0, most / peak], is_dashed=True))
    axes = Axis("read a step", "bytes"), Axis("decode step", "seconds")
    return Chart("decode", "Decode step against bytes", *axes, tuple(series), says)


def _roofline_chart(document: ProfileDocument) -> Chart:
    groups = roofline_groups(document)
    series = [Series(name, [x for x, _ in places], [y for _, y in places], "points") for name, places in groups.items()]
    says = "What ran, by the arithmetic that it does on each byte that it reads."
    if machine := document["machine"]:
        series.append(_roofs(machine, [x for places in groups.values() for x, _ in places]))
        says += " The broken line is what the machine was measured to do at best."
    axes = Axis("FLOP a byte", "number", is_log=True), Axis("FLOP a second", "flops", is_log=True)
    return Chart("roofline", "Roofline", *axes, tuple(series), says)


def _roofs(machine: MachineDocument, across: list[float]) -> Series:
    rate, peak = machine["read_bytes_per_second"], machine["gemm_flops_per_second"]
    ridge = peak / rate
    places = [min([ridge, *across]) / 2, ridge, max([ridge, *across]) * 2]
    name = f"{decimal(rate, BYTE_RATES)} read, {decimal(peak, FLOP_RATES)} {machine['gemm_dtype']} GEMM"
    return Series(name, places, [min(peak, rate * one) for one in places], is_dashed=True)
