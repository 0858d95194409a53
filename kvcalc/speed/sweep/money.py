"""What one GPU costs and draws, as its owner says it: no price and no power is built in."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kvcalc.errors import KvcalcError, shorten
from kvcalc.hardware.gpus import find_gpu

MILLION = 1_000_000


class Rates(msgspec.Struct, frozen=True):
    """Price a second and watts of one GPU, by the name of the GPU; prices are in whatever currency they were given."""

    per_second: dict[str, float] = {}
    watts: dict[str, float] = {}

    def cost_per_million(self, gpu: str, gpus: Any, tokens_per_second: Any) -> Any:
        """Price of a million tokens on `gpus` of them, None for a GPU without one."""
        price = self.per_second.get(gpu)
        return None if price is None else price * gpus / tokens_per_second * MILLION

    def joules_per_token(self, gpu: str, gpus: Any, tokens_per_second: Any) -> Any:
        """Joules a token on `gpus` of them, None for a GPU without power."""
        watts = self.watts.get(gpu)
        return None if watts is None else watts * gpus / tokens_per_second


def parse_prices(texts: Iterable[str], gpus: Iterable[str]) -> dict[str, float]:
    """Prices a second by GPU from `h100-sxm=2.5/h`, each of one of `gpus`; several stand behind commas."""
    return _by_gpu(texts, gpus, "--price", lambda text: _in_units(text, _HOURS, "--price", "h100-sxm=2.5/h"))


def parse_powers(texts: Iterable[str], gpus: Iterable[str]) -> dict[str, float]:
    """Watts by GPU from `h100-sxm=700W` or `=0.7kW`."""
    return _by_gpu(texts, gpus, "--power", lambda text: _in_units(text, _WATTS, "--power", "h100-sxm=700W"))


def parse_seconds(text: str, flag: str) -> float:
    """Read a time with its unit: `1s`, `30ms`."""
    return _in_units(text, _SECONDS, flag, f"{flag} 30ms or 1s", named=text)


_HOURS = {"/h": 1 / 3600}
_WATTS = {"W": 1.0, "kW": 1000.0}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_NUMBER = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?(/?[A-Za-z]*)")


def _by_gpu(texts: Iterable[str], gpus: Iterable[str], flag: str, read: Callable[[str], float]) -> dict[str, float]:
    asked, found = set(gpus), {}
    for text in (part.strip() for item in texts for part in item.split(",")):
        name, equals, value = text.partition("=")
        if not equals:
            raise KvcalcError(f"{flag} {shorten(text)!r} names no GPU", f"write {flag} NAME={text}")
        gpu = find_gpu(name).name
        if gpu not in asked:
            raise KvcalcError(
                f"{flag} {shorten(text)!r}: no {gpu} is asked about", f"asked about: {', '.join(sorted(asked))}"
            )
        if gpu in found:
            raise KvcalcError(f"{flag} says {gpu} twice", "keep one of them")
        found[gpu] = read(value)
    return found


def _in_units(text: str, units: dict[str, float], flag: str, example: str, named: str = "") -> float:
    """A number above 0 with one of these units, in the base unit."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise KvcalcError(f"{flag} {shorten(named or text)!r} is no number above 0 with its unit", f"write {example}")
    if match[2] not in units:
        known = " or ".join(units)
        raise KvcalcError(f"{flag} {shorten(named or text)!r} needs its unit, {known}", f"write {example}")
    return float(match[1]) * units[match[2]]
