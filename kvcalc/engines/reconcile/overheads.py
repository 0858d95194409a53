"""What a log reveals beside the cache, rank by rank: what `kvcalc fit --overheads FILE` takes."""

from collections.abc import Sequence
from typing import cast

from kvcalc.documents import OverheadsDocument, RankOverheadsDocument
from kvcalc.engines.logs.pattern import Finding

SCHEMA = "kvcalc.overheads/1"
TERMS = ("total_bytes", "weights_bytes", "non_torch_bytes", "activation_bytes", "graphs_bytes", "communication_bytes")
"""Those of a card as an engine finds it (kvcalc.engines.engine.Card)."""


CONSUMED = "consumed_bytes"
_ESTIMATE = "graphs_estimate_bytes"


def overheads_of(findings: Sequence[Finding], engine: str, version: str | None, source: str) -> OverheadsDocument:
    """Bytes by rank, the last line of each kind; a term that no line says is null."""
    ranks: dict[str, dict[str, int]] = {}
    is_estimated = any(
        one.values["graphs_profile"].text == "enabled" for one in findings if "graphs_profile" in one.values
    )
    estimates = {
        one.rank: int(one.values["graphs_estimate_bytes"].number) for one in findings if _ESTIMATE in one.values
    }
    for one in findings:
        said = {key: int(value.number) for key, value in one.values.items() if key.endswith("_bytes") and value.value}
        device = one.values.get("device")
        place = one.rank if device is None else device.text
        taken = {key: count for key, count in said.items() if key in TERMS}
        held = ranks.setdefault(place, {}) if taken or CONSUMED in said else {}
        if CONSUMED in said:
            taken[CONSUMED] = said[CONSUMED]
            if "weights_bytes" in held:
                taken.setdefault("non_torch_bytes", max(0, said[CONSUMED] - held["weights_bytes"]))
        if is_estimated and {"activation_bytes", "graphs_bytes"} <= set(said):
            # gpu_worker.py: what is called peak activation has the estimate of the graphs in it.
            estimate = estimates.get(one.rank, 0)
            taken |= {"activation_bytes": max(0, said["activation_bytes"] - estimate), "graphs_bytes": estimate}
        held.update(taken)
    return {
        "schema": SCHEMA,
        "source": source,
        "engine": engine,
        "version": version,
        "ranks": [
            cast("RankOverheadsDocument", {"rank": rank, **{term: held.get(term) for term in (*TERMS, CONSUMED)}})
            for rank, held in ranks.items()
        ],
    }
