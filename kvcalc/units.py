"""Tokens, bytes, counts, seconds and rates: how they are read and how they are printed.

The only place that knows what 1,024 stands for. Memory prints in binary units (GiB), as engines
print it; machine formats carry plain integers.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from kvcalc.errors import KvcalcError, shorten

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

MOST_TOKENS = 10**12
"""Far past any context; keeps a slip of the keyboard from becoming an answer."""

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9}
_BINARY = {"K": KIB, "M": MIB, "G": GIB}
_TOKENS = re.compile(r"([0-9]+(?:_[0-9]+)*|[0-9]{1,3}(?:,[0-9]{3})+)(\.[0-9]+)?([kKmMgG]?)")
_LONGEST_COUNT = 40
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kKMGT]?)(i?)B")
_MOST_MEMORY = 2**63


def parse_tokens(text: str, flag: str = "--ctx", what: str = "number of tokens") -> int:
    """Read a count: `8192`, `8_192`, `8k` = 8,000, `8K` = 8,192 (vLLM's rule for tokens).

    A fraction needs a decimal suffix (`25.6k` = 25,600), since `25.6K` is no whole number of tokens.
    """
    match = _TOKENS.fullmatch(text.strip()) if len(text) <= _LONGEST_COUNT else None
    if not match:
        raise KvcalcError(f"{flag} {shorten(text)!r} is not a {what}", "write 8192, 8_192, 8k (8,000) or 8K (8,192)")
    whole, fraction, suffix = match.groups()
    if fraction and suffix not in _DECIMAL:
        raise KvcalcError(f"{flag} {text!r} is no whole {what}", "a fraction needs k or m: 25.6k is 25,600")
    scale = _DECIMAL.get(suffix) or _BINARY.get(suffix) or 1
    value = Fraction(re.sub("[_,]", "", whole) + (fraction or "")) * scale
    if value.denominator != 1:
        raise KvcalcError(f"{flag} {text!r} is no whole {what}", "write the count out")
    return _bounded(int(value), text, flag)


def _bounded(value: int, text: str, flag: str) -> int:
    if value < 1:
        raise KvcalcError(f"{flag} {text!r}: at least 1 is needed", f"leave {flag} out for the default")
    if value > MOST_TOKENS:
        raise KvcalcError(f"{flag} {text!r} is more than {MOST_TOKENS:,}", "check the number of digits")
    return value


def binary_neighbour(text: str) -> int | None:
    """The tokens that `128k` would mean with a capital K, or None where no such reading exists."""
    suffix = text.strip()[-1:]
    if suffix not in _DECIMAL or suffix == "g":
        return None
    binary = text.strip()[:-1] + suffix.upper()
    match = _TOKENS.fullmatch(binary)
    if match is None or match[2]:
        return None
    value = int(re.sub("[_,]", "", match[1])) * _BINARY[match[3]]
    return value if value <= MOST_TOKENS else None


def parse_memory(text: str, flag: str) -> int:
    """Read bytes, a fraction of one left out: `40GiB` or `40GB`; a unit without its base (`40G`) could mean either."""
    return int(parse_bytes(text, flag))


def parse_bytes(text: str, flag: str) -> Fraction:
    """The same exactly: `3514.25B` is what some caches grow by."""
    match = _MEMORY.fullmatch(text.strip()) if len(text) <= _LONGEST_COUNT else None
    if not match:
        raise KvcalcError(f"{flag} {shorten(text)!r} is no amount of memory with its base", "write 40GiB or 40GB")
    number, prefix, binary = match.groups()
    scale = int((1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " "))
    value = Fraction(number) * scale
    if not 1 <= value < _MOST_MEMORY:
        raise KvcalcError(f"{flag} {text!r}: from 1 B to 8 EiB are possible", "write 40GiB or 40GB")
    return value


def parse_share(text: str, flag: str) -> float:
    """Read a share above 0 and up to 1: `0.9`."""
    match = re.fullmatch(r"[01]?(\.[0-9]+)?|1\.", text.strip()) if len(text) <= _LONGEST_COUNT else None
    if not match or not text.strip() or not 0 < float(text) <= 1:
        raise KvcalcError(f"{flag} {shorten(text)!r} is no share above 0 and up to 1", "write 0.9 for 90 %")
    return float(text)


def parse_shares(text: str, flag: str) -> tuple[float, ...]:
    """Read shares of devices, none of them negative: `3,1`, or `3/1` as llama.cpp takes too."""
    try:
        shares = tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        shares = ()
    if not shares or any(not 0 <= share < math.inf for share in shares) or not sum(shares):
        raise KvcalcError(f"{flag} {shorten(text)!r} is no list of shares", "write 3,1")
    return shares


def parse_seconds(text: str, flag: str) -> float:
    """Read a time with its unit: `30ms`, `1.5s`, `250us`, `2min`."""
    match = _TIME.fullmatch(text.strip()) if len(text) <= _LONGEST_COUNT else None
    if not match or not float(match[1]):
        raise KvcalcError(f"{flag} {shorten(text)!r} is no time above 0 with its unit", "write 30ms or 1.5s")
    return float(Fraction(match[1]) * _TIME_UNITS[match[2]])


_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(us|ms|s|min)")
_TIME_UNITS = {"us": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60)}


def memory(count: float | Fraction, given: int | None = None) -> str:
    """Print bytes in the largest binary unit that keeps it at 1 or more, or in the `given` one.

    >>> memory(34359738368), memory(131072), memory(890)
    ('32.00 GiB', '128.0 KiB', '890 B')
    """
    unit = given or memory_unit(count)
    if unit == 1:
        return f"{plain(count)} B"
    digits = 2 if unit >= MIB else 1
    if given is None and _half_up(Fraction(count) / unit, digits) == _FULL[digits] and unit < TIB:
        return memory(count, unit * KIB)
    return f"{_half_up(Fraction(count) / unit, digits)} {_UNIT_NAMES[unit]}"


_FULL = {1: "1,024.0", 2: "1,024.00"}
"""What rounds up to the next unit."""


def _half_up(value: Fraction, digits: int) -> str:
    """Rounded as people round: 11.625 is 11.63, where a float's format would print 11.62."""
    scaled = int(value * 10**digits * 2 + 1) // 2
    return f"{scaled // 10**digits:,}.{scaled % 10**digits:0{digits}d}"


def column_unit(counts: Iterable[float | Fraction], least: Fraction = Fraction(1, 10)) -> int:
    """One binary unit for a whole column: the largest one's, unless the smallest would be under `least` of it."""
    sizes = [count for count in counts if count]
    unit = memory_unit(max(sizes, default=0))
    while unit > 1 and min(sizes) < unit * least:
        unit = unit // 1024
    return unit


def memory_unit(count: float | Fraction) -> int:
    """The binary unit, in bytes, in which `count` bytes read best."""
    for unit in (TIB, GIB, MIB, KIB):
        if count >= (unit if unit != KIB else 10 * KIB):
            return unit
    return 1


_UNIT_NAMES = {KIB: "KiB", MIB: "MiB", GIB: "GiB", TIB: "TiB"}


def plain(count: float | Fraction) -> str:
    """Print a count with thousands apart, and a fraction with at most four digits behind the point."""
    whole = int(count)
    if whole == count:
        return f"{whole:,}"
    return f"{float(count):,.4f}".rstrip("0").rstrip(".") if count >= _LEAST_IN_DIGITS else f"{float(count):.3g}"


_LEAST_IN_DIGITS = 0.001


def exact_bytes(count: float | Fraction) -> str:
    """Print bytes exactly, with a binary unit beside them where one reads better.

    >>> exact_bytes(131072), exact_bytes(890)
    ('131,072 B (128.0 KiB)', '890 B')
    """
    exact = f"{plain(count)} B"
    return exact if memory_unit(count) == 1 else f"{exact} ({memory(count)})"


def counted(count: int, what: str) -> str:
    """Print a count of things.

    >>> counted(1, "token"), counted(8192, "token")
    ('1 token', '8,192 tokens')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def plain_number(value: Fraction) -> int | float:
    """The number as machine formats carry it: an integer where it is one."""
    return int(value) if value.denominator == 1 else float(value)


def count_of(value: float | Fraction) -> str:
    """Print a large count with its decimal name: 8.03 B, 70.6 B, 671 B, 405 M.

    >>> count_of(8030261248), count_of(671026404352)
    ('8.03 B', '671 B')
    """
    for scale, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if value >= scale - scale // 2000:
            scaled = float(value) / scale
            return f"{scaled:.{max(0, 2 - (scaled >= 10) - (scaled >= 100))}f} {name}"
    return plain(value)


Scales = tuple[tuple[float, str], ...]
SECONDS: Scales = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
BYTE_RATES: Scales = ((1e9, "GB/s"),)
FLOP_RATES: Scales = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"))
NUMBERS: Scales = ((1.0, ""),)
"""Units that count in tens, the largest first."""


def decimal_writer(values: Sequence[float | Fraction], scales: Scales) -> Callable[[float | Fraction], str]:
    """What prints the numbers of one column: in one unit, with one number of decimals, down to 4 digits of the least.

    >>> write = decimal_writer([0.01231, 0.1502], SECONDS)
    >>> write(0.01231), write(0.1502)
    ('12.31 ms', '150.20 ms')
    """
    sizes = [abs(float(value)) for value in values if value] or [scales[0][0]]
    fitting = (one for one in scales if max(sizes) >= one[0] and min(sizes) >= one[0] / 10)
    scale, name = next(fitting, scales[-1])
    digits = max(0, min(_MOST_DECIMALS, 3 - math.floor(math.log10(min(sizes) / scale))))

    def write(value: float | Fraction) -> str:
        scaled = float(value) / scale
        too_small = value and abs(scaled) < _LEAST_IN_DIGITS * 10
        return (f"{scaled:.3g} {name}" if too_small else f"{scaled:,.{digits}f} {name}").rstrip()

    return write


_MOST_DECIMALS = 3


def decimal(value: float | Fraction, scales: Scales) -> str:
    """One number in the unit that suits it.

    >>> decimal(0.0000412, SECONDS), decimal(18.2e9, BYTE_RATES), decimal(2.1e11, FLOP_RATES)
    ('41.20 us', '18.20 GB/s', '210.0 GFLOP/s')
    """
    return decimal_writer([value], scales)(value)


def parse_percent(text: str, flag: str) -> float:
    """Read a share: `5%` is 0.05. The sign is needed, since `0.05` would read both ways."""
    match = _PERCENT.fullmatch(text.strip()) if len(text) <= _LONGEST_COUNT else None
    if not match:
        raise KvcalcError(f"{flag} {shorten(text)!r} is not a percentage", "write it with its sign: 5% or 2.5%")
    share = float(match[1]) / 100
    if share > _MOST_SHARE:
        raise KvcalcError(f"{flag} {text!r} is more than {_MOST_SHARE:.0%}", "write 5% or 2.5%")
    return share


_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")
_MOST_SHARE = 10
