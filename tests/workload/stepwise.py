"""A server simulated step by step, one object a sequence: slow and plain, the oracle of the one that jumps."""

from dataclasses import dataclass, field

from kvcalc.sizing.blocks import Group, Layout, Window
from kvcalc.workload.buddy import Buddy


class Needs(Layout, frozen=True, kw_only=True):
    """A layout whose need is half a unit a token, and half a unit of its own."""

    def written_bytes(self, tokens):
        return (tokens + 1) / 2


def layout_of_blocks(block=4, window=None, state=0):
    groups = [Group(name="tokens", block_tokens=block, units=block)]
    if window:
        groups.append(Window(name="window", block_tokens=block, units=block, cap=window))
    return Needs(groups=tuple(groups), slot_units=state, bytes_per_unit=1)


@dataclass
class Sequence:
    number: int
    arrival: float
    prompt: int
    output: int
    ids: list[int]
    made: int = 0
    computed: int = 0
    goal: int = 0
    decodes: bool = False
    swapped: bool = False
    place: object = None
    reserved: int = 0
    admitted: float | None = None
    first: float | None = None
    finished: float | None = None
    preemptions: int = 0
    hits: int = 0

    @property
    def final(self) -> int:
        return self.prompt + self.output - 1


@dataclass
class Server:
    """`units(tokens)` and `filled(tokens)` are what a sequence holds and fills; prefix blocks are of `block` tokens."""

    sequences: list[Sequence]
    pool: int
    units: object
    filled: object
    cost: object
    timed: bool
    allocator: str = "paged"
    most_context: int = 0
    max_seqs: int = 10**9
    budget: int = 10**9
    spare: int = 0
    swaps: bool = False
    block: int = 0
    block_units: int = 0
    block_filled: float = 0.0
    now: float = 0.0
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    readers: dict[int, int] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    sums: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(["filled", "reserved", "internal", "cached", "spared"], 0.0)
    )
    peak: int = 0
    steps: int = 0
    running_seconds: float = 0.0
    prefilled: int = 0

    def run(self) -> None:
        coming = list(self.sequences)
        self.buddy = Buddy(self.pool) if self.allocator not in ("paged", "places") else None
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running and self.timed:
                self.now = max(self.now, coming[0].arrival)
            while coming and (not self.timed or coming[0].arrival <= self.now):
                self.waiting.append(coming.pop(0))
            self.step()

    # Memory.

    def own(self, one: Sequence, tokens: int) -> int:
        if self.allocator != "paged":
            return one.reserved
        shared = len(one.ids) * self.block_units
        return max(self.units(t) for t in range(1, tokens + 1)) - shared

    def used(self) -> int:
        """Units in use in the step that comes: a decoding sequence has its next token's place."""
        return sum(self.own(one, self.tokens_next(one)) for one in self.running) + self.block_units * len(self.readers)

    def tokens_next(self, one: Sequence) -> int:
        return one.prompt + one.made if one.decodes else one.goal

    def cached(self) -> int:
        return self.block_units * len(self.idle)

    def reserve(self, one: Sequence) -> int:
        power = 1
        while power < one.output:
            power *= 2
        tokens = {
            "max": self.most_context,
            "places": self.most_context,
            "pow2": min(one.prompt + power, self.most_context),
            "oracle": one.prompt + one.output,
        }
        return max(self.units(t) for t in range(1, tokens[self.allocator] + 1))

    def take(self, one: Sequence) -> bool:
        if self.allocator == "places":
            one.reserved = self.reserve(one)
            return self.used() + one.reserved <= self.pool
        if self.buddy:
            one.reserved = self.reserve(one)
            one.place = self.buddy.take(one.reserved)
            return one.place is not None
        fresh = sum(1 for block in one.ids if block not in self.readers)
        need = self.used() + self.own(one, one.goal) + self.block_units * fresh
        if need + (self.spare if self.running else 0) > self.pool:
            return False
        self.evict(self.used())
        lead = 0
        while lead < len(one.ids) and (one.ids[lead] in self.readers or one.ids[lead] in self.idle):
            lead += 1
        for block in one.ids:
            self.readers[block] = self.readers.get(block, 0) + 1
            if block in self.idle:
                self.idle.remove(block)
        one.computed = 0
        if self.block:
            one.computed = min(lead, (one.goal - 1) // self.block) * self.block
        return True

    def evict(self, used: float) -> None:
        """Kept blocks go at once where others need the room, the one unused for longest first."""
        while used + self.cached() > self.pool:
            self.idle.pop(0)

    def give(self, one: Sequence, written: int) -> None:
        """Of its prefix blocks the first `written` ones hold something that may be kept."""
        if self.buddy:
            self.buddy.free(one.place)
        for place, block in reversed(list(enumerate(one.ids))):
            self.readers[block] -= 1
            if not self.readers[block]:
                del self.readers[block]
                if place < written:
                    self.idle.append(block)

    # A step.

    def step(self) -> None:
        preempted = False
        while self.used() > self.pool:
            one = self.running.pop()
            self.give(one, len(one.ids) if one.decodes else one.computed // (self.block or 1))
            one.preemptions += 1
            one.swapped = self.swaps and one.decodes
            one.decodes, one.computed = False, 0
            self.waiting.insert(0, one)
            preempted = True
        left, prefill, prefill_context = self.budget, 0, 0.0
        left -= sum(one.decodes for one in self.running)
        parts = [one for one in self.running if not one.decodes]
        while parts or (left > 0 and self.waiting and not preempted and len(self.running) < self.max_seqs):
            if parts:
                one = parts.pop()
            else:
                one = self.waiting[0]
                one.goal, one.computed = one.prompt + one.made, 0
                if not self.take(one):
                    break
                self.waiting.pop(0)
                self.running.append(one)
                if one.swapped:
                    one.swapped, one.decodes, one.computed = False, True, one.goal
                    left -= 1
                    continue
                if not one.preemptions:
                    one.admitted, one.hits = self.now, one.computed
            chunk = min(left, one.goal - one.computed)
            prefill += chunk
            prefill_context += chunk * (one.computed + chunk / 2)
            one.computed += chunk
            left -= chunk
        self.prefilled += prefill
        self.end_step(prefill, prefill_context)

    def end_step(self, prefill: int, prefill_context: float) -> None:
        deciding = [one for one in self.running if one.decodes]
        context = sum(one.prompt + one.made for one in deciding)
        seconds = self.cost.mixed(len(deciding), context, prefill, prefill_context)
        used = self.used()
        self.evict(used)
        assert used + self.cached() <= self.pool
        self.peak = max(self.peak, used)
        self.count(seconds, used)
        self.steps += 1
        self.running_seconds += seconds * len(self.running)
        self.now += seconds
        ended = []
        for one in self.running:
            if one.decodes or one.computed == one.goal:
                one.decodes = True
                one.made += 1
                one.first = self.now if one.first is None else one.first
                if one.made == one.output:
                    one.finished = self.now
                    ended.append(one)
        for one in sorted(ended, key=lambda one: one.number):
            self.running.remove(one)
            self.give(one, len(one.ids))

    def count(self, seconds: float, used: int) -> None:
        shared = self.block_units * len(self.readers)
        self.sums["filled"] += seconds * self.block_filled * len(self.readers)
        self.sums["internal"] += seconds * (self.block_units - self.block_filled) * len(self.readers)
        self.sums["cached"] += seconds * self.cached()
        self.sums["spared"] += seconds * sum(readers - 1 for readers in self.readers.values()) * self.block_units
        total = shared
        for one in self.running:
            tokens = self.tokens_next(one)
            held = self.own(one, tokens)
            whole = held + len(one.ids) * self.block_units
            filled = max(0.0, self.filled(tokens if one.decodes else one.computed) - len(one.ids) * self.block_filled)
            internal = max(0.0, whole - self.filled(one.final)) - len(one.ids) * (self.block_units - self.block_filled)
            total += held
            self.sums["filled"] += seconds * filled
            self.sums["internal"] += seconds * internal
            self.sums["reserved"] += seconds * (held - filled - internal)
        assert total == used
