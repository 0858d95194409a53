"""The forms in which traces are published: their columns, and how a line becomes a request.

Azure: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and 2024.md (a week, times with an offset).
BurstGPT: HPMLL/BurstGPT, README (v1.1: six columns; v2.0 adds Session ID and Elapsed time).
Mooncake: kvcache-ai/Mooncake, FAST25-release/traces.
"""

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import msgspec

from kvcalc.errors import KvcalcError, nearest, shorten
from kvcalc.workload.csv_rows import Clock, Instants, Numbers, column_names, csv_rows
from kvcalc.workload.rows import MOST_TOKENS, Rows
from kvcalc.workload.source import Source


class Form:
    """One form. `columns` are the names of time, prompt tokens and output tokens, then what else it must have."""

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    block_tokens: ClassVar[int] = 0
    fails_without_answer: ClassVar[bool] = False
    """Whether the form records failed requests, with an answer of 0 tokens."""

    def rows(self, source: Source, chunk: int) -> Iterator[Rows]:
        """The requests, at most `chunk` at a time."""
        raise NotImplementedError

    def described(self) -> str:
        """The form and its columns, for a hint."""
        return f"{self.name} ({', '.join(self.columns)})"


class CsvForm(Form):
    """Lines of fields behind a line of names."""

    clock: ClassVar[type[Clock]]

    def rows(self, source: Source, chunk: int) -> Iterator[Rows]:
        """Requests of a CSV, read by pandas."""
        return csv_rows(source, self.columns, self.clock(), chunk)


class Azure(CsvForm):
    """Azure LLM inference, 2023 and 2024."""

    name = "Azure CSV"
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    clock = Instants


class BurstGpt(CsvForm):
    """BurstGPT; a failed request has 0 response tokens."""

    name = "BurstGPT CSV"
    columns = ("Timestamp", "Request tokens", "Response tokens")
    clock = Numbers
    fails_without_answer = True


class Plain(CsvForm):
    """Our own."""

    name = "plain CSV"
    columns = ("arrival_seconds", "prompt_tokens", "output_tokens")
    clock = Numbers


_MOST_OBJECTS = 1 << 15
"""Decoded at once: with its ids a request is ten times as large as in an array."""
_Count = Annotated[int, msgspec.Meta(ge=-MOST_TOKENS, le=MOST_TOKENS)]
_Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: _Count
    output_length: _Count
    hash_ids: list[_Id]


class Mooncake(Form):
    """Mooncake; milliseconds, and an id for every block of 512 prompt tokens and for the rest behind them."""

    name = "Mooncake JSONL"
    columns = ("timestamp", "input_length", "output_length", "hash_ids")
    block_tokens = 512

    def rows(self, source: Source, chunk: int) -> Iterator[Rows]:
        """Requests of a JSONL, one object a line."""
        decode = msgspec.json.Decoder(_MooncakeRow).decode
        batch: list[tuple[int, _MooncakeRow]] = []
        with source.open() as handle:
            for number, line in enumerate(handle, 1):
                if not line.strip():
                    continue
                try:
                    batch.append((number, decode(line)))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    is_cut = _is_cut(line, error) and source.is_last(number)
                    # What stands before it is judged first: the earliest mistake is the one to name.
                    yield self._arrays(batch, is_cut)
                    if not is_cut:
                        source.fail(number, shorten(str(error), 120), f"each line is an object: {self.described()}")
                    return
                if len(batch) == min(chunk, _MOST_OBJECTS):
                    yield self._arrays(batch)
                    batch = []
        yield self._arrays(batch)

    def _arrays(self, batch: list[tuple[int, _MooncakeRow]], is_cut: bool = False) -> Rows:
        import numpy as np

        rows = [row for _, row in batch]
        counts = np.array([len(row.hash_ids) for row in rows], dtype=np.int64)
        return Rows(
            lines=np.array([number for number, _ in batch], dtype=np.int64),
            seconds=np.array([row.timestamp for row in rows], dtype=np.float64) / 1000,
            prompt_tokens=np.array([row.input_length for row in rows], dtype=np.int64),
            output_tokens=np.array([row.output_length for row in rows], dtype=np.int64),
            prefix_ids=np.fromiter(itertools.chain.from_iterable(row.hash_ids for row in rows), np.int64),
            prefix_ends=np.cumsum(counts),
            is_cut=is_cut,
        )


def _is_cut(line: bytes, error: Exception) -> bool:
    """Whether a line that cannot be read is the beginning of an object."""
    return not isinstance(error, msgspec.ValidationError) and not line.rstrip().endswith(b"}")


def form_of(source: Source) -> Form:
    """The form whose columns the first line has; an error names the column that is nearest to a missing one."""
    names = _names(source)
    if len(names) > _MOST_NAMES:
        source.fail(1, f"{len(names):,} columns", f"a trace has a few: {FORMS[-1].described()}")
    for form in FORMS:
        if set(form.columns) <= set(names):
            return form
    form = max(FORMS, key=lambda form: sum(bool(nearest(column, names, 1)) for column in form.columns))
    missing = next(column for column in form.columns if column not in names)
    near = nearest(missing, names, 1)
    offer = f"is {near[0]!r} meant? " if near else ""
    said = f"{source}:1: no form of trace has these columns: {shorten(', '.join(names)) or 'none'}"
    known = "; ".join(form.described() for form in FORMS)
    raise KvcalcError(said, f"{form.name} needs {missing!r}; {offer}known: {known}")


def _names(source: Source) -> list[str]:
    if not source.head.lstrip().startswith("{"):
        return column_names(source)
    try:
        first: dict[str, Any] = msgspec.json.decode(source.head)
    except (msgspec.DecodeError, RecursionError) as error:
        source.fail(1, shorten(str(error), 120), "a JSONL trace has one whole JSON object a line")
    return list(first)


_MOST_NAMES = 10_000
"""Past it pandas needs minutes, and no log of requests has so many."""
FORMS: tuple[Form, ...] = (Azure(), BurstGpt(), Mooncake(), Plain())
