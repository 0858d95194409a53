"""Rows of a CSV in chunks, by pandas; every cell that is no request is named with its line."""

import re
import warnings
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NoReturn

import msgspec

from kvcalc.errors import KvcalcError, printable, shorten
from kvcalc.workload.rows import MOST_TOKENS, Fault, Flags, Rows, first_fault
from kvcalc.workload.source import Source
from kvcalc.workload.trace import Seconds

if TYPE_CHECKING:
    import pandas as pd

    Cells = pd.Series[Any]
else:
    Cells = Any

_SURPLUS = "fields past the names"
_NO_COMMA = "commas part the fields, so that a number has none"


def column_names(source: Source) -> list[str]:
    """The names in a CSV's first line, without spaces around them."""
    return _fields(source, 1, source.head)


def _fields(source: Source, number: int, text: str) -> list[str]:
    import csv

    try:
        return [field.strip() for field in next(csv.reader([text]), [])]
    except csv.Error as error:
        said = shorten(str(error).partition(" - ")[0], 120)
        source.fail(
            number, f"no line of CSV: {said}: {shorten(printable(text))}", "lines end with LF, fields are short"
        )


class Clock:
    """What a column of times means."""

    hint = ""
    dtype: str | None = None

    def read(self, cells: Cells) -> tuple[Seconds, Flags]:
        """Seconds from a fixed moment, NaN where a cell is no time; and which cannot be compared with those before."""
        raise NotImplementedError


class Numbers(Clock):
    """Seconds as plain numbers."""

    hint = "seconds as a number, such as 12.5"

    def read(self, cells: Cells) -> tuple[Seconds, Flags]:
        """Seconds as they stand."""
        import numpy as np

        return _numbers(cells), np.zeros(len(cells), dtype=bool)


class Instants(Clock):
    """Moments in ISO 8601, all with an offset from UTC or all without one."""

    hint = "a time such as 2023-11-16 18:15:46.68 or 2024-05-10 00:00:00+00:00"
    dtype = "str"

    def __init__(self) -> None:
        self._origin: Any = None
        self._zoned: bool | None = None

    def read(self, cells: Cells) -> tuple[Seconds, Flags]:
        """Seconds since the first moment of the file; those with an offset among those without, or the reverse."""
        import numpy as np

        moments, zoned = _moments(cells)
        if self._origin is None:
            self._origin = moments.dropna().min()
        if self._zoned is None and len(zoned):
            self._zoned = bool(zoned[0])
        seconds = np.asarray((moments - self._origin).dt.total_seconds(), dtype=np.float64)
        return seconds, np.asarray(zoned != bool(self._zoned), dtype=bool)


def _moments(cells: Cells) -> tuple[Cells, Flags]:
    """Moments, those without an offset as if in UTC, and which have one."""
    import numpy as np
    import pandas as pd

    # pandas takes these two for the moment of reading.
    cells = cells.mask(cells.isin(["now", "today"]))
    try:
        moments = pd.to_datetime(cells, format="ISO8601", errors="coerce")
    except ValueError:
        # Offsets differ, or some have none. Looked for behind a time of day: a date alone ends like an offset.
        zoned = cells.str.contains(r":.*(?:Z|[+-]\d\d:?(?:\d\d)?)$", na=False)
        return pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True), np.asarray(zoned, dtype=bool)
    is_zoned = moments.dt.tz is not None
    return moments if is_zoned else moments.dt.tz_localize("UTC"), np.full(len(cells), is_zoned)


def csv_rows(source: Source, columns: tuple[str, ...], clock: Clock, chunk: int) -> Iterator[Rows]:
    """The requests of `columns` (time, prompt, output), at most `chunk` at a time."""
    first = 2
    with source.open() as handle:
        for frame in _frames(source, handle, columns, clock, chunk):
            rows, fault = _rows(frame, columns, clock, first)
            if fault is None:
                yield rows
                first += len(frame)
                continue
            # What stands before the fault is judged first: the earliest mistake is the one to name.
            text = source.line(first + fault.row)
            is_end = _is_short(source, first + fault.row, text) and source.is_last(first + fault.row)
            yield msgspec.structs.replace(rows, is_cut=is_end and bool(text.strip()))
            if not is_end:
                _fail(source, first + fault.row, text, fault)
            return


def _frames(
    source: Source, handle: IO[bytes], columns: tuple[str, ...], clock: Clock, chunk: int
) -> "Iterator[pd.DataFrame]":
    import pandas as pd

    names: list[str] = []
    for place, name in enumerate(column_names(source)):
        if name in columns and name in names:
            source.fail(1, f"two columns are called {name!r}", "which one is meant? drop or rename the other")
        names.append(name if name in columns else f"#{place}")
    # Without usecols: with it pandas drops what stands past the names, or refuses a name that no line fills.
    options: dict[str, Any] = {"header": None, "skiprows": 1, "names": [*names, _SURPLUS], "index_col": False}
    options |= {"skip_blank_lines": False, "skipinitialspace": True, "low_memory": False, "chunksize": chunk}
    try:
        frames = pd.read_csv(handle, dtype={columns[0]: clock.dtype} if clock.dtype else None, **options)
        while (frame := _next(frames)) is not None:
            yield frame
    except pd.errors.EmptyDataError:
        return
    except pd.errors.ParserWarning:
        source.fail(2, f"more fields than the first line has names: {shorten(source.line(2))}", _NO_COMMA)
    except pd.errors.ParserError as error:
        if "Calling read(nbytes)" in str(error):
            # Errors of reading pass through pandas; Ctrl-C, which is no Exception, it makes into this one.
            raise KeyboardInterrupt from error
        found = re.search(r"in line (\d+), saw (\d+)", str(error))
        if found:
            source.fail(int(found[1]), f"{found[2]} fields, where the first line has {len(names)} names", _NO_COMMA)
        said = f"{source} is no whole CSV: {shorten(printable(str(error)), 120)}"
        raise KvcalcError(said, "look for a quote that is never closed") from error


def _next(frames: "Iterator[pd.DataFrame]") -> "pd.DataFrame | None":
    """The next frame; pandas warns, and drops the rest, where the first line of data is longer than the names."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return next(frames, None)


def _rows(frame: "pd.DataFrame", columns: tuple[str, ...], clock: Clock, first: int) -> tuple[Rows, Fault | None]:
    """The rows of one frame up to the first that is none, and what is wrong with that one."""
    import numpy as np

    times, prompts, outputs = (frame[column] for column in columns)
    (seconds, strangers), tokens = clock.read(times), [_numbers(prompts), _numbers(outputs)]
    checks = [
        (np.asarray(frame[_SURPLUS].notna()), "more fields than the first line has names", _NO_COMMA),
        (~np.isfinite(seconds), f"{columns[0]} is no time", clock.hint),
        (strangers, "times with and without an offset from UTC", "give all of them one, or none"),
        *(check for column, cells in zip(columns[1:], tokens, strict=True) for check in _whole(column, cells)),
    ]
    fault = first_fault(checks)
    count = len(frame) if fault is None else fault.row
    whole = [cells[:count].astype(np.int64) for cells in tokens]
    rows = Rows(
        lines=np.arange(first, first + count),
        seconds=seconds[:count],
        prompt_tokens=whole[0],
        output_tokens=whole[1],
    )
    return rows, fault


def _whole(column: str, cells: Seconds) -> list[tuple[Flags, str, str]]:
    import numpy as np

    with np.errstate(invalid="ignore"):
        return [
            (np.isnan(cells), f"{column} is no number", "a whole number of tokens"),
            (np.abs(cells) > MOST_TOKENS, f"{column} is past {MOST_TOKENS:,} tokens", "no request is so long"),
            (cells != np.floor(cells), f"{column} is no whole number", "a whole number of tokens"),
        ]


def _numbers(cells: Cells) -> Seconds:
    import numpy as np
    import pandas as pd

    if cells.dtype == bool:
        return np.full(len(cells), np.nan)
    return np.asarray(pd.to_numeric(cells, errors="coerce"), dtype=np.float64)


def _is_short(source: Source, number: int, text: str) -> bool:
    """Whether a line has fewer fields than there are names, or stops before the last one."""
    names, fields = len(column_names(source)), _fields(source, number, text)
    return len(fields) < names or (len(fields) == names and not fields[-1])


def _fail(source: Source, number: int, text: str, fault: Fault) -> NoReturn:
    names, fields = len(column_names(source)), len(_fields(source, number, text))
    few = f"{fields} fields, where the first line has {names} names"
    shown = shorten(printable(text)) or "the line is blank"
    source.fail(number, f"{few if fields < names else fault.said}: {shown}", fault.hint)
