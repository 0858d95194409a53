"""Where two runs are not of the same thing: machine, versions, request, model, points; as short lines."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from kvcalc.errors import shorten
from kvcalc.profiler.documents import ProfileDocument
from kvcalc.profiler.tables import where

_NO_DIFFERENCE = {"started", "command", "clocks_mhz", "power_watts", "throttled"}
"""Facts of the environment that differ from run to run anyway."""
MOST_OF_SPEC = 8
_ABSENT = "none"


def differences(first: ProfileDocument, second: ProfileDocument) -> list[str]:
    """Everything that was not the same, as `torch 2.13.0 -> 2.15.0`."""
    return [
        *_changes({"model": first["model"]["name"]}, {"model": second["model"]["name"]}),
        *_changes(_environment(first), _environment(second)),
        *_changes(_plain(first["request"]), _plain(second["request"])),
        *_spec_changes(first, second),
    ]


def _environment(run: ProfileDocument) -> dict[str, object]:
    return _plain({key: value for key, value in run["environment"].items() if key not in _NO_DIFFERENCE})


def _plain(part: Any) -> dict[str, object]:
    """A part of the document with keys as people read them."""
    return {key.replace("_", " "): value for key, value in cast("Mapping[str, object]", part).items()}


def _changes(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            yield f"{key} {_shown(old.get(key))} -> {_shown(new.get(key))}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return shorten(", ".join(map(_shown, value))) or _ABSENT
    return _ABSENT if value is None or value == "" else shorten(str(value))


def _spec_changes(first: ProfileDocument, second: ProfileDocument) -> list[str]:
    """Numbers and words of the spec that differ, by their path; the names of the models stand elsewhere."""
    old, new = (dict(_leaves(run["spec"], "spec")) for run in (first, second))
    found = [change for change in _changes(old, new) if not change.startswith("spec.name ")]
    more = len(found) - MOST_OF_SPEC
    return [*found[:MOST_OF_SPEC], *([f"{more} more differences of the spec"] if more > 0 else [])]


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for place, part in enumerate(value):
            yield from _leaves(part, f"{path}[{place}]")
    else:
        yield path, value


def cautions(names: tuple[str, str], first: ProfileDocument, second: ProfileDocument, threshold: float) -> list[str]:
    """What a reader should know before believing the verdict."""
    named = list(zip(names, (first, second), strict=True))
    return [
        *_other_things(first, second),
        *_machine_drift(first, second, threshold),
        *(f"{name}: {doubt}" for name, run in named for doubt in _doubts(run)),
        *_lone_points(names, first, second),
    ]


def _doubts(run: ProfileDocument) -> Iterator[str]:
    if throttled := run["environment"]["throttled"]:
        yield f"throttled ({', '.join(throttled)})"
    yield from dict.fromkeys(run["doubts"])


def _other_things(first: ProfileDocument, second: ProfileDocument) -> Iterator[str]:
    if first["model"]["name"] != second["model"]["name"]:
        yield "the runs are of different models"
    devices = {(run["environment"]["device"], run["environment"]["device_name"]) for run in (first, second)}
    if len(devices) > 1:
        yield "the runs are of different devices"


def _machine_drift(first: ProfileDocument, second: ProfileDocument, threshold: float) -> Iterator[str]:
    """Where the device itself, before any layer ran, was measured otherwise than before."""
    old, new = first["machine"], second["machine"]
    if old is None or new is None:
        return
    rates = (
        ("read bandwidth", old["read_bytes_per_second"], new["read_bytes_per_second"]),
        (f"{new['gemm_dtype']} GEMM rate", old["gemm_flops_per_second"], new["gemm_flops_per_second"]),
    )
    for what, before, after in rates:
        if max(before, after) > min(before, after) * (1 + threshold):
            yield f"the machine's own {what} was {after / before:.3g}x the first run's"


def is_unsure(first: ProfileDocument, second: ProfileDocument, what: str, ratio: float) -> bool:
    """Whether the machine, and not what ran on it, may have made a timing `ratio` times the first.

    It may where a run found it busy, or where the rate that bounds `what` moved by at least as much.
    """
    is_busy = any(_BUSY in doubt for run in (first, second) for doubt in run["doubts"])
    return is_busy or _moved(first, second, what) >= max(ratio, 1 / ratio)


_BUSY = "the machine was busy"


def _moved(first: ProfileDocument, second: ProfileDocument, what: str) -> float:
    """How many times the larger of the machine's two rates is the smaller; 1 where they cannot be compared."""
    old, new = first["machine"], second["machine"]
    if old is None or new is None:
        return 1.0
    rates = {"decode": (old["read_bytes_per_second"], new["read_bytes_per_second"])}
    if old["gemm_dtype"] == new["gemm_dtype"]:
        rates["prefill"] = old["gemm_flops_per_second"], new["gemm_flops_per_second"]
    before, after = rates.get(what, (1.0, 1.0))
    return max(before, after) / min(before, after)


def _lone_points(names: tuple[str, str], first: ProfileDocument, second: ProfileDocument) -> Iterator[str]:
    old, new = (dict.fromkeys((p["context_tokens"], p["batch"]) for p in run["points"]) for run in (first, second))
    for name, mine, other in ((names[0], old, new), (names[1], new, old)):
        yield from (f"{where(*place)} only in {name}" for place in mine if place not in other)
