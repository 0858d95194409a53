"""How one model is spread over ranks."""

import msgspec

from kvcalc.errors import KvcalcError

MOST_RANKS = 100_000


class Sharding(msgspec.Struct, frozen=True):
    """Tensor, pipeline, data, expert and decode-context parallel sizes; 1 is none."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dcp: int = 1

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST_RANKS:
                raise KvcalcError(
                    f"--{name} {size!r}: from 1 to {MOST_RANKS:,} is possible", f"leave --{name} out for 1"
                )

    def heads(self, heads: int) -> int:
        """Heads on the fullest rank: a head is never cut, and never absent."""
        return -(-heads // self.tp)

    def share(self, count: int) -> int:
        """The fullest rank's share of `count` things that tensor parallelism divides, whatever they are."""
        return -(-count // self.tp)

    @property
    def stage_ranks(self) -> int:
        """Ranks that share one pipeline stage; decode-context ranks are taken from the tp ranks where they divide."""
        return self.tp if self.tp % self.dcp == 0 else self.tp * self.dcp

    @property
    def growing(self) -> "Sharding":
        """How heads are spread within a decode-context rank: over the tp ranks that hold the same tokens.

        SGLang's rule, heads // (tp // dcp); anything else would leave some head's tokens on no rank.
        """
        return msgspec.structs.replace(self, tp=max(1, self.stage_ranks // self.dcp))


WHOLE = Sharding()
"""One logical copy on one rank."""
