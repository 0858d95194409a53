"""The Python API: the same objects that the command line prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcalc.cache.formats import AUTO
from kvcalc.cache.sharding import Sharding
from kvcalc.model import catalog
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import DEFAULT_CONTEXT, CacheSize, Workload, size_workload

if TYPE_CHECKING:
    from pandas import DataFrame


def load(name_or_path: str, overrides: Sequence[str] = ()) -> ModelSpec:
    """The model called `name_or_path`: a catalogue name, an alias, or the path of a YAML spec.

    `overrides` vary it without a file, as `--set` does: `["mixer.kv_heads=4"]`. Raises UnknownNameError
    with near names, and SpecError, with its line, for a file that cannot be read.
    """
    return catalog.load(name_or_path, overrides)


def models() -> list[str]:
    """The names of every model of the catalogue, sorted."""
    return catalog.catalogue_names()


def size(
    spec: ModelSpec | str,
    context_tokens: int = DEFAULT_CONTEXT,
    batch: int = 1,
    *,
    kv_dtype: str = AUTO,
    dtype: str | None = None,
    weights: str | None = None,
    state_dtype: str | None = None,
    encoder_tokens: int | None = None,
    draft_layers: int = 0,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    dcp: int = 1,
) -> CacheSize:
    """What `batch` sequences of `context_tokens` tokens need, in exact bytes; `spec` is a model or its name.

    Formats are names (`bf16`, `fp8`, `k=q8_0,v=q4_0`, `index=bf16`); None leaves them to the spec. The
    parallel sizes shape `bytes_per_rank` and `all_ranks_bytes` only. Raises KvcalcError where a format
    or a count does not fit the model.
    """
    workload = Workload(
        context_tokens=context_tokens,
        batch=batch,
        kv_dtype=kv_dtype,
        dtype=dtype,
        weights=weights,
        state_dtype=state_dtype,
        encoder_tokens=encoder_tokens,
        draft_layers=draft_layers,
    )
    return size_workload(_loaded(spec), workload, Sharding(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp))


def _loaded(spec: ModelSpec | str) -> ModelSpec:
    return catalog.load(spec) if isinstance(spec, str) else spec


def grid(
    spec: ModelSpec | str,
    context_tokens: Sequence[int],
    batch: Sequence[int] = (1,),
    *,
    kv_dtype: str = AUTO,
    dtype: str | None = None,
    state_dtype: str | None = None,
    encoder_tokens: int | None = None,
    draft_layers: int = 0,
) -> "DataFrame":
    """Every context with every batch at once, as a pandas DataFrame of bytes.

    Columns: context_tokens, batch, bytes_per_sequence, total_bytes, read_bytes_per_step (all int64).
    Raises KvcalcError where a count is below 1 or a total would pass 8 EiB.
    """
    from kvcalc.sizing.grid import size_grid

    workload = Workload(
        kv_dtype=kv_dtype,
        dtype=dtype,
        state_dtype=state_dtype,
        encoder_tokens=encoder_tokens,
        draft_layers=draft_layers,
    )
    return size_grid(_loaded(spec), context_tokens, batch, workload)
