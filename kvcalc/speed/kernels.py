"""What a kernel costs: seconds to start, to move bytes and to compute, as reached and at the peak.

A kernel takes `start + ((bytes / reached bandwidth)^3 + (FLOPs / reached rate)^3)^(1/3)`. Everything is written for
numbers and for numpy arrays of batches and contexts alike.
"""

from typing import Any, NamedTuple

from kvcalc.cache.matrix import Matrix
from kvcalc.speed.machine import Machine
from kvcalc.speed.rank import RankModel
from kvcalc.speed.weights import Numbers, WeightNumbers

ACTIVATION_BYTES = 2
US = 1e-6


class Pass(NamedTuple):
    """`sequences` sequences on a rank that bring `new` tokens each and have `context` with them, `is_prompt` or not.

    Ranks of attention-DP have `in_all` of them together; where that is not said, this rank is the fullest of them.
    """

    sequences: Any
    new: Any
    context: Any
    is_prompt: bool
    in_all: Any = None

    @property
    def tokens(self) -> Any:
        """Tokens that the matrices see."""
        return self.sequences * self.new

    def least_share(self, ranks: int) -> Any:
        """The fewest tokens that so many ranks bring together, over as many times a rank's own."""
        least = (self.sequences - 1) * ranks + 1 if self.in_all is None else self.in_all
        return least / (self.sequences * ranks)


class Cost(NamedTuple):
    """Seconds of one kind of kernel: started, moving bytes and computing as reached, and the last two at the peak.

    `moves` is what is moved: `weights`, `KV cache`, `activations` or `link`; `rate` is the format of the arithmetic.
    """

    term: str
    start: Any
    moving: Any = 0.0
    working: Any = 0.0
    floor_moving: Any = 0.0
    floor_working: Any = 0.0
    moves: str = "weights"
    rate: str = "bf16"

    @property
    def overlapped(self) -> Any:
        """Moving and computing at once: the cubes of both add up."""
        return (self.moving**3 + self.working**3) ** (1 / 3)

    @property
    def seconds(self) -> Any:
        """All of it."""
        return self.start + self.overlapped


class Setting(NamedTuple):
    """What does not change over a grid: the model on a rank, its numbers and the machine."""

    model: RankModel
    numbers: WeightNumbers
    machine: Machine


def matrix_cost(term: str, machine: Machine, matrix: Matrix, numbers: Numbers, tokens: Any, count: int) -> Cost:
    """`count` products of `tokens` tokens with a matrix."""
    kernel = machine.kernel(numbers.rate)
    moved = matrix.values * numbers.bytes_per_value + tokens * matrix.width * ACTIVATION_BYTES
    start = count * kernel.start_us * machine.free["start_share"] * US
    constants = start, kernel.bandwidth_share, kernel.flops_share, numbers.rate
    cost = kernel_cost(term, machine, constants, count * moved, count * 2 * tokens * matrix.values)
    # What goes in and comes out may stay on the chip.
    return cost._replace(floor_moving=count * matrix.values * numbers.bytes_per_value / machine.bytes_per_second)


def kernel_cost(
    term: str,
    machine: Machine,
    constants: tuple[Any, float, float, str],
    moved: Any,
    flops: Any,
    moves: str = "weights",
) -> Cost:
    """What moves `moved` bytes and computes `flops`; `constants` are seconds to start, two shares and a rate's name."""
    start, bandwidth_share, flops_share, rate = constants
    moving, working = moved / machine.bytes_per_second, flops / machine.rate(rate)
    flops_share = flops_share * machine.free.get("arithmetic_share", 1.0)
    return Cost(term, start, moving / bandwidth_share, working / flops_share, moving, working, moves, rate)


def exchange(term: str, machine: Machine, count: int, ranks: int, size: Any) -> Cost:
    """`count` exchanges of `size` bytes a rank: a start, a little for each rank past two, and the link."""
    start = count * (machine.free["reduce_us"] + machine.free["reduce_peer_us"] * (ranks - 2)) * US
    link = machine.link_bytes_per_second or 1.0
    return Cost(term, start, count * size / (link * machine.link_share), moves="link")
