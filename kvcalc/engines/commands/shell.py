"""Shell text as simple commands: words, assignments and variables, and nothing executed.

Read after POSIX.1-2017, Shell Command Language, sections 2.2 (quoting), 2.3 (tokens), 2.6.2 (parameters), 2.7
(redirections); arrays as bash has them. What would have to run, or is not set in the text, stays where it stands as
a `Word` with a problem: it matters only to who needs that word.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from kvcalc.engines.commands.words import Allowance, Building, Word
from kvcalc.errors import KvcalcError, shorten


class Simple(msgspec.Struct, frozen=True):
    """One simple command, the assignments before it, and its line, which counts from 1."""

    words: tuple[Word, ...]
    env: dict[str, Word]
    line: int


_PARAMETER = re.compile(r"\{(\w+)(?:(:?[-=])([^{}]*))?\}|([A-Za-z_]\w*)|\{(\w+)\[[@*]\]\}|([0-9@*#?!$])")
_NAME = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_OPERATORS = re.compile(r"&&|\|\||;;|&>>?|[0-9]?(?:<<<|<<-?|>>|>&|<&|>\||<>|[<>])|[;&|()\n]")
_BLANK = re.compile(r"[ \t]+|\\\n|#[^\n]*")
_ENDS = frozenset({"&&", "||", ";", ";;", "&", "|", "(", ")", "\n"})


def read_shell(
    text: str, variables: Mapping[str, str] | None = None, allowance: Allowance | None = None
) -> list[Simple]:
    """Every simple command of `text`, in order; KvcalcError for a quote that is not closed."""
    return list(_Shell(text.replace("\r\n", "\n"), variables or {}, allowance or Allowance()).commands())


class _Shell:
    """A walk through the text with the variables that were met."""

    def __init__(self, text: str, variables: Mapping[str, str], allowance: Allowance) -> None:
        self.text, self.at, self.allowance = text, 0, allowance
        self.line, self.counted = 1, 0
        self.scopes: dict[str, list[Word]] = {name: [Word(value)] for name, value in variables.items()}
        self.exported: dict[str, Word] = {}
        self.bodies: list[str] = []

    def commands(self) -> Iterator[Simple]:
        """The commands, without redirections and the bodies of here-documents."""
        words: list[Word] = []
        env: dict[str, Word] = {}
        line = 1
        while self.at < len(self.text):
            if self._skips_blank():
                continue
            operator = _OPERATORS.match(self.text, self.at)
            if operator is None:
                line = line if words or env else self._line()
                self._take(words, env)
                continue
            self.at = operator.end()
            if operator[0] not in _ENDS:
                self._redirect(operator[0])
                continue
            yield from self._ended(words, env, line)
            words, env = [], {}
            if operator[0] == "\n":
                self._skip_bodies()
        yield from self._ended(words, env, line)

    def _skips_blank(self) -> bool:
        """Whether blanks, a continued line or a comment stood here."""
        if match := _BLANK.match(self.text, self.at):
            self.at = match.end()
        return match is not None

    def _ended(self, words: list[Word], env: dict[str, Word], line: int) -> Iterator[Simple]:
        """The command, after what it sets for those behind it."""
        name = words[0].text if words else ""
        if name in ("export", "declare", "typeset"):
            self._export(words[1:])
            self.exported |= env
        elif words:
            yield Simple(tuple(words), self.exported | env, line)
        for key, value in env.items():
            # An assignment before a command holds for that command alone.
            if not words or name == "export":
                self.scopes[key] = [value]

    def _export(self, words: list[Word]) -> None:
        for word in words:
            match = _NAME.match(word.text)
            if match:
                value = Word(word.text[match.end() :], word.problem)
                self.scopes[match[1]] = [value]
                self.exported[match[1]] = value
            elif word.text in self.scopes and len(self.scopes[word.text]) == 1:
                self.exported[word.text] = self.scopes[word.text][0]

    def _take(self, words: list[Word], env: dict[str, Word]) -> None:
        """Read one word into the words, or an assignment into `env`."""
        match = _NAME.match(self.text, self.at)
        if match is None or words:
            words.extend(self._word())
            return
        self.at = match.end()
        if self.text.startswith("(", self.at):
            items = self._array()
            self.scopes[match[1]] = [*self.scopes.get(match[1], []), *items] if match[2] else items
            return
        value = self._word(splits=False) or [Word("")]
        before = self.scopes.get(match[1], [Word("")])[0] if match[2] else Word("")
        env[match[1]] = Word(before.text + value[0].text, before.problem or value[0].problem)

    def _array(self) -> list[Word]:
        """The items of `NAME=( ... )`."""
        self.at += 1
        items: list[Word] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "\n":
                self.at += 1
            elif not self._skips_blank():
                items.extend(self._word())
        self.at += 1
        return items

    def _redirect(self, operator: str) -> None:
        """Leave out the target of a redirection; a here-document's body begins on the next line."""
        while self._skips_blank():
            pass
        target = self._word(splits=False)
        if operator.lstrip("0123456789") in ("<<", "<<-") and target:
            self.bodies.append(target[0].text)

    def _skip_bodies(self) -> None:
        for mark in self.bodies:
            end = re.compile(rf"^\t*{re.escape(mark)}$", re.MULTILINE).search(self.text, self.at)
            self.at = end.end() if end else len(self.text)
        self.bodies = []

    def _word(self, splits: bool = True) -> list[Word]:
        """The word that begins here: none, one, or several where an unquoted variable holds several."""
        word = Building()
        start = self.at
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in " \t\n;&|()<>":
                break
            self.at += 1
            if letter == "'":
                word.add(self._until("'"), quoted=True)
            elif letter == '"':
                self._double(word)
            elif letter == "\\":
                word.add("" if self.text.startswith("\n", self.at) else self.text[self.at : self.at + 1])
                self.at += 1
            elif letter in "$`":
                self._expand(letter, word, splits)
            else:
                word.add(letter)
        if self.at == start:
            # A parenthesis where no word can begin: leave it out, or the walk would not end.
            self.at += 1
        done = word.done()
        self.allowance.take(done)
        return done

    def _until(self, mark: str) -> str:
        end = self.text.find(mark, self.at)
        if end < 0:
            raise self._unclosed(mark)
        text, self.at = self.text[self.at : end], end + 1
        return text

    def _unclosed(self, mark: str) -> KvcalcError:
        rest = shorten(self.text[self.at : self.at + 200], 30)
        return KvcalcError(f"the quote {mark} before {rest!r} (line {self._line()}) is not closed", "close it")

    def _line(self) -> int:
        """The line of what is read now, counted on from where it was asked last."""
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = max(self.counted, self.at)
        return self.line

    def _double(self, word: "Building") -> None:
        """Inside double quotes a variable is one word, and a backslash quotes few letters."""
        opened = self.at
        word.add("", quoted=True)
        while self.at < len(self.text):
            letter = self.text[self.at]
            self.at += 1
            if letter == '"':
                return
            if letter == "\\" and self.text[self.at : self.at + 1] in ('"', "\\", "$", "`", "\n"):
                word.add("" if self.text[self.at] == "\n" else self.text[self.at])
                self.at += 1
            elif letter in "$`":
                self._expand(letter, word, splits=False)
            else:
                word.add(letter)
        self.at = opened
        raise self._unclosed('"')

    def _expand(self, letter: str, word: "Building", splits: bool) -> None:
        if letter == "`" or self.text.startswith("(", self.at):
            self._substitution(letter, word)
            return
        match = _PARAMETER.match(self.text, self.at)
        if match is None:
            self._unread(word)
            return
        self.at = match.end()
        braced, operator, default, bare, array, special = match.groups()
        name = braced or bare or array or special
        values = self.scopes.get(name)
        if operator and (values is None or (operator[0] == ":" and values == [Word("")])):
            nested = _Shell(default, {}, self.allowance)
            nested.scopes = self.scopes
            values = nested._word(splits=False) if default else [Word("")]
            values = [Word(" ".join([default] if " " in default else [one.text for one in values]))] if values else []
        if values is None:
            values = [Word(f"${name}", f"the variable {name} is not set in it")]
        word.expand(values if array else values[:1], splits)

    def _unread(self, word: "Building") -> None:
        """A dollar by itself, or an expansion of another kind."""
        if not self.text.startswith("{", self.at):
            word.add("$")
            return
        end = self.text.find("}", self.at)
        end = len(self.text) if end < 0 else end + 1
        text, self.at = "$" + self.text[self.at : end], end
        word.expand([Word(text, f"{shorten(text)} is not read")], splits=False)

    def _substitution(self, letter: str, word: "Building") -> None:
        """`$(...)` and backticks: named, and never run."""
        start = self.at
        if letter == "`":
            self._until("`")
        else:
            depth = 0
            while self.at < len(self.text):
                depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
                self.at += 1
                if not depth:
                    break
        text = letter + self.text[start : self.at]
        word.expand([Word(text, f"{shorten(text)} would have to be run")], splits=False)
