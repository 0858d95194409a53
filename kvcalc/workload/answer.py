"""What a simulation found, as the JSON contract carries it."""

from typing import TYPE_CHECKING, cast

import msgspec

from kvcalc.model.spec import ModelSpec
from kvcalc.workload.asked import Case
from kvcalc.workload.metrics import Spread, metrics_of
from kvcalc.workload.outcome import Outcome
from kvcalc.workload.runs import Run, names_of
from kvcalc.workload.spreads import distribution_document
from kvcalc.workload.summary import Lengths, summarise
from kvcalc.workload.trace import Seconds, Trace

if TYPE_CHECKING:
    from kvcalc.workload.documents import (
        AtOnceDocument,
        CountsDocument,
        GoalsDocument,
        HitCurveDocument,
        LengthsDocument,
        PoolDocument,
        PrefixesDocument,
        ReplicaDocument,
        RunDocument,
        SettingDocument,
        SimulateDocument,
        SpreadDocument,
        TimelineDocument,
        TraceDocument,
        UseDocument,
    )

SCHEMA = "kvcalc.simulate/1"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a trace, in the order in which their settings were asked for."""

    spec: ModelSpec
    trace: Trace
    seed: int | None
    runs: tuple[Run, ...]
    curves: "tuple[HitCurveDocument, ...]" = ()
    goals: "tuple[GoalsDocument, ...]" = ()
    asked: int = 0
    """Settings that were asked for: more than runs where Ctrl-C came before."""
    is_searched: bool = True
    """Whether all was searched for that was asked for."""
    notes: tuple[str, ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether times are seconds."""
        return self.runs[0].case.server.is_timed

    @property
    def is_complete(self) -> bool:
        """Whether every setting was served to its end."""
        return self.is_searched and len(self.runs) >= self.asked and all(run.outcome.is_complete for run in self.runs)


def simulate_document(answer: Answer) -> "SimulateDocument":
    """The versioned JSON document."""
    return {
        "schema": SCHEMA,
        "model": {"name": answer.spec.name, "source": answer.spec.source},
        "trace": trace_document(answer.trace, answer.seed),
        "time": "seconds" if answer.is_timed else "steps",
        "runs": [run_document(run, name) for run, name in zip(answer.runs, names_of(answer.runs), strict=True)],
        "hit_curves": list(answer.curves),
        "goals": list(answer.goals),
        "complete": answer.is_complete,
        "notes": list(answer.notes),
    }


def trace_document(trace: Trace, seed: int | None) -> "TraceDocument":
    """What the requests are like."""
    found = summarise(trace)
    return {
        "name": found.name,
        "requests": found.requests,
        "seed": seed,
        "duration_seconds": found.duration_seconds,
        "rate_per_second": found.rate_per_second,
        "gap_cv": found.gap_cv,
        "prompt_tokens": _lengths(found.prompt_tokens),
        "output_tokens": _lengths(found.output_tokens),
        "repeated_prefixes": found.repeated_prefixes,
        "counted": found.counted,
    }


def _lengths(lengths: Lengths) -> "LengthsDocument":
    return cast("LengthsDocument", msgspec.structs.asdict(lengths))


def run_document(run: Run, name: str) -> "RunDocument":
    """One setting and what came of it."""
    outcome, found = run.outcome, run.metrics
    return {
        "setting": _setting(run, name),
        "pool": _pool(run.case),
        "complete": outcome.is_complete,
        "requests": _counts(run),
        "times": {
            "ttft": _spread(found.ttft),
            "tpot": _spread(found.tpot),
            "e2e": _spread(found.e2e),
            "queueing": _spread(found.queueing),
        },
        "distribution": distribution_document(outcome),
        "at_once": _at_once(run),
        "use": _use(run),
        "prefixes": _prefixes(run),
        "preemptions": {
            "count": found.preemptions,
            "requests": found.preempted_requests,
            "recomputed_tokens": found.recomputed_tokens,
        },
        "rates": {
            "seconds": outcome.totals.seconds,
            "steps": outcome.totals.steps,
            "busy": found.busy_share,
            "requests_per_second": found.requests_per_second,
            "output_tokens_per_second": found.output_tokens_per_second,
        },
        "timeline": _timeline(outcome),
        "replicas": [_replica(one) for one in run.replicas.values()],
    }


def _counts(run: Run) -> "CountsDocument":
    finished = run.metrics.finished
    refused = run.outcome.refused
    total = len(run.outcome.trace)
    return {"total": total, "finished": finished, "unfinished": run.served - finished, "refused": refused}


def _prefixes(run: Run) -> "PrefixesDocument | None":
    if not run.case.setting.prefix_caching:
        return None
    return {"hit_rate": run.metrics.hit_rate, "hit_tokens": int(run.outcome.requests.hit_tokens.sum())}


def _setting(run: Run, name: str) -> "SettingDocument":
    server, setting, plan = run.case.server, run.case.setting, run.case.server.plan
    engine = plan.engine
    return {
        "name": name,
        "engine": None if engine.is_plain else f"{engine.name}@{engine.version}",
        "gpu": plan.budget.gpu,
        "gpus": plan.gpus * run.fleet,
        "replicas": run.fleet,
        "routing": run.routing,
        "kv_dtype": plan.workload.kv_dtype,
        "allocator": setting.allocator,
        "prefix_caching": setting.prefix_caching,
        "max_model_len": setting.max_model_len,
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.max_num_batched_tokens,
        "watermark": setting.watermark,
        "preemption": server.preemption,
        "step_seconds": server.step_seconds,
    }


def _pool(case: Case) -> "PoolDocument":
    pool = case.pool
    return {
        "bytes": pool.pool_bytes,
        "units": pool.blocks.units,
        "bytes_per_unit": pool.blocks.layout.bytes_per_unit,
        "tokens": pool.tokens,
        "block_tokens": pool.block_tokens,
        "most_sequences": pool.blocks.most_sequences,
    }


def _spread(spread: Spread | None) -> "SpreadDocument | None":
    if spread is None:
        return None
    p50, p90, p95, p99 = spread.percentiles
    return {"mean": spread.mean, "p50": p50, "p90": p90, "p95": p95, "p99": p99, "largest": spread.largest}


def _at_once(run: Run) -> "AtOnceDocument":
    found = run.metrics
    return {
        "running_mean": found.mean_running,
        "running_peak": found.peak_running,
        "waiting_mean": found.mean_waiting,
        "waiting_peak": waiting_peak(run.outcome),
    }


def waiting_peak(outcome: Outcome) -> int:
    """The most requests that waited at once to be admitted, those that were preempted apart."""
    import numpy as np

    requests = outcome.requests
    is_served = (requests.refused == 0) & (requests.arrival_seconds <= outcome.totals.seconds)
    came = requests.arrival_seconds[is_served]
    let_in = requests.admitted_seconds[is_served]
    let_in = let_in[~np.isnan(let_in)]
    moments = np.concatenate([came, let_in])
    # Who comes to a free place at the same moment does not wait.
    order = np.lexsort((np.concatenate([np.ones(len(came)), np.zeros(len(let_in))]), moments))
    steps = np.concatenate([np.ones(len(came), dtype=np.int64), -np.ones(len(let_in), dtype=np.int64)])[order]
    last = np.diff(moments[order], append=np.inf) > 0
    return int(np.cumsum(steps)[last].max(initial=0))


def _use(run: Run) -> "UseDocument":
    outcome, found, totals = run.outcome, run.metrics, run.outcome.totals
    shares, pool_units = found.pool, outcome.setting.pool_units
    held = outcome.timeline["held_units"] / pool_units
    return {
        "mean": shares.filled + shares.reserved + shares.internal,
        "p99": _p99(held),
        "peak": found.peak_share,
        "peak_bytes": totals.peak_units * run.case.setting.layout.bytes_per_unit,
        "shared": found.spared_share,
        "shares": {
            "token_states": shares.filled,
            "reserved": shares.reserved,
            "internal": shares.internal,
            "external": shares.external,
            "cached": shares.cached,
        },
    }


def _p99(values: Seconds) -> float:
    import numpy as np

    return float(np.percentile(values, 99)) if len(values) else 0.0


def _timeline(outcome: Outcome) -> "TimelineDocument":
    seen, units = outcome.timeline, outcome.setting.pool_units
    return {
        "seconds": seen["seconds"].tolist(),
        "running": seen["running"].tolist(),
        "waiting": seen["waiting"].tolist(),
        "held": (seen["held_units"] / units).tolist(),
        "cached": (seen["cached_units"] / units).tolist(),
        "token_states": (seen["filled_units"] / units).tolist(),
    }


def _replica(outcome: Outcome) -> "ReplicaDocument":
    found = metrics_of(outcome)
    return {
        "requests": len(outcome.trace),
        "finished": found.finished,
        "ttft_p99": None if found.ttft is None else found.ttft.percentiles[3],
        "running_mean": found.mean_running,
        "pool_peak": found.peak_share,
        "hit_rate": found.hit_rate,
        "busy": found.busy_share,
    }
