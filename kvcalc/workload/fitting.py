"""Distributions fitted to the lengths of a trace, and how far each is from them."""

import math

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.workload.distributions import Constant, Distribution, Gamma, Lognormal
from kvcalc.workload.trace import Integers

_DRAWS = 1 << 20


class Fit(msgspec.Struct, frozen=True):
    """A fitted distribution and its KS distance: the largest gap between the two cumulative shares, 0 to 1.

    The share of the distribution is that of a million draws, whole tokens as they are used, so that the distance is
    good to about 0.002.
    """

    distribution: Distribution
    distance: float


def fit_lengths(lengths: Integers) -> list[Fit]:
    """The distributions fitted to `lengths` (tokens, each at least 1), nearest first."""
    if not len(lengths):
        raise KvcalcError("no lengths to fit", "a trace of at least one request")
    if lengths.min() == lengths.max():
        return [Fit(Constant(tokens=int(lengths[0])), 0.0)]
    fits = [Fit(made, ks_distance(lengths, made)) for made in (_lognormal(lengths), _gamma(lengths))]
    return sorted(fits, key=lambda fit: fit.distance)


def ks_distance(lengths: Integers, distribution: Distribution) -> float:
    """The Kolmogorov-Smirnov distance between lengths and a distribution."""
    import numpy as np

    drawn, _ = distribution.draw(np.random.Generator(np.random.PCG64(0)), _DRAWS)
    here, there = np.sort(lengths), np.sort(drawn)
    values = np.unique(np.concatenate([here, there]))
    share = np.searchsorted(here, values, "right") / len(here)
    return float(np.abs(share - np.searchsorted(there, values, "right") / len(there)).max())


def _lognormal(lengths: Integers) -> Lognormal:
    """By the mean and standard deviation of the logarithms."""
    import numpy as np

    logs = np.log(lengths)
    return Lognormal(median=_short(math.exp(logs.mean())), sigma=_short(float(logs.std())))


def _gamma(lengths: Integers) -> Gamma:
    """By the largest likelihood, shape in the closed form of Minka, Estimating a Gamma distribution (2002), eq. 6-7."""
    import numpy as np

    mean = float(lengths.mean())
    gap = math.log(mean) - float(np.log(lengths).mean())
    shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    return Gamma(mean=_short(mean), cv=_short(shape**-0.5))


def _short(value: float) -> float:
    """Six digits: what is spelled is what was judged."""
    return float(f"{value:.6g}")
