"""Charts of the need: what the cache is made of, and how it grows with the context."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kvcalc.chart import Axis, Chart, Series
from kvcalc.sizing.need import CacheSize
from kvcalc.units import counted, memory

if TYPE_CHECKING:
    from kvcalc.documents import SizeDocument

_LEAST_CONTEXT = 256
_LONGEST_UNSTATED = 2**20
"""Tokens up to which a model is drawn that states no limit."""


def breakdown_chart(cases: "Sequence[tuple[str, SizeDocument]]") -> Chart:
    """Bytes of the batch by component, a bar a case and one colour a component; one case shows its weights too."""
    names = list(dict.fromkeys(part["name"] for _, case in cases for part in case["kv_cache"]["components"]))
    labels = [label for label, _ in cases]
    rows = [_component_bytes(case) for _, case in cases]
    series = [Series(name, labels, [row.get(name) for row in rows], "bar") for name in names]
    says = _of_most(*cases[0]) if len(cases) == 1 else "What the batch keeps of each case, by component."
    weights = cases[0][1]["weights"]["bytes"]
    if len(cases) == 1 and weights:
        series = [Series(one.name, ["KV cache"], one.y, "bar") for one in series]
        series.append(Series("weights", ["weights"], [weights], "bar"))
    return Chart("breakdown", "Memory", Axis("", "text"), Axis("memory", "bytes"), tuple(series), says, is_stacked=True)


def _component_bytes(case: "SizeDocument") -> dict[str, int]:
    batch = case["request"]["batch"]
    return {part["name"]: part["bytes_per_sequence"] * batch for part in case["kv_cache"]["components"]}


def _of_most(label: str, case: "SizeDocument") -> str:
    parts, asked = _component_bytes(case), case["request"]
    load = f"{counted(asked['batch'], 'sequence')} of {counted(asked['context_tokens'], 'token')}"
    total = sum(parts.values())
    if not total:
        return f"{label} keeps nothing for {load}."
    name = max(parts, key=parts.__getitem__)
    share = f"; {parts[name] / total:.0%} of it is {name}" if len(parts) > 1 else ""
    return f"{label} keeps {memory(total)} for {load}{share}."


def context_chart(sizes: Sequence[tuple[str, CacheSize]]) -> Chart:
    """Bytes of the batch against the context; one case shows its components too."""
    series = [_growth(label, size, size.rows) for label, size in sizes]
    if len(sizes) == 1 and len(sizes[0][1].rows) > 1:
        size = sizes[0][1]
        whole = msgspec.structs.replace(series[0], name="all of it", is_dashed=True)
        series = [*(_growth(row.name, size, (row,)) for row in size.rows), whole]
    axes = Axis("context", "tokens", is_log=True), Axis("KV cache of the batch", "bytes", is_log=True)
    said = [_growing(label, size) for label, size in sizes] if len(sizes) <= _MOST_SAID else []
    says = " ".join(said) or "What the batch keeps as its context grows up to what the model takes."
    return Chart("context", "Bytes against context", *axes, tuple(series), says)


_MOST_SAID = 3


def _growing(label: str, size: CacheSize) -> str:
    most = contexts_of(size)[-1]
    total = int(sum(row.stored_bytes(most) for row in size.rows)) * size.workload.batch
    return f"{label} keeps {memory(total)} at {counted(most, 'token')}, batch {size.workload.batch:,}."


def contexts_of(size: CacheSize) -> list[int]:
    """Powers of two up to the model's own limit, that limit, and what was asked for, in tokens."""
    asked = size.workload.context_tokens
    last = max(size.spec.max_context or _LONGEST_UNSTATED, asked)
    powers = (2**exponent for exponent in range(last.bit_length()))
    return sorted({asked, last, *(tokens for tokens in powers if tokens >= _LEAST_CONTEXT)})


def _growth(name: str, size: CacheSize, rows: Sequence[object]) -> Series:
    contexts, kept = contexts_of(size), [row for row in size.rows if row in rows]
    batch = size.workload.batch
    held = [int(sum(row.stored_bytes(tokens) for row in kept)) * batch for tokens in contexts]
    return Series(name, contexts, [count or None for count in held])
