"""Pictures with matplotlib: what all of them look like, and how one becomes the bytes of a file.

Colours are those of Okabe and Ito, which colour-blind readers tell apart.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#1f2328", "#8b949e"
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
_DPI = 160
STYLE: Any = {
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


def refuse_without_matplotlib() -> None:
    """KvcalcError where nothing can be drawn."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise KvcalcError("a picture needs matplotlib", "pip install 'kvcalc[report]'")


def picture_of(draw: "Callable[[Figure], None]", size_inches: tuple[float, float], form: str) -> bytes:
    """What `draw` puts on a figure as `svg` or `png`, the same bytes each time."""
    import warnings

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        # A name in letters that the font lacks shows boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=size_inches, layout="constrained")
        draw(figure)
        metadata = {"Date": None, "Creator": None} if form == "svg" else None
        figure.savefig(out, format=form, dpi=_DPI, metadata=metadata)
    return out.getvalue()


def explain(axes: "Axes", columns: int) -> None:
    """A grid, and the legend below the axes, where it can cover nothing."""
    axes.grid(visible=True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.14), borderaxespad=0, ncols=columns)
