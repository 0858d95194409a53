"""When requests arrive: Poisson, in bursts, as recorded, or all at once."""

import re
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.errors import KvcalcError, UnknownNameError, shorten
from kvcalc.workload.spelling import number_text, parse_fields, parse_number
from kvcalc.workload.trace import Seconds, Trace

if TYPE_CHECKING:
    import numpy as np

    Rng = np.random.Generator
else:
    Rng = Any

_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "m": 60, "minute": 60, "h": 3600, "hour": 3600}
_EXAMPLE = "20/s, 90/min, 20/s,cv=3, 20/s,on=10,off=50, recorded or inf"
_HIGHEST_CV = 1000


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Moments of arrival in seconds, the first at 0."""

    @property
    def spelling(self) -> str:
        """What `parse_arrivals` reads back as the same arrivals."""
        raise NotImplementedError

    def seconds(self, rng: Rng, count: int, recorded: Seconds | None) -> Seconds:
        """`count` moments in order; `recorded` are those of the trace that is to be replayed, if it has any."""
        raise NotImplementedError


class Poisson(Arrivals, frozen=True, kw_only=True):
    """Independent requests, `per_second` on average."""

    per_second: float

    @property
    def spelling(self) -> str:
        return f"{number_text(self.per_second)}/s"

    def seconds(self, rng: Rng, count: int, recorded: Seconds | None) -> Seconds:
        return _summed(rng.exponential(1 / self.per_second, count - 1))


class Bursty(Poisson, frozen=True, kw_only=True):
    """Gaps of a gamma distribution of coefficient of variation `cv`: 1 is Poisson, above it bursts, 0 a metronome."""

    cv: float

    @property
    def spelling(self) -> str:
        return f"{number_text(self.per_second)}/s,cv={number_text(self.cv)}"

    def seconds(self, rng: Rng, count: int, recorded: Seconds | None) -> Seconds:
        import numpy as np

        gap = 1 / self.per_second
        if self.cv == 0:
            return np.asarray(np.arange(count) * gap, dtype=np.float64)
        return _summed(rng.gamma(self.cv**-2, gap * self.cv**2, count - 1))


class OnOff(Poisson, frozen=True, kw_only=True):
    """Poisson for `on` seconds, silence for `off`, and so on; `per_second` is the mean over both."""

    on: float
    off: float

    @property
    def spelling(self) -> str:
        return f"{number_text(self.per_second)}/s,on={number_text(self.on)},off={number_text(self.off)}"

    def seconds(self, rng: Rng, count: int, recorded: Seconds | None) -> Seconds:
        import numpy as np

        busy = _summed(rng.exponential(self.on / (self.per_second * (self.on + self.off)), count - 1))
        return np.asarray(busy + np.floor(busy / self.on) * self.off, dtype=np.float64)


class AllAtOnce(Arrivals, frozen=True, kw_only=True):
    """Every request waits from second 0: an infinite rate, which asks how fast a backlog is worked off."""

    @property
    def spelling(self) -> str:
        return "inf"

    def seconds(self, rng: Rng, count: int, recorded: Seconds | None) -> Seconds:
        import numpy as np

        return np.zeros(count)


class Recorded(Arrivals, frozen=True, kw_only=True):
    """The trace's own moments, `speed` times as fast."""

    speed: float = 1.0

    @property
    def spelling(self) -> str:
        return "recorded" if self.speed == 1 else f"recorded,speed={number_text(self.speed)}"

    def seconds(self, rng: Rng, count: int, recorded: Seconds | None) -> Seconds:
        if recorded is None:
            raise KvcalcError("recorded arrivals need a trace with times", f"give a rate: {_EXAMPLE}")
        return recorded / self.speed


def parse_arrivals(text: str) -> Arrivals:
    """`20/s`, `90/min`, `20/s,cv=3`, `20/s,on=10,off=50`, `recorded`, `recorded,speed=2` or `inf`.

    Errors: a rate without its unit, of 0 or below, and figures that no such arrivals have.
    """
    name, _, parts = text.strip().partition(",")
    if name == "inf":
        if parts:
            raise KvcalcError(f"{shorten(text)!r}: inf stands alone", "all requests arrive at second 0, in no bursts")
        return AllAtOnce()
    if name == "recorded":
        fields = parse_fields(text, parts, ["speed"], _EXAMPLE) if parts else {}
        return Recorded(speed=_above_zero(fields.get("speed", 1.0), "speed", text))
    per_second = _rate(name, text)
    fields = parse_fields(text, parts, ["cv", "on", "off"], _EXAMPLE) if parts else {}
    if not fields:
        return Poisson(per_second=per_second)
    if fields.keys() == {"cv"}:
        return Bursty(per_second=per_second, cv=_cv(fields["cv"], text))
    if fields.keys() == {"on", "off"}:
        on, off = (_above_zero(fields[key], key, text) for key in ("on", "off"))
        return OnOff(per_second=per_second, on=on, off=off)
    raise KvcalcError(f"{shorten(text)!r}: either a cv, or both on and off in seconds", f"such as {_EXAMPLE}")


def retimed(trace: Trace, arrivals: Arrivals, rng: Rng) -> Trace:
    """The requests of a trace, in their order, at other moments."""
    seconds = arrivals.seconds(rng, len(trace), trace.arrival_seconds)
    return msgspec.structs.replace(trace, arrival_seconds=seconds)


def _rate(name: str, text: str) -> float:
    number, slash, unit = (piece.strip() for piece in name.partition("/"))
    if not slash:
        raise KvcalcError(f"{shorten(text)!r} is no rate with its unit", f"such as {_EXAMPLE}")
    if unit not in _SECONDS:
        raise UnknownNameError("unit of time", unit, _SECONDS, f"known: {', '.join(_SECONDS)}")
    if re.fullmatch(r"[+]?inf(inity)?", number.casefold()):
        raise KvcalcError(f"{shorten(text)!r}: an infinite rate has no unit", "inf: every request arrives at second 0")
    return _above_zero(parse_number(number, text, _EXAMPLE) / _SECONDS[unit], "the rate", text)


def _above_zero(value: float, what: str, text: str) -> float:
    if not 1e-9 <= value <= 1e9:
        hint = "0 would never send a request; inf sends all of them at second 0" if value == 0 else "from 1e-9 to 1e9"
        raise KvcalcError(f"{shorten(text)!r}: {what} is {number_text(value)}", hint)
    return value


def _cv(value: float, text: str) -> float:
    if value != 0 and not 1e-3 <= value <= _HIGHEST_CV:
        hint = f"standard deviation / mean of the gaps: 0 for none, 1 for Poisson, to {_HIGHEST_CV}"
        raise KvcalcError(f"{shorten(text)!r}: cv is {number_text(value)}", hint)
    return value


def _summed(gaps: Seconds) -> Seconds:
    import numpy as np

    return np.concatenate([[0.0], np.cumsum(gaps)])
