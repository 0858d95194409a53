"""Single operations of a decode step, replayed on the caches that the step met: their kernels, bytes and rates."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.profiler.device import Device
from kvcalc.profiler.documents import MachineDocument, OpDocument
from kvcalc.reference.attend import attend
from kvcalc.reference.model import ReferenceModel
from kvcalc.reference.seen import Seen
from kvcalc.reference.session import Session

if TYPE_CHECKING:
    from torch import Tensor

REPEATS = 5
MOST_REPLAYED = 16
"""Layers whose caches are read one after another, so that none is still in a processor's cache."""


class Call(NamedTuple):
    """One call of attention: its arguments, and what it read and computed."""

    name: str
    arguments: tuple[Any, ...]
    bytes: int
    flops: int


def decode_ops(session: Session, tokens: "Tensor", device: Device, machine: MachineDocument) -> list[OpDocument]:
    """One more decode step of `session`, then each of its operations alone: attention by cache, and projections."""
    calls = attention_calls(session, tokens)
    found = [_attention(alike, device, machine) for alike in _alike(calls)]
    return [*found, _projections(session.model, session.batch, device, machine)]


def _alike(calls: list[Call]) -> list[list[Call]]:
    """Calls of one name that read and compute as much: layers of one name may reach differently far."""
    groups: dict[tuple[str, int, int], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.name, call.bytes, call.flops), []).append(call)
    return list(groups.values())


def attention_calls(session: Session, tokens: "Tensor") -> list[Call]:
    """Every attention of one decode step, in order, with the bytes of entries that it read."""
    found: list[Call] = []
    askers = [(asker, _name(targets)) for layer in session.model.layers for asker, targets in layer.attending]
    for asker, name in askers:
        asker.attend = partial(_noting, session, found, name)
    try:
        session.decode(tokens)
    finally:
        for asker, _ in askers:
            asker.attend = attend
    return found


def _name(targets: list[Any]) -> str:
    return "attention over " + " + ".join(dict.fromkeys(part.name for part in targets))


def _noting(session: Session, found: list[Call], name: str, *arguments: Any) -> "Tensor":
    """Attention that notes what it was asked, read and computed."""
    before = sum(session.read_bytes().values())
    out = attend(*arguments)
    q, seens = arguments[0], arguments[1]
    entries = sum(_entries(seen, arguments[2]) for seen in seens)
    flops = 2 * q.shape[0] * q.shape[1] * entries * (q.shape[-1] + out.shape[-1])
    found.append(Call(name, arguments, sum(session.read_bytes().values()) - before, flops))
    return out


def _entries(seen: Seen, position: int) -> int:
    """Entries that the query at `position` meets."""
    if seen.choice is not None:
        return seen.choice.chosen
    reaches = [piece.reach(seen.rule, position, position) for piece in seen.pieces]
    return sum(reach.stop - reach.start for reach in reaches)


def _attention(calls: list[Call], device: Device, machine: MachineDocument) -> OpDocument:
    replayed = calls[-MOST_REPLAYED:]

    def replay() -> None:
        for call in replayed:
            attend(*call.arguments)

    seconds = _best(device, replay) / len(replayed)
    kernel = device.kernel_of(lambda: attend(*replayed[0].arguments))
    one = replayed[0]
    return _document(one.name, kernel, len(calls), seconds, (one.bytes, one.flops), machine)


def _projections(model: ReferenceModel, batch: int, device: Device, machine: MachineDocument) -> OpDocument:
    """Every matrix that a step's mixers multiply with, one after another, for one token a sequence."""
    import torch
    from torch.nn.functional import linear

    matrices = [weight for weight in model.mixer_weights() if weight.dim() == 2]
    inputs = {w.shape[1]: torch.rand(batch, w.shape[1], device=w.device).to(w.dtype) for w in matrices}

    def multiply() -> None:
        for weight in matrices:
            linear(inputs[weight.shape[1]].to(weight.dtype), weight)

    layers = len(model.layers)
    kernel = device.kernel_of(multiply)
    work = sum(w.nbytes for w in matrices) // layers, 2 * batch * sum(w.numel() for w in matrices) // layers
    return _document("projections of a layer", kernel, layers, _best(device, multiply) / layers, work, machine)


def _document(
    name: str, kernel: str, calls: int, seconds: float, work: tuple[int, int], machine: MachineDocument
) -> OpDocument:
    read, flops = work
    bound = max(read / machine["read_bytes_per_second"], flops / machine["gemm_flops_per_second"])
    return {
        "name": name,
        "kernel": kernel,
        "calls": calls,
        "seconds": seconds,
        "bytes": read,
        "flops": flops,
        "bytes_per_second": read / seconds,
        "flops_per_second": flops / seconds,
        "roofline_fraction": bound / seconds,
    }


def _best(device: Device, action: Callable[[], object]) -> float:
    """The shortest of several runs in seconds; earlier data is pushed out of the caches before each."""
    action()
    seconds = []
    for _ in range(REPEATS):
        device.flush()
        seconds.append(device.time(action))
    return min(seconds)
