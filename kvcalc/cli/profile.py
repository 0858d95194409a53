"""kvcalc profile: run prefill and decode for real, and hold what is measured against the prediction."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvcalc.cli.emit import emit
from kvcalc.cli.options import KvDtypeOption, OutputOptions, verb
from kvcalc.cli.profile_flags import Flags, refuse_foreign
from kvcalc.cli.profile_options import BackendOptions, GridOptions, MeasureOptions, OptionalModel
from kvcalc.errors import KvcalcError, UnknownNameError

if TYPE_CHECKING:
    from kvcalc.profiler.course import Progress
    from kvcalc.profiler.documents import ProfileDocument
    from kvcalc.profiler.served import Shape
    from kvcalc.sizing.need import CacheSize


@verb
def profile(
    grid: GridOptions,
    kv: KvDtypeOption,
    measure: MeasureOptions,
    backend: BackendOptions,
    output: OutputOptions,
    model: OptionalModel = None,
) -> int:
    """Prefill and decode run for real: memory and bandwidth as measured, beside the prediction."""
    from kvcalc.profiler.course import InterruptedRunError
    from kvcalc.profiler.verdict import exit_code

    run = _BACKENDS.get(backend.backend)
    if run is None:
        raise UnknownNameError("backend", backend.backend, _BACKENDS, f"--backend takes {', '.join(_BACKENDS)}")
    flags = Flags(model, grid, kv, measure, backend)
    refuse_foreign(flags)
    try:
        document = run(flags)
    except InterruptedRunError as stopped:
        # Whoever presses it again wants to leave at once; when all is shown, the code stays what it is.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        _show(stopped.document, output)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 130
    if document is None:
        return 0
    _show(document, output)
    return exit_code(document["verdict"])


def _show(document: "ProfileDocument", output: OutputOptions) -> None:
    from kvcalc.profiler.report import profile_report

    emit(profile_report(document), output)


def _reference(flags: Flags) -> "ProfileDocument | None":
    """Run kvcalc's own layers; None on every rank but the first, which speaks for all."""
    from kvcalc.profiler.asking import DEFAULT_MODEL, ask_for
    from kvcalc.profiler.course import InterruptedRunError
    from kvcalc.profiler.device import find_device
    from kvcalc.profiler.ranks import ranks_of
    from kvcalc.profiler.run import profile_run

    tolerance = flags.tolerance()
    wanted = flags.wanted()
    device = find_device(flags.measure.device, flags.measure.threads)
    with ranks_of(flags.measure.tp, device.kind) as ranks:
        spec = flags.spec(DEFAULT_MODEL if flags.model is None else flags.model)
        request = ask_for(spec, wanted, device.kind, ranks.rank, is_bare=flags.model is None)
        try:
            with _progress(ranks.is_first) as progress:
                document = profile_run(request, device, tolerance, progress, ranks)
        except InterruptedRunError:
            if ranks.is_first:
                raise
            return None
    return document if ranks.is_first else None


def _transformers(flags: Flags) -> "ProfileDocument":
    """Run the library's own model for a config.json."""
    from kvcalc.profiler.asking import ask_for
    from kvcalc.profiler.device import find_device
    from kvcalc.profiler.library import library_run
    from kvcalc.profiler.library_build import find_config
    from kvcalc.profiler.ranks import ALONE

    tolerance, wanted = flags.tolerance(), flags.wanted()
    config = find_config(flags.model, flags.grid.download)
    device = find_device(flags.measure.device, flags.measure.threads)
    request = ask_for(flags.spec(str(config)), wanted, device.kind, ALONE.rank)
    with _progress(True) as progress:
        return library_run(request, config, device, tolerance, progress)


def _openai(flags: Flags) -> "ProfileDocument":
    """Time the streams of a server."""
    from kvcalc.profiler.served import BATCH, CONTEXT_TOKENS, Server, Shape, served_run

    asked = flags.backend
    if asked.url is None:
        raise KvcalcError("--backend openai times a server, and none is named", "add --url http://127.0.0.1:8000/v1")
    shape = Shape(flags.one("--ctx", CONTEXT_TOKENS), flags.one("--batch", BATCH), flags.output_tokens())
    size = _size_of(flags, flags.model, shape) if flags.model else None
    with _progress(True) as progress:
        server, total = Server(asked.url, asked.served, asked.api_key), shape.batch * shape.output_tokens
        return served_run(server, shape, size, lambda chunks: progress("streaming", chunks, total))


def _size_of(flags: Flags, model: str, shape: "Shape") -> "CacheSize":
    """What is predicted of the model that is served."""
    from kvcalc.cache.sharding import WHOLE
    from kvcalc.sizing.need import Workload, size_workload

    grid = flags.grid
    workload = Workload(
        context_tokens=shape.context_tokens,
        batch=shape.batch,
        kv_dtype=flags.kv.kv_dtype,
        dtype=grid.dtype,
        state_dtype=grid.state_dtype,
    )
    return size_workload(flags.spec(model), workload, WHOLE)


_BACKENDS: "dict[str, Callable[[Flags], ProfileDocument | None]]" = {
    "reference": _reference,
    "transformers": _transformers,
    "openai": _openai,
}


@contextmanager
def _progress(is_shown: bool) -> "Iterator[Progress]":
    """A bar on stderr where that is a terminal, else nothing."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting")
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
