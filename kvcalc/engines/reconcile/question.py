"""What kvcalc is asked about a log: a model, a workload, ranks, an engine with its flags; and that with one change."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec

from kvcalc.cache.formats import AUTO
from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import Allocation, Capacity, Engine
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, Workload, size_workload


class Question(msgspec.Struct, frozen=True, dict=True):
    """One request to one engine."""

    spec: ModelSpec
    workload: Workload
    sharding: Sharding
    engine: Engine

    @cached_property
    def size(self) -> CacheSize:
        """The need that the engine is asked about."""
        return size_workload(self.spec, self.workload, self.sharding)

    @cached_property
    def allocation(self) -> Allocation:
        """What the engine takes for it."""
        return self.engine.allocate(self.size)

    def capacity(self, pool_bytes: int) -> Capacity:
        """What so many bytes on each rank carry; asked once, since all figures look for the pool in the same steps."""
        if pool_bytes not in self._known:
            self._known[pool_bytes] = self.engine.capacity(self.size, pool_bytes)
        return self._known[pool_bytes]

    @cached_property
    def _known(self) -> dict[int, Capacity]:
        return {}

    def at(self, context_tokens: int) -> "Question":
        """The same for requests of another length."""
        if context_tokens == self.workload.context_tokens:
            return self
        return self._with(workload=msgspec.structs.replace(self.workload, context_tokens=context_tokens))

    def _with(self, **changes: Any) -> "Question":
        return msgspec.structs.replace(self, **changes)

    def changed(self) -> Iterator[tuple[str, "Question"]]:
        """Everything that differs in one thing, most likely first, with the flag that would say so."""
        yield from self._other_formats()
        yield from self._other_flags()
        yield from self._other_ranks()
        yield from self._other_drafts()

    def other_releases(self) -> Iterator[tuple[str, "Question"]]:
        """The same under every other release, newest first."""
        for version in self.engine.versions:
            if version != self.engine.version:
                yield version, self.under(version)

    def under(self, version: str) -> "Question":
        """The same under the rules of that release."""
        return self._with(engine=self.engine.with_flags(version=version))

    def _other_formats(self) -> Iterator[tuple[str, "Question"]]:
        for form in _FORMATS.get(self.engine.name, _FORMATS[""]):
            if form != self.workload.kv_dtype:
                workload = msgspec.structs.replace(self.workload, kv_dtype=form)
                yield f"--kv-dtype {form}", self._with(workload=workload)
        for form in ("fp32", "bf16"):
            if self.workload.state_dtype != form and any(row.fixed_bytes for row in self.size.rows):
                workload = msgspec.structs.replace(self.workload, state_dtype=form)
                yield f"--state-dtype {form}", self._with(workload=workload)

    def _other_flags(self) -> Iterator[tuple[str, "Question"]]:
        """Switches turned over, and other values of what is counted."""
        for field in msgspec.structs.fields(type(self.engine)):
            value = getattr(self.engine, field.name)
            others: tuple[Any, ...] = _VALUES.get(field.name, ())
            if isinstance(value, bool) and not others:
                others = (not value,)
            for other in others:
                if other != value:
                    spelled = f"--{'no-' if other is False else ''}{field.name.replace('_', '-')}"
                    text = spelled if isinstance(other, bool) else f"{spelled} {other}"
                    yield text, self._with(engine=self.engine.with_flags(**{field.name: other}))

    def _other_ranks(self) -> Iterator[tuple[str, "Question"]]:
        for name, others in _RANKS.items():
            size = getattr(self.sharding, name)
            for other in others:
                if other != size:
                    sharding = msgspec.structs.replace(self.sharding, **{name: other})
                    yield f"--{name} {other}", self._with(sharding=sharding)

    def _other_drafts(self) -> Iterator[tuple[str, "Question"]]:
        for count in range(len(self.spec.draft_layers) + 1):
            if count != self.workload.draft_layers:
                workload = msgspec.structs.replace(self.workload, draft_layers=count)
                yield f"--draft-layers {count}", self._with(workload=workload)


_RANKS = {"tp": (1, 2, 4, 8, 16), "pp": (1, 2, 4), "dcp": (1, 2, 8)}
_FORMATS = {"": (AUTO, "fp8", "bf16", "nvfp4"), "llama.cpp": ()}
_VALUES: dict[str, tuple[int, ...]] = {
    "enable_prefix_caching": (True, False),
    "block_size": (16, 32, 64, 128, 256),
    "page_size": (1, 16, 32, 64, 128),
    "tokens_per_block": (32, 64, 128),
    "max_num_batched_tokens": (2048, 4096, 8192, 16384, 32768),
    "ubatch_size": (128, 256, 512, 1024, 2048),
}
"""What users choose, and what cards choose by themselves."""


def answers(question: Question) -> str:
    """Why the engine does not answer, empty where it does."""
    try:
        _ = question.allocation
    except KvcalcError as error:
        return error.message
    return ""
