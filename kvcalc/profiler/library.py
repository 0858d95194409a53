"""A run of transformers' own models: what their caches hold against kvcalc's rule, and how fast they go.

A prefill and decode steps as the library's generation does them: greedy, a token a step, in a cache of its own
choice that grows. Three passes over a prompt make a point: one counted (its cache's bytes, its FLOPs), several
timed, and one shorter prompt behind which steps are timed up to the context.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvcalc.engines.engine import Allocation, find_engine
from kvcalc.errors import KvcalcError
from kvcalc.profiler.course import Built, Course, Progress
from kvcalc.profiler.device import Device
from kvcalc.profiler.documents import MachineDocument, ProfileDocument
from kvcalc.profiler.library_build import Blueprint
from kvcalc.profiler.library_model import LibraryModel, Pass, cache_tensors, counted, storage_bytes
from kvcalc.profiler.request import ProfileRequest
from kvcalc.profiler.room import scratch_bytes
from kvcalc.profiler.timed import Point, decode_document, decode_steps, prefill_document, timed_prefills, timed_steps
from kvcalc.reference.numbers import torch_dtype
from kvcalc.sizing.need import CacheSize, make_packer
from kvcalc.units import memory

if TYPE_CHECKING:
    from torch import Tensor

LEAST_CONTEXT = 2
"""A decode step that is counted, and one that is timed."""


def library_run(
    request: ProfileRequest,
    config: Path,
    device: Device,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> ProfileDocument:
    """Measure every point of `request` with the library's model for `config`; InterruptedRunError on Ctrl-C.

    Times are judged where a tolerance is named: what the library spends beside its arithmetic is no prediction's
    error. KvcalcError before anything is allocated where the library cannot build the model, and where weights or
    the smallest point do not fit; running out of memory later ends one point, not the run.
    """
    if min(request.contexts) < LEAST_CONTEXT:
        raise KvcalcError("--ctx 1: a prompt and a token behind it are needed", f"use --ctx {LEAST_CONTEXT} or more")
    whole = msgspec.structs.replace(request, backend="transformers", with_mlp=True)
    return _LibraryRun(whole, config, device, progress).profile(tolerance)


class _LibraryRun(Course):
    smaller = "name a smaller model, or use --dtype bf16"

    def __init__(self, request: ProfileRequest, config: Path, device: Device, progress: Progress | None) -> None:
        super().__init__(request, device, progress)
        self.format = make_packer(request.spec, request.workload).dtype
        self.blueprint = Blueprint(config, torch_dtype(self.format, "--dtype"))
        self.engine = find_engine("transformers")
        self.model: LibraryModel
        self.rules: dict[str, None] = {}
        if self.blueprint.library.__version__ != self.engine.version:
            version = self.blueprint.library.__version__
            self.doubts.append(f"transformers {version} runs; the rule for its cache is that of {self.engine.version}")

    def needed_weights(self) -> int:
        """As the library's own shapes tell."""
        return self.blueprint.weight_bytes

    def refuse(self, context: int, batch: int, available: int) -> None:
        """Where the cache, by the rule for this library, and a prefill's scratch do not fit."""
        cache = self._allocation(context, batch).allocated_bytes
        needed = cache + scratch_bytes(self.request, context, batch)
        if needed > available:
            raise KvcalcError(
                f"{context:,} tokens x {batch} ask for {memory(needed)} (cache {memory(cache)}) beside the weights, "
                f"and {memory(available)} are available",
                "use a smaller --ctx or --batch",
            )

    def _allocation(self, context: int, batch: int) -> Allocation:
        return self.engine.allocate(self.request.size(context, batch))

    def build(self) -> Built:
        """The library's model, with random weights or those beside its config."""
        self.model = LibraryModel(self.blueprint.build(self.device.torch_name, self.request.seed), self.device)
        return Built(self.blueprint.dtype, self.format)

    def point(self, context: int, batch: int, machine: MachineDocument) -> "LibraryPoint":
        """A point of the model that was built."""
        allocation = self._allocation(context, batch)
        self.rules.update(dict.fromkeys(allocation.rules))
        return LibraryPoint(self.model, self.request, machine, self.request.size(context, batch), allocation)

    def notes(self) -> list[str]:
        """Which model of the library ran, with which weights, and by which rules its cache was predicted."""
        folder, version = self.blueprint.checkpoint, self.blueprint.library.__version__
        weights = "random weights" if folder is None else f"the weights in {folder}"
        return [f"transformers {version}, {weights}", *(f"its cache: {rule}" for rule in self.rules)]


class LibraryPoint(Point):
    """One point of a library's model: the cache after a prefill of the whole context, prefills, decode steps."""

    def __init__(
        self,
        model: LibraryModel,
        request: ProfileRequest,
        machine: MachineDocument,
        size: CacheSize,
        predicted: Allocation,
    ) -> None:
        work = size.workload
        super().__init__(
            model.device, work.context_tokens, work.batch, model.weight_bytes, asked_bytes=predicted.allocated_bytes
        )
        self.model, self.request, self.machine, self.size, self.predicted = model, request, machine, size, predicted

    def measure(self) -> None:
        """Memory, prefill and decode, in this order, for a prompt of random tokens."""
        import torch

        generator = torch.Generator().manual_seed(self.request.seed)
        prompt = torch.randint(0, self.model.vocabulary, (self.batch, self.context), generator=generator)
        prompt = prompt.to(self.device.torch_name)
        flops = self._note_memory(prompt)
        self.reached = "caches"
        self._prefill(prompt, flops)
        self.reached = "prefill"
        self._decode(prompt)
        self.reached = "decode"
        self.note_peak()

    def _note_memory(self, prompt: "Tensor") -> int:
        """Bytes of the cache after the whole prompt; returns the FLOPs of that pass."""
        held, flops = counted(lambda: self.model.forward(prompt))
        tensors = cache_tensors(held.cache)
        own_bytes, behind_bytes = sum(one.nbytes for one in tensors), storage_bytes(tensors)
        if behind_bytes > own_bytes:
            views = f"cache: its tensors are views, of storages of {behind_bytes:,} B until the next step"
            self.document["doubts"].append(views)
        self.document["components"] = [
            {
                "name": "cache",
                "kind": "transformers",
                "format": self.size.packer.dtype,
                "layers": len(self.size.spec.layers),
                "predicted_bytes": self.predicted.allocated_bytes,
                "measured_bytes": own_bytes,
                "predicted_read_bytes_per_step": self.size.read_bytes_per_step,
                "counted_read_bytes_per_step": None,
            }
        ]
        return flops

    def _prefill(self, prompt: "Tensor", flops: int) -> None:
        once = partial(self.device.time, lambda: self.model.forward(prompt).tokens)
        series = timed_prefills(once, self.request.seconds_per_point / 2)
        self.document["doubts"] += series.doubts("prefill")
        self.document["prefill"] = prefill_document(series, self.context, self.batch, flops, self.machine)

    def _decode(self, prompt: "Tensor") -> None:
        """Time greedy steps up to the context; the one before them is not timed: its FLOPs are counted."""
        steps = decode_steps(self.context, self.request.most_steps)
        start = self.context - steps
        before = self.model.forward(prompt[:, : start - 1]) if start > 1 else None
        first, flops = counted(lambda: self.model.forward(prompt[:, start - 1 : start], before))
        text = _Text(self.model, first, start)
        series = timed_steps(lambda _: self.device.time(text.extend), steps, self.request.seconds_per_point)
        if not bool(text.last.logits.isfinite().all()):
            self.document["doubts"].append("decode: NaN or infinity in its logits")
        self.document["doubts"] += series.doubts("decode")
        size = self.request.size(text.tokens, self.batch)
        read = size.read_bytes_per_step, self.model.step_weight_bytes(size)
        layers = len(self.size.spec.layers)
        self.document["decode"] = decode_document(series, self.batch, read, flops, self.machine, layers)


class _Text:
    """Sequences that grow a token a step: the last pass, and how many `tokens` of each are cached."""

    def __init__(self, model: LibraryModel, last: Pass, tokens: int) -> None:
        self.model, self.last, self.tokens = model, last, tokens

    def extend(self) -> None:
        """Choose the likeliest next token of each sequence, and pass it through the model."""
        self.last = self.model.forward(self.last.tokens, self.last)
        self.tokens += 1
