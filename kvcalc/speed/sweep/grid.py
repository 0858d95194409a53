"""Every point of a sweep, with the Pareto front among them; too many to hold are made again as they are written."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.errors import KvcalcError, UnknownNameError
from kvcalc.report import Column
from kvcalc.speed.sweep.asked import Asked, Deployment, make_ready
from kvcalc.speed.sweep.axis import can_be_held, refuse_unheld
from kvcalc.speed.sweep.cells import Block, Placed, blocks, columns, frame_of
from kvcalc.speed.sweep.front import Front
from kvcalc.speed.sweep.held import make_held
from kvcalc.speed.throughput import TTFT_NOTE

if TYPE_CHECKING:
    from pandas import DataFrame

Progress = Callable[[int, int], None]
"""What is told how many points are done, of how many."""


def silent(done: int, points: int) -> None:
    """Progress that nobody watches."""


FRAME_POINTS = 2**15
"""Points that are written at once, at least: a frame has its price, however few are in it."""
PER_GPU, PER_USER = "tokens_per_second_per_gpu", "tokens_per_second_per_user"


class Prepared(NamedTuple):
    """Deployments that can be answered for, each with its figures, and notes on the others."""

    deployments: tuple[Placed, ...]
    notes: tuple[str, ...]

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Those of machines and formats too, and why engines refused what they did."""
        readies = [ready for _, ready, _ in self.deployments if ready is not None]
        own = (note for ready in readies for note in (*ready.setting.machine.notes, *ready.setting.numbers.notes))
        rooms = ((one, ready.room if ready else held) for one, ready, held in self.deployments)
        refused = (f"{label(one)}: {reason}" for one, asked in rooms if asked for reason in asked.reasons)
        return tuple(dict.fromkeys((*self.notes, *own, *refused)))


def prepare(asked: Asked) -> Prepared:
    """The deployments of a sweep; KvcalcError where none of them can be."""
    found: list[Placed] = []
    notes = dict.fromkeys(asked.notes)
    refused: list[KvcalcError] = []
    for deployment in asked.deployments:
        try:
            passed = tuple(_refuse_contexts(deployment, asked))
            found.append(Placed(deployment, make_ready(deployment, asked), make_held(deployment, asked)))
            notes.update(dict.fromkeys(passed))
        except UnknownNameError:
            raise
        except KvcalcError as error:
            refused.append(error)
            notes[f"{label(deployment)} is left out: {error.message}"] = None
    if not found:
        raise refused[0]
    return Prepared(tuple(found), tuple(notes))


def _refuse_contexts(deployment: Deployment, asked: Asked) -> Iterator[str]:
    """A note where some contexts pass the model's limit, KvcalcError where all do."""
    spec = deployment.spec
    if spec.max_context is None or asked.contexts[-1] <= spec.max_context:
        return
    past = f"the {spec.max_context:,} tokens of {spec.name}"
    if not asked.contexts_of(spec):
        raise KvcalcError(f"every context passes {past}", "a smaller --ctx, or --isl and --osl")
    yield f"contexts past {past} are left out" if asked.gpus else f"some contexts pass {past}"


def label(deployment: Deployment) -> str:
    """A deployment in a few words."""
    use = deployment.use
    formats = " ".join(filter(None, (use.weights, "" if use.kv_dtype == "auto" else f"KV {use.kv_dtype}")))
    place = f"on {deployment.gpu} " if deployment.gpu else ""
    place += f"under {deployment.engine} " if deployment.engine else ""
    return " ".join(filter(None, (deployment.spec.name, formats))) + f" {place}tp {use.sharding.tp}"


class Grid:
    """The points of a sweep. Fronts are those of one model and one context: what answers the same question."""

    def __init__(self, asked: Asked, progress: Progress = silent) -> None:
        self.asked, self.prepared = asked, prepare(asked)
        self.points = sum(asked.points_of(deployment) for deployment, _, _ in self.prepared.deployments)
        self.fitting = self._done = 0
        self._progress = progress
        self._fronts: dict[tuple[str, int], Front] = {}
        self._held: list[Block] = []
        if asked.gpus or self.is_held:
            self._walk()

    def _walk(self) -> None:
        """Find the fronts, without which no point can be told whether it is on one, and keep what may be kept."""
        for block in self._made():
            self.fitting += int(block.figures["fits"].sum()) if self.asked.gpus else 0
            for key, rows in self._by_context(block):
                self._fronts.setdefault(key, Front()).add(*_figures(block, rows))
            self._held += [block] if self.is_held else []

    @property
    def is_held(self) -> bool:
        """Whether the points are few enough to be kept."""
        return can_be_held(self.asked.sides)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the points."""
        return columns(self.asked)

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be said beside the points."""
        return (*self.prepared.all_notes, *([TTFT_NOTE] if self.asked.served else []))

    def frames(self) -> "Iterator[DataFrame]":
        """The points, many at a time."""
        waiting: list[Block] = []
        for block in self._held if self.is_held else self._made():
            waiting.append(self._with_front(block))
            if sum(one.points for one in waiting) >= FRAME_POINTS:
                yield frame_of(waiting, self.asked)
                waiting = []
        if waiting:
            yield frame_of(waiting, self.asked)

    def _made(self) -> Iterator[Block]:
        walks = 2 if self.asked.gpus and not self.is_held else 1
        for placed in self.prepared.deployments:
            for block in blocks(placed, self.asked):
                yield block
                self._done += block.points
                self._progress(self._done // walks, self.points)

    def _with_front(self, block: Block) -> Block:
        """The same points, each with whether it is on the front."""
        import numpy as np

        parts = [self._fronts[key].holds(*_figures(block, rows)) for key, rows in self._by_context(block)]
        return block._replace(figures=block.figures | {"pareto": np.concatenate(parts)}) if parts else block

    def _by_context(self, block: Block) -> Iterator[tuple[tuple[str, int], slice]]:
        """The points of each context, which stand together."""
        import numpy as np

        if not self.asked.gpus:
            return
        tokens = block.figures["context_tokens"]
        starts = [0, *(np.flatnonzero(np.diff(tokens)) + 1).tolist(), len(tokens)]
        for start, end in pairwise(starts):
            yield (block.names["model"], int(tokens[start])), slice(start, end)


def _figures(block: Block, rows: slice) -> tuple[Any, Any]:
    return block.figures[PER_USER][rows], block.figures[PER_GPU][rows]


def whole_frame(asked: Asked) -> "DataFrame":
    """All points of a sweep in one frame; KvcalcError where they are too many to hold."""
    import pandas as pd

    refuse_unheld(asked.sides)
    return pd.concat(list(Grid(asked).frames()), ignore_index=True)
