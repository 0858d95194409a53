"""The hit rate of a prefix cache against its capacity, thinned to what a picture needs."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvcalc.workload.asked import Case
from kvcalc.workload.reuse import hit_curve
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    from kvcalc.workload.documents import HitCurveDocument

MOST_POINTS = 400


def curves_of(trace: Trace, cases: Sequence[Case]) -> "Iterator[HitCurveDocument]":
    """The curves of the cases that keep prefixes, one for each size of their blocks and format."""
    seen = set()
    for case in cases:
        key = (*case.pool.block_tokens, case.setting.layout.bytes_per_unit)
        if case.setting.prefix_caching and key not in seen:
            seen.add(key)
            yield curve_of(trace, case)


def curve_of(trace: Trace, case: Case) -> "HitCurveDocument":
    """The whole curve for the blocks of a case that keeps prefixes.

    At most MOST_POINTS capacities, evenly apart in the hit rate, the largest among them.
    """
    import numpy as np

    layout = case.setting.layout
    keeps = [group for group in layout.groups if group.cap is None]
    block = max(group.block_tokens for group in keeps)
    capacities, rates = hit_curve(trace, block)
    if not len(rates):
        return {
            "block_tokens": block,
            "bytes_per_token": 0.0,
            "capacity_tokens": [],
            "hit_rates": [],
            "unlimited": 0.0,
        }
    wanted = np.linspace(0, rates[-1], min(MOST_POINTS, len(rates)))
    places = np.unique(np.minimum(np.searchsorted(rates, wanted), len(rates) - 1))
    block_bytes = sum(group.units * (block // group.block_tokens) for group in keeps) * layout.bytes_per_unit
    return {
        "block_tokens": block,
        "bytes_per_token": block_bytes / block,
        "capacity_tokens": (capacities[places] * block).tolist(),
        "hit_rates": rates[places].tolist(),
        "unlimited": float(rates[-1]),
    }
