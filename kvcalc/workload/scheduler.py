"""Continuous batching by counts: who runs in which step. Steps in which nobody comes or goes pass as one.

The rules are those of vLLM 0.33, v1/core/sched/scheduler.py, Scheduler.schedule: running sequences first, the newest
one preempted where the pool is out, then the prompt that is under way, then those that wait in their order, as far as
the tokens of a step reach. A prompt takes the room of all its tokens when it is admitted, also where several steps
compute it.
"""

from array import array
from collections.abc import Callable

import msgspec

from kvcalc.workload.clock import Clock
from kvcalc.workload.policies import Policy
from kvcalc.workload.running import Running
from kvcalc.workload.waiting import Waiting

NO_LIMIT = 1 << 62


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a step: its sequences, its tokens, and units that an admission leaves free.

    Preempted sequences keep what they computed outside where they swap: each unit that goes or comes takes time.
    """

    sequences: int = NO_LIMIT
    step_tokens: int = NO_LIMIT
    spare_units: int = 0
    swaps: bool = False
    swap_unit_seconds: float = 0.0


class Records:
    """What became of every request: seconds, NaN where it did not come to that, and counts."""

    def __init__(self, count: int) -> None:
        self.admitted, self.first_token, self.finished = (array("d", [float("nan")]) * count for _ in range(3))
        self.preemptions, self.hit_tokens, self.made = (array("q", [0]) * count for _ in range(3))


class Prompt(msgspec.Struct):
    """A sequence of which `done` tokens are computed, out of the `goal` that it has when it begins to decode."""

    request: int
    goal: int
    done: int


class Batch(msgspec.Struct):
    """A step that is being made: `left` tokens more may join. Units are those that the tokens of each sequence take."""

    left: int
    running_units: int = 0
    prompt_units: int = 0
    prefill: int = 0
    context: float = 0.0
    swap_seconds: float = 0.0
    done: list[Prompt] = []


class Scheduler:
    """One server: `waiting` come to it, `policy` gives them room, `clock` says how long steps take.

    `records` are of all requests of its trace, and may be those of servers that take others of them.
    """

    def __init__(self, waiting: Waiting, policy: Policy, clock: Clock, limits: Limits, records: Records) -> None:
        self.waiting, self.policy, self.clock, self.limits = waiting, policy, clock, limits
        self.records = records
        self.running = Running(policy.growth)
        self.peak_units = self.peak_running = self.finished = self.finished_prompts = self.prefilled = 0
        self.running_seconds = self.busy_seconds = 0.0
        self._grows = policy.grows
        self._units: Callable[[int], int] = policy.growth.units.item if policy.grows else lambda tokens: 0
        self._prompts, self._outputs = policy.prompts, policy.outputs
        # Sequences in the order of admission, with the first step that made a token of each.
        self._room: dict[int, int] = {}
        self._partial: Prompt | None = None
        self._swapped: set[int] = set()
        self._is_blocked = False
        self._until = float("inf")

    def run(self, watch: Callable[["Scheduler"], None], until: float = float("inf")) -> None:
        """Serve all, in steps that begin before `until`; `watch` sees the server whenever it is between steps."""
        self._until = until
        while self._room or self.waiting.head(self.clock.now) is not None or self._await():
            if self.clock.now >= until:
                return
            self._step()
            watch(self)

    def stop(self) -> None:
        """Count what those hold that are not done."""
        for request in self.running.requests():
            self._leave(request)

    def _await(self) -> bool:
        """Let time pass until the next request; whether there is one."""
        arrival = self.waiting.next_arrival
        if arrival == float("inf"):
            return False
        self.clock.now = arrival
        return True

    @property
    def running_count(self) -> int:
        """Sequences that have room."""
        return len(self._room)

    def held_units(self) -> int:
        """Units that sequences hold between two steps."""
        prompt = self._units(self._partial.goal) if self._partial else 0
        return self.policy.held(self._growing(self.clock.step - 1) + prompt)

    def filled_units(self) -> float:
        """Units of the tokens of all sequences."""
        curve, step, policy = self.policy.growth.filled.values, self.clock.step - 1, self.policy
        partial = policy.prompt_filled(self._partial.request, self._partial.done) if self._partial else 0.0
        return float(partial + sum(curve.item(base + step) for base in self.running.bases()) - policy.shared_filled)

    def _step(self) -> None:
        """One step with prompts in it, or as many as pass alike."""
        batch = self._batch()
        if self._partial is not None:
            prompt, self._partial = self._partial, None
            batch.prompt_units += self._units(prompt.goal)
            self._feed(batch, prompt)
        # Who has just been preempted finds no room, so that nobody is admitted in such a step.
        self._admit(batch)
        first, begun, count = self.clock.step, self.clock.now, len(self._room)
        self.peak_running = max(self.peak_running, count)
        self._pass(batch)
        seconds = self.clock.now - begun
        self.busy_seconds += seconds
        self.running_seconds += seconds * count
        if self._partial is not None:
            self.policy.count_prompt(self._partial.request, self._partial.goal, self._partial.done, seconds)
        for prompt in batch.done:
            self._begin(prompt, first)
        for request in self.running.ended(self.clock.step - 1):
            self.records.finished[request] = self.clock.now
            self.finished += 1
            self.finished_prompts += self._prompts[request]
            self._leave(request)

    def _batch(self) -> Batch:
        """The running sequences of the step that comes, without those for which the pool has no room."""
        batch, step = Batch(self.limits.step_tokens), self.clock.step
        prompt = self._units(self._partial.goal) if self._partial else 0
        batch.running_units = self._growing(step)
        while self.policy.held(batch.running_units + prompt) > self.policy.pool_units:
            prompt = 0 if self._partial else prompt
            self._preempt(batch)
        batch.left -= self.running.count
        return batch

    def _preempt(self, batch: Batch) -> None:
        """The newest sequence gives back its room."""
        request = next(reversed(self._room))
        self.records.preemptions[request] += 1
        self.waiting.push(request)
        if self._partial is not None:
            done, self._partial = self._partial.done, None
            self._forget(request, done)
            return
        first = self._room[request]
        tokens = self._leave(request) + self.clock.step
        batch.running_units -= self._units(tokens)
        self.records.made[request] += self.clock.step - first
        if self.limits.swaps:
            self._swapped.add(request)
            batch.swap_seconds += self._units(tokens - 1) * self.limits.swap_unit_seconds

    def _admit(self, batch: Batch) -> None:
        """Those that wait, as far as tokens, sequences and the pool reach."""
        while batch.left > 0 and len(self._room) < self.limits.sequences and not self._is_blocked:
            request = self.waiting.head(self.clock.now)
            if request is None:
                return
            goal = self._prompts[request] + self.records.made[request]
            growing = batch.running_units + batch.prompt_units
            hits = self.policy.take(request, goal, growing, self.limits.spare_units if self._room else 0)
            if hits is None:
                self._is_blocked = True
                return
            self.waiting.pop()
            self._enter(batch, Prompt(request, goal, hits))

    def _enter(self, batch: Batch, prompt: Prompt) -> None:
        request = prompt.request
        self._room[request] = self.clock.step
        if request in self._swapped:
            self._swapped.remove(request)
            batch.left -= 1
            batch.running_units += self._units(prompt.goal)
            batch.swap_seconds += self._units(prompt.goal) * self.limits.swap_unit_seconds
            self._begin(prompt, self.clock.step)
            return
        if not self.records.preemptions[request]:
            self.records.admitted[request] = self.clock.now
            self.records.hit_tokens[request] = prompt.done
        batch.prompt_units += self._units(prompt.goal)
        self._feed(batch, prompt)

    def _feed(self, batch: Batch, prompt: Prompt) -> None:
        """As many tokens of a prompt as the step still takes."""
        chunk = min(batch.left, prompt.goal - prompt.done)
        batch.context += chunk * (prompt.done + chunk / 2)
        batch.prefill += chunk
        batch.left -= chunk
        prompt.done += chunk
        self.prefilled += chunk
        if prompt.done < prompt.goal:
            self._partial = prompt
        else:
            batch.done.append(prompt)

    def _pass(self, batch: Batch) -> None:
        """Let the step pass, and the ones behind it that are alike."""
        count, step, steps = self.running.count, self.clock.step, 1
        context = self.running.context(step)
        if batch.prefill or batch.swap_seconds:
            self.clock.mixed(count, context, batch.prefill, batch.context, batch.swap_seconds)
        else:
            most = self._steps_with_room(self.running.last_step() - step + 1, batch.running_units)
            steps = self.clock.decode(count, context, most, self._next_admission(batch))
        if steps > 1:
            batch.running_units = self._growing(self.clock.step - 1)
        growing = batch.running_units + batch.prompt_units
        held = self.policy.held(growing)
        self.peak_units = max(self.peak_units, held)
        self.policy.passed(self.running, growing, steps, self.clock)

    def _next_admission(self, batch: Batch) -> float:
        """When a request that comes would be admitted, or the run pauses: never where there is no room for any."""
        is_open = batch.left > 0 and len(self._room) < self.limits.sequences and not self._is_blocked
        return min(self.waiting.next_arrival, self._until) if is_open else self._until

    def _steps_with_room(self, steps: int, units: int) -> int:
        """How many of these steps pass before the pool is out; the first one does, with so many units."""
        if not self._grows or steps == 1:
            return steps
        last, most = self.clock.step - 1, self.policy.pool_units
        fits, less, more = 1, self.policy.held(units), self._held(last + steps)
        if more <= most:
            return steps
        while steps - fits > 1:
            # Units grow almost evenly, so that the place is nearly known.
            guess = fits + int((steps - fits) * (most - less + 0.5) / (more - less))
            guess = min(max(guess, fits + 1), steps - 1)
            held = self._held(last + guess)
            if held <= most:
                fits, less = guess, held
            else:
                steps, more = guess, held
        return fits

    def _held(self, step: int) -> int:
        return self.policy.held(self.running.units(step))

    def _begin(self, prompt: Prompt, step: int) -> None:
        """A sequence that has its goal in this step makes its next token in it."""
        request = prompt.request
        if self.records.first_token[request] != self.records.first_token[request]:
            self.records.first_token[request] = self.clock.now
        self._room[request] = step
        self.running.join(request, prompt.goal - step, step + self._outputs[request] - self.records.made[request] - 1)

    def _leave(self, request: int) -> int:
        """Count what a sequence held, and give it back; its base."""
        first, base = self._room[request], self.running.leave(request)
        self.policy.count(request, self.clock, base + first, first, self.clock.step - first)
        self._forget(request)
        return base

    def _forget(self, request: int, done: int | None = None) -> None:
        del self._room[request]
        self.policy.leave(request, done)
        self._is_blocked = False

    def _growing(self, step: int) -> int:
        return self.running.units(step) if self._grows and self.running.count else 0
