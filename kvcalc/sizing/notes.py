"""What an answer should say beside its numbers: copies, limits, assumptions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from kvcalc.cache.component import MODEL_FORMAT
from kvcalc.cache.formats import AUTO, find_format
from kvcalc.cache.sharding import WHOLE
from kvcalc.sizing.need import UNKNOWN_FORMAT, CacheSize
from kvcalc.sizing.packing import DEFAULT_DTYPE
from kvcalc.sizing.rows import Row
from kvcalc.sizing.stages import components_of, foreign_sources
from kvcalc.units import counted

if TYPE_CHECKING:
    from kvcalc.documents import Basis


class Note(msgspec.Struct, frozen=True):
    """One sentence; `assumes` says what rests on it (cache, reads, weights), which `--strict` refuses."""

    text: str
    assumes: tuple[str, ...] = ()


def notes_on(size: CacheSize) -> list[Note]:
    """Everything that a reader of `size` should know, most important first."""
    return [*_changes(size), *_assumptions(size), *_context(size), *_ranks(size), *_formats(size), *_weights(size)]


def basis(size: CacheSize, *parts: str) -> "Basis":
    """`exact`, or `assumed` where any of `parts` (cache, reads, weights) rests on an assumption."""
    return "assumed" if any(set(note.assumes) & set(parts) for note in _assumptions(size)) else "exact"


def _changes(size: CacheSize) -> Iterator[Note]:
    if size.spec.overrides:
        yield Note(f"changed by --set: {', '.join(size.spec.overrides)}")


def _assumptions(size: CacheSize) -> Iterator[Note]:
    assumed = size.spec.assumed
    yield from (Note(f"assumed: {text}", ("cache",)) for text in assumed.cache)
    yield from (Note(f"assumed for what is read: {text}", ("reads",)) for text in assumed.reads)
    yield from (Note(f"assumed for the weights: {text}", ("weights",)) for text in assumed.weights)
    yield from _encoder_note(size)
    yield from _checkpoint_notes(size)
    if not size.weights_are_files and size.weights_lie_in.note:
        yield Note(f"assumed for the weights: {size.weights_lie_in.note}", ("weights",))
    if size.spec.dtype is None and size.workload.dtype is None:
        yield Note(f"assumed: the spec states no dtype, {DEFAULT_DTYPE} is taken (--dtype)", ("cache", "weights"))


def _checkpoint_notes(size: CacheSize) -> Iterator[Note]:
    """What is wrong with weights that were read from files: unknown formats, or the weights of another model."""
    checkpoint = size.spec.checkpoint
    if checkpoint is None:
        return
    if size.weights_format == UNKNOWN_FORMAT:
        yield Note(f"assumed for the weights: {checkpoint.source}", ("weights",))
    held, made = checkpoint.parameters, size.parameters.total
    # Towers, draft layers and buffers lie in the files too; a factor of two is another model.
    if held and made and not made <= 2 * held <= 4 * made:
        text = f"the files hold {held:,} parameters, and the config makes {made:,}: are they one model's?"
        yield Note(f"assumed for the weights: {text}", ("weights",))


def _encoder_note(size: CacheSize) -> Iterator[Note]:
    lacking = [f"`{row.name}`" for row in size.rows if row.component.needs_encoder_tokens]
    if lacking:
        names = ", ".join(lacking)
        text = f"assumed: no encoder input; {names} keeps its tokens: --encoder-tokens N counts them"
        yield Note(text, ("cache", "reads"))


def _context(size: CacheSize) -> Iterator[Note]:
    tokens, most = size.workload.context_tokens, size.spec.max_context
    if most is not None and tokens > most:
        yield Note(f"context {tokens:,} is past the model's own limit of {most:,}")
    if size.workload.encoder_tokens and not any(row.component.is_encoder_fed for row in size.rows):
        yield Note("--encoder-tokens changes nothing: no component keeps the encoder's tokens")
    if size.workload.state_dtype and not any(
        state.format != MODEL_FORMAT for row in size.rows for state in row.component.states(WHOLE)
    ):
        yield Note("--state-dtype changes nothing: no state follows it")


def _ranks(size: CacheSize) -> Iterator[Note]:
    sharding = size.sharding
    if sharding.tp > 1:
        yield from _tensor_parallel(size)
    if sharding.dcp > 1 and sharding.tp % sharding.dcp:
        yield Note(
            f"--dcp {sharding.dcp} does not divide --tp {sharding.tp}: counted on {sharding.stage_ranks} ranks; "
            "vLLM takes the decode-context ranks from the tensor-parallel ones and refuses this"
        )
    foreign = sum(map(len, foreign_sources(size.spec, size.stages)))
    if foreign:
        yield Note(f"--pp {sharding.pp}: {foreign} cache(s) read from another stage are counted on both")
    if sharding.dp > 1 and size.workload.batch % sharding.dp:
        most = -(-size.workload.batch // sharding.dp)
        yield Note(f"--dp {sharding.dp} does not divide the batch: the fullest rank holds {counted(most, 'sequence')}")
    if sharding.ep > 1:
        yield Note("--ep moves experts only: the cache is the same on every rank")


def _tensor_parallel(size: CacheSize) -> Iterator[Note]:
    counts = {(what, heads, _ranks_of(size, row)) for row in size.rows for what, heads in row.component.shared_heads()}
    for what, heads, ranks in sorted(counts):
        refused = "" if max(heads, ranks) % min(heads, ranks) == 0 else "; engines refuse an uneven split"
        if heads < ranks:
            yield Note(
                f"{heads:,} {what} on {ranks:,} ranks are replicated, {ranks / heads:.3g} copies of each{refused}"
            )
        elif refused:
            yield Note(f"{heads:,} {what} on {ranks:,} ranks: every rank is counted like the fullest{refused}")
    for ranks, names in _whole_on_ranks(size).items():
        verb = "is" if len(names) == 1 else "are"
        yield Note(f"{', '.join(names)} {verb} whole on each of {ranks} ranks: not divided by --tp")


def _ranks_of(size: CacheSize, row: Row) -> int:
    """Ranks over which the heads of a row are spread: those that hold the same tokens."""
    return size.sharding.growing.tp if row.component.grows else size.sharding.tp


def _whole_on_ranks(size: CacheSize) -> dict[int, list[str]]:
    """Rows without heads to divide, by how many ranks hold all that such a rank can hold."""
    whole: dict[int, list[str]] = {}
    for row in size.rows:
        if not row.component.shared_heads() and _ranks_of(size, row) > 1:
            whole.setdefault(_ranks_of(size, row), []).append(f"`{row.name}`")
    return whole


def _formats(size: CacheSize) -> Iterator[Note]:
    if size.workload.kv_dtype != AUTO:
        yield from _unreached(size)
    names = {part for row in size.rows for part in row.format.split(",") if row.component.parts(WHOLE)}
    forms = {find_format(name.rpartition("=")[2]) for name in names}
    yield from (Note(text) for text in sorted({form.note for form in forms if form.note}))


def _unreached(size: CacheSize) -> Iterator[Note]:
    """What --kv-dtype does not reach: states, which may be most of a hybrid's cache."""
    states = [row for row in size.rows if row.component.states(WHOLE) and not row.component.keeps_entries]
    if len(states) == len(size.rows):
        yield Note("--kv-dtype changes nothing: states follow --state-dtype and --dtype")
    elif states:
        share = sum(row.fixed_bytes for row in states) / max(1, size.bytes_per_sequence)
        names = ", ".join(f"`{row.name}`" for row in states)
        yield Note(f"--kv-dtype does not reach {names}, {share:.0%} of a sequence here: states follow --state-dtype")


def _weights(size: CacheSize) -> Iterator[Note]:
    published = size.spec.published_weights
    if published and not size.weights_are_files and size.workload.weights is None and size.workload.dtype is None:
        yield Note(
            f"weights are counted in {size.weights_format}; most of the published ones are {published} (--weights)"
        )
    if size.parameters.total is None:
        yield Note(f"parameters unknown: {size.parameters.unknown}")
    if size.workload.draft_layers and size.parameters.total is not None:
        yield Note("draft layers count in the cache, not in the weights")
    unused = [one for one in components_of(size.spec.draft_layers) if one.keeps_entries]
    if unused and not size.workload.draft_layers:
        yield Note(f"without draft layers (MTP): --draft-layers {len(size.spec.draft_layers)} adds theirs")
