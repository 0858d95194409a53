"""The command as a process: what happens before any of its modules is there."""

import subprocess
import sys

_INTERRUPTED_WHILE_LOADING = """
import sys
from importlib.abc import MetaPathFinder

class Interrupts(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from kvcalc.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_while_modules_are_read_says_nothing():
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHILE_LOADING], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
