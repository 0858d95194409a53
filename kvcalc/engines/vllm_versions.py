"""What vLLM's planning does in each release: the choices in which releases differ, and since when each holds.

Read in the wheels of `VERSIONS`, from 0.2.0 to 0.33.0, by comparing the functions that the changes name. All else
under kvcalc.engines asks `rules_of` and compares no versions.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from kvcalc.engines.vllm_changes import PLANNING, Change
from kvcalc.engines.vllm_changes_of_kinds import KINDS
from kvcalc.engines.vllm_rules import Rules

VERSIONS = (
    *("0.33.0", "0.32.0", "0.31.0", "0.30.0", "0.29.0", "0.28.0", "0.27.1", "0.27.0", "0.26.0", "0.25.1", "0.25.0"),
    *("0.24.0", "0.23.0", "0.22.1", "0.22.0", "0.21.0", "0.20.2", "0.20.1", "0.20.0", "0.19.1", "0.19.0", "0.18.1"),
    *("0.18.0", "0.17.1", "0.17.0", "0.16.0", "0.15.1", "0.15.0", "0.14.1", "0.14.0", "0.13.0", "0.12.0", "0.11.2"),
    *("0.11.1", "0.11.0", "0.10.2", "0.10.1", "0.10.0", "0.9.2", "0.9.1", "0.9.0", "0.8.5", "0.8.4", "0.8.3", "0.8.2"),
    *("0.8.1", "0.8.0", "0.7.3", "0.7.2", "0.7.1", "0.7.0", "0.6.6", "0.6.5", "0.6.4", "0.6.3", "0.6.2", "0.6.1"),
    *("0.6.0", "0.5.5", "0.5.4", "0.5.3.post1", "0.5.1", "0.5.0", "0.4.3", "0.4.1", "0.4.0", "0.3.3", "0.3.0", "0.2.7"),
    *("0.2.4", "0.2.0"),
)
"""Releases whose planning was read, newest first."""


CHANGES = (*PLANNING, *KINDS)
ADDING = {"formats"}
"""Fields to which a release adds; what was there stays."""


class Span(NamedTuple):
    """A rule and the releases that it holds for: from `since` to the last before `until`, which is None for good."""

    what: str
    since: str
    until: str | None
    source: str


@cache
def rules_of(version: str) -> Rules:
    """The rules of one of `VERSIONS`."""
    fields: dict[str, Any] = {}
    for change in CHANGES:
        if _key(change.since) <= _key(version):
            fields |= change.fields
    return Rules(**fields)


def spans(changes: Sequence[Change] = CHANGES) -> Iterator[Span]:
    """Every rule with the releases that it holds for, in the order of the changes."""
    for place, change in enumerate(changes):
        later = (one.since for one in changes[place + 1 :] if change.fields.keys() & one.fields.keys() - ADDING)
        yield Span(change.what, change.since, next(later, None), change.source)


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part.removeprefix("post")) for part in version.split("."))


NEWEST = rules_of(VERSIONS[0])
