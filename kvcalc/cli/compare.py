"""kvcalc compare."""

from typing import Annotated

import typer

from kvcalc.cli.emit import emit
from kvcalc.cli.options import Models, OutputOptions, RequestOptions, ShardingOptions, complete_format, verb
from kvcalc.cli.request import ask_about, load_asked
from kvcalc.sizing.need import default_context

KvDtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--kv-dtype",
        "--kv-cache-dtype",
        metavar="FORMATS",
        help="One case a format: bf16,fp8, or the flag several times.",
        autocompletion=complete_format,
    ),
]


@verb
def compare(
    models: Models,
    request: RequestOptions,
    sharding: ShardingOptions,
    output: OutputOptions,
    kv_dtype: KvDtypes = None,
) -> None:
    """Models or formats side by side, with ratios to the first."""
    from kvcalc.sizing.compare import compare_report

    specs = [load_asked(model, request) for model in models]
    context = default_context(specs)
    asked = [ask_about(spec, request, form, sharding, context) for spec in specs for form in _formats(kv_dtype)]
    notes = tuple(dict.fromkeys(note for one in asked for note in one.notes))
    emit(compare_report([one.size for one in asked]), output, notes)


def _formats(given: list[str] | None) -> list[str]:
    """One request a format; an item that names components (index=bf16) is one request as a whole."""
    return [form for item in given or ["auto"] for form in ([item] if "=" in item else item.split(","))]
