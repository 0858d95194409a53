"""From flags to a workload: defaults, borrowed spellings, and what should be said about them."""

from collections.abc import Sequence

import msgspec

from kvcalc.cache.sharding import Sharding
from kvcalc.cli.options import RequestOptions, ShardingOptions, count_or, only_given, tokens_or
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import load
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, Workload, default_context, size_workload
from kvcalc.sizing.notes import notes_on
from kvcalc.units import binary_neighbour


class Asked(msgspec.Struct, frozen=True):
    """A size as it was asked for, and notes on how the flags were read."""

    size: CacheSize
    notes: tuple[str, ...]


def ask(model: str | ModelSpec, options: RequestOptions, kv_dtype: str, sharding: ShardingOptions) -> Asked:
    """The size that the flags ask for; KvcalcError where it rests on an assumption and --strict was given."""
    spec = load_asked(model, options)
    return ask_about(spec, options, kv_dtype, sharding, default_context([spec]))


def load_asked(model: str | ModelSpec, options: RequestOptions) -> ModelSpec:
    """The model that the flags name, varied as they ask; one that is loaded already stays as it is."""
    if not isinstance(model, str):
        return model
    return load(model, options.set_ or (), assume=options.assume, download=options.download)


def ask_about(
    spec: ModelSpec, options: RequestOptions, kv_dtype: str, sharding: ShardingOptions, context: int
) -> Asked:
    """The same for a model that is loaded already, at `context` tokens where the flags name none."""
    workload, notes = _workload(spec, options, kv_dtype, context)
    spread = Sharding(**msgspec.structs.asdict(sharding))
    size = size_workload(spec, workload, spread)
    if options.strict:
        _refuse_assumptions(size)
    return Asked(size, tuple(notes))


def _workload(spec: ModelSpec, options: RequestOptions, kv_dtype: str, context: int) -> tuple[Workload, Sequence[str]]:
    ctx_name, ctx = context_flag(options)
    batch_name, batch = batch_flag(options)
    tokens = tokens_or(ctx, "--ctx", context)
    encoder = options.encoder_tokens
    workload = Workload(
        context_tokens=tokens,
        batch=count_or(batch, "--batch", 1),
        kv_dtype=kv_dtype,
        dtype=options.dtype,
        weights=options.weights,
        state_dtype=options.state_dtype,
        encoder_tokens=None if encoder is None else tokens_or(encoder, "--encoder-tokens", 1),
        draft_layers=options.draft_layers,
    )
    borrowed = [_note_on_borrowed(ctx_name, "--ctx"), _note_on_borrowed(batch_name, "--batch")]
    notes = [*borrowed, _note_on_default(ctx, tokens), _decimal_suffix(ctx, spec)]
    return workload, [note for note in notes if note]


def context_flag(options: RequestOptions) -> tuple[str, str | None]:
    """The flag that gave the context, and what it said."""
    return only_given(
        {"--ctx": options.ctx, "--max-model-len": options.max_model_len, "--ctx-size (-c)": options.ctx_size}
    )


def batch_flag(options: RequestOptions) -> tuple[str, str | None]:
    """The flag that gave the batch, and what it said."""
    return only_given(
        {"--batch": options.batch, "--max-num-seqs": options.max_num_seqs, "--parallel (-np)": options.parallel}
    )


def _note_on_borrowed(flag: str, own: str) -> str:
    return "" if flag == own else f"an engine's {flag} is read as {own} here"


def _note_on_default(ctx: str | None, tokens: int) -> str:
    return "" if ctx is not None else f"context {tokens:,} by default (--ctx)"


def _decimal_suffix(ctx: str | None, spec: ModelSpec) -> str:
    """A note where 128k was typed and the model's limit is 128K."""
    binary = binary_neighbour(ctx) if ctx else None
    if ctx is None or binary is None:
        return ""
    limit = " the model's own limit," if binary == spec.max_context else ""
    typed = ctx.strip()
    return f"{typed} is {tokens_or(typed, '--ctx', 1):,} tokens; {typed[:-1]}{typed[-1].upper()} is{limit} {binary:,}"


def _refuse_assumptions(size: CacheSize) -> None:
    for note in notes_on(size):
        if note.assumes:
            raise KvcalcError(f"--strict: {note.text}", "leave --strict out, or state it in the spec")
