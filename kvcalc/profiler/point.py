"""One context and batch, measured: the caches' bytes, a prefill from empty, decode steps up to the context."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.errors import KvcalcError
from kvcalc.profiler.device import Device
from kvcalc.profiler.documents import DecodeDocument, HeldDocument, MachineDocument, RuleDocument
from kvcalc.profiler.ops import decode_ops
from kvcalc.profiler.predict import Prediction
from kvcalc.profiler.ranks import ALONE, Ranks
from kvcalc.profiler.request import ProfileRequest
from kvcalc.profiler.series import Series
from kvcalc.profiler.timed import (
    Point,
    decode_document,
    decode_steps,
    first_line,
    prefill_document,
    timed_prefills,
    timed_steps,
)
from kvcalc.profiler.verdict import NOT_FINITE
from kvcalc.reference.model import ReferenceModel
from kvcalc.reference.session import Session
from kvcalc.reference.step import Place
from kvcalc.reference.work import pass_flops

if TYPE_CHECKING:
    from torch import Tensor


WARM_UP_TOKENS = 32


class Bench(NamedTuple):
    """What every point of a run is measured with."""

    model: ReferenceModel
    device: Device
    machine: MachineDocument
    request: ProfileRequest
    ranks: Ranks = ALONE


class PointRun(Point):
    """One point of kvcalc's own layers: memory, prefill, decode and single operations, in this order."""

    def __init__(self, bench: Bench, context: int, batch: int) -> None:
        self.bench = bench
        self.prediction = Prediction(bench.request.size(context, batch), bench.request.page)
        asked_bytes = sum(one.stored_bytes for one in self.prediction.components())
        super().__init__(bench.device, context, batch, bench.model.weight_bytes, asked_bytes)

    def measure(self) -> None:
        """Allocate the caches, count them, and pass a random prompt through all layers."""
        import torch

        encoded = self._encoder_input()
        before = self.device.allocated_bytes()
        session = Session(self.bench.model, self.batch, self.context, page=self.bench.request.page, encoded=encoded)
        self._note_memory(session, before)
        self.reached = "caches"
        tokens = torch.randint(0, 2**31, (self.batch, self.context), generator=torch.Generator().manual_seed(0))
        steps = decode_steps(self.context, self.bench.request.most_steps)
        self._prefill(session, tokens[:, : self.context - steps])
        self.reached = "prefill"
        self._decode(session, tokens[:, self.context - steps :])
        self.reached = "decode"
        self.document["ops"] = decode_ops(session, tokens[:, -1:], self.device, self.bench.machine)
        self.note_peak()

    def on_out_of_memory(self, error: BaseException) -> None:
        """KvcalcError on one of several ranks: the others wait in a sum that this one will not join."""
        rank = self.bench.ranks.rank
        if rank.size > 1:
            raise KvcalcError(
                f"rank {rank.index} ran out of memory at {self.context:,} tokens x {self.batch}",
                "use a smaller --ctx or --batch",
            ) from error

    def _encoder_input(self) -> "Tensor | None":
        """Hidden states that stand for an encoder's output, None where nothing reads them."""
        import torch

        model = self.bench.model
        longest = max(part.reference.encoder_tokens for part in model.parts)
        if not longest:
            return None
        return torch.rand(self.batch, longest, model.build.hidden, device=model.options.device).to(model.dtype)

    def _note_memory(self, session: Session, before: int | None) -> None:
        """Bytes of every storage, by row and by rule, and what the allocator gave for them."""
        after = self.device.allocated_bytes()
        self.document["components"] = self._components(session)
        self.document["rules"] = self._rules(session)
        on_device = [one.held.tensor for one in session.allocated() if one.held.tensor.device.type == self.device.kind]
        tensors = [one for one in on_device if one is not session.encoded]
        granule = self.device.granule_bytes
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
        rows = self.prediction.row_of
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
        predicted = dict.fromkeys(measured, ("no rule", 0)) | self.prediction.rules()
        return [
            {"name": name, "rule": rule, "predicted_bytes": count, "measured_bytes": measured.get(name, 0)}
            for name, (rule, count) in predicted.items()
            if count or measured.get(name)
        ]

    def _prefill(self, session: Session, prompt: "Tensor") -> None:
        """Time a prefill from empty caches, several times where the budget allows."""
        count = prompt.shape[1]
        if count == 0:
            return
        outputs: list[Tensor] = []
        # Kernels and threads start with a few tokens that nobody times.
        session.prefill(prompt[:, :WARM_UP_TOKENS])

        def once() -> float:
            session.reset()
            return self.device.time(partial(_into, outputs, session.prefill, prompt))

        series = timed_prefills(once, self.bench.request.seconds_per_point / 2, self.bench.ranks)
        self._check_finite(outputs[-1], "prefill")
        self.document["doubts"] += series.doubts("prefill")
        flops = self.batch * pass_flops(self.bench.model, 0, count, self.bench.request.page)
        self.document["prefill"] = prefill_document(series, count, self.batch, flops, self.bench.machine)

    def _decode(self, session: Session, tokens: "Tensor") -> None:
        """Time single steps to the end of the context; the last ones' bytes are counted as they are read."""
        read: dict[Place, int] = {}
        outputs: list[Tensor] = []

        def step(at: int) -> float:
            read.update(session.read_bytes())
            return self.device.time(partial(_into, outputs, session.decode, tokens[:, at : at + 1]))

        series = timed_steps(step, tokens.shape[1], self.bench.request.seconds_per_point, self.bench.ranks)
        self._check_finite(outputs[-1], "decode")
        self._note_reads(session, read)
        self.document["doubts"] += series.doubts("decode")
        self.document["decode"] = decode = self._decode_document(session, series)
        # Graphs and single operations repeat the last step at its place.
        session.rewind(1)
        self._replay_graph(session, tokens[:, -1:], decode)

    def _replay_graph(self, session: Session, tokens: "Tensor", decode: DecodeDocument) -> None:
        """The last step once more, recorded and replayed: what is left of it is the device's own time."""
        if self.bench.model.routes_experts:
            self.document["doubts"].append("decode: no graph (experts are chosen on the host)")
            return
        device = self.bench.device
        try:
            replay = device.capture(session.repeatable(tokens))
        except RuntimeError as error:
            self.document["doubts"].append(f"decode: no graph ({first_line(error)})")
            return
        if replay is None:
            return
        replay()
        series = Series(tuple(device.time(replay) for _ in range(self.bench.request.most_steps)))
        decode["graph_seconds"] = series.median_seconds
        decode["host_seconds"] = max(0.0, decode["measured_seconds"] - series.median_seconds)

    def _note_reads(self, session: Session, before: dict[Place, int]) -> None:
        """What the last step read of each row, and what was predicted for it."""
        rows = self.prediction.row_of
        counted, after = [0] * len(self.document["components"]), session.read_bytes()
        for place, row_index in rows.items():
            counted[row_index] += after[place] - before[place]
        for one, row, count in zip(self.document["components"], self.prediction.rows, counted, strict=True):
            one["predicted_read_bytes_per_step"] = self.prediction.read_bytes(row, session.length)
            one["counted_read_bytes_per_step"] = count

    def _decode_document(self, session: Session, series: Series) -> DecodeDocument:
        model = self.bench.model
        read = self.prediction.step_bytes(session.length), model.step_weight_bytes(self.batch)
        flops = self.batch * pass_flops(model, session.length - 1, 1, session.page)
        return decode_document(series, self.batch, read, flops, self.bench.machine, len(model.layers))

    def _check_finite(self, out: "Tensor", what: str) -> None:
        if not bool(out.isfinite().all()):
            self.document["doubts"].append(f"{what}: {NOT_FINITE}")


def _into(outputs: "list[Tensor]", run: "Callable[[Tensor], Tensor]", tokens: "Tensor") -> None:
    """Run a pass over `tokens` and keep what came out of it in place of what came before."""
    outputs[:] = [run(tokens)]
