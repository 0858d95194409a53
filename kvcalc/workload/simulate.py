"""A trace against a pool: who waits, who runs, what is held, and what became of every request."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kvcalc.errors import KvcalcError, nearest
from kvcalc.sizing.blocks import Layout
from kvcalc.workload.clock import clock_of
from kvcalc.workload.outcome import CONTEXT, POOL, Outcome, Requests, Totals
from kvcalc.workload.policies import Paged, Policy
from kvcalc.workload.prefixed import Prefixed
from kvcalc.workload.reserved import Max, Oracle, Places, Pow2
from kvcalc.workload.scheduler import NO_LIMIT, Limits, Records, Scheduler
from kvcalc.workload.steptime import FixedCost, StepCost
from kvcalc.workload.timeline import Timeline
from kvcalc.workload.trace import Trace
from kvcalc.workload.waiting import Waiting

if TYPE_CHECKING:
    from kvcalc.workload.trace import Integers


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A server: its pool, and how it lets requests in.

    Without `cost` a step is the unit of time, and all requests wait in their order from the start. `max_num_seqs`
    and `state_slots` both bound the sequences that have room; a step computes `max_num_batched_tokens` at most.
    """

    layout: Layout
    pool_units: int
    allocator: str = "paged"
    """A key of ALLOCATORS; those that reserve do so in units of the layout, which they want of blocks of 1 token."""
    prefix_caching: bool = False
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    state_slots: int | None = None
    watermark: float = 0.0
    """The share of the pool that an admission into blocks leaves free while others run."""
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_bytes_per_second: float | None = None
    """None where swapping takes no time."""
    cost: StepCost | None = None
    samples: int = 400
    """The most looks that a timeline keeps."""

    def __post_init__(self) -> None:
        counts = {
            "--max-model-len": self.max_model_len,
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
            "--state-slots": self.state_slots,
        }
        for flag, value in counts.items():
            if value is not None and value < 1:
                raise KvcalcError(f"{flag} {value}: at least 1 is needed", "a larger one")
        if self.pool_units < 1:
            raise KvcalcError(f"a pool of {self.pool_units} units holds nothing", "give it more memory")
        if not 0 <= self.watermark < 1:
            raise KvcalcError(
                f"--watermark {self.watermark} is no share below 1",
                "vLLM has 0 by default, and 0.01 in releases up to 0.10",
            )
        if self.swap_bytes_per_second is not None and not self.swap_bytes_per_second > 0:
            raise KvcalcError(f"swapping at {self.swap_bytes_per_second} B/s never ends", "a rate above 0")
        self.policy()

    def policy(self) -> type[Policy]:
        """The class of its allocator; KvcalcError where there is none."""
        found = policy_of(self.allocator)
        if self.prefix_caching and found is not Paged:
            message = f"--allocator {self.allocator} reserves for each request alone: no prefix is shared"
            raise KvcalcError(message, "leave --prefix-caching out")
        return Prefixed if self.prefix_caching else found

    def limits(self) -> Limits:
        """What bounds its steps."""
        step_tokens = self.max_num_batched_tokens or NO_LIMIT
        seconds = 0.0 if self.swap_bytes_per_second is None else self.layout.bytes_per_unit / self.swap_bytes_per_second
        return Limits(
            # Each decoding sequence takes a token of the step.
            sequences=min(self.max_num_seqs or NO_LIMIT, self.state_slots or NO_LIMIT, step_tokens),
            step_tokens=step_tokens,
            spare_units=int(self.watermark * self.pool_units),
            swaps=self.preemption == "swap",
            swap_unit_seconds=seconds,
        )


Progress = Callable[[int, int], None]
"""Called now and then with the requests that are done, and all that are served."""
_PROGRESS_STEPS = 1000


def simulate(trace: Trace, setting: Setting, progress: Progress | None = None) -> Outcome:
    """Serve `trace` by `setting` to its end; Ctrl-C ends it between two steps and keeps what is done.

    Requests past `max_model_len`, and those that the whole pool could not hold, are refused and named by the outcome.
    KvcalcError where that leaves none, and where a setting asks for what the trace does not say.
    """
    policy, refused = admissible(trace, setting)
    queue = _queue(refused)
    if not len(queue):
        raise _nothing_left(trace, setting, policy, refused)
    is_timed = setting.cost is not None
    arrivals = trace.arrival_seconds.tolist() if is_timed and trace.arrival_seconds is not None else None
    clock = clock_of(setting.cost or FixedCost(1.0))
    server = Scheduler(Waiting(queue, arrivals), policy, clock, setting.limits(), Records(len(trace)))
    timeline = Timeline(setting.samples)
    is_complete = _run(server, timeline, len(queue), progress)
    return Outcome(
        trace=trace,
        setting=setting,
        requests=_requests(trace, server, refused, is_timed),
        totals=_totals(server),
        timeline=timeline.columns(),
        is_complete=is_complete,
    )


def _run(server: Scheduler, timeline: Timeline, served: int, progress: Progress | None) -> bool:
    turns = 0

    def watch(seen: Scheduler) -> None:
        nonlocal turns
        turns += 1
        if seen.clock.now >= timeline.due:
            timeline.look(seen)
        if progress is not None and turns % _PROGRESS_STEPS == 0:
            progress(seen.finished, served)
        if interrupts:
            raise KeyboardInterrupt

    try:
        with _noted_interrupts() as interrupts:
            server.run(watch)
    except KeyboardInterrupt:
        server.stop()
        return False
    return True


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Signals of Ctrl-C, which are noted so that none breaks into a step; threads other than the main one get none."""
    import signal
    import threading

    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def admissible(trace: Trace, setting: Setting) -> tuple[Policy, "Integers"]:
    """The policy, and why each request is refused: 0 where it is not."""
    import numpy as np

    if not len(trace):
        raise KvcalcError(f"{trace.name} has no requests", "name another trace")
    kind, limit = setting.policy(), setting.max_model_len
    ends = trace.prompt_tokens + trace.output_tokens
    if limit is None and kind in (Max, Places):
        raise KvcalcError(f"--allocator {kind.name} reserves the longest context", "say it: --max-model-len 2048")
    most = int(ends.max()) if limit is None else limit
    policy = kind(trace, setting.layout, setting.pool_units, most)
    return policy, np.where(ends > most, CONTEXT, np.where(policy.too_large(), POOL, 0))


def _queue(refused: "Integers") -> Any:
    """The requests that are served: a range where all are, which takes no memory."""
    import numpy as np

    return np.flatnonzero(refused == 0).tolist() if refused.any() else range(len(refused))


def _nothing_left(trace: Trace, setting: Setting, policy: Policy, refused: "Integers") -> KvcalcError:
    prompt, output = int(trace.prompt_tokens[0]), int(trace.output_tokens[0])
    asked = f"no request of {trace.name} fits; the first one, {prompt:,} and {output:,} tokens,"
    if refused[0] == CONTEXT:
        return KvcalcError(f"{asked} passes --max-model-len {setting.max_model_len:,}", "a larger --max-model-len")
    needs, unit = int(policy.most_units[0]), setting.layout.bytes_per_unit
    message = f"{asked} needs {needs * unit:,} bytes in one pool of {setting.pool_units * unit:,}"
    return KvcalcError(message, "a larger pool, or shorter requests")


def _requests(trace: Trace, server: Scheduler, refused: "Integers", is_timed: bool) -> Requests:
    import numpy as np

    records, arrival = server.records, trace.arrival_seconds
    if arrival is None or not is_timed:
        arrival = np.zeros(len(trace))
    return Requests(
        arrival_seconds=arrival,
        admitted_seconds=np.frombuffer(records.admitted),
        first_token_seconds=np.frombuffer(records.first_token),
        finished_seconds=np.frombuffer(records.finished),
        preemptions=np.frombuffer(records.preemptions, dtype=np.int64),
        hit_tokens=np.frombuffer(records.hit_tokens, dtype=np.int64),
        refused=refused,
    )


def _totals(server: Scheduler) -> Totals:
    return Totals(
        seconds=server.clock.now,
        busy_seconds=server.busy_seconds,
        steps=server.clock.step,
        running_seconds=server.running_seconds,
        prefilled_tokens=server.prefilled,
        peak_units=server.peak_units,
        peak_running=server.peak_running,
        **msgspec.structs.asdict(server.policy.shares),
    )


def policy_of(allocator: str) -> type[Policy]:
    """The class of an allocator; KvcalcError where there is none of that name."""
    found = ALLOCATORS.get(allocator)
    if found is None:
        near = nearest(allocator, ALLOCATORS, 1) or list(ALLOCATORS)
        raise KvcalcError(f"--allocator {allocator!r} is not known", f"write {', '.join(near)}")
    return found


ALLOCATORS: dict[str, type[Policy]] = {one.name: one for one in (Max, Places, Pow2, Oracle, Paged)}
