"""A run of somebody's server: what its streams took, and its own figures of its cache beside kvcalc's prediction."""

from collections.abc import Callable
from typing import Any

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.profiler.documents import (
    PROFILE_SCHEMA,
    ProfileDocument,
    RequestedDocument,
    SeriesDocument,
    ServedDocument,
)
from kvcalc.profiler.environment import plain_environment
from kvcalc.profiler.record import seal
from kvcalc.profiler.series import Series
from kvcalc.profiler.server import CacheFigures, ServerRequest, ServerRun, StreamTiming, time_server
from kvcalc.profiler.verdict import judge
from kvcalc.sizing.need import CacheSize
from kvcalc.units import plain_number

CONTEXT_TOKENS = 2048
BATCH = 1
LEAST_OUTPUT = 2
"""Time per output token is what lies between two of them."""


class Shape(msgspec.Struct, frozen=True):
    """Streams of a run: so many at once, each of `context_tokens`, the last `output_tokens` of them generated."""

    context_tokens: int = CONTEXT_TOKENS
    batch: int = BATCH
    output_tokens: int = 64

    def __post_init__(self) -> None:
        if self.output_tokens < LEAST_OUTPUT:
            raise KvcalcError(
                f"--output-tokens {self.output_tokens}: nothing lies between the tokens of a stream",
                f"use --output-tokens {LEAST_OUTPUT} or more",
            )
        if self.prompt_tokens < 1:
            raise KvcalcError(
                f"--ctx {self.context_tokens:,} leaves no prompt before {self.output_tokens:,} output tokens",
                "use a longer --ctx, or fewer --output-tokens",
            )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of each prompt."""
        return self.context_tokens - self.output_tokens


class Server(msgspec.Struct, frozen=True):
    """Which model of which server is asked; `model` None means the first that it serves."""

    url: str
    model: str | None = None
    api_key: str | None = None


def served_run(
    server: Server, shape: Shape, size: CacheSize | None = None, progress: Callable[[int], None] | None = None
) -> ProfileDocument:
    """Time concurrent streams of a server; `size` predicts their cache, `progress` hears chunks so far.

    KvcalcError where the server does not answer as one should, or sends its tokens all at once.
    """
    request = ServerRequest(
        server.url, server.model, shape.prompt_tokens, shape.output_tokens, shape.batch, server.api_key
    )
    environment = plain_environment("server")
    environment["device_name"] = server.url.strip()
    run = time_server(request, progress)
    tpot, doubts = _tpot(run.streams)
    spec = size.spec if size else None
    return seal(
        {
            "schema": PROFILE_SCHEMA,
            "model": {"name": spec.name, "source": spec.source} if spec else {"name": run.served_model, "source": ""},
            "request": _requested(shape, size),
            "environment": environment,
            "machine": None,
            "components": [],
            "prefill": None,
            "decode": None,
            "points": [],
            "served": _served(server, shape, run, tpot, size),
            "verdict": judge([], None),
            "doubts": [*run.doubts, *doubts],
            "notes": [f"{shape.output_tokens:,} of {shape.context_tokens:,} tokens a stream are its output"],
            "spec": msgspec.to_builtins(spec) if spec else {},
            "digest": "",
        }
    )


def _requested(shape: Shape, size: CacheSize | None) -> RequestedDocument:
    """The request as the run file carries it; where no MODEL was named, nothing is known of its formats and layers."""
    layers = len(size.spec.layers) if size else 0
    return {
        "backend": "openai",
        "contexts": [shape.context_tokens],
        "batches": [shape.batch],
        "dtype": size.packer.dtype if size else "unknown",
        "kv_dtype": size.workload.kv_dtype if size else "unknown",
        "layers": layers,
        "layers_of_model": layers,
        "with_mlp": True,
        "page_tokens": None,
        "encoder_tokens": None,
        "tp": 1,
        "seed": 0,
        "set": list(size.spec.overrides) if size else [],
    }


def _served(
    server: Server, shape: Shape, run: ServerRun, tpot: SeriesDocument, size: CacheSize | None
) -> ServedDocument:
    return {
        "url": server.url.strip(),
        "served_model": run.served_model,
        "ttft": Series(tuple(stream.ttft_seconds for stream in run.streams)).document(),
        "tpot": tpot,
        "tokens_per_second": run.tokens_per_second,
        "cache": {**msgspec.structs.asdict(run.cache), **_predicted(run.cache, shape, size)},
    }


def _predicted(cache: CacheFigures, shape: Shape, size: CacheSize | None) -> dict[str, Any]:
    """What the streams should take at their end, in whole blocks, and what the server's pool weighs."""
    block, capacity = cache.block_tokens, cache.capacity_tokens
    a_token = size.bytes_per_token if size else None
    return {
        "predicted_peak_tokens": shape.batch * -(-shape.context_tokens // block) * block if block else None,
        "predicted_bytes_per_token": None if a_token is None else plain_number(a_token),
        "predicted_pool_bytes": None if a_token is None or capacity is None else plain_number(a_token * capacity),
    }


def _tpot(streams: list[StreamTiming]) -> tuple[SeriesDocument, list[str]]:
    """Time per output token of every stream that has one, and a doubt where some have none."""
    timed = tuple(stream.tpot_seconds for stream in streams if stream.tpot_seconds)
    if not timed:
        raise KvcalcError(
            "no time lies between the tokens of any stream: they came all at once, or one alone",
            "is there a proxy that holds answers back? a server without ignore_eos may end a stream at once",
        )
    lacking = len(streams) - len(timed)
    doubt = f"{lacking:,} of {len(streams):,} streams have no time between tokens: TPOT leaves them out"
    return Series(timed).document(), [doubt] if lacking else []
