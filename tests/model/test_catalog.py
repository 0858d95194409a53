"""The catalogue: names, aliases and sources."""

from pathlib import Path

import pytest

from kvcalc.errors import KvcalcError, UnknownNameError
from kvcalc.model.catalog import catalogue_folder, catalogue_index, catalogue_names, load
from kvcalc.model.reader import read_specs
from kvcalc.sizing.listing import validate

FILES = sorted(catalogue_folder().glob("*.yaml"))
SPECS = [(path, spec) for path in FILES for spec in read_specs(path)]


def test_there_are_at_least_sixty_files():
    assert len(FILES) >= 60


@pytest.mark.parametrize(("path", "spec"), SPECS, ids=lambda value: getattr(value, "name", ""))
def test_every_spec_says_where_it_comes_from(path, spec):
    assert spec.source
    assert spec.dtype
    assert spec.aliases
    assert spec.name == path.stem or spec.name.startswith(path.stem.split("-")[0])


def test_heads_read_as_text_are_the_names_and_aliases_of_the_specs():
    """The index is made without parsing YAML; it must find what the reader finds."""
    parsed = {name.casefold(): (path, spec.name) for path, spec in SPECS for name in (spec.name, *spec.aliases)}
    assert catalogue_index() == parsed
    assert catalogue_names() == sorted(spec.name for _, spec in SPECS)


def test_no_two_specs_claim_one_name():
    assert validate([])[2] == []


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("META-LLAMA/llama-3.1-8b", "llama-3.1-8b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("yoco-3b-window", "yoco-3b-window"),
        ("h128-mqa-cla2", "cla-1b-h128-mqa-cla2"),
    ],
)
def test_names_that_people_type(typed, name):
    assert load(typed).name == name


def test_a_spec_is_found_by_its_path():
    assert load(str(FILES[0])).name == load(FILES[0].stem).name


@pytest.mark.parametrize("typed", ["lama-8b", "llama-3.1-8", "llama-3.1-9b"])
def test_near_names_are_offered(typed):
    with pytest.raises(UnknownNameError) as caught:
        load(typed)
    assert "llama" in caught.value.hint


@pytest.mark.parametrize("typed", ["", " ", ".", "..", "/", "x" * 5000, "a\nb", "../model_specs", "\x00"])
def test_names_that_are_nothing(typed):
    with pytest.raises(KvcalcError) as caught:
        load(typed)
    assert len(caught.value.message) < 300
    assert "\n" not in caught.value.message


def test_two_specs_that_claim_one_name_fail_validation(tmp_path):
    text = "name: {}\naliases: [{}]\nlayers: [{{mixer: {{kind: kv, kv_heads: 1, head_dim: 8}}}}]\n"
    (tmp_path / "a.yaml").write_text(text.format("a", "same"))
    (tmp_path / "b.yaml").write_text(text.format("b", "SAME"))
    (tmp_path / "c.yaml").write_text(text.format("A", "c"))
    files, models, problems = validate([tmp_path])
    assert (files, models) == (3, 3)
    assert [("claims SAME" in one.message, "claims A" in one.message) for one in problems] == [
        (True, False),
        (False, True),
    ]


def test_validation_names_every_broken_file(tmp_path):
    (tmp_path / "a.yaml").write_text("name: a\n")
    (tmp_path / "b.yaml").write_text("- b\n")
    assert [Path(one.message.split(":")[0]).name for one in validate([tmp_path])[2]] == ["a.yaml", "b.yaml"]
    (tmp_path / "none").mkdir()
    with pytest.raises(KvcalcError, match=r"no \.yaml file"):
        validate([tmp_path / "none"])
