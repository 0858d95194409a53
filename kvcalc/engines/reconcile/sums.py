"""Sums that a log itself draws up: a share of the card, and what it leaves for the cache."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from kvcalc.engines.logs.pattern import Finding, Printed
from kvcalc.engines.reconcile.row import Row, judged

SHARES = ("gpu_memory_utilization", "rounded_share")
LESS = {
    "weights_bytes non_torch_bytes activation_bytes": "the share less weights, what is not torch's, and activations",
    "peak_bytes non_torch_bytes": "the share less torch's peak and what is not torch's",
    "consumed_bytes activation_bytes": "the share less what was taken before the cache, and activations",
}
"""Terms that leave the memory for the cache, as lines name them together, and the sum in words."""


def sum_rows(findings: Sequence[Finding]) -> Iterator[Row]:
    """A row for every sum: total x share, and what that leaves.

    vLLM: request_memory of v1/worker/utils.py and determine_available_memory of v1/worker/gpu_worker.py; in V0
    determine_num_available_blocks of worker/worker.py.
    """
    shares: dict[str, tuple[Fraction, Fraction]] = {}
    pools = {one.rank: one for one in findings if one.kind == "pool"}
    for one in findings:
        said = one.values
        share = next((said[key] for key in SHARES if key in said), None)
        if share is not None and "total_bytes" in said:
            shares[one.rank] = _product(said["total_bytes"], share)
            if "requested_bytes" in said:
                yield judged(one, "requested_bytes", *shares[one.rank], why="the card's memory x the share")
                shares[one.rank] = said["requested_bytes"].low, said["requested_bytes"].high
        terms = next((terms for terms in LESS if set(terms.split()) <= set(said)), None)
        pool = one if "available_bytes" in said else pools.get(one.rank)
        if terms is not None and pool is not None and one.rank in shares:
            taken = [said[term] for term in terms.split()]
            low = shares[one.rank][0] - sum(term.high for term in taken)
            high = shares[one.rank][1] - sum(term.low for term in taken)
            yield judged(pool, "available_bytes", low, high, LESS[terms])


def _product(total: Printed, share: Printed) -> tuple[Fraction, Fraction]:
    """The least and the largest product."""
    return total.low * share.low, total.high * share.high
