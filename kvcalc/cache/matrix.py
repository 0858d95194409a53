"""A matrix that tokens are multiplied with: what a kernel needs to know of a projection."""

from typing import NamedTuple


class Matrix(NamedTuple):
    """`copies` matrices of `outputs` x `inputs` on one rank, multiplied in one kernel."""

    outputs: int
    inputs: int
    copies: int = 1

    @property
    def values(self) -> int:
        """Weights in it; a token costs two FLOPs for each."""
        return self.outputs * self.inputs * self.copies

    @property
    def width(self) -> int:
        """Numbers that one token brings and takes away."""
        return (self.outputs + self.inputs) * self.copies
