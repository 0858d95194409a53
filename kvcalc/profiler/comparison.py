"""Two runs: is the second slower, faster, or the same? `undecided` is an answer too, and only `worse` fails."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from kvcalc.errors import KvcalcError
from kvcalc.profiler.differences import cautions, differences
from kvcalc.profiler.documents import (
    RUNS_SCHEMA,
    HeldPairDocument,
    PairDocument,
    PointDocument,
    ProfileDocument,
    RunsDocument,
)
from kvcalc.profiler.samples import LEAST_FOR_RANGES, Verdict, judge
from kvcalc.profiler.tables import series_of, where
from kvcalc.report import Column, Report, Table

THRESHOLD = 0.05
"""Share by which medians may differ before anyone should care."""


def compare_runs(
    first: ProfileDocument, second: ProfileDocument, names: tuple[str, str], threshold: float = THRESHOLD
) -> Report:
    """The second run held against the first at every context and batch that both have; exit code 1 where it is worse.

    `names` are what the runs are called, their files for instance. KvcalcError where they share no point.
    """
    pairs, held = list(_pairs(first, second, threshold)), list(_held_pairs(first, second))
    if not pairs and not held:
        raise KvcalcError(_nothing_shared(names, (first, second)), "profile both with the same --ctx and --batch")
    verdict = overall([pair["verdict"] for pair in pairs], [pair["verdict"] for pair in held])
    document: RunsDocument = {
        "schema": RUNS_SCHEMA,
        "first": names[0],
        "second": names[1],
        "threshold": threshold,
        "differences": [*differences(first, second), *_held_differences(first, second, held)],
        "pairs": pairs,
        "memory": held,
        "verdict": verdict,
        "notes": [*cautions(names, first, second, threshold), *_few_samples(first, second, pairs)],
    }
    return _report(document)


def overall(times: Sequence[Verdict], memory: Sequence[Verdict]) -> Verdict:
    """One verdict of many: worse if anything is, undecided if nothing could be told, else better if anything is.

    Equal memory decides nothing where times were measured too.
    """
    counted = {*times, *(one for one in memory if one != "same" or not times)} - {"undecided"}
    return next((one for one in _ORDER if one in counted), "undecided")


_ORDER: tuple[Verdict, ...] = ("worse", "better", "same")


def _pairs(first: ProfileDocument, second: ProfileDocument, threshold: float) -> Iterator[PairDocument]:
    others = series_of(second)
    for (context, batch, what), old in series_of(first).items():
        new = others.get((context, batch, what))
        if new is not None:
            yield {
                "context_tokens": context,
                "batch": batch,
                "what": what,
                "first_seconds": old["median_seconds"],
                "second_seconds": new["median_seconds"],
                "ratio": new["median_seconds"] / old["median_seconds"],
                "verdict": judge(old["samples_seconds"], new["samples_seconds"], threshold),
            }


def _held_pairs(first: ProfileDocument, second: ProfileDocument) -> Iterator[HeldPairDocument]:
    others = dict(_held(second["points"]))
    for (context, batch, name), old in _held(first["points"]):
        new = others.get((context, batch, name))
        if new is not None:
            yield {
                "context_tokens": context,
                "batch": batch,
                "name": name,
                "first_bytes": old,
                "second_bytes": new,
                "verdict": "same" if new == old else "worse" if new > old else "better",
            }


def _held(points: Iterable[PointDocument]) -> Iterator[tuple[tuple[int, int, str], int]]:
    """Measured bytes of every component and every rule of the reference's own."""
    for point in points:
        for part in (*point["components"], *point["rules"]):
            yield (point["context_tokens"], point["batch"], part["name"]), part["measured_bytes"]


def _held_differences(
    first: ProfileDocument, second: ProfileDocument, held: Sequence[HeldPairDocument]
) -> Iterator[str]:
    for pair in held:
        if pair["verdict"] != "same":
            place = where(pair["context_tokens"], pair["batch"])
            yield f"{pair['name']} at {place}: {pair['first_bytes']:,} B -> {pair['second_bytes']:,} B"
    old, new = ({name for (_, _, name), _ in _held(run["points"])} for run in (first, second))
    yield from (f"{name} is held in the first run alone" for name in sorted(old - new))
    yield from (f"{name} is held in the second run alone" for name in sorted(new - old))


def _few_samples(first: ProfileDocument, second: ProfileDocument, pairs: Sequence[PairDocument]) -> Iterator[str]:
    runs = series_of(first), series_of(second)
    for pair in pairs:
        key = pair["context_tokens"], pair["batch"], pair["what"]
        least = min(len(run[key]["samples_seconds"]) for run in runs)
        if least < LEAST_FOR_RANGES:
            place = where(pair["context_tokens"], pair["batch"])
            yield f"{pair['what']} at {place}: {least} sample{_plural(least)} of a run cannot be judged"


def _nothing_shared(names: tuple[str, str], runs: tuple[ProfileDocument, ProfileDocument]) -> str:
    has = [
        f"{name} has {'; '.join(where(p['context_tokens'], p['batch']) for p in run['points'][:_MOST_NAMED]) or 'none'}"
        for name, run in zip(names, runs, strict=True)
    ]
    return f"the runs share no point: {', '.join(has)}"


_MOST_NAMED = 4


def _report(document: RunsDocument) -> Report:
    times, memory = _times_table(document), _memory_table(document)
    return Report(
        document=cast("Mapping[str, Any]", document),
        title=(f"{document['first']} -> {document['second']}", document["verdict"]),
        lines=tuple(_lines(document)),
        tables=(times, memory),
        shown_tables=(*_by_name(times), *_changed(memory)),
        notes=tuple(document["notes"]),
        exit_code=1 if document["verdict"] == "worse" else 0,
    )


def _lines(document: RunsDocument) -> Iterator[str]:
    if pairs := document["pairs"]:
        counts = Counter(pair["verdict"] for pair in pairs)
        told = ", ".join(f"{counts[word]} {word}" for word in (*_ORDER, "undecided") if counts[word])
        allowed = f"{100 * document['threshold']:.4g}%"
        yield f"{len(pairs)} timing{_plural(len(pairs))}: {told}; medians may differ by {allowed}"
    held = Counter(pair["verdict"] for pair in document["memory"])
    more, less = held["worse"], held["better"]
    yield f"memory: {more} more, {less} less, {held['same']} the same" if more or less else "memory: the same bytes"
    yield from document["differences"]


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def _times_table(document: RunsDocument) -> Table:
    columns = (
        Column("context_tokens", "context", "tokens"),
        Column("batch", "batch", "count"),
        Column("what", "what"),
        Column("first_seconds", "first", "seconds"),
        Column("second_seconds", "second", "seconds"),
        Column("ratio", "second / first", "ratio"),
        Column("verdict", "verdict"),
    )
    return Table(columns, [tuple(cast("Mapping[str, Any]", pair).values()) for pair in document["pairs"]])


def _memory_table(document: RunsDocument) -> Table:
    columns = (
        Column("context_tokens", "context", "tokens"),
        Column("batch", "batch", "count"),
        Column("name", "holds"),
        Column("first_bytes", "first", "exact bytes"),
        Column("second_bytes", "second", "exact bytes"),
        Column("verdict", "verdict"),
    )
    return Table(columns, [tuple(cast("Mapping[str, Any]", pair).values()) for pair in document["memory"]])


def _by_name(times: Table) -> Iterator[Table]:
    """A table a name, since a prefill and a decode step count in other units."""
    for name in dict.fromkeys(row[_NAME] for row in times.rows):
        rows = [row for row in times.rows if row[_NAME] == name]
        yield Table(times.columns, rows, str(name).capitalize()).without(times.columns[_NAME].key)


_NAME = 2


def _changed(memory: Table) -> Iterator[Table]:
    rows = [row for row in memory.rows if row[-1] != "same"]
    if rows:
        yield Table(memory.columns, rows, "Memory that differs")
