"""The need of a workload: ModelSpec x Workload x Sharding -> CacheSize, exact in integers."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.formats import AUTO, find_format
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError
from kvcalc.model.memo import Memo
from kvcalc.model.parameters import ParameterCount, count_parameters
from kvcalc.model.spec import Checkpoint, Layer, ModelSpec
from kvcalc.sizing.packing import DEFAULT_DTYPE, FormatRequest, Packer
from kvcalc.sizing.rows import Row, build_rows
from kvcalc.sizing.stages import Counted, counted, held_by_stages, split_stages
from kvcalc.sizing.weight_formats import WeightFormat, find_weights

DEFAULT_CONTEXT = 8192
"""Tokens of a sequence where nobody says how many, and the model can take them."""

MOST_BYTES = 2**63 - 1

UNKNOWN_FORMAT = "unknown format"
"""Of weights whose bytes an index sums up, while the files that would tell their formats are not here."""

_COUNTS = (
    ("context_tokens", "--ctx", 1),
    ("batch", "--batch", 1),
    ("encoder_tokens", "--encoder-tokens", 1),
    ("draft_layers", "--draft-layers", 0),
)


class Workload(msgspec.Struct, frozen=True):
    """`batch` sequences of `context_tokens` tokens each, and the formats that they are kept in.

    Formats are names; None leaves the choice to the spec. `encoder_tokens` replaces the spec's own.
    """

    context_tokens: int = DEFAULT_CONTEXT
    batch: int = 1
    kv_dtype: str = AUTO
    dtype: str | None = None
    weights: str | None = None
    state_dtype: str | None = None
    encoder_tokens: int | None = None
    draft_layers: int = 0

    def __post_init__(self) -> None:
        for name, flag, least in _COUNTS:
            value = getattr(self, name)
            if value is None and name == "encoder_tokens":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise KvcalcError(
                    f"{flag} {value!r}: a whole number of at least {least} is needed", "check the request"
                )


class CacheSize(msgspec.Struct, frozen=True, dict=True):
    """What a workload needs, in bytes. Totals are for the batch and one logical copy unless they name ranks."""

    spec: ModelSpec
    workload: Workload
    sharding: Sharding
    rows: tuple[Row, ...]
    packer: Packer
    bytes_per_rank: int
    all_ranks_bytes: int
    stages: tuple[tuple[int, int], ...]
    layers: tuple[Layer, ...]
    """The layers that are counted, draft layers behind the model's own."""
    held_by_stages: list[list[Component]]
    """What a rank of each pipeline stage holds, copies of what it reads from other stages with it."""

    def __repr__(self) -> str:
        """One line: a model's layers are too many to read."""
        work = self.workload
        return f"CacheSize({self.spec.name}, {work.context_tokens} tokens x {work.batch}: {self.total_bytes} bytes)"

    @cached_property
    def memo(self) -> Memo:
        """What is derived of this size alone."""
        return Memo()

    @cached_property
    def shape_memo(self) -> Memo:
        """What neither the context nor the batch moves; sizes that differ in these alone share it."""
        return self.spec.memo.get(("sizes", *_shape(self.workload, self.sharding)), Memo)

    def at(self, context_tokens: int, batch: int) -> "CacheSize":
        """The same model, formats and ranks for another context and batch; KvcalcError where that is past counting."""
        workload = msgspec.structs.replace(self.workload, context_tokens=context_tokens, batch=batch)
        _refuse_uncountable(self.rows, workload, self.sharding)
        bytes_per_rank, all_ranks_bytes = _rank_totals(self.stage_bytes(context_tokens), workload, self.sharding)
        other = msgspec.structs.replace(
            self, workload=workload, bytes_per_rank=bytes_per_rank, all_ranks_bytes=all_ranks_bytes
        )
        other.__dict__["shape_memo"] = self.shape_memo
        return other

    @cached_property
    def bytes_per_token(self) -> Fraction:
        """What one more token of one sequence costs once every window is full."""
        return sum((row.bytes_per_token for row in self.rows), Fraction(0))

    @cached_property
    def fixed_bytes_per_sequence(self) -> int:
        """What one sequence holds that no longer grows: full windows, states, cross caches."""
        return sum(row.fixed_bytes for row in self.rows)

    @cached_property
    def bytes_per_sequence(self) -> int:
        """What one sequence holds at this context, exactly."""
        return int(sum(row.stored_bytes(self.workload.context_tokens) for row in self.rows))

    @property
    def ranks(self) -> int:
        """Ranks that hold the cache."""
        return self.sharding.stage_ranks * self.sharding.pp * self.sharding.dp

    @property
    def total_bytes(self) -> int:
        """What the batch holds."""
        return self.bytes_per_sequence * self.workload.batch

    @cached_property
    def read_bytes_per_step(self) -> int:
        """What one decode step of the batch reads."""
        return int(sum(row.read_bytes(self.workload.context_tokens) for row in self.rows)) * self.workload.batch

    def stage_bytes(self, tokens: Any) -> list[Any]:
        """Bytes of one sequence of `tokens` tokens on a rank of each pipeline stage; arrays where `tokens` is one."""
        stages = self.shape_memo.get("counted", lambda: [counted(held) for held in self.held_by_stages])
        return [_rank_bytes(one, self.packer, tokens, self.sharding) for one in stages]

    @property
    def fullest_stage(self) -> list[Component]:
        """What a rank of the stage holds that keeps the most bytes at this context."""
        sizes = self.stage_bytes(self.workload.context_tokens)
        return self.held_by_stages[sizes.index(max(sizes))]

    @property
    def replication(self) -> Fraction:
        """How many copies all ranks hold together; 1 where nothing is held."""
        return Fraction(self.all_ranks_bytes, self.total_bytes) if self.total_bytes else Fraction(1)

    @property
    def parameters(self) -> ParameterCount:
        """Parameter counts of the model, None where its spec states too little."""
        return self.spec.memo.get("parameters", lambda: count_parameters(self.spec))

    @property
    def _weights_in_files(self) -> Checkpoint | None:
        return self.spec.checkpoint if self.workload.weights is None and self.workload.dtype is None else None

    @property
    def weights_are_files(self) -> bool:
        """Whether the bytes of the weights are those of files, rather than parameters in a format."""
        return self._weights_in_files is not None

    @property
    def weights_format(self) -> str:
        """The format of the weights; that of the files where they were read and nothing else is asked."""
        if self._weights_in_files is not None:
            return "+".join(self._weights_in_files.formats) or UNKNOWN_FORMAT
        return self.weights_lie_in.name

    @property
    def weights_lie_in(self) -> WeightFormat:
        """What the weights lie in where they are no files: as asked, or in the model's own format."""
        return _weights_of(self.workload, self.packer)

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of all weights in that format, None where the parameters are unknown."""
        if self._weights_in_files is not None:
            return self._weights_in_files.bytes
        total = self.parameters.total
        return None if total is None else self.weights_lie_in.bulk.bulk_bytes(total, "weights")


def size_workload(spec: ModelSpec, workload: Workload, sharding: Sharding) -> CacheSize:
    """What `workload` needs on `sharding`; KvcalcError where a format, a flag or a count does not fit the model."""
    shape = _shape(workload, sharding)
    laid = spec.memo.get(("laid out", *shape), lambda: _lay_out(spec, *shape))
    _refuse_uncountable(laid.rows, workload, sharding)
    stage_bytes = [_rank_bytes(one, laid.packer, workload.context_tokens, sharding) for one in laid.counted]
    bytes_per_rank, all_ranks_bytes = _rank_totals(stage_bytes, workload, sharding)
    return CacheSize(
        spec=spec,
        workload=workload,
        sharding=sharding,
        rows=laid.rows,
        packer=laid.packer,
        bytes_per_rank=bytes_per_rank,
        all_ranks_bytes=all_ranks_bytes,
        stages=laid.stages,
        layers=laid.layers,
        held_by_stages=laid.held,
    )


def _shape(workload: Workload, sharding: Sharding) -> tuple[Workload, Sharding]:
    """What decides everything but how long and how many."""
    return msgspec.structs.replace(workload, context_tokens=1, batch=1), sharding


def _weights_of(workload: Workload, packer: Packer) -> WeightFormat:
    return find_weights(first_stated(workload.weights, packer.dtype), packer.dtype)


class _LaidOut(NamedTuple):
    """A model under formats and ranks, whatever the context and the batch."""

    packer: Packer
    layers: tuple[Layer, ...]
    rows: tuple[Row, ...]
    stages: tuple[tuple[int, int], ...]
    held: list[list[Component]]
    counted: list[list[Counted]]


def _lay_out(spec: ModelSpec, workload: Workload, sharding: Sharding) -> _LaidOut:
    packer = make_packer(spec, workload)
    _weights_of(workload, packer).bulk.bulk_bytes(1, "weights")
    layers = layers_of(spec, workload)
    packer.request.check_names(one for layer in layers for one in layer.components)
    rows = build_rows(layers, spec.reads, packer)
    stages = split_stages(len(spec.layers), len(layers), sharding.pp)
    held = held_by_stages(spec, layers, stages)
    return _LaidOut(packer, layers, rows, stages, held, [counted(one) for one in held])


def _refuse_uncountable(rows: Sequence[Row], workload: Workload, sharding: Sharding) -> None:
    per_sequence = sum(row.stored_bytes(workload.context_tokens) for row in rows)
    if per_sequence * workload.batch * sharding.stage_ranks > MOST_BYTES:
        raise KvcalcError("the cache would pass 8 EiB", "check the digits of --ctx and --batch, and those of the spec")


def _rank_totals(stage_bytes: Sequence[int], workload: Workload, sharding: Sharding) -> tuple[int, int]:
    """Bytes of the fullest rank, and of all of them, from those of one sequence on a rank of each stage."""
    fullest = max(stage_bytes) * -(-workload.batch // sharding.dp)
    return fullest, sum(stage_bytes) * sharding.stage_ranks * workload.batch


def default_context(specs: Iterable[ModelSpec]) -> int:
    """The context in tokens where none is asked: one that every model of `specs` can take."""
    return min([DEFAULT_CONTEXT, *(spec.max_context for spec in specs if spec.max_context is not None)])


def make_packer(spec: ModelSpec, workload: Workload) -> Packer:
    """The formats of `spec` under the request of `workload`."""
    dtype = find_format(first_stated(workload.dtype, spec.dtype, DEFAULT_DTYPE), "--dtype").name
    asked = None if workload.state_dtype is None else find_format(workload.state_dtype, "--state-dtype").name
    return Packer(FormatRequest.parse(workload.kv_dtype), dtype, asked, spec.state_dtype)


def first_stated(*names: str | None) -> str:
    """The first name that is not None; an empty one is a name, and a wrong one."""
    return next(name for name in names if name is not None)


def layers_of(spec: ModelSpec, workload: Workload) -> tuple[Layer, ...]:
    """The layers that the workload counts, each component sized for its encoder input."""
    have = len(spec.draft_layers)
    if workload.draft_layers > have:
        hint = f"use at most --draft-layers {have}" if have else "leave --draft-layers out"
        raise KvcalcError(f"--draft-layers {workload.draft_layers}: the spec of {spec.name} has {have}", hint)
    layers = spec.layers + spec.draft_layers[: workload.draft_layers]
    return _with_encoder(layers, workload.encoder_tokens)


def _with_encoder(layers: tuple[Layer, ...], tokens: int | None) -> tuple[Layer, ...]:
    if tokens is None:
        return layers
    fitted = {
        id(layer): msgspec.structs.replace(
            layer, components=tuple(one.with_encoder(tokens) for one in layer.components)
        )
        for layer in layers
    }
    return tuple(fitted[id(layer)] for layer in layers)


def _rank_bytes(held: Sequence[Counted], packer: Packer, tokens: Any, sharding: Sharding) -> Any:
    """Bytes of one sequence on one rank."""
    return sum(packer.rank_bytes(component, tokens, sharding) * count for component, count in held)
