"""Where one limit takes over from another."""

from collections.abc import Callable

from kvcalc.speed.kernels import Cost, Setting
from kvcalc.speed.setting import decode_costs

MOST = 2**40


def compute_bound_batch(setting: Setting, context: int) -> int | None:
    """The smallest batch at which the matrices of a step compute for longer than they take to be read.

    None where that is beyond any batch.
    """

    def is_bound(batch: int) -> bool:
        costs = [cost for cost in decode_costs(setting, batch, context) if cost.moves == "weights"]
        return bool(sum(cost.working for cost in costs) >= sum(cost.moving for cost in costs))

    return first(is_bound)


def cache_bound_context(setting: Setting, batch: int) -> int | None:
    """The smallest context at which a step of `batch` sequences reads more of the caches than of the weights.

    None where no context does that: windows and states do not grow.
    """

    def is_bound(context: int) -> bool:
        costs = decode_costs(setting, batch, context)
        return _bytes(costs, "KV cache") > _bytes(costs, "weights")

    return first(is_bound)


def first(holds: Callable[[int], bool]) -> int | None:
    """The smallest positive number of which a monotone predicate holds, None where it is past `MOST`."""
    high = 1
    while not holds(high):
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _bytes(costs: list[Cost], moves: str) -> float:
    return float(sum(cost.floor_moving for cost in costs if cost.moves == moves))
