"""The action and the recipes of docs/ci.md, their very shell run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from action_steps import BASH, ROOT, action, commands, run_step, steps

PASSING = """
defaults: {engine: vllm, gpu: h100-sxm, ctx: 8K}
limits: {must_fit: true}
cases:
  - {name: chat, model: llama-8b, batch: 4}
"""
FAILING = PASSING.replace("ctx: 8K", "ctx: 128K").replace("batch: 4", "batch: 400")
HOSTILE = "x %0A::error title=owned::y, $(touch owned) `touch owned` <script>|"
CI = (ROOT / "docs" / "ci.md").read_text()
_RECIPE = re.compile(r"^```yaml\n# (\.\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = [(name, yaml.safe_load(text)) for name, text in _RECIPE.findall(CI)]


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "kvcalc.yaml").write_text(PASSING)
    return folder


@pytest.fixture
def environment(tmp_path):
    """A kvcalc of this tree where the action installs one, and shims for what would reach the network."""
    shims = tmp_path / "runner" / "kvcalc" / "bin"
    shims.mkdir(parents=True)
    scripts = {
        "kvcalc": f'exec "{sys.executable}" -m kvcalc "$@"',
        "pip": 'echo "pip $*"',
        "gh": 'if [ "$2" = list ]; then echo 7; else mkdir -p baseline; cp "$MAIN_JSON" baseline/main.json; fi',
    }
    for name, script in scripts.items():
        (shims / name).write_text(f"#!/bin/sh\n{script}\n")
        (shims / name).chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return {**kept, "PATH": f"{shims}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def check(checkout, environment):
    """Run the step that checks: check(plan="kvcalc.yaml") -> Ran."""

    def run(**inputs):
        return run_step(
            steps()[-1], checkout, {name.replace("_", "-"): value for name, value in inputs.items()}, environment
        )

    return run


def test_no_input_is_ever_part_of_a_script():
    assert len(steps()) == 2
    for step in steps():
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
    used = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(action()["inputs"])
    assert {one["value"] for one in action()["outputs"].values()} == {
        f"${{{{ steps.check.outputs.{name} }}}}" for name in action()["outputs"]
    }


def test_a_plan_that_passes(check):
    ran = check()
    assert (ran.code, ran.outputs["passed"]) == (0, "true"), ran.log
    assert json.loads(Path(ran.outputs["json"]).read_text())["schema"] == "kvcalc.check/1"
    assert "::error" not in ran.log
    assert ran.summary.startswith("### kvcalc check: passed")


def test_a_plan_that_fails_marks_its_line_and_keeps_the_result(check, checkout):
    (checkout / "plans").mkdir()
    (checkout / "plans" / "big.yaml").write_text(FAILING)
    ran = check(plan="plans/big.yaml")
    assert (ran.code, ran.outputs["passed"]) == (1, "false"), ran.log
    assert "::error file=plans/big.yaml,line=3,title=chat%3A must_fit::" in ran.log
    assert json.loads(Path(ran.outputs["json"]).read_text())["passed"] is False
    assert ran.summary.startswith("### kvcalc check: failed")


def test_a_plan_elsewhere_is_told_from_the_root_of_the_checkout(check, checkout):
    (checkout / "deploy").mkdir()
    (checkout / "deploy" / "kvcalc.yaml").write_text(FAILING)
    ran = check(working_directory="deploy")
    assert ran.code == 1
    assert "::error file=deploy/kvcalc.yaml,line=3," in ran.log


def test_a_wrong_question_is_an_error_and_has_no_result(check):
    ran = check(plan="none.yaml")
    assert (ran.code, ran.outputs) == (2, {"passed": "false", "json": ""})
    assert "none.yaml" in ran.log


def test_flags_are_words_and_no_script(check, checkout):
    ran = check(args="--ctx 128K\n  --batch 400")
    assert ran.code == 1
    for hostile in ("--ctx $(touch owned)", "--ctx `touch owned`", "; touch owned"):
        assert check(args=hostile).code == 2
        assert not (checkout / "owned").exists()


def test_a_plan_whose_name_is_hostile_is_a_path_and_nothing_more(check, checkout):
    for name in ("--help", "$(touch owned).yaml", "a;touch owned"):
        (checkout / name).write_text(PASSING)
        ran = check(plan=name)
        assert (ran.outputs["passed"], Path(ran.outputs["json"]).is_file()) == ("true", True)
    assert not (checkout / "owned").exists()


@pytest.mark.parametrize("name", [HOSTILE, "::error title=owned::x", "::stop-commands::x"])
def test_a_case_whose_name_is_hostile_is_a_title_and_a_cell(name, check, checkout):
    (checkout / "kvcalc.yaml").write_text(FAILING.replace("name: chat", f"name: {json.dumps(name)}"))
    ran = check()
    (command,) = commands(ran.log)
    assert ran.code == 1
    assert command.startswith(
        "::error file=kvcalc.yaml,line=3,title=" + name.replace("%", "%25").replace(":", "%3A")[:12]
    )
    assert "<script>" not in ran.summary
    assert not (checkout / "owned").exists()


def test_a_baseline_that_is_not_there_yet_is_a_notice_and_one_that_is_counts(check, checkout):
    ran = check(baseline="main.json", fail_on="5%")
    assert ran.code == 0
    assert "::notice title=kvcalc check::there is no baseline yet" in ran.log
    (checkout / "main.json").write_bytes(Path(ran.outputs["json"]).read_bytes())
    assert check(baseline="main.json", fail_on="5%").code == 0
    ran = check(baseline="main.json", fail_on="5%", args="--ctx 9K")
    assert ran.code == 1
    assert "::error file=kvcalc.yaml,line=5,title=chat%3A worse bytes_per_sequence::" in ran.log
    assert check(baseline="main.json", fail_on="20%", args="--ctx 9K").code == 0


def test_the_recipes_are_those_that_the_page_promises():
    names = [name for name, _ in RECIPES]
    assert names == [".github/workflows/capacity.yml"] * 3 + [".gitlab-ci.yml", ".pre-commit-config.yaml"]


def workflow_steps():
    for _, recipe in RECIPES:
        for job in recipe.get("jobs", {}).values():
            yield from job["steps"]


def test_the_recipes_give_the_action_inputs_that_it_has():
    uses = [step for step in workflow_steps() if step.get("uses", "").startswith("OWNER/kvcalc@")]
    assert len(uses) == 2
    for step in uses:
        assert set(step["with"]) <= set(action()["inputs"])


def scripts():
    """Every script of the recipes, and the plain shell of the page."""
    yield from (step["run"] for step in workflow_steps() if "run" in step)
    yield from (
        "\n".join(job["script"])
        for _, recipe in RECIPES
        for job in recipe.values()
        if isinstance(job, dict) and "script" in job
    )
    yield from re.findall(r"^```sh\n(.*?)^```$", CI, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("script", list(scripts()))
def test_the_shell_of_a_recipe_runs(script, checkout, environment, tmp_path):
    assert "${{" not in script
    subprocess.run(
        [*BASH, "-c", "kvcalc check --format json --out ../main.json && kvcalc check --update-lock"],
        cwd=checkout,
        env=environment,
        check=True,
    )
    # The recipe's virtual environment is the one that is there.
    text = script.replace("python3 -m venv .venv\n", "").replace(".venv/bin/", "")
    made = {**environment, "RESULT": str(tmp_path / "main.json"), "MAIN_JSON": str(tmp_path / "main.json")}
    done = subprocess.run([*BASH, "-c", text], cwd=checkout, env=made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "kvcalc.xml" in script:
        assert "<testsuites" in (checkout / "kvcalc.xml").read_text()
    if "gh run" in script:
        assert (checkout / "baseline" / "main.json").exists()


def test_the_hook_is_one_that_pre_commit_takes_and_looks_at_plans_locks_and_specs():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language"} <= set(hook)
    (repo,) = dict(RECIPES)[".pre-commit-config.yaml"]["repos"]
    assert [one["id"] for one in repo["hooks"]] == [hook["id"]]
    looked = [
        path
        for path in ("kvcalc.yaml", "a/kvcalc.yml", "kvcalc.lock", "model_specs/x.yaml", "a/specs/b/x.yml")
        if re.search(hook["files"], path)
    ]
    passed_over = [
        path
        for path in ("kvcalc.yaml.orig", "mykvcalc.yaml", "README.md", "aspecs/x.yaml", "specs/x.py")
        if re.search(hook["files"], path)
    ]
    assert (len(looked), passed_over) == (5, [])
