"""Many answers at once, as pandas DataFrames."""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvcalc.cache.formats import AUTO
from kvcalc.model import catalog
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import Workload, default_context

if TYPE_CHECKING:
    from pandas import DataFrame


def integer(count: int) -> int:
    """A plain integer for any integer type (numpy's among them); anything else goes on to be refused."""
    return operator.index(count) if hasattr(count, "__index__") and not isinstance(count, bool) else count


def loaded(spec: ModelSpec | str) -> ModelSpec:
    """A model, or the one of that name."""
    return catalog.load(spec) if isinstance(spec, str) else spec


def grid(
    spec: ModelSpec | str,
    context_tokens: Sequence[int],
    batch: Sequence[int] = (1,),
    *,
    kv_dtype: str | None = None,
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
        kv_dtype=AUTO if kv_dtype is None else kv_dtype,
        dtype=dtype,
        state_dtype=state_dtype,
        encoder_tokens=encoder_tokens,
        draft_layers=draft_layers,
    )
    return size_grid(loaded(spec), context_tokens, batch, workload)


def sweep(
    models: ModelSpec | str | Sequence[ModelSpec | str],
    context_tokens: Sequence[int] | str | None = None,
    batch: Sequence[int] | str = (1,),
    *,
    gpus: Sequence[str] = (),
    engines: Sequence[str] = (),
    kv_dtypes: Sequence[str] = (),
    weights: Sequence[str] = (),
    tp: Sequence[int] | str = (1,),
    osl: int = 128,
    served: bool = False,
    **same: Any,
) -> "DataFrame":
    """Every model, format, engine, GPU, rank count, context and batch, as `kvcalc sweep` answers them; a row a point.

    Counts are integers, or ranges as the command line reads them (`"1K..1M"`). Contexts are whole ones, of which the
    last `osl` tokens are the answer where `gpus` are named. `same` are `dtype`, `state_dtype`, `encoder_tokens`,
    `attention_dp`, `pp`, `dp` and `ep`. Columns as in docs/sweep.md. Raises KvcalcError where a name or a count is
    wrong, where no deployment can be, and past 1,000,000 points, which the command line streams.
    """
    from kvcalc.hardware.gpus import find_gpu
    from kvcalc.speed.sweep.asked import Asked
    from kvcalc.speed.sweep.asking import counts_of, engine_names, kv_formats, make_uses, weight_formats
    from kvcalc.speed.sweep.grid import whole_frame

    specs = tuple(loaded(one) for one in ([models] if isinstance(models, str | ModelSpec) else models))
    asked = Asked(
        specs=specs,
        uses=make_uses(weight_formats(weights), kv_formats(kv_dtypes), counts_of(tp, "tp"), **same),
        contexts=counts_of([default_context(specs)] if context_tokens is None else context_tokens, "context_tokens"),
        batches=counts_of(batch, "batch"),
        gpus=tuple(dict.fromkeys(find_gpu(name).name for name in gpus)),
        engines=engine_names(engines, is_timed=bool(gpus)),
        osl=integer(osl),
        served=served,
    )
    return whole_frame(asked)
