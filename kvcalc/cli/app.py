"""The kvcalc command: one place that catches, one place that exits."""

import os
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from kvcalc import __version__
from kvcalc.errors import KvcalcError


def make_app(only: str | None = None) -> typer.Typer:
    """The application with every verb, or with one alone: typer spends 10 ms on the flags of each."""
    app = typer.Typer(
        name="kvcalc",
        help="KV-cache memory and throughput for LLM inference: exact where arithmetic can be exact.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["--help", "-h"],
            "token_normalize_func": lambda token: token.replace("_", "-"),
        },
    )
    app.callback()(_top)
    for name in _VERBS if only is None else (only,):
        _VERBS[name](app)
    return app


def _add_size(app: typer.Typer) -> None:
    from kvcalc.cli.size import size

    app.command("size")(size)


def _add_explain(app: typer.Typer) -> None:
    from kvcalc.cli.size import explain

    app.command("explain")(explain)


def _add_compare(app: typer.Typer) -> None:
    from kvcalc.cli.compare import compare

    app.command("compare")(compare)


def _add_models(app: typer.Typer) -> None:
    from kvcalc.cli.models import app as models

    app.add_typer(models, name="models")


_VERBS = {"size": _add_size, "explain": _add_explain, "compare": _add_compare, "models": _add_models}
_COMPLETION = "_KVCALC_COMPLETE"


def _print_version(asked: bool) -> None:
    if asked:
        print(f"kvcalc {__version__}")
        raise typer.Exit()


def _top(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """KV-cache memory and throughput for LLM inference: exact where arithmetic can be exact."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 yes, 1 no, 2 a wrong question, 130 interrupted."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        only = given[0] if given[0] in _VERBS and _COMPLETION not in os.environ else None
        return int(make_app(only)(args=given, prog_name="kvcalc", standalone_mode=False) or 0)
    except KvcalcError as error:
        return _complain(error.message, error.hint, error.exit_code)
    except TyperException as error:
        # Without a message it has printed the help that a bare group asks for.
        return _complain(error.format_message(), _usage_hint(error), 2) if error.format_message() else 0
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return _close_pipe()


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help shows the flags" if context else "kvcalc --help"


def _complain(message: str, hint: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code


def _close_pipe() -> int:
    """The reader went away (`| head`): nothing is wrong, and nothing more can be said."""
    sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115, PTH123 - kept open until exit
    return 0
