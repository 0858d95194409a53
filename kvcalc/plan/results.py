"""What a saved document answers, whoever wrote it: figures that can be held against those of another one.

One row of the table at the foot for every schema that can be compared; figures are found by their path in the document.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvcalc.errors import KvcalcError, UnknownNameError, shorten
from kvcalc.model.files import read_json
from kvcalc.plan.baseline import LARGEST_NUMBER
from kvcalc.plan.documents import Basis, Better, FigureDocument

MOST_BYTES = 256 * 2**20
"""Far past the answer of a sweep that fits a screen."""
_AGAIN = "save one with -o result.json: size, fit, throughput, compare, check, sweep"
Document = Mapping[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """One thing that was asked about: its figures by name, what some of them are the sum of, and the question."""

    name: str
    figures: dict[str, FigureDocument]
    parts: dict[str, dict[str, float]] = {}
    asked: dict[str, Any] = {}


Number = Annotated[float, msgspec.Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]


class _WholeFigure(msgspec.Struct, frozen=True):
    """A figure, one of a recorded run among them, of numbers that can be compared."""

    value: Number
    low: Number
    high: Number
    unit: str
    basis: Basis | Literal["measured"]
    better: Better


class _Whole(msgspec.Struct, frozen=True):
    """What a subject is where its document was not damaged."""

    name: str
    figures: dict[str, _WholeFigure]
    parts: dict[str, dict[str, Number]]
    asked: dict[str, Any]


class Figure(msgspec.Struct, frozen=True):
    """Where a figure of a document stands, and those of its bounds where it has some."""

    path: str
    unit: str = "bytes"
    better: Better = "lower"
    low: str = ""
    high: str = ""
    basis: str = "exact"


def read_result(path: Path) -> Document:
    """The document of a saved answer; KvcalcError where the file is none."""
    document = read_json(path, MOST_BYTES, "saved answer", _AGAIN, "compare fewer points at once")
    if "schema" not in document:
        raise KvcalcError(f"{shorten(str(path), 200)} is no answer of kvcalc: it names no schema", _AGAIN)
    return document


def answers_of(document: Document, name: str) -> list[Answer]:
    """The answers in a document; KvcalcError for a schema without comparable figures, and for a damaged document."""
    schema = str(document["schema"])
    read = _READERS.get(schema)
    if read is None:
        raise UnknownNameError(f"schema in {name}:", schema, _READERS, f"compared are {', '.join(_READERS)}")
    try:
        found = list(read(document))
        msgspec.convert(msgspec.to_builtins(found), list[_Whole])
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
        raise KvcalcError(f"{name} is damaged: it is no whole {schema}", "save it again with -o") from error
    if not found:
        raise KvcalcError(f"{name} holds no figures", _AGAIN)
    return found


def _figures(document: Document, wanted: Mapping[str, Figure]) -> dict[str, FigureDocument]:
    """Those of `wanted` that the document has."""
    found = {}
    for name, figure in wanted.items():
        value = _at(document, figure.path)
        if value is not None:
            low, high = (_at(document, path) if path else value for path in (figure.low, figure.high))
            basis: Any = _at(document, "basis") if figure.basis == "basis" else figure.basis
            found[name] = FigureDocument(
                value=value,
                low=value if low is None else low,
                high=value if high is None else high,
                unit=figure.unit,
                basis=basis,
                better=figure.better,
            )
    return found


def _at(document: Any, path: str) -> Any:
    """What stands at a path like `decode.step_seconds`, None where a part of it is absent or null."""
    for key in path.split("."):
        document = None if document is None else document.get(key)
    return document


def _asked(document: Document) -> dict[str, Any]:
    return {"model": document["model"]["name"], **document["request"]}


_SIZE = {
    name: Figure(f"kv_cache.{name}")
    for name in (
        "bytes_per_token",
        "fixed_bytes_per_sequence",
        "bytes_per_sequence",
        "total_bytes",
        "bytes_per_rank",
        "read_bytes_per_step",
    )
} | {"allocated_bytes": Figure("engine.allocated_bytes", basis="engine rule"), "weights_bytes": Figure("weights.bytes")}
_FIT = {
    "need_bytes": Figure("need_bytes"),
    "allocated_bytes": Figure("allocated_bytes", basis="basis"),
    "pool_bytes": Figure("pool_bytes", "bytes", "higher", "pool_low_bytes", "pool_high_bytes", "basis"),
    "max_context_tokens": Figure("max_context_tokens", "tokens", "higher", basis="basis"),
    "max_batch": Figure("max_batch", "count", "higher", basis="basis"),
    "min_gpus": Figure("min_gpus", "count", basis="basis"),
}


def _between(path: str, bounds: str) -> Figure:
    """A time at `path`, between those that begin with `bounds`; how wide they are, published measurements say."""
    return Figure(path, "seconds", "lower", f"{bounds}lower_seconds", f"{bounds}upper_seconds", "assumed")


_SPEED = {
    "prefill_seconds": _between("prefill.seconds", "prefill."),
    "step_seconds": _between("decode.step_seconds", "decode."),
    "tokens_per_second": Figure("decode.tokens_per_second_total", "tokens/s", "higher", basis="assumed"),
    "tpot_seconds": _between("served.tpot_seconds", "served.tpot_"),
    "ttft_seconds": _between("served.ttft_seconds", "served.ttft_"),
    "served_tokens_per_second": Figure("served.tokens_per_second_total", "tokens/s", "higher", basis="assumed"),
}
_POINT = {
    "total_bytes": Figure("total_bytes"),
    "bytes_per_rank": Figure("bytes_per_rank"),
    "read_bytes_per_step": Figure("read_bytes_per_step"),
    "prefill_seconds": Figure("prefill_seconds", "seconds", basis="assumed"),
    "step_seconds": Figure("step_seconds", "seconds", basis="assumed"),
    "tpot_seconds": Figure("tpot_seconds", "seconds", basis="assumed"),
    "ttft_seconds": Figure("ttft_seconds", "seconds", basis="assumed"),
    "tokens_per_second": Figure("tokens_per_second", "tokens/s", "higher", basis="assumed"),
}
_MEASURED = {
    "prefill_seconds": Figure(
        "prefill.median_seconds", "seconds", "lower", "prefill.p10_seconds", "prefill.p90_seconds", "measured"
    ),
    "step_seconds": Figure(
        "decode.median_seconds", "seconds", "lower", "decode.p10_seconds", "decode.p90_seconds", "measured"
    ),
}


def _size(document: Document) -> Iterator[Answer]:
    cache, asked = document["kv_cache"], _asked(document)
    sequence = {row["name"]: row["bytes_per_sequence"] for row in cache["components"]}
    read = {row["name"]: row["read_bytes_per_step"] for row in cache["components"]}
    grows = {row["name"]: row["bytes_per_token"] for row in cache["components"]}
    batch = msgspec.convert(asked["batch"], int)
    parts = {
        "bytes_per_token": grows,
        "total_bytes": {name: count * batch for name, count in sequence.items()},
        "read_bytes_per_step": {name: count * batch for name, count in read.items()},
    }
    yield Answer(asked["model"], _figures(document, _SIZE), parts, asked)


def _cases(document: Document) -> Iterator[Answer]:
    for case in document["cases"]:
        for answer in _size(case):
            formats = answer.asked["kv_dtype"]
            engine = f" in {case['engine']['name']} {case['engine']['version']}" if case["engine"] else ""
            yield msgspec.structs.replace(answer, name=f"{answer.name} {formats}{engine}")


def _fit(document: Document) -> Iterator[Answer]:
    asked, card = _asked(document), document["gpu"] or {}
    figures = _figures(document, _FIT)
    parts = {"pool_bytes": _parts_of_pool(document, figures["pool_bytes"]["value"])} if card else {}
    yield Answer(asked["model"], figures, parts, {**asked, "gpu": card.get("name")})


def _parts_of_pool(document: Document, pool_bytes: float) -> dict[str, float]:
    """The cards of one rank, less what lies beside the cache, less what the engine leaves free or counts elsewhere."""
    card, asked = document["gpu"], document["request"]
    cards = max(1, card["count"] // (asked["tp"] * asked["pp"] * asked["dp"]))
    parts = {"card": cards * card["total_bytes"]}
    parts |= {term["name"]: -term["expected_bytes"] for term in document["terms"]}
    return {**parts, "left by the engine": pool_bytes - sum(parts.values())}


def _throughput(document: Document) -> Iterator[Answer]:
    def seconds(terms: Any) -> dict[str, float]:
        return {term["name"]: term["seconds"] for term in terms}

    parts = {"step_seconds": seconds(document["terms"]), "prefill_seconds": seconds(document["prefill"]["terms"])}
    if document["served"]:
        parts["tpot_seconds"] = seconds(document["served"]["terms"])
    asked = _asked(document)
    yield Answer(asked["model"], _figures(document, _SPEED), parts, asked)


def _check(document: Document) -> Iterator[Answer]:
    for case in document["cases"]:
        asked = {"model": case["model"], "engine": case["engine"], "gpu": case["gpu"], **case["settings"]}
        yield Answer(case["name"], dict(case["figures"]), {}, asked)


def _sweep(document: Document) -> Iterator[Answer]:
    for point in document["points"]:
        who = {key: point[key] for key in _WHO if point.get(key) is not None}
        name = " ".join(f"{key}={value}" if key != "model" else str(value) for key, value in who.items())
        yield Answer(name, _figures(point, _POINT), {}, {})


def _profile(document: Document) -> Iterator[Answer]:
    for point in document["points"]:
        held = {part["name"]: part["measured_bytes"] for part in point["components"]}
        figures = _figures(
            {"total_bytes": sum(held.values())}, {"total_bytes": Figure("total_bytes", basis="measured")}
        )
        name = f"{document['model']['name']} context {point['context_tokens']} batch {point['batch']}"
        asked = {"model": document["model"]["name"], "context_tokens": point["context_tokens"], "batch": point["batch"]}
        yield Answer(name, figures | _figures(point, _MEASURED), {"total_bytes": held}, asked)


_WHO = ("model", "weights", "kv_dtype", "gpu", "engine", "tp", "isl", "osl", "context_tokens", "batch")
_READERS: dict[str, Callable[[Document], Iterator[Answer]]] = {
    "kvcalc.size/1": _size,
    "kvcalc.compare/1": _cases,
    "kvcalc.fit/1": _fit,
    "kvcalc.throughput/1": _throughput,
    "kvcalc.check/1": _check,
    "kvcalc.sweep/1": _sweep,
    "kvcalc.profile/1": _profile,
}
