"""The kvcalc command: one place that catches, one place that exits."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer

from kvcalc import __version__
from kvcalc.cli.help import EXAMPLES, Contents, Verb
from kvcalc.errors import KvcalcError, shorten


def make_app(only: str | None = None) -> typer.Typer:
    """The application with every verb, or with one alone: typer spends 10 ms on the flags of each."""
    app = typer.Typer(
        name="kvcalc",
        cls=Contents,
        help=_WHAT,
        epilog=EXAMPLES,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["--help", "-h"],
            "token_normalize_func": lambda token: token.replace("_", "-"),
        },
    )
    app.callback()(_top)
    for name in VERBS if only is None else (only,):
        _add(app, name)
    return app


def _add(app: typer.Typer, name: str) -> None:
    heading, module, attribute = VERBS[name]
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        for command in found.registered_commands:
            command.cls = Verb
        app.add_typer(found, name=name, cls=Contents, rich_help_panel=heading)
    else:
        app.command(name, cls=Verb, rich_help_panel=heading)(found)


_WHAT = "KV-cache memory and throughput of LLM inference: exact where arithmetic can be exact."
_NEED, _HARDWARE, _TRUTH, _PAPER, _DATA = (
    "What a model needs",
    "What hardware carries, and how fast",
    "What really happens",
    "In CI and on paper",
    "What is known",
)
VERBS = {
    "size": (_NEED, "kvcalc.cli.size", "size"),
    "explain": (_NEED, "kvcalc.cli.size", "explain"),
    "compare": (_NEED, "kvcalc.cli.compare", "compare"),
    "fit": (_HARDWARE, "kvcalc.cli.fit", "fit"),
    "throughput": (_HARDWARE, "kvcalc.cli.throughput", "throughput"),
    "sweep": (_HARDWARE, "kvcalc.cli.sweep", "sweep"),
    "simulate": (_HARDWARE, "kvcalc.cli.simulate", "simulate"),
    "profile": (_TRUTH, "kvcalc.cli.profile", "profile"),
    "calibrate": (_TRUTH, "kvcalc.cli.calibrate", "calibrate"),
    "reconcile": (_TRUTH, "kvcalc.cli.reconcile", "reconcile"),
    "check": (_PAPER, "kvcalc.cli.check", "check_verb"),
    "report": (_PAPER, "kvcalc.cli.report", "report"),
    "models": (_DATA, "kvcalc.cli.models", "app"),
    "gpus": (_DATA, "kvcalc.cli.gpus", "app"),
    "doctor": (_DATA, "kvcalc.cli.doctor", "doctor"),
}
"""Every verb: the heading that it stands under, its module, and its name there."""
_COMPLETION = "_KVCALC_COMPLETE"


def _print_version(asked: bool) -> None:
    if asked:
        print(f"kvcalc {__version__}")
        raise typer.Exit()


def _top(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 yes, 1 no, 2 a wrong question, 130 interrupted."""
    _make_streams_safe()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"])
        sys.stdout.flush()
        return code
    except KvcalcError as error:
        return _complain(error.message, error.hint, error.exit_code)
    except _USAGE_ERROR as error:
        return _complain(str(error.format_message()), _usage_hint(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except (BrokenPipeError, _ReaderGoneError):
        return _close_pipe()
    except OSError as error:
        return _complain(*_explain(error), 2)


def _explain(error: OSError) -> tuple[str, str]:
    """An error of a named file is that file's; any other met stdout."""
    if error.filename is not None:
        return f"{shorten(str(error.filename), 200)}: {error.strerror}", "check the path"
    return f"stdout: {error.strerror}", "is there room where the answer goes?"


def _run(given: list[str]) -> int:
    only = given[0] if given[0] in VERBS and _COMPLETION not in os.environ else None
    try:
        return int(make_app(only)(args=given, prog_name="kvcalc", standalone_mode=False) or 0)
    except _USAGE_ERROR as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            raise
        print(error.format_message())  # a bare group asks for its help
        return 0
    except SystemExit as error:
        # Out of standalone mode typer leaves this way only where a write met a closed pipe.
        raise _ReaderGoneError from error


class _ReaderGoneError(Exception):
    """Whoever read stdout has gone away."""


# typer carries its own click and names this class only as a base of what it does name.
_USAGE_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def _make_streams_safe() -> None:
    """A closed stream is a null one, and a character that a terminal cannot show is no reason to fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - open until exit
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help shows the flags" if context else "kvcalc --help"


def _complain(message: str, hint: str, code: int) -> int:
    from kvcalc.cli.emit import say

    say("error", message)
    if hint:
        say("hint", hint)
    return code


def _close_pipe() -> int:
    """The reader went away (`| head`): nothing is wrong, and nothing more can be said."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
