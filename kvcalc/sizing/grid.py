"""The need over whole arrays of contexts and batches: one numpy expression a row, no loop a point."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import MOST_BYTES, Workload, layers_of, make_packer
from kvcalc.sizing.rows import build_rows
from kvcalc.sizing.stages import components_of
from kvcalc.units import MOST_TOKENS

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame


def size_grid(spec: ModelSpec, contexts: Sequence[int], batches: Sequence[int], workload: Workload) -> "DataFrame":
    """Bytes for every context (outer) and every batch (inner), formats as `workload` asks.

    Columns: context_tokens, batch, bytes_per_sequence, total_bytes, read_bytes_per_step.
    """
    import numpy as np
    import pandas as pd

    tokens, sequences = (_counts(values, name) for values, name in ((contexts, "context"), (batches, "batch")))
    layers, packer = layers_of(spec, workload), make_packer(spec, workload)
    packer.request.check_names(components_of(layers))
    rows = build_rows(layers, spec.reads, packer)
    # int64 wraps in silence, so the largest corner is computed first in integers that cannot.
    corner = max(
        sum(row.stored_bytes(int(tokens.max())) for row in rows), sum(row.read_bytes(int(tokens.max())) for row in rows)
    )
    if corner * int(sequences.max()) > MOST_BYTES:
        raise KvcalcError("a point of the grid would pass 8 EiB", "lower the largest context or batch")
    stored = sum((row.stored_bytes(tokens) for row in rows), start=np.zeros_like(tokens))
    read = sum((row.read_bytes(tokens) for row in rows), start=np.zeros_like(tokens))
    return pd.DataFrame(
        {
            "context_tokens": np.repeat(tokens, len(sequences)),
            "batch": np.tile(sequences, len(tokens)),
            "bytes_per_sequence": np.repeat(stored, len(sequences)),
            "total_bytes": np.outer(stored, sequences).ravel(),
            "read_bytes_per_step": np.outer(read, sequences).ravel(),
        }
    )


def _counts(values: Sequence[int], name: str) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    import numpy as np

    try:
        counts = np.asarray(values)
    except ValueError as error:
        raise KvcalcError(f"the grid's {name} values are no plain list", f"check the {name} list") from error
    if (
        counts.ndim != 1
        or counts.size == 0
        or counts.dtype.kind not in "iu"
        or counts.min() < 1
        or int(counts.max()) > MOST_TOKENS
    ):
        raise KvcalcError(f"the grid's {name} values must be whole numbers from 1 to 10^12", f"check the {name} list")
    return counts.astype(np.int64)
