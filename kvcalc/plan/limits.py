"""The limits of a plan, a class each: how one is written, which figure it bounds, what may be changed to keep it."""

from fractions import Fraction
from typing import Any, ClassVar, Self

import msgspec

from kvcalc.engines.fit import longest_tried, most_sequences
from kvcalc.engines.plan import evaluate
from kvcalc.errors import KvcalcError, shorten
from kvcalc.plan.documents import Basis
from kvcalc.plan.figures import FIGURES, Figure, Kind, Number, memory_basis
from kvcalc.plan.settings import switched, worded
from kvcalc.plan.subject import Subject
from kvcalc.speed.room import NoRoomError
from kvcalc.units import parse_bytes, parse_seconds, parse_tokens

LESS_CONTEXT, LESS_BATCH, MORE_BATCH = "less context", "less batch", "more batch"
CACHE_FORMAT, WEIGHTS_FORMAT, MORE_GPUS, MORE_TP = "KV format", "weights' format", "more GPUs", "more tp"
_BESIDE = (CACHE_FORMAT, WEIGHTS_FORMAT, MORE_GPUS)


class Judgement(msgspec.Struct, frozen=True):
    """What a limit finds: the value and whether it keeps the bound, at both ends of what is not known too."""

    value: Number | bool | None
    margin: float | None
    passed: bool
    certain: bool
    basis: Basis
    rule: str


class Limit(msgspec.Struct, frozen=True):
    """A bound on one figure. `changes` are the ways in which a case may be changed to keep it."""

    bound: Any

    figure: ClassVar[str]
    changes: ClassVar[tuple[str, ...]]
    help: ClassVar[str]
    example: ClassVar[str]
    takes: ClassVar[str] = "string"
    """The type of its value in the JSON Schema."""

    @classmethod
    def name(cls) -> str:
        """Its key in a plan: MaxKvCache is `max_kv_cache`."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__).lstrip("_")

    @classmethod
    def read(cls, value: Any) -> Self:
        """The limit of this value; KvcalcError where it is none, or has no unit."""
        text = worded(cls.name(), value)
        if cls.takes == "string" and text.replace(".", "", 1).isdecimal():
            raise KvcalcError(f"{cls.name()}: {shorten(text)} has no unit", f"write {cls.with_unit(text)}")
        return cls(cls.parse(text))

    @classmethod
    def parse(cls, text: str) -> Any:
        """The bound that a text says."""
        raise NotImplementedError

    @classmethod
    def with_unit(cls, text: str) -> str:
        """A number that lacks its unit, as it may have been meant."""
        raise NotImplementedError

    @property
    def kind(self) -> Kind:
        """The figure that is bounded."""
        return FIGURES[self.figure]

    def judge(self, subject: Subject) -> Judgement:
        """Whether the case keeps the limit; KvcalcError where that cannot be told."""
        try:
            figure = self.kind.find(subject)
        except NoRoomError as error:
            return Judgement(None, None, False, True, "engine rule", f"{error.message}, so there is no figure")
        if figure is None:
            return Judgement(None, None, False, False, "assumed", "requests come faster than they are answered")
        return self._found(figure)

    def _found(self, figure: Figure) -> Judgement:
        passed = self._keeps(figure.value)
        certain = all(self._keeps(end) == passed for end in (figure.low, figure.high))
        left = self.bound - figure.value if self.kind.better == "lower" else figure.value - self.bound
        return Judgement(figure.value, float(left / self.bound), passed, certain, figure.basis, figure.what)

    def _keeps(self, value: Number) -> bool:
        return bool(value <= self.bound if self.kind.better == "lower" else value >= self.bound)

    def holds(self, subject: Subject) -> bool:
        """Whether the case keeps the limit, in the cheapest way; False too where that cannot be told."""
        try:
            return self._passes(subject)
        except KvcalcError:
            return False

    def _passes(self, subject: Subject) -> bool:
        """`passed` of what `judge` finds."""
        return self.judge(subject).passed


class MustFit(Limit, frozen=True):
    """The batch runs at once in the pool."""

    figure = "max_sequences"
    changes = (LESS_CONTEXT, LESS_BATCH, *_BESIDE)
    help = "the batch runs at once, as `fits` of `kvcalc fit`; true by default where memory is named"
    example = "true"
    takes = "boolean"

    @classmethod
    def read(cls, value: Any) -> Self:
        """True or false."""
        return cls(switched("must_fit", value))

    def judge(self, subject: Subject) -> Judgement:
        """Whether it does; the margin is in sequences."""
        outcome, work = subject.outcome, subject.plan.workload
        margin = outcome.sequences / work.batch - 1
        what = (
            f"{work.batch:,} x {work.context_tokens:,} tokens at once, of {outcome.sequences:,} that the pool carries"
        )
        return Judgement(outcome.fits, margin, outcome.fits, outcome.is_certain, memory_basis(subject), what)

    def _passes(self, subject: Subject) -> bool:
        return subject.outcome.fits


class MinContext(Limit, frozen=True):
    """The batch runs at this context."""

    figure = "max_context_tokens"
    changes = (LESS_BATCH, *_BESIDE)
    help = "the longest context at which the batch runs at once, as `max_context_tokens` of `kvcalc fit`"
    example = "32K"
    takes = "tokens"

    @classmethod
    def parse(cls, text: str) -> Any:
        """Tokens."""
        return parse_tokens(text, cls.name())

    def _passes(self, subject: Subject) -> bool:
        """Whether the batch runs at that context: one question instead of a search."""
        plan = subject.plan
        return self.bound <= longest_tried(plan) and evaluate(plan.asking(context_tokens=self.bound)).fits


class MinSequences(Limit, frozen=True):
    """So many sequences of the context run at once."""

    figure = "max_sequences"
    changes = (LESS_CONTEXT, *_BESIDE)
    help = "the most sequences of the context that run at once, as `max_batch` of `kvcalc fit`"
    example = "64"
    takes = "tokens"

    @classmethod
    def parse(cls, text: str) -> Any:
        """A count."""
        return parse_tokens(text, cls.name(), "number")

    def _passes(self, subject: Subject) -> bool:
        """At the expected pool alone, for its bounds cost as much again."""
        return bool(most_sequences(subject.outcome) >= self.bound)


class _Bytes(Limit, frozen=True):
    @classmethod
    def parse(cls, text: str) -> Any:
        """Bytes with their unit, exactly."""
        return parse_bytes(text, cls.name())


class MaxKvCache(_Bytes, frozen=True):
    """Bytes of the whole batch."""

    figure = "total_bytes"
    changes = (LESS_CONTEXT, LESS_BATCH, CACHE_FORMAT)
    help = "bytes of the whole batch, one copy over all ranks, as `total_bytes` of `kvcalc size`"
    example = "40GiB"

    @classmethod
    def with_unit(cls, text: str) -> str:
        """Most are GiB."""
        return f"{text}GiB"


class MaxBytesPerToken(_Bytes, frozen=True):
    """What one more token of a sequence costs."""

    figure = "bytes_per_token"
    changes = (CACHE_FORMAT,)
    help = "what one more token of a sequence costs with every window full, as `bytes_per_token` of `kvcalc size`"
    example = "128KiB"

    @classmethod
    def with_unit(cls, text: str) -> str:
        """Most are KiB, or bytes counted out."""
        return f"{text}KiB, or {text}B"


class _Seconds(Limit, frozen=True):
    @classmethod
    def parse(cls, text: str) -> Any:
        """A time with its unit."""
        return parse_seconds(text, cls.name())

    @classmethod
    def with_unit(cls, text: str) -> str:
        """Most are ms."""
        return f"{text}ms"


class MaxTpot(_Seconds, frozen=True):
    """Seconds of a token."""

    figure = "tpot_seconds"
    changes = (LESS_BATCH, CACHE_FORMAT, WEIGHTS_FORMAT, MORE_TP)
    help = "seconds a token of one sequence: under load (`served.tpot_seconds`) with `served: true`, else decode alone"
    example = "30ms"


class MaxTtft(_Seconds, frozen=True):
    """Seconds to the first token."""

    figure = "ttft_seconds"
    changes = (LESS_BATCH, WEIGHTS_FORMAT, MORE_TP)
    help = "seconds to the first token: under load with `served: true`, queue too with `rate:`; else the prefill alone"
    example = "500ms"


class MinTokensPerSecond(Limit, frozen=True):
    """Tokens a second of all sequences."""

    figure = "tokens_per_second"
    changes = (MORE_BATCH, CACHE_FORMAT, WEIGHTS_FORMAT, MORE_TP)
    help = "tokens a second of all sequences: under load with `served: true`, else in decode alone"
    example = "2000"
    takes = "number"

    @classmethod
    def parse(cls, text: str) -> Any:
        """A number above 0."""
        try:
            found = Fraction(text)
        except (ValueError, ZeroDivisionError):
            found = Fraction(0)
        if found <= 0:
            raise KvcalcError(f"{cls.name()}: {shorten(text)} is no number above 0", "write 2000, in tokens a second")
        return found


LIMITS: dict[str, type[Limit]] = {
    kind.name(): kind
    for kind in (
        MustFit,
        MinContext,
        MinSequences,
        MaxKvCache,
        MaxBytesPerToken,
        MaxTpot,
        MaxTtft,
        MinTokensPerSecond,
    )
}
"""Every limit by its key."""
