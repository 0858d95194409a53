"""Pages of what a workload needs: a size, a comparison, and what fits on a card."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcalc.documents import CaseDocument, CompareDocument, RequestDocument, SizeDocument
from kvcalc.engines.charts import OnCard, card_chart
from kvcalc.engines.documents import FitDocument
from kvcalc.errors import KvcalcError
from kvcalc.render.html import Page, Section
from kvcalc.report import Column, Table
from kvcalc.sizing.charts import breakdown_chart, context_chart
from kvcalc.sizing.report import kv_formats
from kvcalc.units import counted, memory

if TYPE_CHECKING:
    from kvcalc.documents import ModelDocument
    from kvcalc.sizing.need import CacheSize


def size_page(document: SizeDocument) -> Page:
    """What one workload needs, by component, and how it grows."""
    name, cache = document["model"]["name"], document["kv_cache"]
    known = resized(document)
    charts = [breakdown_chart([(name, document)]), *([context_chart([(name, known)])] if known else [])]
    return Page(
        title=name,
        facts=facts_of(document["request"], _formats(document)),
        answer=f"KV cache {memory(cache['total_bytes'])}, {memory(cache['bytes_per_sequence'])} a sequence",
        key_figures=_size_figures(document),
        sections=(
            Section("Charts", charts=charts),
            Section("What if", panel=_panel(name, known) if known else ""),
            Section("Components of one sequence", tables=[_components(document)]),
            *_engine_sections(document),
        ),
        notes=[*document["notes"], *([] if known else [_not_here(name)])],
    )


def facts_of(asked: RequestDocument, formats: str = "") -> list[str]:
    """What was asked, in short; `formats` are those that it came to."""
    ranks = {"tp": asked["tp"], "pp": asked["pp"], "dp": asked["dp"], "ep": asked["ep"], "dcp": asked["dcp"]}
    return [
        f"context {asked['context_tokens']:,}",
        f"batch {asked['batch']:,}",
        f"KV {formats or asked['kv_dtype']}",
        *(f"{name} {size:,}" for name, size in ranks.items() if size > 1),
        *([asked["engine"]] if asked["engine"] else []),
        *asked["set"],
    ]


def _formats(document: SizeDocument) -> str:
    parts = document["kv_cache"]["components"]
    return ", ".join(dict.fromkeys(part["format"] for part in parts if part["entries_per_sequence"]))


def _panel(name: str, size: "CacheSize") -> str:
    """Sliders that size the same model in the page."""
    from kvcalc.render.whatif import panel
    from kvcalc.sizing.whatif import whatif_case, whatif_data

    return panel(whatif_data([whatif_case(name, size.spec, size.workload, size.sharding)]))


def _size_figures(document: SizeDocument) -> Table:
    cache, weights = document["kv_cache"], document["weights"]
    cells = {
        Column("total_bytes", "KV cache of the batch", "bytes"): cache["total_bytes"],
        Column("bytes_per_token", "one more token", "exact bytes"): cache["bytes_per_token"],
        Column("fixed", "fixed a sequence", "bytes"): cache["fixed_bytes_per_sequence"],
        Column("read", "read a decode step", "bytes"): cache["read_bytes_per_step"],
        Column("bytes_per_rank", "on the fullest rank", "bytes"): cache["bytes_per_rank"],
        Column("weights", f"weights, {weights['format']}", "bytes"): weights["bytes"],
    }
    return Table(tuple(cells), [tuple(cells.values())])


def _components(document: SizeDocument) -> Table:
    columns = (
        Column("name", "component"),
        Column("kind", "kind"),
        Column("geometry", "geometry"),
        Column("layers", "layers", "count"),
        Column("format", "format"),
        Column("entries_per_sequence", "entries", "count"),
        Column("bytes_per_entry", "an entry", "exact bytes"),
        Column("bytes_per_token", "a token", "exact bytes"),
        Column("bytes_per_sequence", "a sequence", "bytes"),
        Column("read_bytes_per_step", "read a step", "bytes"),
    )
    rows = [tuple(part[column.key] for column in columns) for part in document["kv_cache"]["components"]]  # type: ignore[literal-required]
    return Table(columns, rows, "Components of one sequence")


def _engine_sections(document: SizeDocument) -> list[Section]:
    engine = document["engine"]
    if engine is None:
        return []
    total, need = engine["allocated_bytes"], document["kv_cache"]["bytes_per_rank"]
    says = f"{memory(total)} on the fullest rank, where the need is {memory(need)}"
    columns = (Column("name", "cache"), Column("layers", "layers", "count"), Column("cells", "cells", "count"),
               Column("streams", "streams", "count"), Column("bytes", "bytes", "bytes"))  # fmt: skip
    rows = [tuple(part[column.key] for column in columns) for part in engine["parts"]]  # type: ignore[literal-required]
    title = f"As {engine['name']} {engine['version']} allocates it"
    return [Section(title, lines=[says, *engine["rules"]], tables=[Table(columns, rows, title)])]


def compare_page(document: CompareDocument) -> Page:
    """Cases beside each other, each against the first."""
    cases = _labelled(document["cases"])
    known = [(label, size) for label, case in cases if (size := resized(case))]
    missing = [_not_here(label) for label, case in cases if label not in dict(known)]
    charts = [breakdown_chart(cases), *([context_chart(known)] if known else [])]
    lines = [
        f"{one['other']}: {rule}"
        for one in document["differences"]
        for rule in (*one["only_first"], *one["only_other"])
    ]
    first = cases[0][0] if cases else ""
    return Page(
        title=f"{counted(len(cases), 'case')} compared",
        facts=facts_of(cases[0][1]["request"])[:2] if cases else [],
        answer=f"ratios are to the first case, {first}",
        sections=(
            Section("Figures", tables=[_ratios(cases)]),
            Section("Charts", charts=charts if cases else []),
            Section("Rules of only one", lines=lines),
        ),
        notes=missing,
    )


def _labelled(cases: Sequence[CaseDocument]) -> list[tuple[str, CaseDocument]]:
    """Each case under its model, and under what else tells it from the others of that model."""
    names = [case["model"]["name"] for case in cases]
    labels: list[str] = []
    for case in cases:
        name, asked = case["model"]["name"], case["request"]
        more = [f"KV {asked['kv_dtype']}", *([asked["engine"]] if asked["engine"] else []), *asked["set"]]
        label = ", ".join([name, *(more if names.count(name) > 1 else [])])
        labels.append(label if label not in labels else f"{label} ({len(labels) + 1})")
    return list(zip(labels, cases, strict=True))


def _ratios(cases: Sequence[tuple[str, CaseDocument]]) -> Table:
    columns = (
        Column("case", "case"),
        Column("bytes_per_token", "a token", "exact bytes"),
        Column("bytes_per_sequence", "a sequence", "bytes"),
        Column("total_bytes", "batch", "bytes"),
        Column("stored_ratio", "vs first", "ratio"),
        Column("read_bytes_per_step", "read a step", "bytes"),
        Column("read_ratio", "vs first", "ratio"),
        Column("allocated_bytes", "an engine takes", "bytes"),
        Column("weight_bytes", "weights", "bytes"),
    )
    rows = [
        (
            label,
            (kept := case["kv_cache"])["bytes_per_token"],
            kept["bytes_per_sequence"],
            kept["total_bytes"],
            case["ratios"]["total_bytes"],
            kept["read_bytes_per_step"],
            case["ratios"]["read_bytes_per_step"],
            case["engine"]["allocated_bytes"] if case["engine"] else None,
            case["weights"]["bytes"],
        )
        for label, case in cases
    ]
    return Table(columns, rows, "Figures").filled()


def fit_page(document: FitDocument) -> Page:
    """What lies on a card, what its pool carries, and what would fit where it does not."""
    name, asked, gpu = document["model"]["name"], document["request"], document["gpu"]
    card = f"{gpu['count']:,} x {gpu['name'] or memory(gpu['total_bytes'])}" if gpu else "a pool of a given size"
    known = sized(document["model"], asked)
    growth = [context_chart([(name, known)])] if known and known.bytes_per_rank == document["need_bytes"] else []
    load = f"{counted(asked['batch'], 'sequence')} of {counted(asked['context_tokens'], 'token')}"
    doubt = "" if document["certain"] else "; not certain: the other way at the other end of what is assumed"
    return Page(
        title=name,
        facts=[card, *facts_of(asked, kv_formats(known) if known else "")],
        answer=f"{'It fits' if document['fits'] else 'It does not fit'}: {load}{doubt}",
        is_good=document["fits"],
        key_figures=fit_figures(document),
        lines=[*document["rules"]],
        sections=(
            Section("Charts", charts=[card_chart([(name, OnCard.of_document(document))]), *growth]),
            Section("What would fit", tables=[changes_table(document)]),
            Section("What lies beside the cache", tables=[terms_table(document)]),
        ),
        notes=[*document["notes"], *([] if growth else [_not_here(name)])],
    )


def fit_figures(document: FitDocument) -> Table:
    """One row of what a reader asks of a card."""
    cells = {
        Column("pool_bytes", "pool of a rank", "bytes"): document["pool_bytes"],
        Column("need_bytes", "the batch needs", "bytes"): document["need_bytes"],
        Column("allocated_bytes", "the batch takes", "bytes"): document["allocated_bytes"],
        Column("max_context", "longest context", "tokens"): document["max_context_tokens"],
        Column("max_batch", "most sequences", "count"): document["max_batch"],
        Column("min_gpus", "fewest GPUs", "count"): document["min_gpus"],
    }
    return Table(tuple(cells), [tuple(cells.values())])


def changes_table(document: FitDocument) -> Table:
    """Every single change after which it fits."""
    columns = (
        Column("what", "change"),
        Column("asked", "asked"),
        Column("becomes", "would fit"),
        Column("flag", "flag"),
    )
    rows = [(one["what"], str(one["asked"]), str(one["becomes"]), one["flag"]) for one in document["changes"]]
    return Table(columns, rows, "What would fit")


def terms_table(document: FitDocument) -> Table:
    """What is no cache, between bounds, and on what each figure rests."""
    columns = (
        Column("name", "term"),
        Column("low_bytes", "at least", "bytes"),
        Column("expected_bytes", "expected", "bytes"),
        Column("high_bytes", "at most", "bytes"),
        Column("basis", "basis"),
        Column("why", "why"),
    )
    rows = [tuple(term[column.key] for column in columns) for term in document["terms"]]  # type: ignore[literal-required]
    return Table(columns, rows, "What lies beside the cache")


def resized(document: SizeDocument) -> "CacheSize | None":
    """The size computed again, None where the model is not at hand or gives other figures than were saved."""
    size, saved = sized(document["model"], document["request"]), document["kv_cache"]
    if size is None or size.total_bytes != saved["total_bytes"]:
        return None
    return size if size.bytes_per_token == saved["bytes_per_token"] else None


def sized(model: "ModelDocument", asked: RequestDocument) -> "CacheSize | None":
    """A model of the catalogue under a saved request, None where it is not there or refuses."""
    from kvcalc.cache.sharding import Sharding
    from kvcalc.model.catalog import load
    from kvcalc.sizing.need import Workload, size_workload

    try:
        workload = Workload(
            context_tokens=asked["context_tokens"],
            batch=asked["batch"],
            kv_dtype=asked["kv_dtype"],
            dtype=asked["dtype"],
            state_dtype=asked["state_dtype"],
            encoder_tokens=asked["encoder_tokens"],
            draft_layers=asked["draft_layers"],
        )
        ranks = Sharding(tp=asked["tp"], pp=asked["pp"], dp=asked["dp"], ep=asked["ep"], dcp=asked["dcp"])
        return size_workload(load(model["name"], asked["set"]), workload, ranks)
    except KvcalcError:
        return None


def _not_here(name: str) -> str:
    return f"no bytes against context of {name}: the catalogue has no such model, or now gives other figures"
