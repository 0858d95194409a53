"""Shared by all tests: the golden files, and the command line run in this process."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from kvcalc.cli.app import main

# Deadlines measure a shared machine, not this code.
settings.register_profile("kvcalc", deadline=None)
settings.load_profile("kvcalc")

# Whoever starts the tests in the background leaves Ctrl-C ignored, and their children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parent.parent


@dataclass
class Answer:
    """What one command printed and returned."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def outside_of_github(monkeypatch):
    """What kvcalc prints is the same where these tests run in GitHub Actions."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def kvcalc(capsys):
    """Run the command line: kvcalc("size", "llama-8b") -> Answer."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        interrupt = signal.getsignal(signal.SIGINT)
        code = main([str(argument) for argument in arguments])
        # An interrupted command leaves Ctrl-C ignored for the rest of its process, which is not this one.
        signal.signal(signal.SIGINT, interrupt)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def spec_file(tmp_path):
    """Write a spec and return its path: spec_file("name: x\\nlayers: ...")."""

    def write(text: str, name: str = "model.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
