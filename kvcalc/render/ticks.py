"""Ticks of an axis and words of its values: bytes and tokens step in factors of two, everything else in tens."""

import math
from collections.abc import Callable, Iterator, Sequence

from kvcalc.chart import Axis
from kvcalc.report import Unit
from kvcalc.units import (
    BYTE_RATES,
    FLOP_RATES,
    GIB,
    KIB,
    MIB,
    SECONDS,
    TIB,
    Scales,
    count_of,
    decimal,
    memory,
    plain,
)

Tick = tuple[int | float, str]
MOST_TICKS = 7
_BINARY: frozenset[Unit] = frozenset({"bytes", "exact bytes", "tokens", "count"})
_ROOM = 0.04
"""Share of an axis that stays free beyond its outermost values."""


def words(value: int | float | str | None, unit: Unit) -> str:
    """One value as people read it; what has no unit of its own stands as it is."""
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    return _WORDS.get(unit, plain)(value)


_WORDS: dict[Unit, Callable[[int | float], str]] = {
    "bytes": memory,
    "exact bytes": lambda value: f"{plain(value)} B",
    "parameters": count_of,
    "ratio": lambda value: f"{value:,.3g}x",
    "fraction": lambda value: f"{value:.2f}",
    "number": lambda value: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}",
    "seconds": lambda value: decimal(value, SECONDS),
    "rate": lambda value: decimal(value, BYTE_RATES),
    "flops": lambda value: decimal(value, FLOP_RATES),
}


def limits(values: Sequence[int | float], is_log: bool) -> tuple[float, float]:
    """Where an axis begins and ends, in decades where it is logarithmic; a linear one begins at zero."""
    low, high = min(values), max(values)
    if not is_log:
        return min(0.0, low * (1 + _ROOM)), (high * (1 + _ROOM)) or 1.0
    low, high = math.log10(low), math.log10(high)
    room = max((high - low) * _ROOM, 0.1)
    return low - room, high + room


def ticks(values: Sequence[int | float], axis: Axis) -> list[Tick]:
    """At most MOST_TICKS round values between the least and the most of `values`, each with its words."""
    low, high = limits(values, axis.is_log)
    if axis.is_log:
        places = list(_powers(low, high) if axis.unit in _BINARY else _decades(low, high))
    else:
        step = _step(max(high, -low), axis.unit)
        places = [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(place, short(place, axis.unit)) for place in places]


def _powers(low: float, high: float) -> Iterator[int]:
    """Powers of two between two decimal logarithms, as far apart as keeps them few."""
    first, last = max(0, math.ceil(low / _LOG_2)), math.floor(high / _LOG_2)
    step = max(1, math.ceil((last - first + 1) / MOST_TICKS))
    return (2**exponent for exponent in range(first, last + 1, step))


_LOG_2 = math.log10(2)


def _decades(low: float, high: float) -> Iterator[float]:
    """Powers of ten between two decimal logarithms, and what stands between them where they are few."""
    first, last = math.floor(low), math.ceil(high)
    factors = next((few for most, few in _BETWEEN if high - low < most), (1,))
    step = max(1, math.ceil((last - first) / MOST_TICKS))
    places = (factor * 10.0**exponent for exponent in range(first, last + 1, step) for factor in factors)
    return (place for place in places if low <= math.log10(place) <= high)


_BETWEEN = ((2.2, (1, 2, 5)), (3.6, (1, 3)))
"""What stands between powers of ten on an axis of fewer decades."""


def _step(most: float, unit: Unit) -> float:
    """A round step that reaches `most` in five or so."""
    least = most / (MOST_TICKS - 2)
    if unit == "tokens":
        return float(2 ** math.ceil(math.log2(max(1.0, least))))
    base = next((size for size, _ in _MEMORY if most >= size), 1) if unit in ("bytes", "exact bytes") else 1
    decade = 10.0 ** math.floor(math.log10(least / base))
    step = base * next(factor * decade for factor in (1, 2, 5, 10) if factor * decade * base >= least * (1 - 1e-9))
    return max(1.0, step) if unit in _BINARY else step


def short(value: int | float, unit: Unit) -> str:
    """A round value in few letters: 128K tokens, 64 GiB, 20 ms."""
    if not value:
        return "0"
    if unit == "tokens":
        return next((f"{plain(value / size)}{name}" for size, name in _TOKENS if not value % size), plain(value))
    scales = _SCALES.get(unit, _COUNTS)
    scale, name = next((one for one in scales if abs(value) >= one[0] * (1 - 1e-9)), scales[-1])
    return f"{plain(round(value / scale, 9))} {name}".rstrip()


_TOKENS = ((MIB, "M"), (KIB, "K"))
_MEMORY: Scales = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
_COUNTS: Scales = ((1e9, "G"), (1e6, "M"), (1.0, ""))
_SCALES: dict[Unit, Scales] = {
    "bytes": _MEMORY,
    "exact bytes": _MEMORY,
    "seconds": SECONDS,
    "rate": ((1e12, "TB/s"), *BYTE_RATES, (1e6, "MB/s"), (1.0, "B/s")),
    "flops": ((1e15, "PFLOP/s"), *FLOP_RATES, (1e6, "MFLOP/s"), (1.0, "FLOP/s")),
}
