"""Pages of kvcalc report: from a document's schema to what its page shows, in one table."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from kvcalc.errors import KvcalcError, shorten

if TYPE_CHECKING:
    from kvcalc.render.html import Page

PAGES = {
    "kvcalc.profile/1": ("kvcalc.cli.pages.run", "run_page"),
    "kvcalc.calibrate/1": ("kvcalc.cli.pages.speed", "calibrate_page"),
    "kvcalc.check/1": ("kvcalc.cli.pages.plan", "check_page"),
    "kvcalc.compare/1": ("kvcalc.cli.pages.memory", "compare_page"),
    "kvcalc.fit/1": ("kvcalc.cli.pages.memory", "fit_page"),
    "kvcalc.simulate/1": ("kvcalc.cli.pages.simulate", "simulate_page"),
    "kvcalc.size/1": ("kvcalc.cli.pages.memory", "size_page"),
    "kvcalc.sweep/1": ("kvcalc.cli.pages.sweep", "sweep_page"),
    "kvcalc.throughput/1": ("kvcalc.cli.pages.speed", "throughput_page"),
}
"""The module and function that make the page of a document, by its schema."""


def page_of_file(path: Path) -> "Page":
    """The page of a saved result or of a plan; KvcalcError where the file is neither."""
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        from kvcalc.cli.pages.plan_file import plan_file_page

        return plan_file_page(path)
    if suffix in (".csv", ".jsonl", ".parquet"):
        from kvcalc.cli.pages.points import points_file_page

        return points_file_page(path)
    from kvcalc.profiler.record import is_run_file, read_run

    document = cast("Mapping[str, Any]", read_run(path)) if is_run_file(path) else read_document(path)
    return page_of(document, shorten(str(path), 200))


def page_of(document: Mapping[str, Any], name: str) -> "Page":
    """The page of a document out of the file `name`; KvcalcError where it has another schema or is damaged."""
    schema = str(document.get("schema", ""))
    if schema not in PAGES:
        said = f"schema {shorten(schema)!r} has no page" if schema else "it names no schema, so kvcalc did not write it"
        known = ", ".join(one.removeprefix("kvcalc.") for one in PAGES)
        raise KvcalcError(f"{name}: {said}", f"-o x.json of these is taken: {known}; and a plan, kvcalc.yaml")
    module, function = PAGES[schema]
    make: Callable[[Any], Page] = getattr(import_module(module), function)
    _check(document, make, name)
    return make(document)


def _check(document: Mapping[str, Any], make: Callable[[Any], "Page"], name: str) -> None:
    """KvcalcError where the document is not of the type that its page is made from."""
    import inspect

    kind = next(iter(inspect.signature(make, eval_str=True).parameters.values())).annotation
    try:
        msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise KvcalcError(f"{name} is damaged: {error}", "write it again with -o x.json") from error


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in a file; KvcalcError where there is none."""
    from kvcalc.model.files import read_json

    return read_json(path, _MOST_BYTES, "saved result", "kvcalc ... -o x.json writes one", "sweep with larger steps")


_MOST_BYTES = 64 * 2**20
