"""The course of a run, whoever's layers run: what fits, the machine, then point by point, then the verdict."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.hardware.gpus import Gpu, load_sources, match_device
from kvcalc.profiler.device import Device, require_torch
from kvcalc.profiler.documents import (
    PROFILE_SCHEMA,
    EnvironmentDocument,
    MachineDocument,
    PointDocument,
    ProfileDocument,
)
from kvcalc.profiler.environment import plain_environment
from kvcalc.profiler.machine import measure_machine
from kvcalc.profiler.peaks import beyond_peak
from kvcalc.profiler.record import seal
from kvcalc.profiler.request import ProfileRequest
from kvcalc.profiler.timed import Point
from kvcalc.profiler.verdict import EVERYTHING, Timed, judge, largest, where
from kvcalc.units import memory

if TYPE_CHECKING:
    import torch

CLOCK_DRIFT = 0.1
"""How much of a clock may be gained or lost during a run without a doubt."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many steps are done, and of how many."""


class InterruptedRunError(Exception):
    """Somebody pressed Ctrl-C; `document` is what had been measured."""

    def __init__(self, document: ProfileDocument) -> None:
        super().__init__("interrupted")
        self.document = document


class Built(NamedTuple):
    """What arithmetic a model runs in, and the kvcalc name of that format."""

    dtype: "torch.dtype"
    name: str


class Course:
    """A run over the grid of `request`; what is built, what a point is and what fits, each backend says itself."""

    smaller: ClassVar[str]
    """What to do where the weights do not fit."""

    def __init__(self, request: ProfileRequest, device: Device, progress: Progress | None = None) -> None:
        self.request, self.device, self.progress = request, device, progress or (lambda *_: None)
        self.environment: EnvironmentDocument = plain_environment(device.kind)
        self.environment["torch"] = str(require_torch().__version__)
        self.doubts: list[str] = []
        self.machine: MachineDocument | None = None
        self.points: list[PointDocument] = []
        self.judged: tuple[Timed, ...] = EVERYTHING

    def available_bytes(self) -> int:
        """Bytes that can still be allocated."""
        return self.device.available_bytes()

    def needed_weights(self) -> int:
        """Bytes that the weights will take, told before they are allocated."""
        raise NotImplementedError

    def refuse(self, context: int, batch: int, available: int) -> None:
        """KvcalcError where a point asks for more than is available beside the weights, in bytes."""
        raise NotImplementedError

    def build(self) -> Built:
        """Allocate the weights."""
        raise NotImplementedError

    def point(self, context: int, batch: int, machine: MachineDocument) -> Point:
        """One point, not yet measured."""
        raise NotImplementedError

    def finished(self, point: PointDocument) -> None:
        """Called when a point was measured."""

    def notes(self) -> list[str]:
        """What should be said about every run of this backend."""
        raise NotImplementedError

    def profile(self, tolerance: float | None) -> ProfileDocument:
        """Measure every point; InterruptedRunError with what was measured on Ctrl-C."""
        try:
            self._measure()
        except KeyboardInterrupt as error:
            note = "interrupted: what was measured until then stands here"
            raise InterruptedRunError(self._document(tolerance, [note])) from error
        return self._document(tolerance, [])

    def _measure(self) -> None:
        grid = self._fitting()
        steps = len(grid) + 2
        self.progress("building layers", 0, steps)
        built = self.build()
        self.progress("measuring the machine", 1, steps)
        self.machine = measure_machine(self.device, built.dtype, built.name)
        # Asked once it is warm: clocks at rest say nothing.
        self.doubts += self.device.describe(self.environment)
        self._add_specified(self.machine, built.name)
        for place, (context, batch) in enumerate(grid):
            self.progress(f"{context:,} tokens x {batch}", place + 2, steps)
            point = self.point(context, batch, self.machine)
            self.points.append(point.document)
            point.run()
            point.document["doubts"] += beyond_peak(point.document, self.machine)
            self.finished(point.document)
        self.doubts += self._changes()
        self.progress("done", steps, steps)

    def _changes(self) -> list[str]:
        """What the device says after the last point and did not say before the first: throttling, another clock."""
        after: EnvironmentDocument = {**self.environment, "clocks_mhz": {}, "throttled": []}
        found = [doubt for doubt in self.device.describe(after) if doubt not in self.doubts]
        for name, before in self.environment["clocks_mhz"].items():
            now = after["clocks_mhz"].get(name, before)
            if before and abs(now / before - 1) > CLOCK_DRIFT:
                found.append(f"the {name} clock went from {before:,.0f} to {now:,.0f} MHz during the run")
        return found

    def _fitting(self) -> list[tuple[int, int]]:
        """The points that fit beside the weights; KvcalcError where the smallest does not, or one that was named."""
        available, needed = self.available_bytes(), self.needed_weights()
        if needed > available:
            raise KvcalcError(
                f"the weights of {len(self.request.spec.layers)} layers take {memory(needed)}, and "
                f"{memory(available)} are available",
                self.smaller,
            )
        fitting: list[tuple[int, int]] = []
        for point in self.request.grid:
            try:
                self.refuse(*point, available=available - needed)
            except KvcalcError:
                if not (fitting and self.request.skip_what_does_not_fit):
                    raise
            else:
                fitting.append(point)
        return fitting

    def _add_specified(self, machine: MachineDocument, dtype_name: str) -> None:
        gpu = match_device(self.environment["device_name"], self.environment["memory_bytes"])
        if gpu is not None and self.device.kind != "cpu":
            machine.update(_specified(gpu, dtype_name))

    def _document(self, tolerance: float | None, notes: list[str]) -> ProfileDocument:
        """Everything measured so far, sealed."""
        headline = largest(self.points)
        document: ProfileDocument = {
            "schema": PROFILE_SCHEMA,
            "model": {"name": self.request.spec.name, "source": self.request.spec.source},
            "request": self.request.document(),
            "environment": self.environment,
            "machine": self.machine,
            "components": headline["components"] if headline else [],
            "prefill": headline["prefill"] if headline else None,
            "decode": headline["decode"] if headline else None,
            "points": self.points,
            "served": None,
            "verdict": judge(self.points, tolerance, self.judged),
            "doubts": [*self.doubts, *_doubts_of(self.points)],
            "notes": [*self.request.notes, *self.notes(), *notes],
            "spec": msgspec.to_builtins(self.request.spec),
            "digest": "",
        }
        return seal(document)


def _doubts_of(points: list[PointDocument]) -> list[str]:
    """The doubts of every point with the point that they are about."""
    return [f"{where(point)}: {doubt}" for point in points for doubt in point["doubts"]]


def _specified(gpu: Gpu, dtype_name: str) -> Any:
    """What the maker states of a device, None where that is unknown."""
    bandwidth = gpu.bandwidth_bytes_per_second
    rate = {str(form): figure for form, figure in gpu.dense_flops_per_second.items()}.get(dtype_name)
    return {
        "specified_bytes_per_second": None if bandwidth is None else float(bandwidth.value),
        "specified_flops_per_second": None if rate is None else float(rate.value),
        "specified_source": None if bandwidth is None else f"{gpu.name}: {load_sources()[bandwidth.source]}",
    }
