"""kvcalc profile: run prefill and decode for real, and hold what is measured against the prediction."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from kvcalc.cli.emit import emit
from kvcalc.cli.options import KvDtypeOption, OutputOptions, verb
from kvcalc.cli.profile_options import BackendOptions, GridOptions, MeasureOptions, OptionalModel
from kvcalc.errors import KvcalcError, UnknownNameError
from kvcalc.model.catalog import load
from kvcalc.units import parse_tokens

if TYPE_CHECKING:
    from kvcalc.model.spec import ModelSpec
    from kvcalc.profiler.asking import Wanted
    from kvcalc.profiler.documents import ProfileDocument
    from kvcalc.profiler.run import Progress


class Flags(msgspec.Struct, frozen=True):
    """Everything that the command line says of one run."""

    model: str | None
    grid: GridOptions
    kv_dtype: str
    measure: MeasureOptions
    backend: BackendOptions

    def spec(self, default: str) -> "ModelSpec":
        """The model that is named, or the default one, varied as asked."""
        grid = self.grid
        return load(self.model or default, grid.set_ or (), assume=grid.assume, download=grid.download)

    def wanted(self) -> "Wanted":
        """What to measure, None where a default decides."""
        from kvcalc.profiler.asking import Wanted

        grid = self.grid
        return Wanted(
            contexts=_counts(grid.ctx, "--ctx"),
            batches=_counts(grid.batch, "--batch"),
            layers=grid.layers,
            with_mlp=grid.with_mlp,
            kv_dtype=self.kv_dtype,
            dtype=grid.dtype,
            state_dtype=grid.state_dtype,
            encoder_tokens=_count(grid.encoder_tokens, "--encoder-tokens"),
            page=_count(grid.page, "--paged"),
            seed=self.measure.seed,
            seconds_per_point=self.measure.seconds,
        )

    def tolerance(self) -> float | None:
        """The share by which times may be off, None where they are not judged."""
        text = self.measure.tolerance
        if text is None:
            return None
        try:
            percent = float(text.removesuffix("%"))
        except ValueError:
            percent = -1.0
        if not 0 < percent <= 1000:
            raise KvcalcError(f"--tolerance {text!r} is no percentage", "write 20% or 20")
        return percent / 100


def _count(given: str | None, flag: str) -> int | None:
    return None if given is None else parse_tokens(given, flag, "number")


def _counts(given: list[str] | None, flag: str) -> list[int] | None:
    """Counts behind commas and repeated flags, in the order given."""
    if not given:
        return None
    return [parse_tokens(item, flag, "number") for text in given for item in text.split(",")]


@verb
def profile(
    grid: GridOptions,
    kv: KvDtypeOption,
    measure: MeasureOptions,
    backend: BackendOptions,
    output: OutputOptions,
    model: OptionalModel = None,
) -> int:
    """Run prefill and decode for real, measure memory and bandwidth, and compare with the prediction."""
    from kvcalc.profiler.run import InterruptedRunError
    from kvcalc.profiler.verdict import exit_code

    run = _BACKENDS.get(backend.backend)
    if run is None:
        raise UnknownNameError("backend", backend.backend, _BACKENDS, f"--backend takes {', '.join(_BACKENDS)}")
    try:
        document = run(Flags(model, grid, kv.kv_dtype, measure, backend))
    except InterruptedRunError as stopped:
        _show(stopped.document, output)
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
    from kvcalc.profiler.device import find_device
    from kvcalc.profiler.ranks import ranks_of
    from kvcalc.profiler.run import profile_run

    tolerance = flags.tolerance()
    wanted = flags.wanted()
    device = find_device(flags.measure.device, flags.measure.threads)
    with ranks_of(flags.measure.tp, device.kind) as ranks:
        request = ask_for(flags.spec(DEFAULT_MODEL), wanted, device.kind, ranks.rank, is_bare=flags.model is None)
        with _progress(ranks.is_first) as progress:
            document = profile_run(request, device, tolerance, progress, ranks)
    return document if ranks.is_first else None


_BACKENDS: "dict[str, Callable[[Flags], ProfileDocument | None]]" = {"reference": _reference}


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
