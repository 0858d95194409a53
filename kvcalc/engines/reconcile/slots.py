"""llama.cpp: every context of the log, cache by cache."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

from kvcalc.cache.formats import AUTO
from kvcalc.cache.sharding import WHOLE
from kvcalc.engines.engine import AllocationPart, Engine
from kvcalc.engines.llama_cpp import LlamaCpp
from kvcalc.engines.llama_cpp_types import kv_dtype_of
from kvcalc.engines.logs.pattern import Finding, Printed, printed
from kvcalc.engines.reconcile.question import Question
from kvcalc.engines.reconcile.row import Row, explained, judged, unexplained
from kvcalc.engines.reconcile.settings import Settings
from kvcalc.engines.reconcile.subject import Asked
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import Workload

STATES = "states"
_BUFFERS = ("kv_buffer_bytes", "state_buffer_bytes")
_TENSORS = {"k_bytes": "K", "v_bytes": "V", "r_bytes": "R", "s_bytes": "S"}


def _key(one: Finding) -> str:
    """What bytes a line counts: those of states, or of K and V."""
    return "state_bytes" if one.kind == STATES or "state_buffer_bytes" in one.values else "cache_bytes"


def _device(one: Finding) -> str:
    return one.values["device"].text


def _sum_of(buffers: Sequence[Finding]) -> Finding:
    """A cache that is known by its buffers alone."""
    said = [next(one.values[key] for key in _BUFFERS if key in one.values) for one in buffers]
    total, half = (sum(numbers, Fraction(0)) for numbers in ([one.number for one in said], [one.half for one in said]))
    text = said[0].text if len(said) == 1 else f"{float(total / said[0].unit):.2f}"
    key, last = _key(buffers[0]), buffers[-1]
    kind = STATES if key == "state_bytes" else "cache"
    return Finding(last.engine, kind, {key: Printed(text, total, half, said[0].unit)}, last.line)


class Context(msgspec.Struct):
    """One llama_context: the model that was loaded last before it, its settings, and the caches that it made."""

    model: int
    values: dict[str, str] = {}
    caches: list[Finding] = []
    buffers: list[list[Finding]] = []
    """Of each cache, those that were printed before it."""

    is_draft: bool = False
    """Whether the log says that it is made for drafts."""
    pending: list[Finding] = []
    """Buffers of the cache whose own line is still to come."""

    @property
    def has_caches(self) -> bool:
        """Whether anything was said of a cache."""
        return bool(self.caches or self.pending)

    def take(self, one: Finding) -> None:
        """Keep a line about a cache; its buffers are printed before it, or alone where the log is less verbose."""
        if one.kind in {"cache", "states"}:
            if self.pending and _key(self.pending[0]) != _key(one):
                self.close()
            self.caches.append(one)
            self.buffers.append(self.pending)
            self.pending = []
        elif one.kind == "part":
            self.close()
        elif set(_BUFFERS) & set(one.values):
            if any(_key(other) != _key(one) or _device(other) == _device(one) for other in self.pending):
                self.close()
            self.pending = [*self.pending, one]

    def close(self) -> None:
        """Buffers without a line of their cache: it is their sum."""
        if self.pending:
            self.caches.append(_sum_of(self.pending))
            self.buffers.append([])
            self.pending = []

    def setting(self, name: str) -> int | None:
        """A setting that is a number."""
        return Settings(self.values).count(name)

    @property
    def slots(self) -> int:
        """Sequences at once: what it says, else what its caches have."""
        return self.setting("n_seq_max") or max(self._counted("seqs"), default=1)

    @property
    def is_unified(self) -> bool | None:
        """Whether all slots share their cells, None where neither a setting nor a cache says so."""
        said = _switch(self.values.get("kv_unified"))
        streams = self._counted("streams")
        return max(streams) < self.slots if said is None and streams and self.slots > 1 else said

    @property
    def draft_rows(self) -> int | None:
        """Further rows of every state, for roll-back."""
        return self.setting("n_rs_seq") or max(self._counted("rs_seq"), default=None)

    def _counted(self, name: str) -> list[int]:
        """What its caches say of `name`, each of them."""
        return [int(one.values[name].number) for one in self.caches if name in one.values]

    def is_draft_of(self, spec: ModelSpec) -> bool:
        """Whether it is the context in which the model's own draft layers run, beside another for its layers."""
        layers = [one.values["layers"].value for one in self.caches if "layers" in one.values]
        return bool(spec.draft_layers) and (self.is_draft or layers == [len(spec.draft_layers)])

    @property
    def total_tokens(self) -> int | None:
        """Tokens of all slots: what it says, else what its caches hold."""
        held = [one.values for one in self.caches if "cells" in one.values and one.kind == "cache"]
        cells = [int(said["cells"].number) * int(_streams(said).number) for said in held]
        return self.setting("n_ctx") or max(cells, default=None)


def _streams(said: Mapping[str, Printed]) -> Printed:
    """Streams of a cache; a log that does not tell them apart has one a sequence."""
    return said.get("streams", said.get("seqs", printed("1")))


def contexts_of(findings: Sequence[Finding]) -> list[Context]:
    """The contexts with a cache, in the order of the log."""
    contexts, models = [Context(0)], 0
    for one in findings:
        now = contexts[-1]
        if one.kind == "file":
            models += 1
        elif one.kind == "draft":
            contexts.append(Context(models, is_draft=True))
        elif one.kind in {"context", "types", "swa full"}:
            if "begin" in one.values or (now.has_caches and set(one.values) & {"n_seq_max", "n_ctx"}):
                now = Context(models)
                contexts.append(now)
            now.model = models
            now.values.update({key: said.text for key, said in one.values.items()})
        else:
            now.take(one)
    for context in contexts:
        context.close()
    return [one for one in contexts if one.caches]


def context_question(
    context: Context, spec: ModelSpec, engine: Engine, asked: Asked, is_old_latent: bool = False
) -> Question:
    """What the context was asked; KvcalcError where the log does not say how long it is."""
    own = dict(asked.workload)
    slots, tokens = own.pop("batch", None) or context.slots, own.pop("context_tokens", None)
    total = asked.total_tokens or (tokens * slots if tokens else context.total_tokens)
    if total is None:
        raise KvcalcError("the log does not say the context (n_ctx)", "name it: --ctx, or -c for all slots together")
    said = Settings(context.values)
    flags = {
        "ctx_size": total,
        "batch_size": said.count("n_batch"),
        "ubatch_size": said.count("n_ubatch"),
        "flash_attn": _switch(said.text("flash_attn")),
        "kv_unified": context.is_unified,
        "swa_full": True if "swa_full" in context.values else None,
        "spec_draft_n_max": context.draft_rows,
        "mla": False if is_old_latent else None,
    }
    flags = {name: value for name, value in flags.items() if value is not None} | asked.flags(LlamaCpp.name)
    workload = Workload(max(1, total // slots), slots, **{"kv_dtype": _types(context, spec), **own})
    return Question(spec, workload, WHOLE, engine.with_flags(**flags))


def _switch(text: str | None) -> bool | None:
    return {"1": True, "enabled": True, "true": True, "0": False, "disabled": False, "false": False}.get(text or "")


def _types(context: Context, spec: ModelSpec) -> str:
    """The formats of K and V that the caches name."""
    named = [one.values for one in context.caches if "type_k" in one.values]
    k, v = (next((said[key].text for said in named), context.values.get(key)) for key in ("type_k", "type_v"))
    return AUTO if k is None or v is None else kv_dtype_of(spec, k, v)


def context_rows(context: Context, question: Question) -> Iterator[Row]:
    """Rows of every cache of the context; those that differ with the one change that explains them."""
    return explained(lambda other: _rows(context, other), question)


def _rows(context: Context, question: Question) -> Iterator[Row]:
    parts = list(question.allocation.parts)
    for one, buffers in zip(context.caches, context.buffers, strict=True):
        part = _part_of(one, parts)
        if "layers" in one.values and one.values["layers"].value == 0:
            yield judged(one, "layers", 0, 0, "a cache that no layer uses")
            continue
        if part is None:
            yield unexplained(one, "state_bytes" if one.kind == STATES else "cache_bytes", "no such cache is computed")
            continue
        parts.remove(part)
        yield from _cache_rows(one, part)
        yield from _buffer_rows(buffers, one, part.layers)


def _part_of(one: Finding, parts: Sequence[AllocationPart]) -> AllocationPart | None:
    """The computed cache that is most like the one of the log."""
    alike = [part for part in parts if (part.name == STATES) == (one.kind == STATES) and set(part.tensors) & {"K", "R"}]

    def distance(part: AllocationPart) -> int:
        return sum(not row.logged.allows(row.low or 0) for row in _cache_rows(one, part))

    return min(alike, key=distance, default=None)


def _cache_rows(one: Finding, part: AllocationPart) -> Iterator[Row]:
    """Bytes, cells and layers of one cache, K and V apart."""
    computed: dict[str, int] = {"cache_bytes": part.bytes, "state_bytes": part.bytes, "cells": part.cells}
    if one.kind != STATES:
        # llama_memory_recurrent prints all layers of the model, with a state or without.
        computed["layers"] = part.layers
    computed |= {key: part.tensors[name] for key, name in _TENSORS.items() if name in part.tensors}
    for key, value in computed.items():
        if key in one.values:
            yield judged(one, key, value, value)


def _buffer_rows(buffers: Sequence[Finding], one: Finding, layers: int) -> Iterator[Row]:
    """What lies on each device: whole layers of the cache that the log prints, which add up to all of them."""
    said = one.values["state_bytes" if one.kind == STATES else "cache_bytes"]
    keys = [next(key for key in _BUFFERS if key in buffer.values) for buffer in buffers]
    numbers = [buffer.values[key].number for buffer, key in zip(buffers, keys, strict=True)]
    counts = [round(number * layers / said.number) if said.number else 0 for number in numbers]
    for buffer, key, count in zip(buffers, keys, counts, strict=True):
        why = f"{count} of {layers} layers on {buffer.values['device'].text}"
        if not any(numbers):
            logged = buffer.values[key]
            yield Row(line=buffer.line, figure=key, logged=logged, verdict="measured", why="a trial without memory")
        elif sum(counts) != layers:
            yield unexplained(buffer, key, f"{why}, and {sum(counts)} on all devices")
        else:
            share = judged(buffer, key, said.number * count / layers, said.number * count / layers, why)
            # The cache is rounded too: what one digit of it makes of a share may be more than a digit of the share.
            row = judged(buffer, key, said.low * count / layers, said.high * count / layers) if share.is_bad else share
            yield msgspec.structs.replace(row, why="" if row.is_bad else why)
