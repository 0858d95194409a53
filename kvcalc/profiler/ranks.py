"""Tensor-parallel ranks: processes that torchrun started, their collective, and what each of them measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from os import environ
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.reference.build import Rank

if TYPE_CHECKING:
    from torch import Tensor

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
PATIENCE = timedelta(minutes=5)


class Ranks(msgspec.Struct, frozen=True):
    """This process among all: the first one prints."""

    rank: Rank = Rank()

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all."""
        return self.rank.index == 0

    def gather(self, mine: Any) -> list[Any]:
        """What every rank brings, in their order; each rank gets all of it."""
        if self.rank.size == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] = [None] * self.rank.size
        dist.all_gather_object(found, mine)
        return found

    def slowest(self, seconds: float) -> float:
        """The most seconds that a rank brings: what all of them decide by, since they must pass tokens together."""
        return float(max(self.gather(seconds)))


ALONE = Ranks()
"""One process, one rank."""


@contextmanager
def ranks_of(size: int, device_kind: str) -> Iterator[Ranks]:
    """The ranks of a `--tp size` run; KvcalcError where torchrun did not start as many processes."""
    if size < 1:
        raise KvcalcError(f"--tp {size}: at least 1 is needed", "leave --tp out for one rank")
    started = int(environ.get("WORLD_SIZE", "1"))
    if started != size:
        launch = f"torchrun --nproc-per-node {size} -m kvcalc profile --tp {size} ..."
        raise KvcalcError(
            f"--tp {size} needs {size} processes, and {started} run", launch if size > 1 else f"add --tp {started}"
        )
    if size == 1:
        yield ALONE
        return
    import torch.distributed as dist

    dist.init_process_group(BACKENDS[device_kind], timeout=PATIENCE)
    try:
        yield Ranks(Rank(index=dist.get_rank(), size=size, reduce=_sum))
    finally:
        dist.destroy_process_group()


def local_index() -> int:
    """Which of the machine's devices this process takes."""
    return int(environ.get("LOCAL_RANK", "0"))


def local_size() -> int:
    """How many ranks share this machine."""
    return int(environ.get("LOCAL_WORLD_SIZE", "1"))


def _sum(tensor: "Tensor") -> None:
    import torch.distributed as dist

    dist.all_reduce(tensor)
