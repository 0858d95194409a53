"""What every point has in common, whoever's layers run: its document, running out of memory, what timings come to."""

from collections.abc import Callable

from kvcalc.profiler.device import Device
from kvcalc.profiler.documents import DecodeDocument, MachineDocument, PointDocument, PrefillDocument
from kvcalc.profiler.ranks import ALONE, Ranks
from kvcalc.profiler.series import Series, repeats_for

LEAST_PREFILLS, MOST_PREFILLS = 3, 5
"""Three can be held against those of another run; one alone says nothing of the machine's noise."""
WARM_UP_STEPS = 2
SHARE_OF_STEPS = 4
"""A context's last quarter at most is decoded, so that every step reads nearly the whole of it."""


class Point:
    """The measurement of one point; what has been measured stands in `document` at every moment."""

    def __init__(self, device: Device, context: int, batch: int, weight_bytes: int, asked_bytes: int) -> None:
        self.device, self.context, self.batch, self.asked_bytes = device, context, batch, asked_bytes
        self.reached, self.available_bytes = "nothing", 0
        self.document: PointDocument = {
            "context_tokens": context,
            "batch": batch,
            "components": [],
            "rules": [],
            "allocator": None,
            "weight_bytes": weight_bytes,
            "peak_bytes": None,
            "prefill": None,
            "decode": None,
            "ops": [],
            "stopped": None,
            "doubts": [],
        }

    def measure(self) -> None:
        """Fill in the document, and say in `reached` how far that came."""
        raise NotImplementedError

    def run(self) -> PointDocument:
        """Measure the point; running out of memory ends it early, and so does Ctrl-C, which is passed on."""
        self.device.reset_peak()
        self.available_bytes = self.device.available_bytes()
        try:
            self.measure()
        except KeyboardInterrupt:
            self._stop("interrupted")
            raise
        except (RuntimeError, MemoryError) as error:
            if not self.device.is_out_of_memory(error):
                raise
            self.on_out_of_memory(error)
            self._stop(f"out of memory: {first_line(error)}")
        return self.document

    def on_out_of_memory(self, error: BaseException) -> None:
        """Called before the point is ended; raises where one point cannot end alone."""

    def note_peak(self) -> None:
        """Note the most that was held, while the caches are still there."""
        self.document["peak_bytes"] = self.device.peak_bytes()
        self.document["reserved_bytes"], self.document["device_used_bytes"] = self.device.held_bytes()

    def _stop(self, reason: str) -> None:
        self.document["stopped"] = {
            "reason": reason,
            "reached": self.reached,
            "asked_bytes": self.asked_bytes,
            "available_bytes": self.available_bytes,
        }


def first_line(error: BaseException) -> str:
    """What an error says in its first line, or else its name."""
    return str(error).partition("\n")[0] or type(error).__name__


def decode_steps(context: int, most: int) -> int:
    """How many tokens at the end of a context are decoded: a quarter, at least one, at most `most`."""
    return max(1, min(most, context // SHARE_OF_STEPS))


def timed_prefills(once: Callable[[], float], budget_seconds: float, ranks: Ranks = ALONE) -> Series:
    """The seconds of several prefills where the budget allows; the first counts where there is no second."""
    first = once()
    slowest = ranks.slowest(first)
    if slowest >= budget_seconds:
        return Series((first,))
    return Series(tuple(once() for _ in range(repeats_for(slowest, budget_seconds, LEAST_PREFILLS, MOST_PREFILLS))))


def timed_steps(step: Callable[[int], float], most: int, budget_seconds: float, ranks: Ranks = ALONE) -> Series:
    """The seconds of steps 0, 1, ... that fit the budget on every rank, those that warm up left out."""
    warm_up = min(WARM_UP_STEPS, most - 1)
    samples: list[float] = []
    while len(samples) < most and not (len(samples) > warm_up and ranks.slowest(sum(samples)) > budget_seconds):
        samples.append(step(len(samples)))
    return Series(tuple(samples[warm_up:]))


def prefill_document(series: Series, tokens: int, batch: int, flops: int, machine: MachineDocument) -> PrefillDocument:
    """A prefill of `tokens` tokens for each of `batch` sequences, held against the measured rate of products."""
    rate, seconds = machine["gemm_flops_per_second"], series.median_seconds
    return {
        **series.document(),
        "measured_seconds": seconds,
        "tokens": tokens,
        "flops": flops,
        "predicted_seconds": flops / rate,
        "achieved_flops_per_second": flops / seconds,
        "flops_fraction": flops / seconds / rate,
        "tokens_per_second": batch * tokens / seconds,
    }


def decode_document(
    series: Series, batch: int, read: tuple[int, int], flops: int, machine: MachineDocument, layers: int
) -> DecodeDocument:
    """Steps of `batch` sequences that `read` bytes of caches and of weights, held against the measured bandwidth."""
    seconds, rate = series.median_seconds, sum(read) / series.median_seconds
    predicted = sum(read) / machine["read_bytes_per_second"]
    specified = machine["specified_bytes_per_second"]
    return {
        **series.document(),
        "measured_seconds": seconds,
        "steps": len(series.samples),
        "read_bytes_per_step": read[0],
        "weight_bytes": read[1],
        "flops": flops,
        "predicted_seconds": predicted,
        "achieved_bytes_per_second": rate,
        "bandwidth_fraction": rate / machine["read_bytes_per_second"],
        "specified_fraction": None if specified is None else rate / specified,
        "overhead_seconds_per_layer": max(0.0, seconds - predicted) / layers,
        "graph_seconds": None,
        "host_seconds": None,
        "tokens_per_second": batch / seconds,
    }
