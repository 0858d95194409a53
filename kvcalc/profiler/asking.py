"""From what somebody asked to a request that can run: defaults, limits, and what should be said about them."""

import math
from collections.abc import Sequence

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.model.subset import keep_layers
from kvcalc.profiler.request import ProfileRequest
from kvcalc.reference.build import Rank
from kvcalc.sizing.need import Workload

DEFAULT_MODEL = "llama-8b"
SMALL_LAYERS = 2


class Grid(msgspec.Struct, frozen=True):
    """Contexts and batches where none are named: what shows a slope in a minute or two."""

    contexts: tuple[int, ...]
    batches: tuple[int, ...]


DEFAULT_GRIDS = {
    "cpu": Grid((512, 2048), (1, 2)),
    "cuda": Grid((2048, 8192, 32768), (1, 8, 32)),
}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; None leaves a choice to the defaults."""

    contexts: Sequence[int] | None = None
    batches: Sequence[int] | None = None
    layers: int | None = None
    with_mlp: bool = False
    kv_dtype: str = "auto"
    dtype: str | None = None
    state_dtype: str | None = None
    encoder_tokens: int | None = None
    page: int | None = None
    seed: int = 0
    seconds_per_point: float = 5.0


def ask_for(spec: ModelSpec, wanted: Wanted, device_kind: str, rank: Rank, is_bare: bool = False) -> ProfileRequest:
    """The request for `spec` on a device of `device_kind`; KvcalcError for counts that cannot be.

    A bare run, which names no model, is cut to a small shape where there is only a CPU.
    """
    if not 0 < wanted.seconds_per_point < math.inf:
        raise KvcalcError(f"--seconds {wanted.seconds_per_point}: a time above 0 is needed", "use --seconds 5")
    notes = []
    layers = wanted.layers
    if is_bare and layers is None and device_kind == "cpu":
        layers = min(SMALL_LAYERS, len(spec.layers))
        notes.append(
            f"no CUDA device: {layers} of {len(spec.layers)} layers of {spec.name} on the CPU, in short contexts"
        )
    cut = spec if layers is None else keep_layers(spec, layers)
    default = DEFAULT_GRIDS[device_kind]
    longest = spec.max_context
    contexts = (
        wanted.contexts or [one for one in default.contexts if longest is None or one <= longest] or [longest or 1]
    )
    _check_contexts(contexts, spec)
    return ProfileRequest(
        spec=cut,
        layers_of_model=len(spec.layers),
        workload=_workload(wanted),
        contexts=tuple(dict.fromkeys(contexts)),
        batches=tuple(dict.fromkeys(wanted.batches or default.batches)),
        page=wanted.page,
        with_mlp=wanted.with_mlp,
        rank=rank,
        seed=wanted.seed,
        seconds_per_point=wanted.seconds_per_point,
        skip_what_does_not_fit=not (wanted.contexts and wanted.batches),
        notes=tuple(notes),
    )


def _workload(wanted: Wanted) -> Workload:
    return Workload(
        kv_dtype=wanted.kv_dtype,
        dtype=wanted.dtype,
        state_dtype=wanted.state_dtype,
        encoder_tokens=wanted.encoder_tokens,
    )


def _check_contexts(contexts: Sequence[int], spec: ModelSpec) -> None:
    for context in contexts:
        if spec.max_context is not None and context > spec.max_context:
            raise KvcalcError(
                f"--ctx {context:,}: {spec.name} takes at most {spec.max_context:,} tokens",
                f"use --ctx {spec.max_context} or less, or --set max_context={context}",
            )
