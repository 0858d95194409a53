"""Two runs: is the second slower, faster, or the same? `undecided` is an answer too, and only `worse` fails."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from kvcalc.errors import KvcalcError
from kvcalc.profiler.differences import cautions, differences, is_unsure
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
from kvcalc.units import memory, memory_unit

_Bytes = dict[str, int]
"""Measured bytes by the name of the component or rule."""

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
    return _report(document, _memory_line(first, second, held))


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
            ratio = new["median_seconds"] / old["median_seconds"]
            told = judge(old["samples_seconds"], new["samples_seconds"], threshold)
            is_claim = told in ("worse", "better")
            yield {
                "context_tokens": context,
                "batch": batch,
                "what": what,
                "first_seconds": old["median_seconds"],
                "second_seconds": new["median_seconds"],
                "ratio": ratio,
                "verdict": "undecided" if is_claim and is_unsure(first, second, what, ratio) else told,
            }


def _held_pairs(first: ProfileDocument, second: ProfileDocument) -> Iterator[HeldPairDocument]:
    """A pair a name at every point that both measured; where one holds what the other lacks, one pair of the totals."""
    for (context, batch), (old, new) in _shared(first, second).items():
        each = [(name, count, new.get(name, 0)) for name, count in old.items()]
        totals = [(_TOTAL, sum(old.values()), sum(new.values()))]
        for name, before, after in each if old.keys() == new.keys() else totals:
            yield {
                "context_tokens": context,
                "batch": batch,
                "name": name,
                "first_bytes": before,
                "second_bytes": after,
                "verdict": "same" if after == before else "worse" if after > before else "better",
            }


_TOTAL = "total"


def _shared(first: ProfileDocument, second: ProfileDocument) -> dict[tuple[int, int], tuple[_Bytes, _Bytes]]:
    """Bytes by name in both runs, of every point at which both measured some."""
    old, new = _by_point(first), _by_point(second)
    return {place: (old[place], new[place]) for place in old if place in new}


def _by_point(run: ProfileDocument) -> dict[tuple[int, int], _Bytes]:
    found: dict[tuple[int, int], _Bytes] = {}
    for (context, batch, name), count in _held(run["points"]):
        found.setdefault((context, batch), {})[name] = count
    return found


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


def _report(document: RunsDocument, memory_line: str) -> Report:
    times, held = _times_table(document), _memory_table(document)
    return Report(
        document=cast("Mapping[str, Any]", document),
        title=(f"{document['first']} -> {document['second']}", document["verdict"]),
        lines=tuple(_lines(document, memory_line)),
        tables=(times, held),
        shown_tables=(*_by_name(times), *_changed(held)),
        notes=tuple(document["notes"]),
        exit_code=1 if document["verdict"] == "worse" else 0,
    )


def _lines(document: RunsDocument, memory_line: str) -> Iterator[str]:
    if pairs := document["pairs"]:
        counts = Counter(pair["verdict"] for pair in pairs)
        told = ", ".join(f"{counts[word]} {word}" for word in (*_ORDER, "undecided") if counts[word])
        allowed = f"{100 * document['threshold']:.4g}%"
        yield f"{len(pairs)} timing{_plural(len(pairs))}: {told}; medians may differ by {allowed}"
    yield memory_line
    yield from document["differences"]


def _memory_line(first: ProfileDocument, second: ProfileDocument, held: Sequence[HeldPairDocument]) -> str:
    """What became of the bytes; `the same bytes` only where every component of both was compared and is equal."""
    if not held:
        return "memory not measured"
    shared = _shared(first, second)
    old, new = (_component_names(run, shared) for run in (first, second))
    if old and new and not old & new:
        *_, (before, after) = shared.values()
        sizes = [sum(count for name, count in part.items() if name in old | new) for part in (before, after)]
        told = [memory(size, memory_unit(max(sizes))) for size in sizes]
        return f"memory: no component in common: {told[0]} against {told[1]}"
    counts = Counter(pair["verdict"] for pair in held)
    if len(held) == counts["same"] and _by_point(first) == _by_point(second):
        return "memory: the same bytes"
    return f"memory: {counts['worse']} more, {counts['better']} less, {counts['same']} the same"


def _component_names(run: ProfileDocument, places: Container[tuple[int, int]]) -> set[str]:
    points = (point for point in run["points"] if (point["context_tokens"], point["batch"]) in places)
    return {one["name"] for point in points for one in point["components"]}


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
