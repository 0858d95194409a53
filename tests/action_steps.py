"""The composite action of action.yml, its steps run as GitHub's runner runs them: `shell: bash`, inputs as variables."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
# actions/runner, src/Runner.Worker/Handlers/ScriptHandlerHelpers.cs: what `shell: bash` stands for.
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
_EXPRESSION = re.compile(r"\$\{\{ *(.+?) *\}\}")


@dataclass
class Ran:
    """How a step ended, and what it left for those behind it."""

    code: int
    log: str
    outputs: dict[str, str]
    summary: str


def commands(log: str) -> list[str]:
    """The lines of a log that the runner obeys: blanks before `::` do not count, and `stop-commands` holds until its token.

    actions/runner, src/Runner.Worker/ActionCommandManager.cs and src/Runner.Common/ActionCommand.cs, TryParseV2.
    """
    found, token = [], ""
    for line in map(str.strip, log.splitlines()):
        if token:
            token = "" if line == f"::{token}::" else token
        elif line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif line.startswith("::"):
            found.append(line)
    return found


def action() -> dict[str, Any]:
    """action.yml as GitHub reads it."""
    return yaml.safe_load((ROOT / "action.yml").read_text())


def steps() -> list[dict[str, Any]]:
    """The steps with a shell of their own."""
    return [step for step in action()["runs"]["steps"] if "run" in step]


def run_step(step: Mapping[str, Any], folder: Path, inputs: Mapping[str, str], environment: Mapping[str, str]) -> Ran:
    """One step in the checkout `folder`; what the runner offers beside it lies in a folder `runner` of its parent."""
    runner = folder.parent / "runner"
    runner.mkdir(exist_ok=True)
    files = {name: runner / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    given = {name: one["default"] for name, one in action()["inputs"].items()} | dict(inputs)
    variables = {name: _filled(text, given) for name, text in step["env"].items()}
    (runner / "step.sh").write_text(step["run"])
    offered = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(folder), "RUNNER_TEMP": str(runner)}
    done = subprocess.run(
        [*BASH, str(runner / "step.sh")],
        cwd=folder / _filled(step.get("working-directory", "."), given),
        env={**environment, **offered, **variables, **{name: str(file) for name, file in files.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = files["GITHUB_OUTPUT"].read_text().splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    return Ran(done.returncode, done.stdout + done.stderr, outputs, files["GITHUB_STEP_SUMMARY"].read_text())


def _filled(text: str, inputs: Mapping[str, str]) -> str:
    """An `env:` value with its expressions as GitHub would evaluate them: `a || b` is the first that is not empty."""
    known = {**{f"inputs.{name}": value for name, value in inputs.items()}, "github.action_path": str(ROOT)}
    return _EXPRESSION.sub(lambda match: next((known[one] for one in match[1].split(" || ") if known[one]), ""), text)
