"""Requests in order: when they arrive, how long their prompts and answers are, and which prefixes they share."""

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np

    Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
    Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]
else:
    Integers = Seconds = Any


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in order of arrival, one place of every array each.

    `arrival_seconds` count from the first request; None where only the order is known. Request i begins with the
    blocks `prefix_ids[prefix_ends[i - 1]:prefix_ends[i]]` of `prefix_tokens` tokens each, the last one perhaps less:
    equal ids behind equal ids are equal tokens. Both are None where nothing is known to be shared.
    """

    name: str
    prompt_tokens: Integers
    output_tokens: Integers
    arrival_seconds: Seconds | None = None
    prefix_ids: Integers | None = None
    prefix_ends: Integers | None = None
    prefix_tokens: int = 0
    counted: dict[str, int] = {}
    """Requests that were left out or changed on reading, by why."""

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its answer included."""
        return int((self.prompt_tokens + self.output_tokens).max())
