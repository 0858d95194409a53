"""Requests as they stand in a file, and what is wrong with them."""

from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.workload.source import Source
from kvcalc.workload.trace import Integers, Seconds

if TYPE_CHECKING:
    import numpy as np

    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
else:
    Flags = Any

MOST_TOKENS = 10**9
"""No request is longer: past this a number in a trace is a mistake, and sums stay within int64."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of consecutive lines: `lines` says where each stands, `seconds` count from any fixed moment."""

    lines: Integers
    seconds: Seconds
    prompt_tokens: Integers
    output_tokens: Integers
    prefix_ids: Integers | None = None
    prefix_ends: Integers | None = None
    is_cut: bool = False
    """Whether a last line, cut short, was dropped behind these."""

    def __len__(self) -> int:
        return len(self.lines)

    def kept(self, keep: Flags) -> "Rows":
        """The requests whose flag is set."""
        import numpy as np

        return self if keep.all() else self.at(np.flatnonzero(keep))

    def at(self, places: Integers) -> "Rows":
        """The requests at `places`, in that order."""
        ids, ends = chosen(self.prefix_ids, self.prefix_ends, places)
        return msgspec.structs.replace(
            self,
            lines=self.lines[places],
            seconds=self.seconds[places],
            prompt_tokens=self.prompt_tokens[places],
            output_tokens=self.output_tokens[places],
            prefix_ids=ids,
            prefix_ends=ends,
        )

    def with_prefixes_within(self, prompt_tokens: Integers, block_tokens: int, changed: Flags) -> "Rows":
        """The rows with other prompts; a changed one keeps the ids of its whole blocks alone.

        The block that is cut holds less than what its id stands for, so that it is shared with nothing.
        """
        import numpy as np

        fields: dict[str, Any] = {"prompt_tokens": prompt_tokens}
        if self.prefix_ends is not None and self.prefix_ids is not None:
            counts = np.diff(self.prefix_ends, prepend=0)
            kept = np.where(changed, np.minimum(counts, prompt_tokens // block_tokens), counts)
            place = np.arange(len(self.prefix_ids)) - np.repeat(self.prefix_ends - counts, counts)
            fields["prefix_ids"] = self.prefix_ids[place < np.repeat(kept, counts)]
            fields["prefix_ends"] = np.cumsum(kept)
        return msgspec.structs.replace(self, **fields)


def chosen(ids: Integers | None, ends: Integers | None, places: Integers) -> tuple[Integers | None, Integers | None]:
    """The prefix ids of the requests at `places`, in that order, and where each one's end."""
    import numpy as np

    if ids is None or ends is None:
        return None, None
    counts = np.diff(ends, prepend=0)[places]
    new_ends = np.cumsum(counts)
    shift = (ends[places] - counts) - (new_ends - counts)
    return ids[np.arange(new_ends[-1] if len(new_ends) else 0) + np.repeat(shift, counts)], new_ends


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with one row."""

    row: int
    said: str
    hint: str


def first_fault(checks: "list[tuple[Flags, str, str]]") -> Fault | None:
    """The earliest row that a check flags; of several checks on one row, the first."""
    found = [Fault(int(flags.argmax()), said, hint) for flags, said, hint in checks if flags.any()]
    return min(found, key=lambda fault: fault.row, default=None)


def refuse_first(source: Source, rows: Rows, checks: "list[tuple[Flags, str, str]]") -> None:
    """Raise the first fault with its file and line, if there is one."""
    fault = first_fault(checks)
    if fault is not None:
        source.fail(int(rows.lines[fault.row]), fault.said, fault.hint)
