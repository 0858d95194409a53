"""The house: arrows run one way, rooms stay small, and sizing loads nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from kvcalc.cache.kinds import KINDS

PACKAGE = ROOT / "kvcalc"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A wing may import itself and those that stand before it; what stands in one line stands level.
ORDER = [
    {"errors"},
    {"units", "documents"},
    {"cache", "hardware"},
    {"model"},
    {"report"},
    {"chart", "picture"},
    {"sizing"},
    {"engines", "reference"},
    {"speed"},
    {"profiler", "plan", "workload", "doctor"},
    {"render", "api"},
    {"cli"},
]
RANK = {wing: rank for rank, wings in enumerate(ORDER) for wing in wings}


def wing_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_wings(tree: ast.Module) -> set[str]:
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {name.split(".")[1] for name in names if name.startswith("kvcalc.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_run_one_way(path):
    wing = wing_of(path)
    if wing in ("__init__", "__main__"):
        return
    for other in imported_wings(ast.parse(path.read_text())):
        assert other == wing or RANK[other] < RANK[wing], f"{wing} must not import {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_are_small_enough_to_read_standing(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno + 1 <= 40, node.name


def test_only_the_kinds_themselves_know_a_kind_by_name():
    """No isinstance ladder and no `kind == ...` outside the modules that define the kinds."""
    home = {PACKAGE / "cache" / name for name in ("attention.py", "recurrent.py", "kinds.py", "component.py")}
    # Importers write the spec language, in which kinds have names.
    importers = set((PACKAGE / "model" / "importers").glob("*.py"))
    for path in set(MODULES) - home - importers:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in ("kvcalc.cache.attention", "kvcalc.cache.recurrent"):
                assert [alias.name for alias in node.names] == ["StateEntry"], path
            if isinstance(node, ast.Compare):
                values = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                assert not values & set(KINDS), path


def loaded_by(*arguments: str) -> set[str]:
    code = (
        "import sys; from kvcalc.cli.app import main\n"
        f"assert main({list(arguments)!r}) == 0\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(out.rpartition("LOADED")[2].split())


HEAVY = {"torch", "pandas", "numpy", "pydantic", "transformers"}


def test_size_as_json_loads_nothing_heavy():
    assert loaded_by("size", "llama-8b", "--format", "json") & (HEAVY | {"rich", "csv", "json"}) == set()


@pytest.mark.parametrize(
    "verb",
    [
        ["size", "llama-8b"],
        ["explain", "llama-8b"],
        ["models", "list"],
        ["gpus", "list"],
        ["throughput", "llama-8b", "--gpu", "h100-sxm"],
    ],
)
def test_tables_load_rich_and_nothing_heavier(verb):
    assert loaded_by(*verb) & HEAVY == set()


def test_importing_the_package_loads_nothing():
    code = "import sys, kvcalc; print(*[name for name in sys.modules if name.startswith(('kvcalc.', 'typer', 'yaml'))])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == []


def test_the_public_names_are_complete_and_sorted():
    import kvcalc

    assert kvcalc.__all__ == sorted(kvcalc.__all__)
    assert all(getattr(kvcalc, name) is not None for name in kvcalc.__all__)
    with pytest.raises(AttributeError):
        kvcalc.nothing  # noqa: B018


def test_no_two_test_files_have_one_name():
    """Without packages among the tests, pytest imports each by its bare name."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(names) == sorted(set(names))
