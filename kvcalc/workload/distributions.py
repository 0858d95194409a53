"""Lengths of prompts and answers: distributions by the figures that people know them by, or drawn from a trace.

A lognormal of mean m has m = median * exp(sigma^2 / 2), and its 99th percentile is median * exp(z * sigma), where z is
the normal's; so p99 / mean = exp(z * sigma - sigma^2 / 2) has two solutions in sigma and a maximum of exp(z^2 / 2).
"""

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kvcalc.errors import KvcalcError, UnknownNameError, shorten
from kvcalc.workload.readers import read_trace
from kvcalc.workload.rows import MOST_TOKENS
from kvcalc.workload.spelling import number_text, parse_fields, parse_number, spelled
from kvcalc.workload.trace import Integers, Seconds

if TYPE_CHECKING:
    import numpy as np

    Rng = np.random.Generator
else:
    Rng = Any

Side = Literal["prompt_tokens", "output_tokens"]

Z99 = NormalDist().inv_cdf(0.99)
HIGHEST_P99_OF_MEAN = math.exp(Z99**2 / 2)
DEFAULT_SIGMA = 1.0
"""Of a lognormal of which only the mean or the median is known: p99 is 6.2 times the mean."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths in whole tokens, from 1 to `most_tokens`."""

    most_tokens: int = MOST_TOKENS

    @property
    def spelling(self) -> str:
        """What `parse_distribution` reads back as the same distribution."""
        raise NotImplementedError

    def _raw(self, rng: Rng, count: int) -> Seconds:
        raise NotImplementedError

    @property
    def _cap(self) -> tuple[str, float | None]:
        return "max", None if self.most_tokens == MOST_TOKENS else self.most_tokens

    def draw(self, rng: Rng, count: int) -> tuple[Integers, int]:
        """`count` lengths in tokens, rounded to whole ones, and how many of them were above the cap."""
        import numpy as np

        raw = self._raw(rng, count)
        lengths = np.clip(np.rint(raw), 1, self.most_tokens).astype(np.int64)
        return lengths, int((np.rint(raw) > self.most_tokens).sum())


class Constant(Distribution, frozen=True, kw_only=True):
    """The same length always."""

    tokens: int

    @property
    def spelling(self) -> str:
        return number_text(self.tokens)

    def _raw(self, rng: Rng, count: int) -> Seconds:
        import numpy as np

        return np.full(count, float(self.tokens))


class Lognormal(Distribution, frozen=True, kw_only=True):
    """A length whose logarithm is normal."""

    median: float
    sigma: float

    @property
    def spelling(self) -> str:
        return spelled("lognormal", [("median", self.median), ("sigma", self.sigma), self._cap])

    def _raw(self, rng: Rng, count: int) -> Seconds:
        return rng.lognormal(math.log(self.median), self.sigma, count)


class Gamma(Distribution, frozen=True, kw_only=True):
    """Gamma by its mean and its coefficient of variation (standard deviation / mean)."""

    mean: float
    cv: float

    @property
    def spelling(self) -> str:
        return spelled("gamma", [("mean", self.mean), ("cv", self.cv), self._cap])

    def _raw(self, rng: Rng, count: int) -> Seconds:
        return rng.gamma(self.cv**-2, self.mean * self.cv**2, count)


class Geometric(Distribution, frozen=True, kw_only=True):
    """An answer that ends at every token with the same probability, 1 / mean."""

    mean: float

    @property
    def spelling(self) -> str:
        return spelled("geometric", [("mean", self.mean), self._cap])

    def _raw(self, rng: Rng, count: int) -> Seconds:
        return rng.geometric(1 / self.mean, count).astype(float)


class Uniform(Distribution, frozen=True, kw_only=True):
    """Every whole length from `low` to `high`, both included."""

    low: int
    high: int

    @property
    def spelling(self) -> str:
        return spelled("uniform", [("low", self.low), ("high", self.high)])

    def _raw(self, rng: Rng, count: int) -> Seconds:
        return rng.integers(self.low, self.high, count, endpoint=True).astype(float)


class Empirical(Distribution, frozen=True, kw_only=True):
    """The lengths of a trace, drawn with replacement."""

    path: str
    side: Side

    @property
    def spelling(self) -> str:
        return f"file:{self.path}"

    def _raw(self, rng: Rng, count: int) -> Seconds:
        lengths: Integers = getattr(read_trace(self.path, policy="reject", sort=True), self.side)
        return rng.choice(lengths, count).astype(float)


def parse_distribution(text: str, side: Side = "prompt_tokens") -> Distribution:
    """`512`, `lognormal:mean=1200,p99=8000`, `gamma:mean=200,cv=1.5`, `uniform:low=1,high=9`, `file:TRACE`, ...

    `side` says which lengths of a trace are meant. Errors: an unknown name or key, and figures that no such
    distribution has.
    """
    name, colon, rest = text.strip().partition(":")
    if not colon:
        return _constant(text, name)
    if name == "file":
        return Empirical(path=rest, side=side)
    if name == "constant":
        return _constant(text, rest)
    if name not in FAMILIES:
        raise UnknownNameError("distribution", name, [*FAMILIES, "constant", "file"], f"such as {_EXAMPLE}")
    known, build = FAMILIES[name]
    fields = parse_fields(text, rest, [*known, "max"], _EXAMPLE)
    try:
        return build(fields)
    except _FigureError as error:
        raise KvcalcError(f"{shorten(text)!r}: {error}", error.hint) from error


class _FigureError(Exception):
    def __init__(self, said: str, hint: str) -> None:
        super().__init__(said)
        self.hint = hint


_LEAST_FIGURE, _MOST_FIGURE, _MOST_SIGMA = 1e-6, 1e12, 10.0
_EXAMPLE = "lognormal:mean=1200,p99=8000"


def _constant(text: str, number: str) -> Constant:
    if number in FAMILIES:
        raise KvcalcError(f"{shorten(text)!r} says no figures", f"such as {_EXAMPLE}")
    tokens = parse_number(number, text, f"512, or {_EXAMPLE}")
    if tokens != int(tokens) or not 1 <= tokens <= MOST_TOKENS:
        raise KvcalcError(f"{shorten(text)!r} is no length", "a whole number of tokens from 1")
    return Constant(tokens=int(tokens))


def _lognormal(fields: Mapping[str, float]) -> Distribution:
    mean, median, sigma, p99 = (fields.get(key) for key in ("mean", "median", "sigma", "p99"))
    if (mean is None) == (median is None) or (sigma is not None and p99 is not None):
        raise _FigureError("a lognormal has a mean or a median, and a sigma or a p99", f"such as {_EXAMPLE}")
    _positive(fields)
    if p99 is not None:
        sigma = _sigma_of_mean(p99 / mean) if mean is not None else _sigma_of_median(p99 / (median or 1))
    sigma = DEFAULT_SIGMA if sigma is None else sigma
    if median is None:
        median = (mean or 1) * math.exp(-(sigma**2) / 2)
    return Lognormal(median=median, sigma=sigma, most_tokens=_most(fields))


def _sigma_of_mean(ratio: float) -> float:
    """The smaller of the two sigmas at which p99 is `ratio` times the mean: the larger has a median near 0."""
    if ratio <= 1:
        raise _FigureError("a p99 that is not above the mean", "p99 is the length that 1 request in 100 exceeds")
    if ratio > HIGHEST_P99_OF_MEAN:
        said = f"p99 is {ratio:.4g} times the mean, and no lognormal has more than {HIGHEST_P99_OF_MEAN:.4g}"
        raise _FigureError(said, "give median=,p99= instead, or draw from the trace itself: file:TRACE")
    return Z99 - math.sqrt(Z99**2 - 2 * math.log(ratio))


def _sigma_of_median(ratio: float) -> float:
    if ratio <= 1:
        raise _FigureError("a p99 that is not above the median", "p99 is the length that 1 request in 100 exceeds")
    return math.log(ratio) / Z99


def _gamma(fields: Mapping[str, float]) -> Distribution:
    if not {"mean", "cv"} <= fields.keys():
        raise _FigureError("a gamma has a mean and a cv", "cv is the standard deviation / mean: gamma:mean=200,cv=1.5")
    _positive(fields)
    return Gamma(mean=fields["mean"], cv=fields["cv"], most_tokens=_most(fields))


def _geometric(fields: Mapping[str, float]) -> Distribution:
    if not 1 <= fields.get("mean", 0) <= MOST_TOKENS:
        raise _FigureError("a geometric has a mean of at least 1 token", "such as geometric:mean=200")
    return Geometric(mean=fields["mean"], most_tokens=_most(fields))


def _uniform(fields: Mapping[str, float]) -> Distribution:
    low, high = fields.get("low", 1), min(fields.get("high", 0), _most(fields))
    if low != int(low) or high != int(high) or not 1 <= low <= high:
        raise _FigureError("a uniform goes from a low of at least 1 to a high", "such as uniform:low=100,high=2000")
    return Uniform(low=int(low), high=int(high))


def _positive(fields: Mapping[str, float]) -> None:
    """Refuse figures at which the arithmetic itself would fail."""
    for key, value in fields.items():
        most = _MOST_SIGMA if key == "sigma" else _MOST_FIGURE
        if not _LEAST_FIGURE <= value <= most:
            said = f"{key} is {number_text(value)}"
            raise _FigureError(said, f"{key} is above 0: from {_LEAST_FIGURE:g} to {number_text(most)}")


def _most(fields: Mapping[str, float]) -> int:
    most = fields.get("max", MOST_TOKENS)
    if most != int(most) or most < 1:
        raise _FigureError(f"a max of {number_text(most)}", "a whole number of tokens from 1")
    return min(int(most), MOST_TOKENS)


FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, float]], Distribution]]] = {
    "lognormal": (("mean", "median", "sigma", "p99"), _lognormal),
    "gamma": (("mean", "cv"), _gamma),
    "geometric": (("mean",), _geometric),
    "uniform": (("low", "high"), _uniform),
}
