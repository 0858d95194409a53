"""What an outcome comes to: percentiles of what users see, shares of the pool, and rates."""

from typing import NamedTuple

import msgspec

from kvcalc.workload.outcome import Outcome
from kvcalc.workload.trace import Seconds

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


class Spread(NamedTuple):
    """Seconds over requests: their mean, the percentiles of PERCENTILES, and the largest."""

    mean: float
    percentiles: tuple[float, ...]
    largest: float


class PoolShares(NamedTuple):
    """Shares of a pool over all of the time, which come to 1; the first five are those of arXiv 2309.06180, figure 2.

    `external` is what no sequence holds and no prefix is kept in.
    """

    filled: float
    reserved: float
    internal: float
    external: float
    cached: float


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of an outcome: seconds, or steps where they are the unit of time. None where nothing was finished.

    TPOT is that of requests that make more than one token. Running and waiting are means over all of the time.
    """

    finished: int
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    queueing: Spread | None
    pool: PoolShares
    spared_share: float
    """What sequences would hold beside it if they shared no prefix, as a share of the pool."""
    peak_share: float
    mean_running: float
    mean_waiting: float
    peak_running: int
    busy_share: float
    requests_per_second: float
    output_tokens_per_second: float
    preemptions: int
    preempted_requests: int
    hit_rate: float
    """Tokens of admitted prompts that were there already."""
    recomputed_tokens: int


def metrics_of(outcome: Outcome) -> Metrics:
    """The figures of an outcome."""
    import numpy as np

    requests, totals, trace = outcome.requests, outcome.totals, outcome.trace
    arrival, finished = requests.arrival_seconds, requests.finished_seconds
    is_done, is_admitted = ~np.isnan(finished), ~np.isnan(requests.admitted_seconds)
    served = trace.output_tokens[is_done]
    prompts, hits = int(trace.prompt_tokens[is_admitted].sum()), int(requests.hit_tokens.sum())
    seconds = totals.seconds or 1.0
    ends = np.where(is_done, finished, totals.seconds)
    is_served = (requests.refused == 0) & (arrival <= totals.seconds)
    present = float((ends - arrival)[is_served].sum())
    return Metrics(
        finished=int(is_done.sum()),
        ttft=spread_of(ttft_of(outcome)),
        tpot=spread_of(tpot_of(outcome)),
        e2e=spread_of((finished - arrival)[is_done]),
        queueing=spread_of((requests.admitted_seconds - arrival)[is_admitted]),
        pool=pool_shares(outcome),
        spared_share=totals.spared / (outcome.setting.pool_units * seconds),
        peak_share=totals.peak_units / outcome.setting.pool_units,
        mean_running=totals.running_seconds / seconds,
        mean_waiting=max(0.0, present - totals.running_seconds) / seconds,
        peak_running=totals.peak_running,
        busy_share=totals.busy_seconds / seconds,
        requests_per_second=len(served) / seconds,
        output_tokens_per_second=float(served.sum()) / seconds,
        preemptions=int(requests.preemptions.sum()),
        preempted_requests=int((requests.preemptions > 0).sum()),
        hit_rate=hits / prompts if prompts else 0.0,
        recomputed_tokens=max(0, totals.prefilled_tokens - (prompts - hits)),
    )


def ttft_of(outcome: Outcome) -> Seconds:
    """Seconds to the first token of every request that is finished."""
    import numpy as np

    requests = outcome.requests
    found: Seconds = (requests.first_token_seconds - requests.arrival_seconds)[~np.isnan(requests.finished_seconds)]
    return found


def tpot_of(outcome: Outcome) -> Seconds:
    """Seconds a token behind the first one, of every request that is finished and has more than one."""
    import numpy as np

    requests, outputs = outcome.requests, outcome.trace.output_tokens
    many = ~np.isnan(requests.finished_seconds) & (outputs > 1)
    found: Seconds = (requests.finished_seconds - requests.first_token_seconds)[many] / (outputs[many] - 1)
    return found


def pool_shares(outcome: Outcome) -> PoolShares:
    """What the pool's units were spent on."""
    totals = outcome.totals
    whole = outcome.setting.pool_units * totals.seconds or 1.0
    filled, reserved, internal, cached = (
        part / whole for part in (totals.filled, totals.reserved, totals.internal, totals.cached)
    )
    return PoolShares(filled, reserved, internal, 1 - filled - reserved - internal - cached, cached)


def spread_of(seconds: Seconds) -> Spread | None:
    """The spread of some times; None where there are none."""
    import numpy as np

    if not len(seconds):
        return None
    return Spread(float(seconds.mean()), tuple(np.percentile(seconds, PERCENTILES).tolist()), float(seconds.max()))
