"""What a line of a log says: a pattern finds it, and a figure keeps the interval that its digits allow."""

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

KIB, MIB, GIB = 2**10, 2**20, 2**30
NUMBER = r"-?[\d,]{0,24}\.?\d{1,20}"
"""A number as logs print it, thousands apart or not; bounded, so that a line full of digits costs little."""

EXACT = {"gpu_memory_utilization", "mem_fraction_static", "kv_cache_free_gpu_mem_fraction"}
"""What is printed as it was given, whatever its digits."""

_NUMERIC = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d*\.?\d+")
_LONGEST_NUMBER = 40


class Printed(msgspec.Struct, frozen=True):
    """A value as the log prints it; a number lies within `half` of `value` (bytes, tokens, a count), ends included.

    Both ends count since printf, Python's format and its round do not agree on the half.
    """

    text: str
    value: Fraction | None = None
    half: Fraction = Fraction(0)
    unit: int = 1
    """In which it is printed, in bytes; 1 for what is no memory."""

    @property
    def number(self) -> Fraction:
        """The number; only of a value that is one."""
        if self.value is None:
            raise ValueError(f"{self.text!r} is no number")
        return self.value

    @property
    def low(self) -> Fraction:
        """The least number that is printed like this."""
        return self.number - self.half

    @property
    def high(self) -> Fraction:
        """The largest number that is printed like this."""
        return self.number + self.half

    def allows(self, value: float | Fraction) -> bool:
        """Whether `value` is printed like this."""
        return self.low <= Fraction(value) <= self.high

    def as_printed(self, value: float | Fraction) -> str:
        """Another value in the unit and with the digits of this one."""
        digits = len(self.text.partition(".")[2])
        name = {KIB: " KiB", MIB: " MiB", GIB: " GiB"}.get(self.unit, "")
        return f"{float(Fraction(value) / self.unit):,.{digits}f}{name}"


class Finding(msgspec.Struct, frozen=True):
    """One line that is understood: which pattern matched, and the values in it by key.

    `rank` is what the line's prefix calls its process (`TP0`, `DP1 TP0`), empty where it names none.
    """

    engine: str
    kind: str
    values: dict[str, Printed]
    line: int
    rank: str = ""


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one kind. `needle` is a literal that each of them holds; groups of `regex` are keys.

    Keys that end in `_bytes` count `unit`; other numbers are as printed. `decimals` are those that the engine rounds to
    where it prints fewer (Python's round drops zeros). `pairs` finds more, as often as it matches: NAME and its value.
    """

    kind: str
    needle: str
    regex: re.Pattern[str]
    unit: int = 1
    decimals: int = 0
    numbers: tuple[str, ...] = ()
    """Groups that are a number, and make the line one that is not understood where they are none."""
    pairs: re.Pattern[str] | None = None
    names: Mapping[str, str] = {}

    def read(self, text: str, cut: bool) -> tuple[int, dict[str, Printed]] | None:
        """Where it matches, and the values; None where it does not, or reaches the end of a `cut` text."""
        match = self.regex.search(text)
        if match is None or (cut and match.end() == len(text)):
            return None
        values = {key: self._printed(key, found) for key, found in match.groupdict().items() if found is not None}
        if any(key in values and values[key].value is None for key in self.numbers):
            return None
        for key, found in self._paired(text, cut):
            values.setdefault(key, self._printed(key, found))
        return match.start(), values

    def _paired(self, text: str, cut: bool) -> Iterator[tuple[str, str]]:
        """Keys and values that `pairs` finds."""
        for match in self.pairs.finditer(text) if self.pairs else ():
            name, *forms = match.groups()
            if not (cut and match.end() == len(text)):
                yield self.names[name], next((form for form in forms if form is not None), "")

    def _printed(self, key: str, text: str) -> Printed:
        said = printed(text, self.unit if key.endswith("_bytes") else 1, self.decimals)
        return msgspec.structs.replace(said, half=Fraction(0)) if key in EXACT else said


def printed(text: str, unit: int = 1, decimals: int = 0) -> Printed:
    """`text` as a number of `unit`s where it is one, with half of its last digit; `decimals` are the fewest digits."""
    text = text.strip()
    if len(text) > _LONGEST_NUMBER or not _NUMERIC.fullmatch(text):
        return Printed(text)
    digits = len(text.partition(".")[2])
    is_rounded = bool(digits) or (decimals and unit > 1)
    half = Fraction(unit, 2 * 10 ** max(digits, decimals)) if is_rounded else Fraction(0)
    return Printed(text, Fraction(text.replace(",", "")) * unit, half, unit)


def says(
    kind: str, needle: str, regex: str = "", *, unit: int = 1, decimals: int = 0, names: Mapping[str, str] | None = None
) -> Pattern:
    """The pattern of lines that hold `needle`; NUM in `regex` is a number, `names` are settings to look for behind."""
    return Pattern(
        kind=kind,
        needle=needle,
        regex=re.compile((regex or re.escape(needle)).replace("NUM", NUMBER)),
        unit=unit,
        decimals=decimals,
        numbers=tuple(_NUMBER_GROUPS.findall(regex)),
        pairs=_pairs(names) if names else None,
        names=names or {},
    )


_NUMBER_GROUPS = re.compile(r"\(\?P<(\w+)>(?:NUM|\\d\+|\[\\d,\]\+)\)")


def _pairs(names: Mapping[str, str]) -> re.Pattern[str]:
    """NAME=value, 'NAME': 'value' and, where names are flags of a command, --NAME value."""
    longest_first = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    gap = r"(?:=|\s+)" if any(name.startswith("-") for name in names) else r"\s*[=:]\s*"
    return re.compile(rf"(?<![\w-])['\"]?({longest_first})['\"]?{gap}(?:'([^']*)'|\"([^\"]*)\"|([^\s,(){{}}\[\]'\"]+))")


class LogFormat(msgspec.Struct, frozen=True):
    """The lines of one engine; `starts` are the kinds with which a start begins, `figures` those about its cache."""

    engine: str
    patterns: Sequence[Pattern]
    starts: tuple[str, ...]
    figures: tuple[str, ...]
