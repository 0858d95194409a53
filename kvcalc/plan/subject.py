"""What a case asks about: a deployment, its speed where that is asked, and neighbours that differ in one thing."""

from functools import cached_property

import msgspec

from kvcalc.engines.fit import largest_contexts, most_sequences_of
from kvcalc.engines.plan import Bounds, Outcome, Plan
from kvcalc.sizing.need import CacheSize, size_workload
from kvcalc.speed.question import Question
from kvcalc.speed.throughput import Throughput


class Subject(msgspec.Struct, frozen=True, dict=True):
    """A plan as `kvcalc fit` has it, and the question of `kvcalc throughput` where a limit needs it.

    Without `has_memory` no card and no pool was named, and only the need is known.
    """

    plan: Plan
    question: Question | None = None
    has_memory: bool = True

    @cached_property
    def size(self) -> CacheSize:
        """The need of the workload."""
        return size_workload(self.plan.spec, self.plan.workload, self.plan.sharding)

    @cached_property
    def outcome(self) -> Outcome:
        """What comes of the plan."""
        return Outcome(self.plan, self.size)

    @cached_property
    def allocated_bytes(self) -> int:
        """What the engine holds for the batch on one rank, the worst one."""
        return self.plan.engine.allocate(self.size).allocated_bytes

    @cached_property
    def contexts(self) -> Bounds:
        """The longest context in tokens at which the batch runs, for the pool's bounds."""
        return Bounds(*largest_contexts(self.plan, ("low", "expected", "high")))

    @cached_property
    def sequences(self) -> Bounds:
        """The most sequences of the context that run at once, for the pool's bounds."""
        return Bounds(*most_sequences_of(self.outcome, ("low", "expected", "high")))

    @property
    def speed(self) -> Throughput:
        """How fast it runs; KvcalcError where that cannot be told."""
        assert self.question is not None, "a limit of speed comes with its question"  # noqa: S101
        return self.question.answer

    def asking(self, **changes: int | str) -> "Subject":
        """The same for another workload; a context is that of the plan alone."""
        question = self.question
        if question is not None:
            load = {name: value for name, value in changes.items() if name == "batch"}
            use = {name: value for name, value in changes.items() if name in ("kv_dtype", "weights")}
            question = msgspec.structs.replace(
                question,
                load=msgspec.structs.replace(question.load, **load),
                use=msgspec.structs.replace(question.use, **use),
            )
        return Subject(self.plan.asking(**changes), question, self.has_memory)

    def on(self, plan: Plan) -> "Subject":
        """The same on the ranks and cards of another plan."""
        question = self.question
        if question is not None:
            use = msgspec.structs.replace(question.use, sharding=plan.sharding)
            question = msgspec.structs.replace(question, use=use)
        return Subject(plan, question, self.has_memory)
