"""Where the plan is: named, or the nearest one upwards."""

from collections.abc import Iterator
from pathlib import Path

from kvcalc.errors import KvcalcError

NAMES = ("kvcalc.yaml", "kvcalc.yml")


def find_plan(named: Path | None, start: Path) -> Path:
    """The plan that was named, else the nearest `kvcalc.yaml` or `kvcalc.yml` from `start` upwards, as short as it can
    be written; KvcalcError, which says where it looked, where there is none.
    """
    if named is not None:
        return named
    folders = [start, *start.parents]
    for folder in folders:
        for name in NAMES:
            if (folder / name).is_file():
                return _short(folder / name, start)
    looked = ", ".join(map(str, _few(folders)))
    raise KvcalcError(
        f"no {NAMES[0]} or {NAMES[1]} in {looked}", "name the plan: kvcalc check PLAN; docs/plan.md has one"
    )


def _short(path: Path, start: Path) -> Path:
    return path.relative_to(start) if path.is_relative_to(start) else path


def _few(folders: list[Path]) -> Iterator[Path | str]:
    """The folders, those in the middle left out where they are many."""
    yield from folders[:3]
    if len(folders) > 4:
        yield "..."
    yield from folders[3:][-1:]
