"""Frames of points to CSV, JSON lines and Parquet, written as they are made."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvcalc.errors import KvcalcError
from kvcalc.report import Column

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def write_csv(frames: "Iterable[DataFrame]", out: IO[str]) -> None:
    """One line a point under one line of names; an empty cell is a figure that does not apply."""
    for place, frame in enumerate(frames):
        frame.to_csv(out, index=False, header=not place, lineterminator="\n")


def write_lines(frames: "Iterable[DataFrame]", out: IO[str]) -> None:
    """One JSON object a point and line."""
    import msgspec

    encoder = msgspec.json.Encoder()
    for frame in frames:
        out.write(encoder.encode_lines(records(frame)).decode())


def write_parquet(frames: "Iterable[DataFrame]", columns: Sequence[Column], path: Path) -> None:
    """One table, a row group a frame; KvcalcError where pyarrow is missing."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise KvcalcError("Parquet needs pyarrow", "pip install 'kvcalc[report]', or write .csv")
    from pyarrow import Table
    from pyarrow.parquet import ParquetWriter

    schema = _schema(columns)
    with ParquetWriter(path, schema) as writer:
        for frame in frames:
            writer.write_table(Table.from_pandas(frame, schema=schema, preserve_index=False))


def records(frame: "DataFrame") -> Iterator[dict[str, Any]]:
    """Each row as names and plain values, None for a figure that does not apply."""
    names = list(frame.columns)
    columns = [_plain(frame[name]) for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _plain(column: "Series[Any]") -> list[Any]:
    missing = column.isna()
    values: list[Any] = column.tolist()
    return [None if gone else value for gone, value in zip(missing, values, strict=True)] if missing.any() else values


FLAGS = {"fits", "pareto", "best"}
"""Columns that say yes or no."""


def _schema(columns: Sequence[Column]) -> Any:
    import pyarrow

    kinds = {"text": pyarrow.string(), "count": pyarrow.int64(), "tokens": pyarrow.int64(), "bytes": pyarrow.int64()}
    named = ((one.key, pyarrow.bool_() if one.key in FLAGS else kinds.get(one.unit)) for one in columns)
    return pyarrow.schema([(key, kind or pyarrow.float64()) for key, kind in named])
