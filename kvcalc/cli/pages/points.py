"""Points of a sweep that were written as CSV, JSON lines or Parquet."""

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.cli.pages.sweep import points_page
from kvcalc.errors import KvcalcError, shorten
from kvcalc.model.files import read_bounded
from kvcalc.render.html import Page
from kvcalc.speed.sweep.cells import LOAD, MEMORY, SPEED, WHO
from kvcalc.speed.sweep.stream import FLAGS

_MOST_BYTES = 64 * 2**20
_NEEDED = {"model", "kv_dtype", "context_tokens", "batch", "bytes_per_sequence"}
_HINT = "kvcalc sweep ... -o sweep.csv writes one"
Point = Mapping[str, Any]


def points_file_page(path: Path) -> Page:
    """The page of the points; KvcalcError where the file has none that a sweep would write."""
    raw = read_bounded(path, _MOST_BYTES, "sweep", _HINT, "sweep with larger steps")
    name = shorten(str(path), 200)
    try:
        points = list(_READERS[path.suffix.lower()](raw))
    except (ValueError, msgspec.MsgspecError, OSError) as error:
        raise KvcalcError(f"{name} is no sweep: {shorten(str(error), 120)}", _HINT) from error
    if not points or not all(point.keys() >= _NEEDED for point in points):
        raise KvcalcError(f"{name} is no sweep: it has no points with {', '.join(sorted(_NEEDED))}", _HINT)
    return points_page(points, title=f"Sweep {path.name}", facts=list(dict.fromkeys(one["model"] for one in points)))


def _csv(raw: bytes) -> Iterable[Point]:
    import csv

    rows = csv.DictReader(io.StringIO(raw.decode()))
    return ({key: _value(key, text) for key, text in row.items() if key} for row in rows)


def _value(key: str, text: str | None) -> Any:
    """A cell as the column's unit has it; an empty one is a figure that does not apply."""
    if not text:
        return None
    return text == "True" if key in FLAGS else _KINDS.get(key, str)(text)


_UNITS = {"text": str, "count": int, "tokens": int, "bytes": int}
_KINDS: dict[str, Callable[[str], Any]] = {
    one.key: _UNITS.get(one.unit, float) for one in (*WHO, *LOAD, *MEMORY, *SPEED)
}


def _lines(raw: bytes) -> Iterable[Point]:
    return msgspec.json.Decoder(dict[str, Any]).decode_lines(raw)


def _parquet(raw: bytes) -> Iterable[Point]:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise KvcalcError("Parquet needs pyarrow", "pip install 'kvcalc[report]', or write .csv")
    from pyarrow.parquet import read_table

    rows: list[Point] = read_table(io.BytesIO(raw)).to_pylist()
    return rows


_READERS: dict[str, Callable[[bytes], Iterable[Point]]] = {".csv": _csv, ".jsonl": _lines, ".parquet": _parquet}
