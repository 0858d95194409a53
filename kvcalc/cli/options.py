"""Every flag, once: groups of options that verbs take whole, and the model argument.

A verb names a group as the annotation of a parameter; `verb` spells the group out for typer and
hands the verb one object.
"""

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import typer

from kvcalc.cli.completion import complete_format, complete_model, complete_weights
from kvcalc.errors import KvcalcError
from kvcalc.units import parse_tokens

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A catalogue name or alias, a hub id, a YAML spec, a config.json, a folder with one, or a GGUF.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
OptionalModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help="The model; a command names its own.", autocompletion=complete_model, show_default=False
    ),
]
Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL...", help="Catalogue names, aliases or YAML specs.", autocompletion=complete_model),
]


Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT", help="The model's own format; the spec's by default.", autocompletion=complete_format
    ),
]
StateDtype = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="Recurrent states (default fp32).", autocompletion=complete_format),
]
EncoderTokens = Annotated[str | None, typer.Option(metavar="TOKENS", help="Input of an encoder.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Vary the model: mixer.kv_heads=4, layers.repeat=40."),
]
Assume = Annotated[bool, typer.Option("--assume", help="Take fields of a config that are not understood as harmless.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch a hub id's config.json.")]


class OutputFormat(StrEnum):
    """What stdout carries."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


class RequestOptions(msgspec.Struct, frozen=True):
    """The workload: how long, how many, in which formats."""

    PANEL: ClassVar = "Workload"
    ctx: Annotated[
        str | None,
        typer.Option("--ctx", "--context-length", metavar="TOKENS", help="Context: 8192, 8K = 8,192, 8k = 8,000."),
    ] = None
    batch: Annotated[str | None, typer.Option("--batch", metavar="N", help="Sequences at once (default 1).")] = None
    dtype: Dtype = None
    weights: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="The weights' alone: fp8, q4_k_m.", autocompletion=complete_weights),
    ] = None
    state_dtype: StateDtype = None
    encoder_tokens: EncoderTokens = None
    draft_layers: Annotated[int, typer.Option(metavar="N", help="Draft (MTP) layers to count.")] = 0
    set_: Overrides = None
    max_model_len: Annotated[str | None, typer.Option("--max-model-len", hidden=True)] = None
    max_num_seqs: Annotated[str | None, typer.Option("--max-num-seqs", hidden=True)] = None
    ctx_size: Annotated[str | None, typer.Option("--ctx-size", "-c", hidden=True)] = None
    parallel: Annotated[str | None, typer.Option("--parallel", "-np", hidden=True)] = None
    assume: Assume = False
    download: Download = False
    strict: Annotated[bool, typer.Option("--strict", help="Exit 2 where the answer rests on an assumption.")] = False


class KvDtypeOption(msgspec.Struct, frozen=True):
    """One KV format request."""

    PANEL: ClassVar = "Workload"
    kv_dtype: Annotated[
        str,
        typer.Option(
            "--kv-dtype",
            "--kv-cache-dtype",
            metavar="FORMAT",
            help="KV format: fp8, q8_0, nvfp4, ...; k=q8_0,v=q4_0; or COMPONENT=FORMAT.",
            autocompletion=complete_format,
        ),
    ] = "auto"


class ShardingOptions(msgspec.Struct, frozen=True):
    """Ranks that the model is spread over."""

    PANEL: ClassVar = "Ranks"
    tp: Annotated[int, typer.Option("--tp", "--tensor-parallel-size", "-tp", metavar="N", help="Tensor parallel.")] = 1
    pp: Annotated[
        int, typer.Option("--pp", "--pipeline-parallel-size", "-pp", metavar="N", help="Pipeline parallel.")
    ] = 1
    dp: Annotated[int, typer.Option("--dp", "--data-parallel-size", "-dp", metavar="N", help="Data parallel.")] = 1
    ep: Annotated[
        int, typer.Option("--ep", "--expert-parallel-size", metavar="N", help="Expert parallel: moves experts only.")
    ] = 1
    dcp: Annotated[
        int,
        typer.Option("--dcp", "--decode-context-parallel-size", "-dcp", metavar="N", help="Decode-context parallel."),
    ] = 1


class OutputOptions(msgspec.Struct, frozen=True):
    """What is written, and where."""

    PANEL: ClassVar = "Output"
    format: Annotated[
        OutputFormat | None, typer.Option("--format", help="What stdout carries.", show_default="table")
    ] = None
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to a file instead.")] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes.")] = False


def verb(function: Callable[..., int | None]) -> Callable[..., Any]:
    """Spell out the option groups that `function` names, so that typer sees single flags.

    What `function` returns becomes the exit code.
    """
    groups = {name: hint for name, hint in function.__annotations__.items() if _is_group(hint)}

    @wraps(function)
    def spelled_out(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = _gathered(group, values)
        raise typer.Exit(function(**values) or 0)

    spelled_out.__signature__ = inspect.Signature(list(_parameters(function, groups)))  # type: ignore[attr-defined]
    spelled_out.__annotations__ = {}
    return spelled_out


def _is_group(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _hints(group: type[msgspec.Struct]) -> dict[str, Any]:
    """What the fields of a group are annotated with, those of the groups that it varies among them."""
    return {name: hint for base in reversed(group.__mro__) for name, hint in inspect.get_annotations(base).items()}


def _gathered(group: type[msgspec.Struct], values: dict[str, Any]) -> msgspec.Struct:
    """The group made of its flags, which leave `values`; a group may hold others."""
    hints = _hints(group)
    return group(
        **{
            name: _gathered(hints[name], values) if _is_group(hints[name]) else values.pop(name)
            for name in group.__struct_fields__
        }
    )


def _parameters(function: Callable[..., Any], groups: dict[str, type[msgspec.Struct]]) -> Iterator[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    for name, parameter in inspect.signature(function).parameters.items():
        group = groups.get(name)
        if group is None:
            yield parameter.replace(kind=keyword)
            continue
        yield from _flags_of(group)


def _flags_of(group: type[msgspec.Struct]) -> Iterator[inspect.Parameter]:
    """The flags of a group, and of those that it holds."""
    hints = _hints(group)
    for name, default in _defaults(group):
        annotation = hints[name]
        if _is_group(annotation):
            yield from _flags_of(annotation)
            continue
        option = annotation.__metadata__[0]
        if option.rich_help_panel not in (None, group.PANEL):  # type: ignore[attr-defined]
            # A flag that another group has too stands under the heading of each.
            option = copy(option)
            annotation = Annotated[annotation.__origin__, option]
        option.rich_help_panel = group.PANEL  # type: ignore[attr-defined]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _defaults(group: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """The fields of a group, those without a default first; msgspec's own list would resolve every annotation."""
    names, defaults = group.__struct_fields__, group.__struct_defaults__
    return zip(names, (*[msgspec.NODEFAULT] * (len(names) - len(defaults)), *defaults), strict=True)


def given_in(group: msgspec.Struct) -> dict[str, Any]:
    """The flags of a group that somebody gave, by name."""
    values = {name: (getattr(group, name), default) for name, default in _defaults(type(group))}
    return {name: value for name, (value, default) in values.items() if value != default}


def tokens_or(text: str | None, flag: str, default: int) -> int:
    """The tokens that a flag gives, or the default."""
    return default if text is None else parse_tokens(text, flag)


def count_or(text: str | None, flag: str, default: int) -> int:
    """The count that a flag gives, or the default; read like tokens."""
    return default if text is None else parse_tokens(text, flag, "number")


def only_given(spellings: dict[str, str | None]) -> tuple[str, str | None]:
    """The one flag of `spellings` that was given and its value; the first and None where none was."""
    given = [(flag, value) for flag, value in spellings.items() if value is not None]
    if len(given) > 1:
        raise KvcalcError(f"{given[0][0]} and {given[1][0]} both say it", f"keep {given[0][0]}")
    return given[0] if given else (next(iter(spellings)), None)
