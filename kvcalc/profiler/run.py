"""A whole run: the machine first, then every point of the grid, then the verdict."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
from kvcalc.profiler.point import Bench, PointRun
from kvcalc.profiler.ranks import ALONE, Ranks
from kvcalc.profiler.record import seal
from kvcalc.profiler.request import ProfileRequest
from kvcalc.profiler.room import refuse_without_room, room_for
from kvcalc.profiler.verdict import CUDA_TOLERANCE, judge, largest
from kvcalc.reference.model import ReferenceModel, RunOptions
from kvcalc.units import memory

if TYPE_CHECKING:
    import torch

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many steps are done, and of how many."""


class InterruptedRunError(Exception):
    """Somebody pressed Ctrl-C; `document` is what had been measured."""

    def __init__(self, document: ProfileDocument) -> None:
        super().__init__("interrupted")
        self.document = document


def profile_run(
    request: ProfileRequest,
    device: Device,
    tolerance: float | None = None,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> ProfileDocument:
    """Measure every point of `request` on `device`; InterruptedRunError with what was measured on Ctrl-C.

    KvcalcError before anything is allocated where weights or the smallest point do not fit, and where a kind or
    a format has no reference. Running out of memory later ends one point, not the run.
    """
    run = _Run(request, device, progress or (lambda *_: None), ranks)
    allowed = CUDA_TOLERANCE if tolerance is None and device.kind == "cuda" else tolerance
    try:
        run.measure()
    except KeyboardInterrupt as error:
        raise InterruptedRunError(
            run.document(allowed, ["interrupted: the points below are those that were finished"])
        ) from error
    return run.document(allowed, [])


class _Run:
    def __init__(self, request: ProfileRequest, device: Device, progress: Progress, ranks: Ranks) -> None:
        self.request, self.device, self.progress, self.ranks = request, device, progress, ranks
        self.environment: EnvironmentDocument = plain_environment(device.kind)
        self.environment["torch"] = str(require_torch().__version__)
        self.doubts: list[str] = []
        self.machine: MachineDocument | None = None
        self.points: list[PointDocument] = []

    def measure(self) -> None:
        grid = self._fitting()
        self.doubts += self.device.describe(self.environment)
        steps = len(grid) + 2
        self.progress("building layers", 0, steps)
        model = self._model()
        self.progress("measuring the machine", 1, steps)
        self.machine = self._machine(model.dtype, model.packer.dtype)
        bench = Bench(model, self.device, self.machine, self.request)
        for place, (context, batch) in enumerate(grid):
            self.progress(f"{context:,} tokens x {batch}", place + 2, steps)
            run = PointRun(bench, context, batch)
            self.points.append(run.document)
            run.run()
            self._note_ranks(run.document)
        self.progress("done", steps, steps)

    def _note_ranks(self, point: PointDocument) -> None:
        """What every rank holds and how fast it stepped, beside this one's."""
        if self.ranks.rank.size == 1:
            return
        decode = point["decode"]
        point["ranks"] = self.ranks.gather(
            {
                "rank": self.ranks.rank.index,
                "measured_bytes": sum(one["measured_bytes"] for one in point["components"]),
                "predicted_bytes": sum(one["predicted_bytes"] for one in point["components"]),
                "weight_bytes": point["weight_bytes"],
                "decode_seconds": None if decode is None else decode["measured_seconds"],
            }
        )

    def _fitting(self) -> list[tuple[int, int]]:
        """The points that fit beside the weights; KvcalcError where the smallest does not."""
        free = self.device.available_bytes() - self._predicted_weights()
        grid = self.request.grid
        refuse_without_room(self.request, *grid[0], available=free)
        fitting = [point for point in grid if room_for(self.request, *point).total_bytes <= free]
        for point in grid:
            if point not in fitting and not self.request.skip_what_does_not_fit:
                refuse_without_room(self.request, *point, available=free)
        return fitting

    def _predicted_weights(self) -> int:
        """Bytes that the layers' weights will take, as their shapes tell on a device without memory."""
        options = RunOptions(device="meta", rank=self.request.rank, with_mlp=self.request.with_mlp)
        needed = ReferenceModel(self.request.spec, self.request.workload, options).weight_bytes
        available = self.device.available_bytes()
        if needed > available:
            raise KvcalcError(
                f"the weights of {len(self.request.spec.layers)} layers take {memory(needed)}, and "
                f"{memory(available)} are available",
                "use fewer --layers",
            )
        return needed

    def _model(self) -> ReferenceModel:
        options = RunOptions(
            device=self.device.torch_name,
            rank=self.request.rank,
            with_mlp=self.request.with_mlp,
            seed=self.request.seed,
        )
        return ReferenceModel(self.request.spec, self.request.workload, options)

    def _machine(self, dtype: "torch.dtype", dtype_name: str) -> MachineDocument:
        machine = measure_machine(self.device, dtype, dtype_name)
        gpu = match_device(self.environment["device_name"], self.environment["memory_bytes"])
        if gpu is not None and self.device.kind != "cpu":
            machine |= _specified(gpu, dtype_name)
        return machine

    def document(self, tolerance: float | None, notes: Sequence[str]) -> ProfileDocument:
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
            "verdict": judge(self.points, tolerance),
            "doubts": [*self.doubts, *(doubt for point in self.points for doubt in point["doubts"])],
            "notes": [*self._notes(), *notes],
            "spec": msgspec.to_builtins(self.request.spec),
            "digest": "",
        }
        return seal(document)

    def _notes(self) -> list[str]:
        request, left_out = self.request, ["the embedding", "the LM head"]
        if not request.with_mlp and any(layer.mlp is not None for layer in request.spec.layers):
            left_out.insert(0, "feed-forward parts (--with-mlp runs them)")
        notes = [*request.notes, "random weights; left out: " + ", ".join(left_out)]
        if len(request.spec.layers) < request.layers_of_model:
            notes.append(f"{len(request.spec.layers)} of {request.layers_of_model} layers run")
        return notes


def _specified(gpu: Gpu, dtype_name: str) -> Any:
    """What the maker states of a device, None where that is unknown."""
    bandwidth = gpu.bandwidth_bytes_per_second
    rate = {str(form): figure for form, figure in gpu.dense_flops_per_second.items()}.get(dtype_name)
    return {
        "specified_bytes_per_second": None if bandwidth is None else float(bandwidth.value),
        "specified_flops_per_second": None if rate is None else float(rate.value),
        "specified_source": None if bandwidth is None else f"{gpu.name}: {load_sources()[bandwidth.source]}",
    }
