"""Errors that a user can mend; anything else is a bug and keeps its traceback.

KvcalcError
├── UnknownNameError   a model, a format, a key that is not there; the nearest names are offered
├── SpecError          a spec file that cannot be read, with its file and line
└── FormatError        a number format that a component cannot take
"""

import difflib
from collections.abc import Iterable


class KvcalcError(Exception):
    """What was asked and what is true in one line; `hint` says what would work."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = shorten(hint, _LONGEST_HINT)


class UnknownNameError(KvcalcError):
    """A name that nothing answers to."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        near = nearest(name, known)
        offer = f"did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"unknown {what} {shorten(name)!r}", " ".join(filter(None, (offer, hint))))


class SpecError(KvcalcError):
    """A spec that cannot be read; the message begins with its file and line."""


class FormatError(KvcalcError):
    """A number format that a component cannot take."""


_LONGEST_HINT = 400


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that look most like `name`, best first."""
    spellings = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name[:80].casefold(), spellings, n=most, cutoff=0.6)
    return [spellings[match] for match in found]


def printable(text: str) -> str:
    """`text` without what would move a terminal's cursor or colour its lines; `_` stands for each."""
    return "".join(letter if letter.isprintable() else "_" for letter in text)


def shorten(text: str, most: int = 60) -> str:
    """`text` in at most `most` characters, so that an error stays one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 3] + "..."
