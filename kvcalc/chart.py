"""Charts as data: what is drawn against what, before anyone decides how it looks.

A wing says what belongs on a chart; renderers know axes and units, never verbs.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from kvcalc.report import Unit

Mark = Literal["line", "points", "bar"]


class Axis(msgspec.Struct, frozen=True):
    """One axis: what it counts, in which unit; `is_log` where steps are factors."""

    label: str
    unit: Unit = "number"
    is_log: bool = False


class Series(msgspec.Struct, frozen=True):
    """One line, cloud or row of bars; None in `y` is a gap. `hover` adds a sentence to each point, as it stands.

    A dashed line is a reference, as a limit or a diagonal; a dashed bar is room that nothing takes.
    """

    name: str
    x: Sequence[int | float | str]
    y: Sequence[int | float | None]
    mark: Mark = "line"
    is_dashed: bool = False
    hover: Sequence[str] = ()


class Chart(msgspec.Struct, frozen=True):
    """Series over two axes. `key` names it in a page's links; `says` is the one sentence that it shows.

    Bars of one x stand on one another where `is_stacked`, else beside one another.
    """

    key: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    says: str = ""
    is_stacked: bool = False
