"""Words as a shell hands them over, and what they may come to."""

import msgspec

from kvcalc.errors import KvcalcError

MOST_LETTERS = 8 * 2**20
"""Of all words together: past it variables that hold variables are a bomb, and no script."""


class Word(msgspec.Struct, frozen=True):
    """A word as the shell would hand it over; `problem` says what keeps it from being known."""

    text: str
    problem: str = ""


class Allowance:
    """What one reading may still expand to, in letters, shells inside of shells with it."""

    def __init__(self) -> None:
        self.left = MOST_LETTERS

    def take(self, words: list[Word]) -> None:
        """Count these words; KvcalcError once there are too many."""
        self.left -= sum(len(word.text) + 1 for word in words)
        if self.left < 0:
            raise KvcalcError(f"variables expand to more than {MOST_LETTERS:,} letters", "write the command out")


class Building:
    """A word while it is read."""

    def __init__(self) -> None:
        self.parts: list[Word] = []
        self.is_open = False

    def add(self, text: str, quoted: bool = False) -> None:
        """More of the word at hand; quotes make one even of nothing."""
        if not self.is_open and (text or quoted):
            self.parts.append(Word(""))
            self.is_open = True
        if text:
            self._join(Word(text))

    def _join(self, more: Word) -> None:
        last = self.parts.pop()
        self.parts.append(Word(last.text + more.text, last.problem or more.problem))

    def expand(self, values: list[Word], splits: bool) -> None:
        """The values of a variable, the first joined to the word at hand; blanks part an unquoted one."""
        pieces = [
            Word(text, one.problem)
            for one in values
            for text in (one.text.split() if splits and not one.problem else [one.text])
        ]
        for index, piece in enumerate(pieces):
            if index:
                self.is_open = False
            self.add("", quoted=True)
            self._join(piece)

    def done(self) -> list[Word]:
        """The words."""
        return self.parts
