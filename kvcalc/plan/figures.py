"""The figures of a case by name: each with its bounds, its unit, what it rests on, and which way is good."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Literal

import msgspec

from kvcalc.plan.documents import Basis, Better, FigureDocument
from kvcalc.plan.subject import Subject
from kvcalc.sizing.notes import basis as size_basis
from kvcalc.speed.room import NoRoomError
from kvcalc.speed.timing import Timing
from kvcalc.units import plain_number

Number = int | float | Fraction


class Figure(msgspec.Struct, frozen=True):
    """One figure between its bounds; `what` says in words what it counts."""

    value: Number
    low: Number
    high: Number
    basis: Basis
    what: str

    def document(self, kind: "Kind") -> FigureDocument:
        """The same as machine formats carry it."""
        value, low, high = (plain_number(Fraction(one)) for one in (self.value, self.low, self.high))
        return {
            "value": value,
            "low": low,
            "high": high,
            "unit": kind.unit,
            "basis": self.basis,
            "better": kind.better,
        }


class Kind(msgspec.Struct, frozen=True):
    """A figure that a case may have; what `needs` a search is found only where a limit is on it.

    `find` is None where it has no value: a queue that only grows.
    """

    find: Callable[[Subject], Figure | None]
    unit: str
    better: Better
    needs: Literal["nothing", "memory", "speed", "search"]


def figures_of(subject: Subject, limits: set[str]) -> Iterator[tuple[str, FigureDocument]]:
    """Every figure that the case can answer; what takes a search only where one of `limits` is on it."""
    known = {"nothing"} | ({"memory"} if subject.has_memory else set()) | ({"speed"} if subject.question else set())
    for name, kind in FIGURES.items():
        # Sequences that do not fit have no speed, which is no mistake of the case.
        with suppress(NoRoomError):
            figure = kind.find(subject) if kind.needs in known or name in limits else None
            if figure is not None:
                yield name, figure.document(kind)


def _exact(value: Number, subject: Subject, what: str) -> Figure:
    return Figure(value, value, value, size_basis(subject.size, "cache"), what)


def _bytes_per_token(subject: Subject) -> Figure:
    return _exact(subject.size.bytes_per_token, subject, "growth of one sequence a token, every window full")


def _bytes_per_sequence(subject: Subject) -> Figure:
    return _exact(subject.size.bytes_per_sequence, subject, f"one sequence of {_context(subject)}")


def _total_bytes(subject: Subject) -> Figure:
    batch = subject.plan.workload.batch
    return _exact(subject.size.total_bytes, subject, f"{batch:,} x {_context(subject)}, one copy over all ranks")


def _allocated_bytes(subject: Subject) -> Figure:
    basis: Basis = size_basis(subject.size, "cache")
    if basis == "exact" and not subject.plan.engine.is_plain:
        basis = "engine rule"
    held = subject.allocated_bytes
    return Figure(held, held, held, basis, "what the engine holds for the batch on the fullest rank")


def _pool_bytes(subject: Subject) -> Figure:
    pool = subject.outcome.pool
    return Figure(pool.expected, pool.low, pool.high, memory_basis(subject), "what a rank has for the cache")


def _max_context(subject: Subject) -> Figure:
    found, batch = subject.contexts, subject.plan.workload.batch
    what = f"the longest context at batch {batch:,}"
    return Figure(found.expected, found.low, found.high, memory_basis(subject), what)


def _max_sequences(subject: Subject) -> Figure:
    found = subject.sequences
    what = f"sequences of {_context(subject)} at once"
    return Figure(found.expected, found.low, found.high, memory_basis(subject), what)


def _tpot(subject: Subject) -> Figure:
    """As `served.tpot_seconds`, else the decode step shared by the tokens that it yields."""
    speed = subject.speed
    if speed.served is not None:
        return _timed(speed.served.tpot, subject, f"a token under load, {_load(subject)}")
    share = speed.load.tokens_a_step
    found = _timed(speed.decode, subject, f"a token in decode alone, {_load(subject)}")
    return Figure(found.value / share, found.low / share, found.high / share, found.basis, found.what)


def _ttft(subject: Subject) -> Figure | None:
    """As `served.queued_ttft_seconds` at a rate, `served.ttft_seconds` without one, else the prefill alone.

    None where the queue only grows.
    """
    served, rate = subject.speed.served, subject.speed.load.rate
    if served is None:
        return _timed(subject.speed.prefill, subject, f"the prefill of one prompt alone, {_load(subject)}")
    found = _timed(served.ttft, subject, f"the first token under load, {_load(subject)}")
    if rate is None:
        return found
    if served.queued_ttft_seconds is None:
        return None
    waits = served.queued_ttft_seconds - served.ttft.seconds
    what = f"the first token at {rate:g} requests a second, {_load(subject)}"
    return Figure(served.queued_ttft_seconds, found.low, found.high + waits, found.basis, what)


def _tokens_per_second(subject: Subject) -> Figure:
    """Of all sequences: under load as `served.tokens_per_second_total`, else in decode alone."""
    tpot, running = _tpot(subject), subject.speed.running
    where = "under load" if subject.speed.served is not None else "in decode alone"
    what = f"tokens a second of all sequences {where}, {_load(subject)}"
    return Figure(running / tpot.value, running / tpot.high, running / tpot.low, tpot.basis, what)


def _timed(found: Timing, subject: Subject, what: str) -> Figure:
    assert subject.question is not None  # noqa: S101
    basis: Basis = "assumed" if subject.question.calibration is None else "calibrated"
    return Figure(found.seconds, found.lower_seconds, found.upper_seconds, basis, what)


def _load(subject: Subject) -> str:
    load = subject.speed.load
    return f"batch {load.batch:,}, {load.isl:,} + {load.osl:,} tokens"


def _context(subject: Subject) -> str:
    return f"{subject.plan.workload.context_tokens:,} tokens"


def memory_basis(subject: Subject) -> Basis:
    """What an answer about memory rests on."""
    if size_basis(subject.size, "cache", "weights") == "assumed":
        return "assumed"
    return subject.outcome.basis


FIGURES = {
    "bytes_per_token": Kind(_bytes_per_token, "bytes", "lower", "nothing"),
    "bytes_per_sequence": Kind(_bytes_per_sequence, "bytes", "lower", "nothing"),
    "total_bytes": Kind(_total_bytes, "bytes", "lower", "nothing"),
    "allocated_bytes": Kind(_allocated_bytes, "bytes", "lower", "nothing"),
    "pool_bytes": Kind(_pool_bytes, "bytes", "higher", "memory"),
    "max_context_tokens": Kind(_max_context, "tokens", "higher", "search"),
    "max_sequences": Kind(_max_sequences, "sequences", "higher", "memory"),
    "tpot_seconds": Kind(_tpot, "seconds", "lower", "speed"),
    "ttft_seconds": Kind(_ttft, "seconds", "lower", "speed"),
    "tokens_per_second": Kind(_tokens_per_second, "tokens/s", "higher", "speed"),
}
"""Every figure by its name in the JSON document."""
