"""The documentation's examples, run: `python tests/docs.py` rewrites what they print.

In README.md and docs/*.md a ```console block holds commands (`$ kvcalc ...`) and what they print, a ```yaml or ```text
block whose first line is `# file: NAME` is a file that later commands find, as a ```json or ```csv block behind `<!-- file: NAME -->` is, and the lines between `<!-- kvcalc ... -->` and
`<!-- end -->` are printed by that command; `<!-- table: formats -->` and `<!-- table: kinds -->` are made from the code, as
are the JSON Schemas.
"""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from coverage_table import coverage_table
from gpu_table import GPU_TABLES
from memory_table import memory_table
from paper_table import paper_table
from speed_table import constants_table
from vllm_tables import VLLM_TABLES

from kvcalc import doctor, documents
from kvcalc.cache.formats import all_formats
from kvcalc.cache.kinds import KINDS
from kvcalc.cli.app import VERBS, main
from kvcalc.cli.plan_settings import vocabulary
from kvcalc.engines import documents as engine_documents
from kvcalc.hardware import documents as hardware_documents
from kvcalc.model.spec import Document
from kvcalc.plan import documents as plan_documents
from kvcalc.plan.limits import LIMITS
from kvcalc.plan.schema import plan_schema
from kvcalc.profiler import documents as profiler_documents
from kvcalc.speed import documents as speed_documents
from kvcalc.speed.sweep import documents as sweep_documents
from kvcalc.workload import documents as workload_documents

SCHEMAS = {
    **documents.SCHEMAS,
    **engine_documents.SCHEMAS,
    **hardware_documents.SCHEMAS,
    **plan_documents.SCHEMAS,
    **profiler_documents.SCHEMAS,
    **speed_documents.SCHEMAS,
    **sweep_documents.SCHEMAS,
    **workload_documents.SCHEMAS,
    **doctor.SCHEMAS,
    **plan_documents.SCHEMAS,
}
ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```(?:yaml|text)\n# file: (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_JSON = re.compile(r"^<!-- file: (\S+) -->\n```(?:json|csv)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^<!-- table: (\w+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^<!-- kvcalc (.*?) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Every Markdown page whose examples are run."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def refreshed(text: str) -> str:
    """The page with every example run again."""
    with _workplace(text):
        text = _CONSOLE.sub(lambda match: f"```console\n{_run_block(match[1])}```", text)
        text = _TABLE.sub(_table, text)
        return _PRINTED.sub(lambda match: f"<!-- kvcalc {match[1]} -->\n{run(match[1])}<!-- end -->", text)


def _table(match: re.Match[str]) -> str:
    made = TABLES | (NEEDS_TORCH if importlib.util.find_spec("torch") else {})
    return f"<!-- table: {match[1]} -->\n{made[match[1]]()}<!-- end -->" if match[1] in made else match[0]


@contextlib.contextmanager
def _workplace(text: str) -> Iterator[None]:
    """A folder with the page's own files in it, and a terminal of fixed width."""
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in _FILE.findall(text):
            (Path(folder) / name).write_text(f"# file: {name}\n{content}")
        for name, content in _JSON.findall(text):
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_text(content)
        os.chdir(folder)
        os.environ["COLUMNS"] = "100"
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)


def _run_block(block: str) -> str:
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(f"{command}\n{run(command.removeprefix('$ kvcalc '))}" for command in commands)


def run(command: str) -> str:
    """What `kvcalc COMMAND` prints: the answer, then its notes."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main(shlex.split(command, comments=True))
    return out.getvalue() + err.getvalue()


def schemas() -> dict[Path, str]:
    """The JSON Schemas of docs/schemas: the spec language, and what each verb prints."""
    kinds = {"spec": Document, **SCHEMAS}
    made = {DOCS / "schemas" / f"{name}.json": _schema(kind) for name, kind in kinds.items()}
    return {**made, DOCS / "schemas" / "kvcalc.plan-1.json": _json(plan_schema(vocabulary()))}


def _schema(kind: object) -> str:
    return _json({"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)})


def _json(schema: dict[str, object]) -> str:
    return json.dumps(schema, indent=1) + "\n"


def _formats() -> str:
    rows = ["| format | also called | a value | layout from |", "|---|---|---|---|"]
    for form in all_formats():
        aliases = ", ".join(f"`{alias}`" for alias in form.aliases)
        rows.append(f"| `{form.name}` | {aliases} | {form.value_bytes() or 'whole entries'} | {form.source} |")
    return "\n".join(rows) + "\n"


def _limits() -> str:
    rows = ["| limit | written | what is compared | figure |", "|---|---|---|---|"]
    rows += [f"| `{name}` | `{one.example}` | {one.help} | `{one.figure}` |" for name, one in LIMITS.items()]
    return "\n".join(rows) + "\n"


def _kinds() -> str:
    rows = ["| kind | needs | takes | |", "|---|---|---|---|"]
    for name, kind in KINDS.items():
        fields = [field for field in msgspec.structs.fields(kind) if field.name not in COMMON]
        needs, takes = (
            ", ".join(f"`{field.encode_name}`" for field in fields if field.required is required)
            for required in (True, False)
        )
        rows.append(f"| `{name}` | {needs} | {takes} | {(kind.__doc__ or '').splitlines()[0]} |")
    return "\n".join(rows) + "\n"


COMMON = {"id", "parameters", "extra_parameters", "weights"}
TABLES = {
    "formats": _formats,
    "kinds": _kinds,
    "coverage": coverage_table,
    "constants": constants_table,
    "paper": paper_table,
    "limits": _limits,
    **GPU_TABLES,
    **VLLM_TABLES,
}
NEEDS_TORCH = {"memory": memory_table}
"""Tables that are measured: without torch they stay as they are."""


def command_page() -> str:
    """docs/cli.md: what every verb says of itself."""
    with _workplace(""):
        return "\n".join(_command_parts())


def _command_parts() -> list[str]:
    parts = [_CLI_HEAD, _help("")]
    for name, (_, module, attribute) in VERBS.items():
        found = getattr(importlib.import_module(module), attribute)
        below = getattr(found, "registered_commands", ())
        names = [command.name or command.callback.__name__ for command in below]
        parts += [f"## kvcalc {name}\n", _help(name), *(_help(f"{name} {one}") for one in names)]
    return parts


_CLI_HEAD = """\
# The command line

Every verb and every flag, as `--help` prints them. This page is made by `python tests/docs.py`; what a verb answers, with examples, stands on
the page of its own that the [README](../README.md) links. Completion, colours and pipes: [shell.md](shell.md).
"""


def _help(verb: str) -> str:
    command = f"{verb} --help".strip()
    return f"```text\n$ kvcalc {command}\n{run(command)}```\n"


def write_schemas() -> None:
    """Rewrite the JSON Schemas."""
    (DOCS / "schemas").mkdir(exist_ok=True)
    for path, text in schemas().items():
        path.write_text(text)


def write() -> None:
    """Rewrite every page and every generated file."""
    write_schemas()
    (DOCS / "cli.md").write_text(command_page())
    for page in pages():
        page.write_text(refreshed(page.read_text()))


if __name__ == "__main__":
    write()
