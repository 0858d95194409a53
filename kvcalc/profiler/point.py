"""One context and batch, measured: the caches' bytes, a prefill from empty, decode steps up to the context."""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.profiler.device import Device
from kvcalc.profiler.documents import (
    DecodeDocument,
    HeldDocument,
    MachineDocument,
    PointDocument,
    PrefillDocument,
    RuleDocument,
)
from kvcalc.profiler.ops import decode_ops
from kvcalc.profiler.predict import Prediction, rows_by_place
from kvcalc.profiler.request import ProfileRequest
from kvcalc.profiler.series import Series, repeats_for
from kvcalc.reference.model import ReferenceModel
from kvcalc.reference.session import Session
from kvcalc.reference.work import pass_flops

if TYPE_CHECKING:
    from torch import Tensor

MOST_PREFILLS = 5
WARM_UP_STEPS = 2
SHARE_OF_STEPS = 4
"""A context's last quarter at most is decoded, so that every step reads nearly the whole of it."""


class Bench(NamedTuple):
    """What every point of a run is measured with."""

    model: ReferenceModel
    device: Device
    machine: MachineDocument
    request: ProfileRequest


class PointRun:
    """The measurement of one point; what has been measured stands in `document` at every moment."""

    def __init__(self, bench: Bench, context: int, batch: int) -> None:
        self.bench, self.context, self.batch = bench, context, batch
        self.prediction = Prediction(bench.request.size(context, batch), bench.request.page)
        self.reached = "nothing"
        self.document: PointDocument = {
            "context_tokens": context,
            "batch": batch,
            "components": [],
            "rules": [],
            "allocator": None,
            "weight_bytes": bench.model.weight_bytes,
            "peak_bytes": None,
            "prefill": None,
            "decode": None,
            "ops": [],
            "stopped": None,
            "doubts": [],
        }

    def run(self) -> PointDocument:
        """Measure memory, prefill, decode and single operations, in this order; out of memory ends it early."""
        try:
            self._measure()
        except (RuntimeError, MemoryError) as error:
            if not self.bench.device.is_out_of_memory(error):
                raise
            self._stop(error)
        return self.document

    def _measure(self) -> None:
        import torch

        device = self.bench.device
        device.reset_peak()
        before = device.allocated_bytes()
        session = self._session()
        self._note_memory(session, before)
        self.reached = "caches"
        tokens = torch.randint(0, 2**31, (self.batch, self.context), generator=torch.Generator().manual_seed(0))
        steps = decode_steps(self.context, self.bench.request.most_steps)
        self._prefill(session, tokens[:, : self.context - steps])
        self.reached = "prefill"
        self._decode(session, tokens[:, self.context - steps :])
        self.reached = "decode"
        self.document["ops"] = decode_ops(session, tokens[:, -1:], device, self.bench.machine)
        self.document["peak_bytes"] = device.peak_bytes()
        self.document["reserved_bytes"], self.document["device_used_bytes"] = device.held_bytes()

    def _session(self) -> Session:
        import torch

        model, encoder = self.bench.model, self.bench.request.workload.encoder_tokens
        longest = max([encoder or 0, *(part.reference.encoder_tokens for part in model.parts)])
        encoded = None
        if longest:
            encoded = torch.rand(self.batch, longest, model.build.hidden, device=model.options.device).to(model.dtype)
        return Session(model, self.batch, self.context, page=self.bench.request.page, encoded=encoded)

    def _stop(self, error: BaseException) -> None:
        self.document["stopped"] = {
            "reason": f"out of memory: {str(error).splitlines()[0]}",
            "reached": self.reached,
            "asked_bytes": sum(one.stored_bytes for one in self.prediction.components()),
            "available_bytes": self.bench.device.available_bytes(),
        }

    def _note_memory(self, session: Session, before: int | None) -> None:
        """Bytes of every storage, by row and by rule, and what the allocator gave for them."""
        after = self.bench.device.allocated_bytes()
        self.document["components"] = self._components(session)
        self.document["rules"] = self._rules(session)
        tensors = [
            one.held.tensor for one in session.allocated() if one.held.tensor.device.type == self.bench.device.kind
        ]
        granule = self.bench.device.granule_bytes
        if granule is None or before is None or after is None:
            return
        self.document["allocator"] = {
            "tensors": len(tensors),
            "granule_bytes": granule,
            "predicted_bytes": sum(-(-one.untyped_storage().nbytes() // granule) * granule for one in tensors),
            "measured_bytes": after - before,
        }

    def _components(self, session: Session) -> list[HeldDocument]:
        predicted = self.prediction.components()
        held = [0] * len(predicted)
        rows = rows_by_place(self.prediction.size)
        for place, held_one in session.allocated():
            if place is not None and held_one.is_component:
                held[rows[place]] += held_one.used_bytes
        return [
            {
                "name": one.row.name,
                "kind": one.row.component.kind,
                "format": one.row.format,
                "layers": one.row.layers,
                "predicted_bytes": one.stored_bytes,
                "measured_bytes": measured,
                "predicted_read_bytes_per_step": one.read_bytes,
                "counted_read_bytes_per_step": None,
            }
            for one, measured in zip(predicted, held, strict=True)
        ]

    def _rules(self, session: Session) -> list[RuleDocument]:
        measured: dict[str, int] = {}
        for _, held in session.allocated():
            for name, count in held.beside().items():
                measured[name] = measured.get(name, 0) + count
        predicted = self.prediction.rules()
        return [
            {
                "name": name,
                "rule": predicted.get(name, ("no rule", 0))[0],
                "predicted_bytes": predicted.get(name, ("", 0))[1],
                "measured_bytes": measured.get(name, 0),
            }
            for name in dict.fromkeys([*predicted, *measured])
            if predicted.get(name, ("", 0))[1] or measured.get(name)
        ]

    def _prefill(self, session: Session, prompt: "Tensor") -> None:
        """Time a prefill from empty caches, several times where the budget allows."""
        count = prompt.shape[1]
        if count == 0:
            return
        outputs: list[Tensor] = []

        def once() -> float:
            session.reset()
            return self.bench.device.time(lambda: outputs.append(session.prefill(prompt)))

        samples = [once()]
        budget = self.bench.request.seconds_per_point / 2
        if samples[0] < budget:
            samples = [once() for _ in range(repeats_for(samples[0], budget, 1, MOST_PREFILLS))]
        self._check_finite(outputs[-1], "prefill")
        series = Series(tuple(samples))
        self.document["doubts"] += series.doubts("prefill")
        self.document["prefill"] = self._prefill_document(series, count)

    def _prefill_document(self, series: Series, count: int) -> PrefillDocument:
        flops = self.batch * pass_flops(self.bench.model, 0, count)
        rate, seconds = self.bench.machine["gemm_flops_per_second"], series.median_seconds
        return {
            **series.document(),
            "measured_seconds": seconds,
            "tokens": count,
            "flops": flops,
            "predicted_seconds": flops / rate,
            "achieved_flops_per_second": flops / seconds,
            "flops_fraction": flops / seconds / rate,
            "tokens_per_second": self.batch * count / seconds,
        }

    def _decode(self, session: Session, tokens: "Tensor") -> None:
        """Time single steps to the end of the context; the last ones' bytes are counted as they are read."""
        warm_up = min(WARM_UP_STEPS, tokens.shape[1] - 1)
        read = dict.fromkeys(session.read_bytes(), 0)
        samples: list[float] = []
        outputs: list[Tensor] = []
        budget = self.bench.request.seconds_per_point
        for at in range(tokens.shape[1]):
            read = session.read_bytes()
            one_step = partial(_decode_into, outputs, session, tokens[:, at : at + 1])
            samples.append(self.bench.device.time(one_step))
            if sum(samples) > budget and len(samples) > warm_up and at < tokens.shape[1] - 1:
                break
        self._check_finite(outputs[-1], "decode")
        self._note_reads(session, read)
        series = Series(tuple(samples[warm_up:]))
        self.document["doubts"] += series.doubts("decode")
        self.document["decode"] = self._decode_document(session, series)
        self._replay_graph(session, tokens[:, -1:])

    def _replay_graph(self, session: Session, tokens: "Tensor") -> None:
        """The last step once more, recorded and replayed: what is left of it is the device's own time."""
        device, decode = self.bench.device, self.document["decode"]
        try:
            session.rewind(1)
            replay = device.capture(session.repeatable(tokens))
        except RuntimeError as error:
            self.document["doubts"].append(f"decode: no graph ({str(error).splitlines()[0]})")
            return
        if replay is None or decode is None:
            return
        replay()
        series = Series(tuple(device.time(replay) for _ in range(self.bench.request.most_steps)))
        decode["graph_seconds"] = series.median_seconds
        decode["host_seconds"] = max(0.0, decode["measured_seconds"] - series.median_seconds)

    def _note_reads(self, session: Session, before: "dict[tuple[int, int], int]") -> None:
        """What the last step read of each row, and what was predicted for it."""
        rows = rows_by_place(self.prediction.size)
        counted = [0] * len(self.document["components"])
        for place, count in session.read_bytes().items():
            counted[rows[place]] += count - before[place]
        for one, row, count in zip(self.document["components"], self.prediction.rows, counted, strict=True):
            one["predicted_read_bytes_per_step"] = self.prediction.read_bytes(row, session.length)
            one["counted_read_bytes_per_step"] = count

    def _decode_document(self, session: Session, series: Series) -> DecodeDocument:
        model, machine, seconds = self.bench.model, self.bench.machine, series.median_seconds
        cached, weights = self.prediction.step_bytes(session.length), model.step_weight_bytes(self.batch)
        rate = (cached + weights) / seconds
        predicted = (cached + weights) / machine["read_bytes_per_second"]
        specified = machine["specified_bytes_per_second"]
        return {
            **series.document(),
            "measured_seconds": seconds,
            "steps": len(series.samples),
            "read_bytes_per_step": cached,
            "weight_bytes": weights,
            "flops": self.batch * pass_flops(model, session.length - 1, 1),
            "predicted_seconds": predicted,
            "achieved_bytes_per_second": rate,
            "bandwidth_fraction": rate / machine["read_bytes_per_second"],
            "specified_fraction": None if specified is None else rate / specified,
            "overhead_seconds_per_layer": max(0.0, seconds - predicted) / len(model.layers),
            "graph_seconds": None,
            "host_seconds": None,
            "tokens_per_second": self.batch / seconds,
        }

    def _check_finite(self, out: "Tensor", what: str) -> None:
        if not bool(out.isfinite().all()):
            self.document["doubts"].append(f"{what}: NaN or infinity in its outputs")


def _decode_into(outputs: "list[Tensor]", session: Session, tokens: "Tensor") -> None:
    outputs[:] = [session.decode(tokens)]


def decode_steps(context: int, most: int) -> int:
    """How many tokens at the end of a context are decoded: a quarter, at least one, at most `most`."""
    return max(1, min(most, context // SHARE_OF_STEPS))
