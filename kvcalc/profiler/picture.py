"""A run as a picture: decode time against bytes on the left, the roofline on the right.

Every colour has a marker of its own too.
"""

import math
from typing import TYPE_CHECKING

from kvcalc.errors import KvcalcError, printable, shorten
from kvcalc.picture import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, explain, picture_of, refuse_without_matplotlib
from kvcalc.profiler.documents import MachineDocument, PointDocument, ProfileDocument
from kvcalc.profiler.fit import decode_line, decode_points, step_bytes
from kvcalc.profiler.tables import kv_formats
from kvcalc.units import BYTE_RATES, FLOP_RATES, SECONDS, decimal, memory, memory_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Place = tuple[float, float]
_MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "D"), (PURPLE, "^"), (SKY, "P"))
"""Colour and marker of decode, prefill and each operation; the last one stands for all further operations."""
_SIZE_INCHES = (12, 5.4)


def picture(document: ProfileDocument, form: str) -> bytes:
    """The picture as `svg` or `png`; KvcalcError where matplotlib is missing or no decode step was timed."""
    refuse_without_matplotlib()
    if not decode_points(document):
        raise KvcalcError("no decode step was timed: there is nothing to draw", "-o page.html writes the tables")
    return picture_of(lambda figure: _draw(figure, document), _SIZE_INCHES, form)


def _draw(figure: "Figure", document: ProfileDocument) -> None:
    left, right = figure.subplots(1, 2)
    figure.suptitle(_title(document), x=0.01, ha="left", fontsize=12)
    _draw_decode(left, document)
    _draw_roofline(right, document)


def _title(document: ProfileDocument) -> str:
    asked, device = document["request"], document["environment"]["device_name"]
    formats = asked["dtype"], f"KV {kv_formats(document)}"
    facts = (document["model"]["name"], f"{asked['layers']} layers", *formats, device)
    return shorten(printable(", ".join(filter(None, facts))), 120)


def _draw_decode(axes: "Axes", document: ProfileDocument) -> None:
    """Every decode step, the line through them, and what the measured bandwidth alone would give."""
    points, machine, line = decode_points(document), document["machine"], decode_line(document)
    most_bytes, most_seconds = (max(values) for values in zip(*points, strict=True))
    unit, name = memory_unit(most_bytes), memory(most_bytes).split()[-1]
    scale, seconds_name = next((one for one in SECONDS if most_seconds >= one[0]), SECONDS[-1])
    span = (0, 1.08 * most_bytes)
    across = [end / unit for end in span]
    places = [(count / unit, seconds / scale) for count, seconds in points]
    axes.plot(*zip(*places, strict=True), "o", color=BLUE, label="measured (median)", zorder=3)
    if line:
        overhead, rate = decimal(line.overhead_seconds, SECONDS), decimal(line.bytes_per_second, BYTE_RATES)
        axes.plot(across, [line.seconds(end) / scale for end in span], color=BLUE, label=f"{overhead} + bytes / {rate}")
    if machine:
        peak = machine["read_bytes_per_second"]
        label = f"bytes / {decimal(peak, BYTE_RATES)}, the measured peak"
        axes.plot(across, [end / peak / scale for end in span], "--", color=RED, label=label)
    axes.set(title="Decode step", xlabel=f"bytes read a step ({name})", ylabel=f"time ({seconds_name})")
    axes.set_xlim(0, across[1])
    axes.set_ylim(bottom=0)
    explain(axes, columns=1)


def _draw_roofline(axes: "Axes", document: ProfileDocument) -> None:
    """What ran, by FLOP a byte and FLOP a second, below the machine's roofs."""
    groups = roofline_groups(document)
    axes.set(xscale="log", yscale="log", title="Roofline", xlabel="FLOP a byte", ylabel="FLOP a second")
    for (label, places), (color, marker) in zip(groups.items(), _MARKS, strict=False):
        axes.plot(*zip(*places, strict=True), marker, color=color, label=label, zorder=3)
    places = [place for group in groups.values() for place in group]
    if machine := document["machine"]:
        _draw_roofs(axes, machine, places)
    _label_decades(axes)
    explain(axes, columns=2)


def roofline_groups(document: ProfileDocument) -> dict[str, list[Place]]:
    """Intensity and rate of every decode step, prefill and operation that computes and reads anything, by its name.

    A prefill reads the weights and writes the caches at least once: its bytes here.
    """
    groups: dict[str, list[Place]] = {}
    names = [_DECODE, _PREFILL, *dict.fromkeys(op["name"] for point in document["points"] for op in point["ops"])]
    for point in document["points"]:
        for name, flops, count, seconds in _measured(point):
            is_own = names.index(name) < len(_MARKS) - 1
            label = shorten(printable(name), _LONGEST_LABEL) if is_own else "other operations"
            if flops > 0 and count > 0 and seconds > 0:
                groups.setdefault(label, []).append((flops / count, flops / seconds))
    return groups


def _measured(point: PointDocument) -> "Iterator[tuple[str, int, int, float]]":
    """Name, FLOPs, bytes and seconds of everything that was timed at one point."""
    if decode := point["decode"]:
        yield _DECODE, decode["flops"], step_bytes(decode), decode["median_seconds"]
    if prefill := point["prefill"]:
        written = sum(one["measured_bytes"] for one in point["components"])
        yield _PREFILL, prefill["flops"], point["weight_bytes"] + written, prefill["median_seconds"]
    for op in point["ops"]:
        yield op["name"], op["flops"], op["bytes"], op["seconds"]


_DECODE, _PREFILL = "decode step", "prefill"
_LONGEST_LABEL = 34


def _draw_roofs(axes: "Axes", machine: MachineDocument, places: "Sequence[Place]") -> None:
    """What the measured bandwidth and the measured arithmetic allow."""
    rate, peak = machine["read_bytes_per_second"], machine["gemm_flops_per_second"]
    ridge = peak / rate
    low, high = (end([ridge, *(intensity for intensity, _ in places)]) for end in (min, max))
    across = [low / _ROOM, ridge, high * _ROOM]
    label = f"{decimal(rate, BYTE_RATES)} read, {decimal(peak, FLOP_RATES)} {machine['gemm_dtype']} GEMM"
    axes.plot(across, [min(peak, rate * intensity) for intensity in across], color=RED, label=label)


_ROOM = 3
"""Factor by which the roofs go on past the outermost places."""


def _label_decades(axes: "Axes") -> None:
    """Whole decades on both axes, in words that need no mathematics from the font."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis, limits, limit in (
        (axes.xaxis, axes.get_xlim(), axes.set_xlim),
        (axes.yaxis, axes.get_ylim(), axes.set_ylim),
    ):
        limit(10 ** math.floor(math.log10(limits[0])), 10 ** math.ceil(math.log10(limits[1])))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    """1000000000 as 1 G."""
    scale, name = next((one for one in _PREFIXES if value >= one[0]), (1.0, ""))
    return f"{value / scale:g} {name}".rstrip()


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
