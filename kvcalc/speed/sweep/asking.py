"""What people write to what a sweep is asked: names behind commas to formats, engines and uses of a model."""

import operator
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from kvcalc.cache.formats import AUTO, find_format
from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import engine_classes, find_engine
from kvcalc.errors import KvcalcError
from kvcalc.sizing.weight_formats import is_recipe
from kvcalc.speed.machine import engine_name
from kvcalc.speed.setting import Use
from kvcalc.speed.sweep.axis import parse_axis, refuse_too_many


def listed(given: Iterable[str] | None) -> list[str]:
    """What stands behind commas, and in a flag that is given several times; each once."""
    return list(dict.fromkeys(part.strip() for item in given or () for part in item.split(",")))


def kv_formats(given: Iterable[str] | None) -> list[str]:
    """One request a format, by its name; an item that names components (index=bf16) is one request as a whole."""
    asked = [one for item in given or [AUTO] for one in ([item] if "=" in item else listed([item]))]
    named = [one if "=" in one or one == AUTO else find_format(one, "--kv-dtype").name for one in asked]
    return list(dict.fromkeys(named))


def weight_formats(given: Iterable[str] | None) -> list[str | None]:
    """The formats and recipes by their names; None leaves them to the model."""
    names = [one.casefold() if is_recipe(one) else find_format(one, "--weights").name for one in listed(given)]
    return [*names] or [None]


def engine_names(given: Iterable[str] | None, *, is_timed: bool) -> tuple[str | None, ...]:
    """The engines, each with the release whose rules are followed; one None where nobody names one.

    Engines of which only the speed is known have no release. UnknownNameError for an engine that is not known, for
    its speed where that is asked and else for its memory; KvcalcError for a release without rules.
    """
    return tuple(dict.fromkeys(_engine_name(text, is_timed) for text in listed(given))) or (None,)


def _engine_name(text: str, is_timed: bool) -> str:
    if is_timed and engine_name(text) not in engine_classes():
        return text.casefold()
    found = find_engine(text)
    return f"{found.name}@{found.version}"


def make_uses(
    weights: Sequence[str | None],
    kv_dtypes: Sequence[str],
    ranks: Sequence[int],
    *,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    **same: Any,
) -> tuple[Use, ...]:
    """Every way to use a model, tensor parallelism varied first; `same` are other fields of each `Use`."""
    return tuple(
        Use(weights=form, kv_dtype=kv_dtype, sharding=Sharding(tp=tp, pp=pp, dp=dp, ep=ep), **same)
        for form, kv_dtype, tp in product(weights, kv_dtypes, ranks)
    )


def counts_of(given: Sequence[int] | str, name: str) -> tuple[int, ...]:
    """Counts along one side, from the smallest: integers, or a text as the command line has it.

    KvcalcError for none, for one below 1, and for more than any grid has.
    """
    if isinstance(given, str):
        axis = parse_axis(given, name, "number")
        refuse_too_many([axis.length])
        return tuple(axis.values())
    counts = tuple(sorted({operator.index(count) for count in given}))
    if not counts or counts[0] < 1:
        raise KvcalcError(f"{name}: {counts[0] if counts else 'no count'}", "whole numbers of at least 1")
    return counts
