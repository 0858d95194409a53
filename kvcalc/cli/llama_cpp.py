"""llama.cpp's own flags, with its names and meanings: they need `--engine llama.cpp`."""

from typing import Annotated, Any, ClassVar

import msgspec
import typer

from kvcalc.cache.formats import AUTO
from kvcalc.cli.options import RequestOptions, ShardingOptions, count_or, tokens_or
from kvcalc.cli.request import Asked, ask_about, batch_flag, context_flag, load_asked
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import default_context
from kvcalc.units import parse_shares

_Count = str | None


class LlamaCppOptions(msgspec.Struct, frozen=True):
    """What changes the memory of a llama.cpp context; `-c` and `-np` stand with the workload."""

    PANEL: ClassVar = "llama.cpp (--engine llama.cpp; -c is the total over all slots, -np the slots)"
    batch_size: Annotated[
        _Count, typer.Option("--batch-size", "-b", metavar="N", help="Tokens handed over at once (2048).")
    ] = None
    ubatch_size: Annotated[
        _Count, typer.Option("--ubatch-size", "-ub", metavar="N", help="Tokens computed at once (512).")
    ] = None
    cache_type_k: Annotated[
        str | None, typer.Option("--cache-type-k", "-ctk", metavar="TYPE", help="Type of K (f16).")
    ] = None
    cache_type_v: Annotated[
        str | None, typer.Option("--cache-type-v", "-ctv", metavar="TYPE", help="Type of V (f16).")
    ] = None
    flash_attn: Annotated[
        str | None, typer.Option("--flash-attn", "-fa", metavar="on|off|auto", help="auto counts as on.")
    ] = None
    kv_unified: Annotated[bool, typer.Option("--kv-unified", "-kvu", help="All slots share one stream.")] = False
    swa_full: Annotated[bool, typer.Option("--swa-full", help="Windows keep everything.")] = False
    mla: Annotated[
        bool, typer.Option("--mla/--no-mla", help="Latents; a GGUF from before April 2025 has K and V of every head.")
    ] = True
    tensor_split: Annotated[
        str | None, typer.Option("--tensor-split", "-ts", metavar="N,N,...", help="Shares of the devices: 3,1.")
    ] = None
    n_gpu_layers: Annotated[
        _Count, typer.Option("--n-gpu-layers", "-ngl", metavar="N", help="Layers on devices, the output among them.")
    ] = None
    spec_draft_n_max: Annotated[
        _Count,
        typer.Option("--spec-draft-n-max", "--draft-max", metavar="N", help="Draft tokens of speculation."),
    ] = None


def ask_llama_cpp(
    model: str | ModelSpec, request: RequestOptions, kv_dtype: str, options: LlamaCppOptions, sharding: ShardingOptions
) -> tuple[Asked, dict[str, Any]]:
    """The size that the flags ask for, and the flags of the engine: `-c` is the total over `-np` slots."""
    spec = load_asked(model, request)
    slots = count_or(batch_flag(request)[1], "-np", 1)
    context, total = context_flag(request)[1], None
    if request.ctx_size is not None:
        total = tokens_or(request.ctx_size, "-c", 1)
        context = str(_share(total, slots))
    plain = msgspec.structs.replace(request, ctx=context, batch=str(slots), ctx_size=None, parallel=None)
    asked = ask_about(spec, plain, _kv_dtype(spec, kv_dtype, options), sharding, default_context([spec]))
    return asked, flags_of(options, total)


def _share(total: int, slots: int) -> int:
    """The tokens of one slot."""
    if total < slots:
        raise KvcalcError(f"-c {total:,} is less than a token for each of {slots:,} slots", "-c is the total: raise it")
    return total // slots


def _kv_dtype(spec: ModelSpec, kv_dtype: str, options: LlamaCppOptions) -> str:
    """The two types as one request, so that the need is counted in them too."""
    k, v = options.cache_type_k, options.cache_type_v
    if k is None and v is None:
        return kv_dtype
    if kv_dtype != AUTO:
        raise KvcalcError("--kv-dtype and -ctk or -ctv both say it", "keep -ctk and -ctv")
    from kvcalc.engines.llama_cpp_types import DEFAULT_TYPE, kv_dtype_of

    return kv_dtype_of(spec, k or DEFAULT_TYPE, v or DEFAULT_TYPE)


def flags_of(options: LlamaCppOptions, total: int | None) -> dict[str, Any]:
    """The values of its flags, with the defaults of those that were not given."""
    """The engine's flags that were given."""
    switch = (options.flash_attn or "auto").casefold()
    if switch not in _SWITCH:
        raise KvcalcError(f"-fa {switch!r} is neither on nor off", "use -fa on, off or auto")
    counts = {name: getattr(options, name) for name in _COUNTS}
    return {
        "ctx_size": total,
        "flash_attn": _SWITCH[switch],
        "kv_unified": options.kv_unified,
        "swa_full": options.swa_full,
        "mla": options.mla,
        "tensor_split": () if options.tensor_split is None else parse_shares(options.tensor_split, "-ts"),
        **{name: count_or(text, f"--{name.replace('_', '-')}", 1) for name, text in counts.items() if text is not None},
    }


_COUNTS = ("batch_size", "ubatch_size", "spec_draft_n_max", "n_gpu_layers")

_SWITCH = {"on": True, "off": False, "auto": True, "1": True, "0": False, "-1": True}
"""What -fa takes: is_truthy, is_falsey and is_autoy of common/arg.cpp."""
