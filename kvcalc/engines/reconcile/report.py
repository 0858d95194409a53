"""The answer of `kvcalc reconcile`: a line for every figure of a log."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import cast

from kvcalc.engines.documents import FigureDocument, ReconcileDocument
from kvcalc.engines.reconcile.answer import Answer
from kvcalc.engines.reconcile.overheads import overheads_of
from kvcalc.engines.reconcile.row import Row
from kvcalc.report import Column, Report, Table, Value
from kvcalc.sizing.report import request_document
from kvcalc.units import plain_number

SCHEMA = "kvcalc.reconcile/1"

FIGURES = {
    "available_bytes": "memory for the cache",
    "block_tokens": "tokens of a block",
    "blocks": "blocks",
    "cache_bytes": "cache",
    "concurrency": "requests at once",
    "cpu_blocks": "blocks in swap space",
    "ctx": "longest request",
    "k_bytes": "K",
    "kv_buffer_bytes": "cache on a device",
    "kv_bytes": "K and V",
    "longest": "longest request that fits",
    "needed_bytes": "one longest request",
    "requested_bytes": "share of the card",
    "state_buffer_bytes": "states on a device",
    "state_bytes": "states",
    "stored_tokens": "tokens of the pool",
    "tokens": "tokens of the pool",
    "v_bytes": "V",
    "r_bytes": "states R",
    "s_bytes": "states S",
    "token_cost": "bytes of a token",
    "sequence_blocks": "blocks of a request",
    "weights_bytes": "weights",
    "non_torch_bytes": "beside torch",
    "activation_bytes": "activations",
    "graphs_bytes": "CUDA graphs",
    "communication_bytes": "communication",
}
"""What figures are called; others by their key."""


def reconcile_report(answer: Answer) -> Report:
    """Figures of the log, of kvcalc, and why they are or are not the same; exit code 1 where they are not."""
    figures = [_figure(row) for row in answer.rows]
    raw = Table(_RAW, [tuple(cast("dict[str, Value]", figure).values()) for figure in figures])
    shown = Table(_COLUMNS, [_cells(row, ranks) for row, ranks in _merged(answer.rows)])
    return Report(
        document=_document(answer),
        title=_title(answer),
        tables=(raw,),
        shown_tables=(shown.filled(),),
        lines=(_summary(answer.rows), *answer.doubts),
        notes=tuple(answer.notes),
        exit_code=0 if answer.agrees else 1,
    )


_RAW = tuple(Column(name, name) for name in FigureDocument.__annotations__)
_COLUMNS = (
    Column("line", "line", "count"),
    Column("rank", "rank"),
    Column("figure", "figure"),
    Column("logged", "log"),
    Column("computed", "kvcalc"),
    Column("verdict", "verdict"),
    Column("why", "why"),
)


def _title(answer: Answer) -> tuple[str, ...]:
    question, version, batch = answer.question, answer.version, answer.question.workload.batch
    ranks = [
        f"{name}={size}"
        for name in question.sharding.__struct_fields__
        if (size := getattr(question.sharding, name)) > 1
    ]
    return (
        answer.log.name,
        f"{question.engine.name} {version or '(version not printed)'}",
        question.spec.name,
        f"context {question.workload.context_tokens:,}{f' x {batch:,}' if batch > 1 else ''}",
        *([" ".join(ranks)] if ranks else []),
    )


def _summary(rows: Iterable[Row]) -> str:
    counts = Counter(row.verdict for row in rows)
    judged = sum(count for verdict, count in counts.items() if verdict != "measured")
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if verdict != "measured")
    return f"{judged} figures: {told}" if judged else "no figure of the cache"


def _merged(rows: Iterable[Row]) -> Iterator[tuple[Row, str]]:
    """Rows that say the same of several ranks as one, with the ranks that it holds for."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    often: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        same = (row.figure, row.shown, row.computed, row.verdict, row.why)
        alike.setdefault((*same, often[*same, row.rank]), []).append(row)
        often[*same, row.rank] += 1
    for group in alike.values():
        ranks = [row.rank for row in group]
        yield group[0], ", ".join(ranks) if len(ranks) <= _MOST_RANKS else f"{ranks[0]} and {len(ranks) - 1} more"


_MOST_RANKS = 3


def _cells(row: Row, ranks: str) -> tuple[Value, ...]:
    name = FIGURES.get(row.figure, row.figure.removesuffix("_bytes").replace("_", " "))
    return (row.line, ranks or None, name, row.shown, row.computed or None, row.verdict, row.why or None)


def _document(answer: Answer) -> ReconcileDocument:
    question, log = answer.question, answer.log
    engine = question.engine
    request = request_document(question.size)
    rules = f"{engine.name}@{engine.version}"
    request["engine"] = rules
    return {
        "schema": SCHEMA,
        "log": {
            "name": log.name,
            "lines": log.lines,
            "bytes": log.bytes,
            "engine": engine.name,
            "version": answer.version,
        },
        "model": {"name": question.spec.name, "source": question.spec.source},
        "engine": rules,
        "flags": {name: getattr(engine, name) for name in engine.flags()},
        "request": request,
        "figures": [_figure(row) for row in answer.rows],
        "overheads": overheads_of(answer.findings),
        "agrees": answer.agrees,
        "doubts": answer.doubts,
        "notes": answer.notes,
    }


def _figure(row: Row) -> FigureDocument:
    return {
        "line": row.line,
        "rank": row.rank,
        "figure": row.figure,
        "printed": row.logged.text,
        "logged": None if row.logged.value is None else plain_number(row.logged.value),
        "computed_low": None if row.low is None else plain_number(row.low),
        "computed_high": None if row.high is None else plain_number(row.high),
        "verdict": row.verdict,
        "why": row.why,
    }
