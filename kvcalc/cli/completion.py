"""What a shell completes: models, number formats, GPUs and engines, as they begin."""

from pathlib import Path


def complete_model(incomplete: str) -> list[str]:
    """Catalogue names and aliases that begin as typed."""
    from kvcalc.model.catalog import catalogue_spellings

    start = incomplete.casefold()
    found = [name for name in catalogue_spellings() if name.casefold().startswith(start)]
    short = [name for name in found if "/" not in name]
    # Hub ids crowd the short names out unless nothing else begins like that. A shell matches by case.
    chosen = short if short and "/" not in incomplete else found
    files = [path.as_posix() for path in Path().glob(f"{incomplete}*.yaml")] if _is_plain(incomplete) else []
    return [incomplete + name[len(incomplete) :] for name in chosen] + files


def _is_plain(incomplete: str) -> bool:
    return not any(mark in incomplete for mark in "*?[") and not incomplete.startswith("/")


def complete_format(incomplete: str) -> list[str]:
    """Number formats that begin as typed, behind a comma or an equals sign too."""
    from kvcalc.cache.formats import all_formats

    cut = max(incomplete.rfind(","), incomplete.rfind("=")) + 1
    start, last = incomplete[:cut], incomplete[cut:].casefold()
    return [start + form.name for form in all_formats() if form.name.startswith(last)]


def complete_weights(incomplete: str) -> list[str]:
    """The same for weights, recipes of llama.cpp among them."""
    from kvcalc.sizing.weight_formats import RECIPES

    start = incomplete[: incomplete.rfind(",") + 1]
    found = complete_format(incomplete)
    names = [start + name for name in RECIPES]
    return [*found, *(name for name in names if name.startswith(incomplete.casefold()) and name not in found)]


def complete_gpu(incomplete: str) -> list[str]:
    """Names and aliases of GPUs that begin as typed, and `auto`."""
    from kvcalc.hardware.detect import AUTO
    from kvcalc.hardware.gpus import gpu_names

    start = incomplete.casefold()
    # A shell matches by case.
    return [incomplete + name[len(incomplete) :] for name in (AUTO, *gpu_names()) if name.startswith(start)]


def complete_engine(incomplete: str) -> list[str]:
    """Engines that begin as typed, behind a comma too; behind an @ their releases."""
    from kvcalc.engines.engine import engine_classes

    before, comma, last = incomplete.rpartition(",")
    name, at, version = last.partition("@")
    engines = engine_classes()
    if at and name.casefold() in engines:
        known = [one for one in engines[name.casefold()].versions if one.startswith(version)]
        return [f"{before}{comma}{name}@{one}" for one in known]
    start = last.casefold()
    return [before + comma + last + one[len(last) :] for one in engines if one.startswith(start)]


def complete_timed_engine(incomplete: str) -> list[str]:
    """Engines whose speed is known, as they begin."""
    from kvcalc.speed.machine import load_constants

    return [name for name in load_constants().engines if name.startswith(incomplete.casefold())]
