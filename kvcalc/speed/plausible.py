"""Points that cannot be, and points that contradict each other."""

from collections.abc import Sequence

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.speed.calibration import Point
from kvcalc.speed.kernels import Setting
from kvcalc.speed.points import Built, Found
from kvcalc.speed.timing import floor_seconds

MOST_APART = 2.0
"""How many times longer one of two measurements of the same thing may take."""
MOST_NAMED = 3


def bound_seconds(point: Point) -> float:
    """What no machine of these figures beats; prompts that are taken in beside a step may not be there at all."""
    return sum(part.weight * float(floor_seconds(part.costs)) for part in point.parts if not part.interferes)


def refuse_impossible(found: Sequence[Found], built: Sequence[Built]) -> None:
    """KvcalcError with file, line and by how much where a point is faster than its bytes or FLOPs at the peak."""
    faster = [
        (one.where, bound_seconds(made.point) / made.point.seconds, made)
        for one, made in zip(found, built, strict=True)
        if bound_seconds(made.point) > made.point.seconds * _ROUNDING
    ]
    if faster:
        where, times, made = faster[0]
        raise KvcalcError(
            f"{where}: {made.point.seconds * 1e3:.4g} ms is {times:.3g} times as fast as {_peak(made.setting)} allow "
            f"({bound_seconds(made.point) * 1e3:.4g} ms){_more([one[0] for one in faster[1:]])}",
            "check its unit, batch, precision, ranks and lengths (drafted tokens? a cached prompt?), or leave it out",
        )


_ROUNDING = 1 + 1e-6


def _peak(setting: Setting) -> str:
    machine = setting.machine
    rate = setting.numbers.matrices.rate
    bandwidth, flops = machine.bytes_per_second / 1e9, machine.rate(rate) / 1e12
    return f"{bandwidth:,.0f} GB/s and {flops:,.0f} {rate} TFLOP/s of {machine.gpu.name}"


def _more(places: Sequence[str]) -> str:
    if not places:
        return ""
    rest = len(places) - MOST_NAMED
    named = ", ".join([*places[:MOST_NAMED], *([f"{rest} more"] if rest > 0 else [])])
    return f"; so {'is' if len(places) == 1 else 'are'} {named}"


def refuse_contradictions(found: Sequence[Found]) -> None:
    """KvcalcError with both places where one thing was measured twice and the results are too far apart."""
    seen: dict[Measured, Found] = {}
    for one in found:
        first = seen.setdefault(setting_key(one), one)
        low, high = sorted((first.row.value, one.row.value))
        if high > MOST_APART * low:
            raise KvcalcError(
                f"{first.where} and {one.where} contradict each other: {first.row.metric} {first.row.value:g} and "
                f"{one.row.value:g} of the same setting",
                "leave out the one that was measured otherwise",
            )


Measured = tuple[object, ...]


def setting_key(found: Found) -> Measured:
    """What was measured, whatever came out: points of the same key are repetitions."""
    row = found.row
    bare = msgspec.structs.replace(row, value=1.0, category="", date=None, device=None, driver=None)
    return msgspec.structs.astuple(bare)
