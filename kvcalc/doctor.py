"""What this installation has: versions, extras, the catalogue, the GPU and the hub's cache, and what is amiss."""

import os
import platform
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, TypedDict

import msgspec

from kvcalc import __version__
from kvcalc.errors import KvcalcError
from kvcalc.hardware.detect import NoDriverError, detect
from kvcalc.hardware.gpus import load_gpus
from kvcalc.model.catalog import catalogue_folder
from kvcalc.model.importers.hub import cache_folder
from kvcalc.report import Column, Report, Table
from kvcalc.sizing.listing import validate
from kvcalc.units import memory

SCHEMA = "kvcalc.doctor/1"
State = Literal["ok", "absent", "problem"]


class FindingDocument(TypedDict):
    """One thing that was looked at; `advice` says what to do where it is absent or a problem."""

    name: str
    state: State
    found: str
    advice: str


class DoctorDocument(TypedDict):
    """kvcalc doctor --format json; healthy where nothing is a problem."""

    schema: str
    healthy: bool
    findings: list[FindingDocument]


SCHEMAS = {"kvcalc.doctor-1": DoctorDocument}
"""File names of docs/schemas, and what each describes."""


class Finding(msgspec.Struct, frozen=True):
    """The same, as it is found."""

    name: str
    state: State
    found: str
    advice: str = ""

    def document(self) -> FindingDocument:
        """The same as machine formats carry it."""
        return {"name": self.name, "state": self.state, "found": self.found, "advice": self.advice}


def doctor_report() -> Report:
    """The answer of `kvcalc doctor`; exit code 1 where something is a problem."""
    findings = list(_findings())
    healthy = all(finding.state != "problem" for finding in findings)
    document: DoctorDocument = {
        "schema": SCHEMA,
        "healthy": healthy,
        "findings": [finding.document() for finding in findings],
    }
    columns = (Column("name", ""), Column("state", "state"), Column("found", "found"), Column("advice", "advice"))
    table = Table(columns, [(one.name, one.state, one.found, one.advice) for one in findings])
    return Report(
        document=document,
        title=(f"kvcalc {__version__}", "all is well" if healthy else "something is amiss"),
        tables=(table,),
        shown_tables=(table if any(one.advice for one in findings) else table.without("advice"),),
        exit_code=0 if healthy else 1,
    )


def _findings() -> Iterator[Finding]:
    yield Finding("kvcalc", "ok", f"{__version__} in {Path(__file__).parent}")
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}, {sys.executable}")
    yield from _packages()
    yield _catalogue()
    yield Finding("GPUs known", "ok", f"{len(load_gpus())} (kvcalc gpus list)")
    yield _device()
    yield _hub()
    yield _terminal()


_REQUIREMENT = re.compile(r"""([\w.-]+)[^;]*(?:;.*extra == ['"]([\w-]+)['"])?""")


def _packages() -> Iterator[Finding]:
    """What kvcalc needs, then its extras, as its own metadata names them."""
    groups: dict[str, list[str]] = defaultdict(list)
    try:
        stated = metadata.requires("kvcalc") or []
    except metadata.PackageNotFoundError:
        yield Finding("packages", "problem", "kvcalc runs from files that were not installed", "pip install .")
        return
    for requirement in stated:
        found = _REQUIREMENT.match(requirement)
        if found:
            groups[found[2] or ""].append(found[1])
    for extra, names in sorted(groups.items()):
        yield _group(extra, names)


def _group(extra: str, names: list[str]) -> Finding:
    versions = {name: _version(name) for name in names}
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    if all(versions.values()):
        return Finding(f"extra {extra}" if extra else "packages", "ok", found)
    if extra:
        return Finding(f"extra {extra}", "absent", found, f"pip install 'kvcalc[{extra}]'")
    return Finding("packages", "problem", found, "pip install kvcalc, once more")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _catalogue() -> Finding:
    files, models, problems = validate([])
    if problems:
        return Finding("catalogue", "problem", problems[0].message, problems[0].hint)
    return Finding("catalogue", "ok", f"{models} models in {files} files, {catalogue_folder()}")


def _device() -> Finding:
    """A machine without a GPU is no problem: kvcalc computes on any."""
    try:
        gpu, name, total_bytes = detect()
    except NoDriverError as error:
        return Finding("GPU", "absent", error.message, "--gpu NAME says which one is meant")
    except KvcalcError as error:
        return Finding("GPU", "problem", error.message, error.hint)
    entry = f"listed as {gpu.name}" if gpu else "not listed: fit works by its memory, throughput does not"
    return Finding("GPU", "ok", f"{name}, {memory(total_bytes)}, {entry}")


def _hub() -> Finding:
    folder = cache_folder()
    try:
        models = sum(one.name.startswith("models--") for one in folder.iterdir())
    except OSError as error:
        return Finding("hub cache", "absent", f"{folder}: {error.strerror}", "--download fetches a model's config.json")
    return Finding("hub cache", "ok", f"{models} model{'s' * (models != 1)} in {folder}")


def _terminal() -> Finding:
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    colours = "no colours (NO_COLOR)" if os.environ.get("NO_COLOR") else f"TERM {os.environ.get('TERM', 'not set')}"
    return Finding("terminal", "ok", f"{encoding}, {colours}")
