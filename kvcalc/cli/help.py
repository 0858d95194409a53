"""Help that is never cut: options under the heading of their group, verbs under the question that they answer.

Typer's own help draws boxes, in which a long flag loses its end to an ellipsis.
"""

from collections import defaultdict
from typing import Any

from typer.core import TyperCommand, TyperGroup

EXAMPLES = """\
Begin with:
  kvcalc size llama-8b --ctx 8192 --batch 32
  kvcalc fit llama-8b --gpu l40s --engine vllm --ctx 32K --batch 16
  kvcalc throughput llama-8b --gpu h100-sxm --batch 32
  kvcalc check kvcalc.yaml

kvcalc VERB --help shows the flags of a verb. Exit codes: 0 yes; 1 no (it does
not fit, a limit is broken); 2 the question is wrong; 130 interrupted."""


class Verb(TyperCommand):
    """One verb: its arguments, then its options under the heading of their group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write them, arguments first and options of no group last."""
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections[_section(parameter)].append(record)
        for name in sorted(sections, key=lambda name: (name == _OTHERS, name != _ARGUMENTS)):
            with formatter.section(name):
                formatter.write_dl(sections[name])


_ARGUMENTS, _OTHERS = "Arguments", "Options"


def _section(parameter: Any) -> str:
    named = getattr(parameter, "rich_help_panel", None)
    return str(named or (_ARGUMENTS if parameter.param_type_name == "argument" else _OTHERS))


class Contents(TyperGroup):
    """A group of verbs, as a page of contents."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Verbs first."""
        self.format_commands(ctx, formatter)
        Verb.format_options(self, ctx, formatter)  # type: ignore[arg-type]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what each answers, whole, under the question that it belongs to."""
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                sections[str(heading or "Commands")].append((name, _first_paragraph(command.help or "")))
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples as they stand, line by line."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
