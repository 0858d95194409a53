"""Files of measured points: CSVs by the columns of `measured`, each row checked, and known by its file and line."""

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvcalc.errors import KvcalcError, nearest, shorten
from kvcalc.hardware.gpus import find_gpu
from kvcalc.model.files import read_bounded
from kvcalc.speed.calibration import Point
from kvcalc.speed.kernels import Setting
from kvcalc.speed.machine import engine_name
from kvcalc.speed.measured import Measurement, measurement_of, point_of, setting_of

MOST_BYTES = 64 * 2**20
"""Far past all that was ever published."""
COLUMNS = tuple(field.name for field in msgspec.structs.fields(Measurement))
REQUIRED = tuple(field.name for field in msgspec.structs.fields(Measurement) if field.required)
PASSED_OVER = frozenset({"id", "kv_precision_assumed", "engine_version", "repeats", "source"})
"""Columns that people keep beside them, and that are no misspelling of others."""


class Built(NamedTuple):
    """A measurement as a point, and the setting that it was priced in."""

    point: Point
    setting: Setting


class Found(NamedTuple):
    """A measurement, `where` it stands as people look it up, and how it becomes a point."""

    where: str
    row: Measurement
    build: Callable[[], Built]


@contextmanager
def standing_at(where: str) -> Iterator[None]:
    """Any KvcalcError of the block says `where` in its message."""
    try:
        yield
    except KvcalcError as error:
        raise KvcalcError(f"{where}: {error.message}", error.hint) from error


def read_points(path: Path) -> list[Found]:
    """Every row of the CSV at `path`, gzipped or not; KvcalcError with its line for one that is no measurement."""
    settings: dict[Measurement, Setting] = {}
    found = [_found(f"{path}:{line}", row, settings) for line, row in _rows(path)]
    if not found:
        raise KvcalcError(f"{shorten(str(path))} has no row", f"a row has {', '.join(REQUIRED)}")
    return found


def _found(where: str, row: Mapping[str, str], settings: dict[Measurement, Setting]) -> Found:
    with standing_at(where):
        read = measurement_of({name: value for name, value in row.items() if value})
    read = msgspec.structs.replace(read, gpu=_spelled(_gpu_name, read.gpu), engine=_spelled(engine_name, read.engine))

    def build() -> Built:
        used = msgspec.structs.replace(
            read, batch=1, isl=1, osl=1, context_mid=None, metric="", value=1.0, date=None, device=None, driver=None
        )
        with standing_at(where):
            if used not in settings:
                settings[used] = setting_of(read)
            return Built(point_of(read, settings[used]), settings[used])

    return Found(where, read, build)


def _spelled(find: Callable[[str], str], text: str) -> str:
    """The proper name, or the text as it is: what is not known matters only where it is not passed over."""
    try:
        return find(text)
    except KvcalcError:
        return text


@cache
def _gpu_name(text: str) -> str:
    return find_gpu(text).name


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows with the lines that they end on."""
    import csv

    lines = _text(path).splitlines(keepends=True)
    reader = csv.reader(lines, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        with standing_at(str(path)):
            _check_columns(header)
        for cells in reader:
            if len(cells) > len(header):
                message = f"{path}:{reader.line_num}: {len(cells)} cells under {len(header)} columns"
                raise KvcalcError(message, "quote cells that hold a comma")
            if any(map(str.strip, cells)):
                yield reader.line_num, dict(zip(header, map(str.strip, cells), strict=False))
    except csv.Error as error:
        raise KvcalcError(f"{path}:{reader.line_num}: {error}", "save it as plain CSV") from error


def _text(path: Path) -> str:
    raw = read_bounded(path, MOST_BYTES, "CSV of points", "name a CSV file", "calibrate on fewer points")
    try:
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise KvcalcError(f"{shorten(str(path))} is no text: {error}", "points are CSV, runs are JSON") from error


def _check_columns(header: Sequence[str]) -> None:
    """KvcalcError for a column that is missing, stands twice, or is almost one of those that are known."""
    missing = [name for name in REQUIRED if name not in header]
    strange = [name for name in header if name not in COLUMNS and name not in PASSED_OVER]
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise KvcalcError("its columns are not separated by commas", "save it with commas")
    if missing:
        near = {name: nearest(name, strange, 1) for name in missing}
        offers = [f"is {found[0]} meant as {name}?" for name, found in near.items() if found]
        raise KvcalcError(f"no column {', '.join(missing)}", " ".join([*offers, f"needed: {', '.join(REQUIRED)}"]))
    for name in header:
        if header.count(name) > 1:
            raise KvcalcError(f"column {shorten(name)} stands twice", "keep one of them")
    for name in strange:
        near_absent = nearest(name, [known for known in COLUMNS if known not in header], 1)
        if near_absent:
            message = f"column {shorten(name)} is not known, and {near_absent[0]} is absent"
            raise KvcalcError(message, f"rename it to {near_absent[0]}, or leave it out")


def of_one_machine(found: Sequence[Found], gpu: str | None, engine: str | None) -> list[Found]:
    """Those of one GPU and engine, the chosen ones where they are; KvcalcError where there are several or none."""
    kept = _only(found, "gpu", None if gpu is None else _gpu_name(gpu))
    kept = _only(kept, "engine", None if engine is None else engine_name(engine))
    with standing_at(kept[0].where):
        find_gpu(kept[0].row.gpu), engine_name(kept[0].row.engine)
    return kept


def _only(found: Sequence[Found], what: str, chosen: str | None) -> list[Found]:
    counts: dict[str, int] = {}
    for one in found:
        value = getattr(one.row, what)
        counts[value] = counts.get(value, 0) + 1
    listed = ", ".join(f"{value} ({count})" for value, count in counts.items())
    if chosen is None and len(counts) > 1:
        first = max(counts, key=lambda value: counts[value])
        raise KvcalcError(f"points of {len(counts)} {what}s: {listed}", f"--{what} {first} takes those alone")
    if chosen is not None and chosen not in counts:
        raise KvcalcError(f"no point of --{what} {chosen}: they are of {listed}", f"--{what} {next(iter(counts))}")
    return [one for one in found if chosen is None or getattr(one.row, what) == chosen]
