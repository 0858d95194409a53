"""The documentation is true: its examples print what it says, and nothing that exists is left out."""

import doctest
import re
import shlex

import jsonschema
import msgspec
import pytest
import typer
import yaml

import docs
import kvcalc
from kvcalc.cache.formats import all_formats
from kvcalc.cache.kinds import KINDS
from kvcalc.cli.app import VERBS, main, make_app
from kvcalc.cli.help import EXAMPLES
from kvcalc.model.catalog import catalogue_folder
from kvcalc.model.spec import Document, LayerEntry

PAGES = {path.name: path for path in docs.pages()}
PAGE_OF = {"doctor": "shell"}
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!http)([^)#]+)")


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_examples_print_what_the_page_says(page):
    text = page.read_text()
    assert docs.refreshed(text) == text, f"run python tests/docs.py and look at the diff of {page.name}"


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_python_examples_run(page):
    blocks = "\n".join(_PYTHON.findall(page.read_text()))
    test = doctest.DocTestParser().get_doctest(blocks, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_links_lead_somewhere(page):
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(("path", "text"), docs.schemas().items(), ids=lambda value: getattr(value, "name", ""))
def test_schemas_are_the_ones_of_the_code(path, text):
    assert path.read_text() == text


def test_every_spec_of_the_catalogue_satisfies_the_json_schema():
    schema = msgspec.json.decode((docs.DOCS / "schemas" / "spec.json").read_bytes())
    validator = jsonschema.Draft202012Validator(schema)
    for path in sorted(catalogue_folder().glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            assert list(validator.iter_errors(document)) == [], path.name


def test_the_json_schema_refuses_what_the_reader_refuses():
    schema = msgspec.json.decode((docs.DOCS / "schemas" / "spec.json").read_bytes())
    validator = jsonschema.Draft202012Validator(schema)
    good = {"name": "x", "layers": [{"mixer": {"kind": "kv", "kv_heads": 8, "head_dim": 128}}]}
    assert validator.is_valid(good)
    for spoiled in ({**good, "layer": []}, {"name": "x"}, {**good, "layers": [{"mixer": {"kind": "kv"}}]}):
        assert not validator.is_valid(spoiled)


def test_every_format_kind_and_key_is_documented():
    formats, spec = PAGES["formats.md"].read_text(), PAGES["spec.md"].read_text()
    assert all(f"`{name}`" in formats for form in all_formats() for name in (form.name, *form.aliases))
    assert all(f"`{kind}`" in spec for kind in KINDS)
    keys = {*Document.__struct_encode_fields__, *LayerEntry.__struct_encode_fields__}
    assert [key for key in sorted(keys) if not re.search(rf"`{key}`|`{key}:|^{key}:", spec, re.MULTILINE)] == []


def test_the_page_of_the_command_line_is_what_help_prints():
    assert PAGES["cli.md"].read_text() == docs.command_page(), "run python tests/docs.py"


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"models", "gpus", "throughput"}))
def test_every_flag_of_a_verb_stands_on_its_page(verb):
    shown = set(re.findall(r"(--[a-z][a-z-]+)", docs.run(f"{verb} --help"))) - {"--help"}
    page = "".join(
        PAGES[f"{name}.md"].read_text()
        for name in (PAGE_OF.get(verb, verb), *ALSO.get(verb, ()), "size", "engines", "llama-cpp")
    )
    assert [flag for flag in sorted(shown) if flag not in page] == []


ALSO = {"check": ("plan", "fit", "throughput")}
"""A plan's settings are the flags of other verbs, and stand on their pages."""


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_commands_that_a_page_shows_without_running_them_name_flags_that_exist(page):
    for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for command in re.findall(r"^kvcalc ([a-z].*)$", block, re.MULTILINE):
            verb, *arguments = shlex.split(command, comments=True)
            found = typer.main.get_command(make_app(verb)).commands[verb]
            known = {spelling for one in found.params for spelling in (*one.opts, *one.secondary_opts)}
            assert [one for one in arguments if re.match("--?[a-z]", one) and one not in known] == [], command


def test_every_page_is_linked_from_the_readme():
    linked = set(_LINK.findall(PAGES["README.md"].read_text()))
    assert {f"docs/{path.name}" for path in docs.DOCS.glob("*.md")} <= linked


def test_every_public_name_is_on_the_page_of_the_api():
    page = PAGES["api.md"].read_text()
    assert [name for name in set(kvcalc.__all__) - {"__version__"} if f"`kvcalc.{name}(" not in page] == []


def test_the_commands_that_help_begins_with_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvcalc.yaml").write_text("cases: [{name: chat, model: llama-8b, gpu: l40s, engine: vllm}]")
    commands = re.findall(r"^  kvcalc (.*)$", EXAMPLES, re.MULTILINE)
    assert commands
    assert [command for command in commands if main(shlex.split(command)) == 2] == []


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_and_every_flag_that_help_shows_says_what_it_is(verb):
    found = typer.main.get_command(make_app(verb)).commands[verb]
    for command in (found, *getattr(found, "commands", {}).values()):
        assert command.help.partition("\n")[0].endswith("."), command.name
        shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
        assert [one.name for one in shown if not one.help] == []


def test_every_verb_is_in_the_readme_and_in_the_contents():
    contents = docs.run("--help")
    assert all(re.search(rf"^  {verb} ", contents, re.MULTILINE) for verb in VERBS)
    assert all(f"kvcalc {verb}" in PAGES["README.md"].read_text() for verb in VERBS)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_examples_fail_only_where_the_page_shows_a_mistake(page):
    for block in re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for command in block.split("\n\n"):
            assert ("\nerror:" in command) == ("typo" in command), command
