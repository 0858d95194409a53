"""Simulations side by side in processes, which joblib starts and feeds: here, or on a cluster of Ray or Dask."""

import importlib
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any, NamedTuple

from kvcalc.errors import KvcalcError, nearest
from kvcalc.workload.outcome import Outcome, Requests, Totals
from kvcalc.workload.simulate import Progress, Setting, simulate
from kvcalc.workload.trace import Trace

Work = tuple[Trace, Setting]


def run_settings(
    trace: Trace,
    settings: Sequence[Setting],
    jobs: int = 1,
    *,
    backend: str = "loky",
    progress: Progress | None = None,
) -> list[Outcome]:
    """One trace by every setting, in their order; fewer where Ctrl-C ended it, and the last one may be cut short."""
    return run_all([(trace, setting) for setting in settings], jobs=jobs, backend=backend, progress=progress)


def run_all(
    work: Sequence[Work], *, jobs: int = 1, backend: str = "loky", progress: Progress | None = None
) -> list[Outcome]:
    """Each trace by its setting, in so many processes (-1: one a core), with the same results as in one.

    `progress` is called with requests that are done: after each simulation, and in one process also now and then.
    KvcalcError where a backend is not known or not installed. Ctrl-C ends all; those before it are returned.
    """
    if jobs == 0:
        raise KvcalcError("--jobs 0: nobody would work", "1, or -1 for as many as there are cores")
    served = sum(len(trace) for trace, _ in work)
    kind = backend_of(backend)
    if len(work) < 2 or (jobs == 1 and backend == "loky"):
        return _serial(work, served, progress)
    return _parallel(work, jobs, kind, served, progress)


def _serial(work: Sequence[Work], served: int, progress: Progress | None) -> list[Outcome]:
    found: list[Outcome] = []
    done = 0
    for trace, setting in work:
        found.append(simulate(trace, setting, _shifted(progress, done, served)))
        done += len(trace)
        if not found[-1].is_complete:
            break
        if progress is not None:
            progress(done, served)
    return found


def _shifted(progress: Progress | None, before: int, served: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, served)


class Part(NamedTuple):
    """What a process sends back: an outcome without what it was given."""

    requests: Requests
    totals: Totals
    timeline: dict[str, Any]
    is_complete: bool


def _one(trace: Trace, setting: Setting, parent: int | None) -> Part:
    # A terminal's Ctrl-C goes to every process of its group: the parent ends the others.
    if parent is not None and os.getpid() != parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = simulate(trace, setting)
    return Part(found.requests, found.totals, found.timeline, found.is_complete)


class Backend(NamedTuple):
    """A backend of joblib. `prepare` makes it known there; `streams` says whether results come one by one.

    `is_here` where its processes stand in the terminal's group.
    """

    prepare: Callable[[], Any]
    streams: bool
    is_here: bool = False


def _parallel(
    work: Sequence[Work], jobs: int, backend: tuple[str, Backend], served: int, progress: Progress | None
) -> list[Outcome]:
    import joblib

    name, kind = backend
    kind.prepare()
    parent = os.getpid() if kind.is_here else None
    # More processes than work would only be started.
    jobs = min(jobs, len(work))
    found: list[Outcome] = []
    done = 0
    try:
        with joblib.parallel_config(backend=name, n_jobs=jobs), warnings.catch_warnings():
            # Those that an interruption or a mistake leaves undone are nothing to advise about.
            warnings.filterwarnings("ignore", "[0-9]+ tasks ", UserWarning)
            form = "generator" if kind.streams else "list"
            run = joblib.Parallel(return_as=form)
            with _deaf_children() if kind.is_here else nullcontext():
                parts: Any = run(joblib.delayed(_one)(*each, parent) for each in work)
            # Closed here, while its advice is not heard.
            with closing(parts) if kind.streams else nullcontext():
                for (trace, setting), part in zip(work, parts, strict=True):
                    found.append(Outcome(trace=trace, setting=setting, **part._asdict()))
                    done += len(trace)
                    if progress is not None:
                        progress(done, served)
    except KeyboardInterrupt:
        return found
    return found


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started here never hear Ctrl-C, not even while they import; for so long it is not heard here either.

    To ignore it is inherited. A mask of signals would be too, and would keep it for later, but joblib undoes that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def backend_of(name: str) -> tuple[str, Backend]:
    """A backend by its name; KvcalcError where there is none."""
    found = BACKENDS.get(name)
    if found is None:
        near = nearest(name, BACKENDS, 1) or list(BACKENDS)
        raise KvcalcError(f"--backend {name!r} is not known", f"write {', '.join(near)}")
    return name, found


def _nothing() -> None:
    """Loky is joblib's own."""


def _ray() -> None:
    _extra("ray.util.joblib", "ray").register_ray()


def _dask() -> Any:
    # Of the cluster that DASK_SCHEDULER_ADDRESS names, else of one on this machine; joblib asks for the newest.
    return _extra("dask.distributed", "dask").Client(set_as_default=True)


def _extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        said = f"--backend {extra} needs a package that is not installed: {error.name or module}"
        raise KvcalcError(said, f"pip install 'kvcalc[{extra}]', or leave --backend out") from error


BACKENDS: dict[str, Backend] = {
    "loky": Backend(_nothing, streams=True, is_here=True),
    "ray": Backend(_ray, streams=False),
    "dask": Backend(_dask, streams=True),
}
