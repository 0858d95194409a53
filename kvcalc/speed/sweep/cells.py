"""The points of one deployment, all at once: contexts down, batches across, every figure an array over both."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.report import Column
from kvcalc.speed.kernels import Cost
from kvcalc.speed.setting import seconds_of
from kvcalc.speed.sweep.asked import Asked, Deployment, Ready
from kvcalc.speed.sweep.held import Held
from kvcalc.speed.timing import limit_shares

if TYPE_CHECKING:
    from pandas import DataFrame

BLOCK_POINTS = 2**18
"""Points that are worked on at once: arrays of 2 MiB."""

WHO = (
    Column("model", "model"),
    Column("weights", "weights"),
    Column("kv_dtype", "KV"),
    Column("engine", "engine"),
    Column("gpu", "GPU"),
    Column("tp", "tp", "count"),
    Column("gpus", "GPUs", "count"),
)
LOAD = (
    Column("isl", "in", "tokens"),
    Column("osl", "out", "tokens"),
    Column("context_tokens", "context", "tokens"),
    Column("batch", "batch", "count"),
)
MEMORY = (
    Column("bytes_per_sequence", "a sequence", "bytes"),
    Column("total_bytes", "KV cache", "bytes"),
    Column("bytes_per_rank", "on a rank", "bytes"),
    Column("read_bytes_per_step", "read a step", "bytes"),
)
HELD = Column("allocated_bytes", "engine holds", "bytes")
SPEED = (
    Column("fits", "fits"),
    Column("prefill_seconds", "prefill", "seconds"),
    Column("step_seconds", "step", "seconds"),
    Column("tpot_seconds", "TPOT", "seconds"),
    Column("ttft_seconds", "TTFT", "seconds"),
    Column("tokens_per_second", "tokens/s", "number"),
    Column("tokens_per_second_per_gpu", "per GPU", "number"),
    Column("tokens_per_second_per_user", "per user", "number"),
    Column("limited_by", "limited by"),
    Column("cost_per_million_tokens", "cost/M", "number"),
    Column("joules_per_token", "J/token", "number"),
    Column("pareto", "front"),
)


def columns(asked: Asked) -> tuple[Column, ...]:
    """The columns of a sweep, in order."""
    left_out = set() if asked.served else {"tpot_seconds", "ttft_seconds"}
    left_out |= set() if asked.rates.per_second else {"cost_per_million_tokens"}
    left_out |= set() if asked.rates.watts else {"joules_per_token"}
    left_out |= set() if asked.has_engines else {"engine", "allocated_bytes"}
    if asked.gpus:
        left_out |= {"allocated_bytes"}
    else:
        left_out |= {"weights", "gpu", "gpus", "isl", "osl", *(column.key for column in SPEED)}
    return tuple(column for column in (*WHO, *LOAD, *MEMORY, HELD, *SPEED) if column.key not in left_out)


class Placed(NamedTuple):
    """A deployment, ready where it is on a GPU, and what its engine holds where only memory is asked about."""

    deployment: Deployment
    ready: Ready | None
    held: Held | None


class Block(NamedTuple):
    """Some points of one deployment: `names` are the same in all, `figures` are arrays of one value a point."""

    names: dict[str, Any]
    figures: dict[str, Any]

    @property
    def points(self) -> int:
        """How many they are."""
        return len(self.figures["batch"])


def blocks(placed: Placed, asked: Asked) -> Iterator[Block]:
    """The points of a deployment, contexts outside and batches inside; KvcalcError where one is past counting."""
    deployment, ready = placed.deployment, placed.ready
    contexts, batches = asked.contexts_of(deployment.spec), asked.batches
    # int64 wraps in silence: the largest corner is refused in integers that do not.
    deployment.size(contexts[-1], batches[-1])
    counts = ready.room.fitting(contexts, batches) if ready else []
    across = min(len(batches), BLOCK_POINTS)
    down = max(1, BLOCK_POINTS // across)
    for top in range(0, len(contexts), down):
        for left in range(0, len(batches), across):
            rows, sequences = contexts[top : top + down], batches[left : left + across]
            fitting = [count - left for count in counts[top : top + down]]
            yield _block(placed, asked, rows, sequences, fitting)


def _block(
    placed: Placed, asked: Asked, contexts: Sequence[int], batches: Sequence[int], fitting: Sequence[int]
) -> Block:
    import numpy as np

    deployment, ready, held = placed
    tokens, sequences = np.array(contexts)[:, None], np.array(batches)[None, :]
    figures: dict[str, Any] = {"context_tokens": tokens, "batch": sequences, **_memory(deployment, tokens, sequences)}
    if ready is not None:
        fits = np.arange(len(batches))[None, :] < np.array(fitting)[:, None]
        figures |= {"isl": tokens - asked.osl, "fits": fits, **_speed(ready, asked, tokens, sequences, fits)}
    if held is not None:
        figures["allocated_bytes"] = held.allocated_bytes(contexts, batches)
    shape = tokens.size, sequences.size
    return Block(
        names={**who(deployment, ready), "osl": asked.osl},
        figures={name: np.broadcast_to(values, shape).ravel() for name, values in figures.items()},
    )


def frame_of(blocks: Sequence[Block], asked: Asked) -> "DataFrame":
    """The points of some blocks as one frame, with the columns of the sweep."""
    import numpy as np
    import pandas as pd

    counts = [block.points for block in blocks]
    data: dict[str, Any] = {}
    for key in (column.key for column in columns(asked)):
        if key in blocks[0].figures:
            data[key] = np.concatenate([block.figures[key] for block in blocks])
        else:
            data[key] = np.repeat(np.array([block.names[key] for block in blocks]), counts)
    if "allocated_bytes" in data:
        held = data["allocated_bytes"]
        data["allocated_bytes"] = pd.arrays.IntegerArray(np.maximum(held, 0), held < 0)
    return pd.DataFrame(data)


def who(deployment: Deployment, ready: Ready | None) -> dict[str, Any]:
    """The columns that name a deployment; formats as they were understood."""
    use = deployment.use
    weights = None if ready is None else use.weights or ready.setting.model.size.weights_format
    return {
        "model": deployment.spec.name,
        "weights": weights,
        "kv_dtype": use.kv_dtype,
        "engine": deployment.engine,
        "gpu": deployment.gpu,
        "tp": use.sharding.tp,
        "gpus": use.gpus,
    }


def _memory(deployment: Deployment, tokens: Any, sequences: Any) -> dict[str, Any]:
    size = deployment.model.size
    stored = sum(row.stored_bytes(tokens) for row in size.rows)
    read = sum(row.read_bytes(tokens) for row in size.rows)
    return {
        "bytes_per_sequence": stored,
        "total_bytes": stored * sequences,
        "bytes_per_rank": _largest(size.stage_bytes(tokens)) * -(-sequences // deployment.use.sharding.dp),
        "read_bytes_per_step": read * sequences,
    }


def _largest(arrays: Sequence[Any]) -> Any:
    import numpy as np

    return np.max(np.stack(np.broadcast_arrays(*arrays)), axis=0)


def _speed(ready: Ready, asked: Asked, tokens: Any, sequences: Any, fits: Any) -> dict[str, Any]:
    """Seconds and rates where the batch fits, nothing where it does not."""
    import numpy as np

    # Floats do not wrap: pairs of a prompt of 10 million tokens, in FLOPs of all layers, pass int64.
    pricing, batch = ready.pricing(tokens.astype(float), asked.osl), sequences.astype(float)
    step = pricing.last_step(batch)
    seconds = {"prefill_seconds": seconds_of(pricing.prompt()), "step_seconds": seconds_of(step)}
    if asked.served:
        token = pricing.tpot(batch)
        seconds |= {"tpot_seconds": seconds_of(token), "ttft_seconds": seconds_of(pricing.ttft(batch))}
    each = 1 / seconds["tpot_seconds" if asked.served else "step_seconds"]
    total, gpus = batch * each, ready.deployment.use.gpus
    rates = {
        "tokens_per_second": total,
        "tokens_per_second_per_gpu": total / gpus,
        "tokens_per_second_per_user": each,
        "cost_per_million_tokens": asked.rates.cost_per_million(ready.gpu, gpus, total),
        "joules_per_token": asked.rates.joules_per_token(ready.gpu, gpus, total),
    }
    known = {name: np.nan if values is None else values for name, values in (seconds | rates).items()}
    shown = {name: np.where(fits, values, np.nan) for name, values in known.items()}
    return {**shown, "limited_by": np.where(fits, _limits(token if asked.served else step, fits.shape), None)}


def _limits(costs: Sequence[Cost], shape: tuple[int, ...]) -> Any:
    """What the most seconds of each point are spent on."""
    import numpy as np

    spent: dict[str, Any] = {}
    for name, seconds in limit_shares(costs):
        spent[name] = spent.get(name, 0.0) + seconds
    stacked = np.stack([np.broadcast_to(seconds, shape) for seconds in spent.values()])
    return np.array(list(spent), dtype=object)[np.argmax(stacked, axis=0)]
