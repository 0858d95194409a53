"""A run as a picture, with matplotlib: decode time against bytes on the left, the roofline on the right.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; every colour has a marker of its own too.
"""

import io
from typing import TYPE_CHECKING

from kvcalc.errors import KvcalcError, printable, shorten
from kvcalc.profiler.documents import MachineDocument, ProfileDocument
from kvcalc.profiler.fit import decode_line, decode_points, step_bytes
from kvcalc.units import BYTE_RATES, FLOP_RATES, SECONDS, decimal, memory, memory_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#1f2328", "#8b949e"
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
_MARKS = ((ORANGE, "s"), (GREEN, "D"), (RED, "^"), (PURPLE, "v"), (SKY, "P"))
"""Colour and marker of each operation; the last one stands for all further ones."""
_SIZE_INCHES = (12, 5)
_DPI = 160


def picture(document: ProfileDocument, form: str) -> bytes:
    """The picture as `svg` or `png`; KvcalcError where matplotlib is missing or nothing was timed."""
    matplotlib_needed()
    if not decode_points(document):
        raise KvcalcError("no decode step was timed: there is nothing to draw", "-o page.html writes the tables")
    import warnings

    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with rc_context(_STYLE), warnings.catch_warnings():
        # A name in letters that the font lacks shows boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure, document)
        figure.savefig(out, format=form, dpi=_DPI, metadata={"Date": None} if form == "svg" else None)
    return out.getvalue()


_STYLE = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "kvcalc",
    "text.parse_math": False,
}


def matplotlib_needed() -> None:
    """KvcalcError where matplotlib is not installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise KvcalcError("a picture needs matplotlib", "pip install 'kvcalc[report]'")


def _draw(figure: "Figure", document: ProfileDocument) -> None:
    left, right = figure.subplots(1, 2)
    asked, device = document["request"], document["environment"]["device_name"]
    facts = (document["model"]["name"], f"{asked['layers']} layers", asked["dtype"], f"KV {asked['kv_dtype']}", device)
    figure.suptitle(shorten(printable("   ".join(filter(None, facts))), 120), x=0.01, ha="left", fontsize=12)
    _draw_decode(left, document)
    _draw_roofline(right, document)


def _draw_decode(axes: "Axes", document: ProfileDocument) -> None:
    """Every decode step, the line through them, and what the measured bandwidth alone would give."""
    points, machine, line = decode_points(document), document["machine"], decode_line(document)
    most_bytes, most_seconds = (max(values) for values in zip(*points, strict=True))
    unit, name = memory_unit(most_bytes), memory(most_bytes).split()[-1]
    scale, seconds_name = next((one for one in SECONDS if most_seconds >= one[0]), SECONDS[-1])
    span = (0, 1.08 * most_bytes)
    across = [end / unit for end in span]
    axes.plot(
        [count / unit for count, _ in points], [seconds / scale for _, seconds in points], "o", color=BLUE,
        label="measured (median)", zorder=3,
    )  # fmt: skip
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
    axes.grid(visible=True)
    axes.legend(loc="upper left")


def _draw_roofline(axes: "Axes", document: ProfileDocument) -> None:
    """What ran, by FLOP a byte and FLOP a second, below the machine's roofs."""
    groups = dict(_roofline_groups(document))
    places = [place for group in groups.values() for place in group]
    axes.set(xscale="log", yscale="log", title="Roofline", xlabel="FLOP a byte", ylabel="FLOP a second")
    for (label, group), (color, marker) in zip(groups.items(), ((BLUE, "o"), *_MARKS), strict=False):
        axes.plot(*zip(*group, strict=True), marker, color=color, label=label, zorder=3)
    if machine := document["machine"]:
        _draw_roofs(axes, machine, places)
    _label_decades(axes)
    axes.grid(visible=True)
    axes.legend(loc="lower right")
