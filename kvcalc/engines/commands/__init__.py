"""Commands that run an engine: read into kvcalc's words, and written from a plan."""

from pathlib import Path

from kvcalc.engines.commands.command import EngineCommand
from kvcalc.engines.commands.emitting import Plan, command_text, emit_command
from kvcalc.engines.commands.files import invocations_in_file
from kvcalc.engines.commands.launch import Setting, only_one, shell_runs
from kvcalc.engines.commands.reading import read_invocation
from kvcalc.engines.commands.words import Allowance
from kvcalc.errors import KvcalcError, shorten

__all__ = ["EngineCommand", "Plan", "command_text", "emit_command", "read_command"]


def read_command(text_or_path: str) -> EngineCommand:
    """The one run of an engine in a command line, or in a file that exists; `FILE#NAME` picks one of several.

    Nothing is executed, and no variable of this process is looked at. KvcalcError where no engine runs, where
    several do, and for a value that is needed and not known.
    """
    name, _, wanted = text_or_path.rpartition("#") if _is_choice(text_or_path) else (text_or_path, "", "")
    if _is_file(name):
        return read_invocation(only_one(invocations_in_file(Path(name)), wanted, name))
    if len(text_or_path.split()) <= 1:
        raise KvcalcError(f"{shorten(text_or_path)!r} is no file and no command", "quote the whole command, or a path")
    return read_invocation(only_one(shell_runs(text_or_path, Setting(allowance=Allowance())), "", "the text"))


def _is_choice(text: str) -> bool:
    return "#" in text and not _is_file(text) and _is_file(text.rpartition("#")[0])


def _is_file(text: str) -> bool:
    """Whether it names something that is there; a text too long for a name does not."""
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):
        return False
