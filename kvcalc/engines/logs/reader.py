"""A log as what it says: every line that is understood, by engine, with the rank that its prefix names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvcalc.engines.logs import llama_cpp, sglang, tensorrt_llm, vllm
from kvcalc.engines.logs.lines import Line, LineReader
from kvcalc.engines.logs.pattern import Finding, Pattern
from kvcalc.errors import KvcalcError, shorten

_FORMATS = {form.engine: form for form in (vllm.FORMAT, sglang.FORMAT, llama_cpp.FORMAT, tensorrt_llm.FORMAT)}
MOST_FINDINGS = 20_000
"""Of one start; a log that says more would fill the memory."""

_BY_NEEDLE: dict[str, list[tuple[str, Pattern]]] = {}
for _format in _FORMATS.values():
    for _pattern in _format.patterns:
        _BY_NEEDLE.setdefault(_pattern.needle, []).append((_format.engine, _pattern))

# What stands before a message: vLLM's processes, SGLang's time stamps, TensorRT-LLM's ranks, mpirun's.
_RANKS = (
    re.compile(r"\bWorker_((?:[A-Z]+\d+_?)+) pid="),
    re.compile(r"\bEngineCore_(DP\d+) pid="),
    re.compile(r"\b(?:VllmWorker )(rank=\d+)\b"),
    re.compile(r"\b(?:VllmWorkerProcess|RayWorkerWrapper|RayWorkerVllm|RayTrainReportCallback) (pid=\d+)"),
    re.compile(r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*((?: [A-Z]{2,3}\d+)+)\]"),
    re.compile(r"\[(RANK \d+)\]"),
    re.compile(r"^\s*\[\d+,(\d+)\]<std(?:out|err)>"),
)
_LONGEST_PREFIX = 400


class Log(msgspec.Struct, frozen=True):
    """What a log says: its findings in order, and what to say about the file itself."""

    name: str
    findings: tuple[Finding, ...]
    lines: int
    bytes: int
    has_nul: bool = False
    notes: tuple[str, ...] = ()

    def of(self, engine: str) -> list[Finding]:
        """The findings of one engine."""
        return [one for one in self.findings if one.engine == engine]

    @property
    def engines(self) -> list[str]:
        """Engines whose lines are in it, the one with most of them first."""
        counts: dict[str, int] = {}
        for one in self.findings:
            counts[one.engine] = counts.get(one.engine, 0) + 1
        return sorted(counts, key=lambda name: -counts[name])


def open_log(path: str) -> Log:
    """The log in the file at `path`, `-` being stdin; KvcalcError for what is no file."""
    if path == "-":
        import sys

        return read_log(sys.stdin.buffer, "stdin")
    file = Path(path)
    if file.is_dir():
        raise KvcalcError(f"{shorten(path)} is a directory", "name the file with the log, or - for stdin")
    with file.open("rb") as stream:
        return read_log(stream, shorten(file.name))


def read_log(stream: BinaryIO, name: str = "the log") -> Log:
    """Everything that is understood of the bytes of `stream`, which is read to its end.

    Where the log holds several starts, the last one that printed figures is what it says.
    """
    reader, starts, is_lost = LineReader(stream, _BY_NEEDLE, name), _Starts(), False
    for line in reader:
        said = list(_findings(line))
        if line.is_cut:
            is_lost = len(said) < len(list(_findings(msgspec.structs.replace(line, is_cut=False))))
        for one in said:
            starts.add(one)
    notes = (*starts.notes(), *_notes(reader, is_lost))
    return Log(name, tuple(starts.last()), reader.lines, reader.bytes, reader.has_nul, notes)


class _Starts:
    """Findings by start: a process that says again how it starts, after it printed figures, begins another."""

    def __init__(self) -> None:
        self.count, self.is_full = 1, False
        self._current: list[Finding] = []
        self._finished: list[Finding] = []
        self._have_figures: set[tuple[str, str]] = set()

    def add(self, one: Finding) -> None:
        """Keep one finding."""
        form = _FORMATS[one.engine]
        if one.kind in form.starts and (one.engine, one.rank) in self._have_figures:
            self._finished, self._current = self._current, []
            self._have_figures = set()
            self.count += 1
        if one.kind in form.figures:
            self._have_figures.add((one.engine, one.rank))
        if len(self._current) < MOST_FINDINGS:
            self._current.append(one)
        else:
            self.is_full = True

    def last(self) -> list[Finding]:
        """What the last start with figures said."""
        return self._current if self._have_figures or not self._finished else self._finished

    def notes(self) -> Iterator[str]:
        """What is left out."""
        if self.count > 1:
            first, last = self.last()[0].line, self.last()[-1].line
            more = "" if self._have_figures else ", which printed figures, unlike the one after it"
            yield f"the log holds {self.count:,} starts: read is that of lines {first:,} to {last:,}{more}"
        if self.is_full:
            yield f"the log says more than {MOST_FINDINGS:,} things: the rest is not read"


def _notes(reader: LineReader, is_lost: bool) -> Iterator[str]:
    if is_lost:
        yield f"the log ends in the middle of line {reader.lines + 1:,}, which is not read as far as that matters"
    if reader.long_lines:
        first, more = reader.long_lines[0], len(reader.long_lines) - 1
        yield f"line {first:,}{f' and {more:,} more' if more else ''} is too long: only the beginning is read"


def _findings(line: Line) -> Iterator[Finding]:
    """What one line says; of the patterns of one kind the first that matches counts."""
    said: set[tuple[str, str]] = set()
    for needle, takers in _BY_NEEDLE.items():
        if needle not in line.text:
            continue
        for engine, pattern in takers:
            match = pattern.read(line.text, line.is_cut)
            if match is None or (engine, pattern.kind) in said:
                continue
            start, values = match
            said.add((engine, pattern.kind))
            yield Finding(engine, pattern.kind, values, line.number, rank_of(line.text[:start][:_LONGEST_PREFIX]))


def rank_of(prefix: str) -> str:
    """What stands before a message calls its process: `TP0`, `PP1 EP0`, `rank 1`; empty where it says nothing."""
    for pattern in _RANKS:
        if match := pattern.search(prefix):
            return match[1].replace("_", " ").replace("=", " ").strip().replace("RANK", "rank")
    return ""
