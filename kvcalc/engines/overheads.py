"""What lies beside the cache on one rank, term by term: bounds in bytes, how they are known, and from where.

Bounds are held against figures of public start-up logs (docs/overheads.md); a file of overheads that were read off
a running engine replaces them.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.engines.activations import Batch, Bounds, Sampling, ggml_buffer, torch_peak
from kvcalc.engines.engine import Engine
from kvcalc.engines.overhead_rules import ANY, MIB, OverheadRules
from kvcalc.engines.overheads_file import SavedOverheads, read_overheads, write_overheads
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.shards import weights_per_rank

__all__ = ["SavedOverheads", "Term", "overhead_terms", "read_overheads", "write_overheads"]


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a rank holds, in bytes; `high_bytes` is None where it is unknown. `why` is one sentence."""

    name: str
    low_bytes: int
    high_bytes: int | None
    basis: str
    """exact, engine rule, measured, assumed or unknown."""
    why: str

    @property
    def expected_bytes(self) -> int:
        """The middle of its bounds; the lower one where the upper is unknown."""
        return (self.low_bytes + self.most_bytes) // 2

    @property
    def most_bytes(self) -> int:
        """The upper bound; the lower one where the upper is unknown."""
        return self.low_bytes if self.high_bytes is None else self.high_bytes


def overhead_terms(
    size: CacheSize,
    engine: Engine | None,
    gpu_name: str | None,
    saved: SavedOverheads | None,
    *,
    loras: int = 0,
    lora_rank: int = 16,
    stage: int | None = None,
) -> tuple[Term, ...]:
    """Every term of a rank of a pipeline `stage`, by default of the one with most weights.

    They stand in the order of `TERM_NAMES`, without those that are nothing. A saved figure stands in place of the
    bounds, whatever was different then: `SavedOverheads.differences` says what.
    """
    if loras < 0 or lora_rank < 1:
        raise KvcalcError(f"{loras} LoRAs of rank {lora_rank}", "their number is 0 or more and their rank 1 or more")
    rules = engine.overheads if engine else ANY
    kept = size.memo if rules.counts_whole_prompts else size.shape_memo
    weights = size.shape_memo.get(("weights", engine, stage), lambda: _weights(size, engine, stage))
    terms = [weights, *kept.get(("terms", engine), lambda: _of_any_stage(size, engine, rules))]
    terms += [_non_torch(rules, gpu_name), _loras(size, loras, lora_rank), *_towers(size)]
    return tuple(_from_saved(terms, saved))


def _of_any_stage(size: CacheSize, engine: Engine | None, rules: OverheadRules) -> list[Term]:
    return [_activations(size, engine, rules), _graphs(size, rules), _communication(size, rules)]


def _from_saved(terms: list[Term], saved: SavedOverheads | None) -> Iterator[Term]:
    figures = {} if saved is None else dict(saved.terms)
    origin = "" if saved is None else saved.origin
    for term in terms:
        found = figures.pop(term.name, None)
        if found is not None:
            yield _measured(term.name, found, origin)
        elif term.high_bytes != 0:
            yield term
    yield from (_measured(name, found, origin) for name, found in figures.items())


def _measured(name: str, count: int, origin: str) -> Term:
    return Term(name=name, low_bytes=count, high_bytes=count, basis="measured", why=f"read from {origin}")


def _weights(size: CacheSize, engine: Engine | None, stage: int | None) -> Term:
    weights = weights_per_rank(size, attention_dp=engine is not None and engine.has_attention_dp)
    stages = weights.stages if stage is None else weights.stages[stage : stage + 1]
    known = [one for one in stages if one.low_bytes is not None and one.high_bytes is not None]
    if not known:
        return _unknown("weights", f"the spec states too little: {weights.why}")
    fullest = max(known, key=lambda one: one.high_bytes or 0)
    return Term(
        name="weights",
        low_bytes=fullest.low_bytes or 0,
        high_bytes=fullest.high_bytes,
        basis=weights.basis,
        why=weights.why,
    )


_MOST_ROWS = 1024
_LEAST_ROWS = 256
_DEFAULT_TOKENS = 8192


def _activations(size: CacheSize, engine: Engine | None, rules: OverheadRules) -> Term:
    whole = size.workload.context_tokens * size.workload.batch
    tokens = whole if rules.takes_whole_prompts else _flag(engine, rules.tokens) or _DEFAULT_TOKENS
    if rules.is_ggml:
        found = ggml_buffer(size, tokens, _flag(engine, ("ctx_size",)) or whole, bool(_flag(engine, ("flash_attn",))))
        why = f"ggml plans a micro-batch of {tokens:,} tokens in fp32 (ggml-alloc.c)"
        return _bounded("activations", found, rules.activation_basis, why)
    rows = size.workload.batch if rules.takes_whole_prompts else _flag(engine, rules.rows)
    batch = Batch(tokens, min(rows or _LEAST_ROWS, tokens), min(rows or _MOST_ROWS, tokens))
    found = torch_peak(size, batch, _sampling(engine, rules))
    why = f"a pass of {tokens:,} tokens with up to {batch.most_rows:,} rows of logits; {rules.why}"
    return _bounded("activations", found, rules.activation_basis, why)


def _sampling(engine: Engine | None, rules: OverheadRules) -> Sampling:
    version = () if engine is None else tuple(int(part) for part in engine.version.split(".") if part.isdigit())
    return next((copies for since, copies in rules.sampling if version >= since), rules.sampling[-1][1])


def _flag(engine: Engine | None, names: tuple[str, ...]) -> Any:
    """The value of the first of these flags that the engine has and that is set."""
    values = (getattr(engine, name, None) for name in names)
    return next((value for value in values if value is not None), None)


def _graphs(size: CacheSize, rules: OverheadRules) -> Term:
    layers = max(end - first for first, end in size.stages)
    low, high = (layers * count for count in rules.graph_bytes)
    why = f"{layers} layers of {rules.graph_bytes[0] // MIB} to {rules.graph_bytes[1] // MIB} MiB; {rules.why}"
    return _bounded("CUDA graphs", Bounds(low, high), rules.range_basis, why)


def _communication(size: CacheSize, rules: OverheadRules) -> Term:
    ranks = size.sharding.tp if size.sharding.tp > 1 else 0
    found = Bounds(*rules.communication) if ranks else Bounds(0, 0)
    why = f"NCCL and all-reduce buffers of {ranks} ranks; {rules.why}"
    return _bounded("communication", found, rules.range_basis, why)


def _non_torch(rules: OverheadRules, gpu_name: str | None) -> Term:
    where = f" on {gpu_name}" if gpu_name else ""
    why = f"CUDA libraries{where}; {rules.why}"
    return _bounded("non-torch", Bounds(*rules.non_torch), rules.range_basis, why)


def _loras(size: CacheSize, loras: int, rank: int) -> Term:
    """Two matrices beside each linear layer of attention and MLP, for every adapter that is kept at once."""
    if not loras:
        return Term(name="LoRA", low_bytes=0, high_bytes=0, basis="exact", why="none is asked")
    widths = [_adapted(size, index) for index in range(len(size.spec.layers))]
    known = loras * rank * sum(width for width in widths if width is not None)
    low = find_format(size.packer.dtype).bulk_bytes(known, "LoRA")
    if any(width is None for width in widths):
        return Term(
            name="LoRA",
            low_bytes=low,
            high_bytes=None,
            basis="unknown",
            why="which of some layers' projections are adapted is not known",
        )
    held = f"{loras} of rank {rank} beside every projection of attention and MLP"
    return Term(name="LoRA", low_bytes=low, high_bytes=low, basis="exact", why=held)


def _towers(size: CacheSize) -> Iterator[Term]:
    """What a server loads beside the model that the spec describes; files of weights have it among their bytes."""
    if size.spec.left_out and not size.weights_are_files:
        left = " and ".join(size.spec.left_out)
        yield _unknown("vision tower", f"the spec leaves out the {left}; weights in files would count it")


def _adapted(size: CacheSize, index: int) -> int | None:
    layer, hidden, sources = size.spec.layers[index], size.spec.hidden_size, size.spec.source_of()
    if hidden is None:
        return None
    found = [
        one.adapted_widths(hidden, sources.get((index, position)), size.sharding)
        for position, one in enumerate(layer.components)
    ]
    found += [layer.mlp.adapted_widths(hidden, size.sharding)] if layer.mlp else []
    return None if any(width is None for width in found) else sum(width or 0 for width in found)


def _bounded(name: str, found: Bounds | None, basis: str, why: str) -> Term:
    if found is None:
        return _unknown(name, "the spec states too few widths to bound it")
    return Term(name=name, low_bytes=found.low, high_bytes=found.high, basis=basis, why=why)


def _unknown(name: str, why: str) -> Term:
    return Term(name=name, low_bytes=0, high_bytes=None, basis="unknown", why=why)
