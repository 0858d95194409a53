"""Prefixes that synthetic requests share: groups of requests that begin with the same tokens."""

from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.errors import KvcalcError, shorten
from kvcalc.workload.rows import MOST_TOKENS
from kvcalc.workload.spelling import number_text, parse_fields, spelled
from kvcalc.workload.trace import Integers

if TYPE_CHECKING:
    import numpy as np

    Rng = np.random.Generator
else:
    Rng = Any

_EXAMPLE = "prefix:groups=100,tokens=2048,zipf=1.1"
_MOST_GROUPS = 10**7


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """Every request begins with the `tokens` of one of `groups` prefixes; its own prompt follows them.

    Group k (from 1) is drawn k^-`zipf` times as often as the first; 0 draws all alike. An id stands for `block` tokens.
    """

    groups: int
    tokens: int
    zipf: float = 0.0
    block: int

    @property
    def spelling(self) -> str:
        """What `parse_prefix` reads back as the same prefixes."""
        fields = [("groups", self.groups), ("tokens", self.tokens), ("zipf", self.zipf), ("block", self.block)]
        return spelled("prefix", fields)

    def ids(self, rng: Rng, count: int) -> tuple[Integers, Integers]:
        """The prefix ids of `count` requests, and where each request's end."""
        import numpy as np

        weights = np.arange(1, self.groups + 1, dtype=np.float64) ** -self.zipf
        cumulated = np.cumsum(weights)
        group = np.searchsorted(cumulated, rng.random(count) * cumulated[-1], "right").astype(np.int64)
        blocks = self.tokens // self.block
        ids = (group[:, None] * blocks + np.arange(blocks)).ravel()
        return ids, np.arange(1, count + 1) * blocks


def parse_prefix(text: str) -> SharedPrefix:
    """`prefix:groups=100,tokens=2048,zipf=1.1`, and `block=512` where an id is to stand for less than the whole."""
    name, _, rest = text.strip().partition(":")
    if name != "prefix":
        raise KvcalcError(f"{shorten(text)!r} is no prefix", f"such as {_EXAMPLE}")
    fields = parse_fields(text, rest, ["groups", "tokens", "zipf", "block"], _EXAMPLE)
    groups = _whole(fields, "groups", _MOST_GROUPS, text)
    tokens = _whole(fields, "tokens", MOST_TOKENS, text)
    block = _whole({"block": tokens, **fields}, "block", tokens, text)
    zipf = fields.get("zipf", 0.0)
    if not 0 <= zipf <= 10:
        raise KvcalcError(f"{shorten(text)!r}: zipf is {number_text(zipf)}", "from 0 (all alike) to 10")
    if tokens % block:
        said = f"{shorten(text)!r}: blocks of {block} tokens do not divide a prefix of {tokens}"
        raise KvcalcError(said, f"tokens={-(-tokens // block) * block}, or another block")
    return SharedPrefix(groups=groups, tokens=tokens, zipf=zipf, block=block)


def _whole(fields: dict[str, float], key: str, most: int, text: str) -> int:
    value = fields.get(key, 0)
    if value != int(value) or not 1 <= value <= most:
        shown = f"{key} is {number_text(value)}" if key in fields else f"no {key}"
        raise KvcalcError(f"{shorten(text)!r}: {shown}", f"a whole number from 1 to {most:,}, such as {_EXAMPLE}")
    return int(value)
