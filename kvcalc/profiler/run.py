"""A run of kvcalc's own layers: every kind of cache with a real one in torch, over a grid of contexts and batches."""

from kvcalc.profiler.course import Built, Course, InterruptedRunError, Progress
from kvcalc.profiler.device import Device
from kvcalc.profiler.documents import MachineDocument, PointDocument, ProfileDocument
from kvcalc.profiler.point import Bench, PointRun
from kvcalc.profiler.ranks import ALONE, Ranks
from kvcalc.profiler.request import ProfileRequest
from kvcalc.profiler.room import refuse_without_room
from kvcalc.profiler.verdict import CUDA_TOLERANCE
from kvcalc.reference.model import ReferenceModel, RunOptions

__all__ = ["InterruptedRunError", "Progress", "profile_run"]


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
    run = _ReferenceRun(request, device, progress, ranks)
    if tolerance is None and device.kind == "cuda":
        run.judged = ("decode",)
        return run.profile(CUDA_TOLERANCE)
    return run.profile(tolerance)


class _ReferenceRun(Course):
    smaller = "use fewer --layers"

    def __init__(self, request: ProfileRequest, device: Device, progress: Progress | None, ranks: Ranks) -> None:
        super().__init__(request, device, progress)
        self.ranks = ranks
        self.model: ReferenceModel

    def available_bytes(self) -> int:
        """What the rank with the least has: all ranks must take the same points."""
        return min(self.ranks.gather(self.device.available_bytes()))

    def needed_weights(self) -> int:
        """As their shapes tell on a device without memory."""
        return self._model("meta").weight_bytes

    def refuse(self, context: int, batch: int, available: int) -> None:
        """Where caches, own rules and a prefill's scratch do not fit."""
        refuse_without_room(self.request, context, batch, available)

    def build(self) -> Built:
        """The layers with random weights."""
        self.model = self._model(self.device.torch_name)
        return Built(self.model.dtype, self.model.packer.dtype)

    def _model(self, torch_name: str) -> ReferenceModel:
        request = self.request
        options = RunOptions(device=torch_name, rank=request.rank, with_mlp=request.with_mlp, seed=request.seed)
        return ReferenceModel(request.spec, request.workload, options)

    def point(self, context: int, batch: int, machine: MachineDocument) -> PointRun:
        """A point of the layers that were built."""
        return PointRun(Bench(self.model, self.device, machine, self.request, self.ranks), context, batch)

    def finished(self, point: PointDocument) -> None:
        """Note what every rank holds and how fast it stepped, beside this one's."""
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
        held = sum(one["measured_bytes"] for one in point["ranks"])
        logical = self.request.size(point["context_tokens"], point["batch"]).total_bytes
        point["replication"] = held / logical if logical else 1.0

    def notes(self) -> list[str]:
        """What of the model is left out."""
        request, left_out = self.request, ["the embedding", "the LM head"]
        if not request.with_mlp and any(layer.mlp is not None for layer in request.spec.layers):
            left_out.insert(0, "feed-forward parts (--with-mlp runs them)")
        notes = ["random weights; left out: " + ", ".join(left_out)]
        if len(request.spec.layers) < request.layers_of_model:
            notes.append(f"{len(request.spec.layers)} of {request.layers_of_model} layers run")
        return notes
