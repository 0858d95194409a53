"""What an engine's own flags may be."""

import msgspec

from kvcalc.units import MOST_TOKENS


class Range(msgspec.Struct, frozen=True):
    """The values that a flag may have: from `least` to `most`, or above 0 where `least` is None; `text` says so."""

    least: int | None
    most: float
    text: str

    def has(self, value: float) -> bool:
        """Whether it is one of them."""
        return value <= self.most and (value > 0 if self.least is None else value >= self.least)


COUNT = Range(1, MOST_TOKENS, "at least 1 is needed")
NOT_NEGATIVE = Range(0, MOST_TOKENS, "0 or more is needed")
SHARE = Range(None, 1, "a share above 0 and up to 1 is needed")
