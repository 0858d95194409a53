"""What charts need of times and of searches, as the JSON contract carries it."""

import math
from typing import TYPE_CHECKING

from kvcalc.workload.metrics import tpot_of, ttft_of
from kvcalc.workload.outcome import Outcome
from kvcalc.workload.search import Found, Trial
from kvcalc.workload.trace import Seconds

if TYPE_CHECKING:
    from kvcalc.workload.documents import DistributionDocument, SearchDocument, TrialDocument

SHARES = (*(place / 50 for place in range(50)), 0.985, 0.99, 0.995, 0.999, 1.0)
"""Shares of requests whose times are kept: closer together where few of them wait long."""


def distribution_document(outcome: Outcome) -> "DistributionDocument":
    """How TTFT and TPOT are spread over requests."""
    return {"shares": list(SHARES), "ttft": _quantiles(ttft_of(outcome)), "tpot": _quantiles(tpot_of(outcome))}


def _quantiles(seconds: Seconds) -> list[float]:
    import numpy as np

    return np.quantile(seconds, SHARES).tolist() if len(seconds) else []


def search_document(what: str, found: Found) -> "SearchDocument":
    """A search for `what`."""
    return {
        "what": what,
        "value": None if found.value is None or math.isinf(found.value) else found.value,
        "beyond": None if found.beyond is None else _trial(found.beyond),
        "trials": [_trial(one) for one in found.trials],
        "odd": [_trial(one) for one in found.odd],
    }


def _trial(trial: Trial) -> "TrialDocument":
    return {
        "value": trial.value,
        "breaks": trial.breaks,
        "ttft": trial.seconds["TTFT"],
        "tpot": trial.seconds["TPOT"],
    }
