"""Which replica of a fleet serves a request, from what a router knows when it comes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from kvcalc.errors import KvcalcError, nearest
from kvcalc.workload.policies import Policy
from kvcalc.workload.prefix import PrefixCache, blocks_of
from kvcalc.workload.prefixed import Prefixed
from kvcalc.workload.scheduler import Scheduler
from kvcalc.workload.waiting import Waiting

if TYPE_CHECKING:
    from kvcalc.workload.trace import Trace


class Inbox(Waiting):
    """Requests that a router sends one by one."""

    def __init__(self, arrivals: list[float] | None) -> None:
        self._sent: list[int] = []
        super().__init__(self._sent, arrivals)

    def send(self, request: int) -> None:
        """Let a request come, no earlier than those before it."""
        self._sent.append(request)
        self.next_arrival = self._arrival()


class Replica:
    """A server of the fleet, and what is under way there."""

    def __init__(self, server: Scheduler, inbox: Inbox) -> None:
        self.server, self._inbox = server, inbox
        self._sent = self._sent_tokens = 0

    def advance(self, until: float) -> None:
        """Let it make the steps that begin before `until`."""
        self.server.run(_unseen, until)

    def send(self, request: int, prompt_tokens: int) -> None:
        """Give it one more request."""
        self._sent += 1
        self._sent_tokens += prompt_tokens
        self._inbox.send(request)

    @property
    def requests(self) -> int:
        """Requests sent and not answered in full."""
        return self._sent - self.server.finished

    @property
    def prompt_tokens(self) -> int:
        """Tokens of their prompts: how long answers will be is not known yet."""
        return self._sent_tokens - self.server.finished_prompts


def _unseen(server: Scheduler) -> None:
    """Nobody looks at a server between steps."""


class Routing:
    """One rule. `needs_state` says whether it asks what replicas are doing; without it, it sees none of them."""

    name: ClassVar[str]
    needs_state: ClassVar[bool] = True

    def __init__(self, trace: "Trace", policy: Policy, replicas: int) -> None:
        """`policy` is that of every replica."""

    def choose(self, request: int, replicas: Sequence[Replica]) -> int:
        """The place of the replica that gets it."""
        raise NotImplementedError


class RoundRobin(Routing):
    """One after the other."""

    name = "round-robin"
    needs_state = False

    def __init__(self, trace: "Trace", policy: Policy, replicas: int) -> None:
        self._replicas = replicas

    def choose(self, request: int, replicas: Sequence[Replica]) -> int:
        return request % self._replicas


class LeastLoaded(Routing):
    """Where the prompts of the requests under way have the fewest tokens; the fewest requests, then the first."""

    name = "least-loaded"

    def choose(self, request: int, replicas: Sequence[Replica]) -> int:
        loads = [(one.prompt_tokens, one.requests) for one in replicas]
        return loads.index(min(loads))


MATCHED_SHARE, MOST_APART, MOST_TIMES = 0.3, 64, 1.5


class PrefixAware(Routing):
    """Where most of the prompt was sent before, unless load is uneven: then where the fewest requests are under way.

    The rule of SGLang's gateway, sgl-model-gateway/src/policies/cache_aware.rs, CacheAwarePolicy.select_worker, with
    its defaults: load is uneven where the most requests are over 64 more, and over 1.5 times as many, as the fewest;
    a prompt goes by its prefix where over 0.3 of it match, else to the fewest requests. As there the router has a
    tree of its own for each replica, of what it sent. Here a tree knows the trace's blocks in place of characters,
    forgets the least recently used ones past what the replica's pool holds, and of equal matches the less loaded wins.
    """

    name = "prefix-aware"

    def __init__(self, trace: "Trace", policy: Policy, replicas: int) -> None:
        if not isinstance(policy, Prefixed):
            raise KvcalcError(
                "--routing prefix-aware: replicas that keep no prefixes are all alike",
                "add --prefix-caching on, or take --routing least-loaded",
            )
        self._prefixes = blocks_of(trace, trace.prefix_tokens, with_tails=True)
        self._block_tokens = trace.prefix_tokens
        self._prompts: list[int] = trace.prompt_tokens.tolist()
        tokens = policy.pool_units // policy.block_units * policy.block_tokens
        capacity = max(1, tokens // trace.prefix_tokens)
        self._trees = [PrefixCache(capacity) for _ in range(replicas)]

    def choose(self, request: int, replicas: Sequence[Replica]) -> int:
        ids = self._prefixes.of(request)
        loads = [one.requests for one in replicas]
        place = loads.index(min(loads))
        if not is_uneven(loads):
            matches = [tree.match(ids) for tree in self._trees]
            best = min(range(len(loads)), key=lambda one: (-matches[one], loads[one]))
            if matches[best] * self._block_tokens > MATCHED_SHARE * self._prompts[request]:
                place = best
        self._trees[place].acquire(ids)
        self._trees[place].release(ids)
        return place


def is_uneven(loads: Sequence[int]) -> bool:
    """Whether requests under way are so far apart that load comes before prefixes."""
    most, least = max(loads), min(loads)
    return most - least > MOST_APART and most > MOST_TIMES * least


def routing_of(name: str) -> type[Routing]:
    """The rule of that name; KvcalcError where there is none."""
    found = ROUTINGS.get(name)
    if found is None:
        near = nearest(name, ROUTINGS, 1) or list(ROUTINGS)
        raise KvcalcError(f"--routing {name!r} is not known", f"write {', '.join(near)}")
    return found


ROUTINGS: dict[str, type[Routing]] = {one.name: one for one in (RoundRobin, LeastLoaded, PrefixAware)}
