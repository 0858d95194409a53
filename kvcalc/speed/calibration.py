"""A few scale factors that bring predictions to measurements: how many times longer things take than the constants say.

The factors are fitted in log space, on the logarithm of measured over predicted seconds, and drawn towards 1 by a
prior: what the points do not tell stays as it was. No factor makes a kernel faster than its figures allow.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.speed.kernels import Cost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.floating[Any]]

FACTORS = {
    "overhead": "starting kernels other than matrices, and what a layer waits for",
    "host": "the scheduler, the sampler and the detokeniser",
    "communication": "exchanges between ranks",
    "bandwidth": "reading weights and activations",
    "cache_bandwidth": "reading the KV cache",
    "interference": "what running sequences wait for as prompts are taken in",
}
"""What a factor of time stands for; beside them there are `arithmetic.FORMAT` for the units of
each format, and `overhead.FORMAT` for starting its matrices."""
ARITHMETIC, OVERHEAD = "arithmetic.", "overhead."
WIDTH = 0.5
"""Standard deviation of the logarithm of a factor where much was measured: a factor of 1.6 is usual."""
TRUSTED = 4
"""Points past which they are believed rather than the prior: one may be an outlier, and says nothing of it."""
NOISE = 0.1
"""That of a measurement, in which the sum of all the model's own errors is counted too."""


class Scales(msgspec.Struct, frozen=True):
    """Factors of time by name, those that are missing being 1.

    `bands` say for a class of predictions by what share nine in ten left-out measurements stayed below, where enough
    of them were measured to tell.
    """

    factors: dict[str, float] = {}
    bands: dict[str, float] = {}

    def of(self, name: str) -> float:
        """The factor of this name."""
        return self.factors.get(name, 1.0)

    def applied(self, costs: Sequence[Cost]) -> list[Cost]:
        """The costs as these factors have them, none below its floor."""
        return [self._applied(cost) for cost in costs]

    def _applied(self, cost: Cost) -> Cost:
        return cost._replace(
            start=cost.start * self.of(start_factor(cost)),
            moving=_at_least(cost.moving * self.of(moving_factor(cost)), cost.floor_moving),
            working=_at_least(cost.working * self.of(ARITHMETIC + cost.rate), cost.floor_working),
        )


class Part(NamedTuple):
    """`weight` times the seconds of some costs; `interferes` where running sequences wait for them."""

    weight: float
    costs: Sequence[Cost]
    interferes: bool = False


class Point(NamedTuple):
    """What was measured, in seconds, and the parts that it is predicted to be the sum of."""

    parts: Sequence[Part]
    seconds: float


class Fit(NamedTuple):
    """Scales, how many points they rest on, and the errors (predicted over measured, less 1) without and with them.

    `left_out` are those of each point when it and its fold were left out; empty where nothing can be left out.
    `strength` is the share of the usual width that the factors were allowed; 0 means that none moved.
    """

    scales: Scales
    points: int
    before: tuple[float, ...]
    left_out: tuple[float, ...]
    strength: float = 1.0


def start_factor(cost: Cost) -> str:
    """The factor of what a cost starts; a matrix's start has its activations quantised, so that formats differ."""
    return {
        "host": "host",
        "all-reduce": "communication",
        "all-to-all": "communication",
        "projections": OVERHEAD + cost.rate,
        "feed-forward": OVERHEAD + cost.rate,
    }.get(cost.term, "overhead")


def moving_factor(cost: Cost) -> str:
    """The factor of what a cost moves."""
    return {"KV cache": "cache_bandwidth", "link": "communication"}.get(cost.moves, "bandwidth")


def fit_scales(points: Sequence[Point], prior: Scales | None = None) -> Scales:
    """The factors that explain `points` best, drawn towards `prior` (1 by default).

    KvcalcError where there is no point, or one whose seconds are no positive number.
    """
    table = _Table(points)
    return table.scales(table.fitted(prior or Scales()))


def fit_with_errors(points: Sequence[Point], groups: Sequence[Hashable] | None = None, strength: float = 1.0) -> Fit:
    """The same with the error of every point when it is left out, together with those of its group."""
    import numpy as np

    table, prior = _Table(points, strength), Scales()
    start = table.fitted(prior)
    before = np.exp(table.residuals(table.logarithms(prior))) - 1
    folds = np.array(_folds(range(len(points)) if groups is None else groups))
    left_out = np.zeros(len(points))
    for fold in range(folds.max() + 1) if folds.any() else ():
        fitted = table.fitted(prior, folds != fold, start)
        left_out[folds == fold] = np.exp(table.residuals(fitted))[folds == fold] - 1
    errors = tuple(map(float, left_out)) if folds.any() else ()
    return Fit(table.scales(start), len(points), tuple(map(float, before)), errors, strength)


def _folds(groups: Sequence[Hashable]) -> list[int]:
    """The fold of each point: one for each group, at most `MOST_FOLDS`."""
    places = {group: place % MOST_FOLDS for place, group in enumerate(dict.fromkeys(groups))}
    return [places[group] for group in groups]


MOST_FOLDS = 50
CAREFUL, ENOUGH = 0.5, 8
"""The share of the usual width that factors are allowed where points are fewer than `ENOUGH`, or contradict the model
more than they teach: of published points those that were not drawn are met better so (docs/calibrate.md)."""


def choose_fit(points: Sequence[Point], groups: Sequence[Hashable] | None = None) -> Fit:
    """The fit by which points that are left out are met best: with its usual width, the careful one, or no factor.

    Where nothing can be left out it is the careful one.
    """
    careful = fit_with_errors(points, groups, CAREFUL)
    if not careful.left_out:
        return careful
    plain = Fit(Scales(), careful.points, careful.before, careful.before, 0.0)
    usual = [fit_with_errors(points, groups)] if len(points) >= ENOUGH else []
    return min([plain, careful, *usual], key=lambda fit: sum(abs(math.log1p(error)) for error in fit.left_out))


def predict(points: Sequence[Point], scales: Scales) -> list[float]:
    """Seconds of each point under `scales`."""
    table = _Table(points)
    return [float(one) for one in table.predicted(table.logarithms(scales))]


class _Table:
    """The costs of many points side by side, so that all are priced at once."""

    def __init__(self, points: Sequence[Point], strength: float = 1.0) -> None:
        import numpy as np

        if not points:
            raise KvcalcError("no point to calibrate on", "give at least one measurement")
        rows = [
            (index, part, cost) for index, point in enumerate(points) for part in point.parts for cost in part.costs
        ]
        self.count, self.strength = len(points), strength
        self.measured = np.log(np.array([_positive(point.seconds) for point in points]))
        self.point = np.array([index for index, _, _ in rows])
        self.names = sorted({name for _, part, cost in rows for name in _names(part, cost)})
        place = {name: number for number, name in enumerate(self.names)}
        self.factors = np.array([[place[name] for name in _four(part, cost, place)] for _, part, cost in rows]).T
        self.interferes = np.array([part.interferes for _, part, _ in rows])
        values = [(part.weight, cost.start, cost.moving, cost.working, cost.floor_moving, cost.floor_working)
                  for _, part, cost in rows]  # fmt: skip
        self.values = np.array(values, dtype=float).T

    def logarithms(self, scales: Scales) -> "Numbers":
        import numpy as np

        return np.asarray(np.log([scales.of(name) for name in self.names]))

    def scales(self, logarithms: "Numbers") -> Scales:
        import numpy as np

        return Scales({name: float(np.exp(one)) for name, one in zip(self.names, logarithms, strict=True)})

    def predicted(self, logarithms: "Numbers") -> "Numbers":
        """Seconds of every point."""
        import numpy as np

        factor = np.exp(logarithms)
        start, moving, working, interference = (factor[place] for place in self.factors)
        weight, started, moved, worked, least_moved, least_worked = self.values
        moved, worked = np.maximum(moved * moving, least_moved), np.maximum(worked * working, least_worked)
        weight = weight * np.where(self.interferes, interference, 1.0)
        seconds = weight * (started * start + np.cbrt(moved**3 + worked**3))
        return np.asarray(np.bincount(self.point, seconds, self.count), dtype=np.float64)

    def residuals(self, logarithms: "Numbers") -> "Numbers":
        """The logarithm of predicted over measured seconds."""
        import numpy as np

        return np.asarray(np.log(self.predicted(logarithms)) - self.measured)

    def fitted(
        self, prior: Scales, keep: "NDArray[np.bool_] | None" = None, start: "Numbers | None" = None
    ) -> "Numbers":
        """Gauss-Newton with halved steps on a loss that grows like the error's size, and the prior's squares."""
        import numpy as np

        centre = self.logarithms(prior)
        now = centre if start is None else start
        used = np.ones(self.count) if keep is None else keep.astype(float)
        loss, variance = self._loss(now, centre, used), self._variance(used)
        for _ in range(_ROUNDS):
            error = self.residuals(now)
            slope = np.stack([(self.residuals(now + _STEP * unit) - error) / _STEP for unit in np.eye(len(now))], 1)
            weight = used / (NOISE * np.sqrt(NOISE**2 + error**2))
            normal = slope.T @ (slope * weight[:, None]) + np.eye(len(now)) / variance
            move = np.linalg.solve(normal, slope.T @ (weight * error) + (now - centre) / variance)
            found = self._shorter(now, move, loss, centre, used)
            if found is None:
                break
            now, loss = found
        return now

    def _shorter(
        self, now: "Numbers", move: "Numbers", loss: float, centre: "Numbers", used: "Numbers"
    ) -> "tuple[Numbers, float] | None":
        """The first of ever shorter moves that lowers the loss, None where none does."""
        for halved in range(_HALVINGS):
            moved = now - move / 2**halved
            lower = self._loss(moved, centre, used)
            if lower < loss * (1 - _GAIN):
                return moved, lower
        return None

    def _loss(self, logarithms: "Numbers", centre: "Numbers", used: "Numbers") -> float:
        import numpy as np

        errors = 2 * (np.sqrt(NOISE**2 + self.residuals(logarithms) ** 2) - NOISE) / NOISE
        return float(used @ errors + np.sum((logarithms - centre) ** 2) / self._variance(used))

    def _variance(self, used: "Numbers") -> float:
        """That of the logarithm of a factor, by how many points are used: little is learned from few."""
        count = float(used.sum())
        return (self.strength * WIDTH) ** 2 * count / (count + TRUSTED)


_ROUNDS, _HALVINGS, _STEP, _GAIN = 40, 6, 1e-4, 1e-4


def _names(part: Part, cost: Cost) -> Sequence[str]:
    names = [start_factor(cost), moving_factor(cost), ARITHMETIC + cost.rate]
    return [*names, "interference"] if part.interferes else names


def _four(part: Part, cost: Cost, place: Mapping[str, int]) -> Sequence[str]:
    """The factors of start, moving, working and interference; the last one is not used where nothing interferes."""
    names = _names(part, cost)
    return names if len(names) == 4 else [*names, names[0]]


def _positive(seconds: float) -> float:
    if not 0 < seconds < float("inf"):
        raise KvcalcError(f"a measurement of {seconds} s is no time", "seconds are positive numbers")
    return seconds


def _at_least(value: Any, floor: Any) -> Any:
    """max(value, floor) for numbers and arrays alike."""
    return (value + floor + abs(value - floor)) / 2
