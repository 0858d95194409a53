"""The action and the hook in full, installations too: `python tests/try_ci.py`. It needs the package index and pre-commit.

The tests run the same shell with a kvcalc that is there already; here pip builds it from this tree, twice.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from action_steps import ROOT, run_step, steps

PLAN = """
defaults: {engine: vllm, gpu: h100-sxm, ctx: 8K}
limits: {must_fit: true}
cases:
  - {name: chat, model: llama-8b, batch: %d}
"""
FITS, DOES_NOT = 4, 4000


def try_action(folder: Path) -> None:
    """Every step of the action, for a plan that passes and one that fails."""
    install, check = steps()
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder.parent)}
    ran = run_step(install, folder, {}, environment)
    assert ran.code == 0, ran.log
    for batch, code in ((FITS, 0), (DOES_NOT, 1)):
        (folder / "kvcalc.yaml").write_text(PLAN % batch)
        ran = run_step(check, folder, {}, environment)
        assert ran.code == code, ran.log
        print(f"action: batch {batch}, exit {ran.code}, {ran.outputs}\n{ran.log}{ran.summary}")


def try_hook(folder: Path) -> None:
    """`pre-commit try-repo` and `pre-commit run` from a commit of this tree, in a repository with a plan."""
    source = folder.parent / "source"
    _git(folder.parent, "clone", "-q", str(ROOT), str(source))
    revision = _git(source, "rev-parse", "HEAD").strip()
    config = f"repos:\n  - repo: {source}\n    rev: {revision}\n    hooks: [{{id: kvcalc-check}}]\n"
    (folder / ".pre-commit-config.yaml").write_text(config)
    _git(folder, "init", "-q")
    os.environ["PRE_COMMIT_HOME"] = str(folder.parent / "pre-commit")
    # try-repo installs anew each time, run keeps what it installed.
    for batch, command, code in ((FITS, ["run"], 0), (DOES_NOT, ["run"], 1), (DOES_NOT, _TRY, 1)):
        (folder / "kvcalc.yaml").write_text(PLAN % batch)
        _git(folder, "add", ".")
        done = subprocess.run(["pre-commit", *command], cwd=folder, capture_output=True, text=True, check=False)
        print(f"pre-commit {command[0]}: batch {batch}, exit {done.returncode}\n{done.stdout}{done.stderr}")
        assert done.returncode == code


_TRY = ["try-repo", "../source", "kvcalc-check"]


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ.pop("PYTHONPATH", None)
    for attempt in (try_action, try_hook):
        with tempfile.TemporaryDirectory() as made:
            checkout = Path(made) / "checkout"
            checkout.mkdir()
            attempt(checkout)
