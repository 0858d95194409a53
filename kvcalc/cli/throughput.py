"""kvcalc throughput: how fast a model runs on a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import typer

from kvcalc.cli.completion import complete_gpu, complete_timed_engine, complete_weights
from kvcalc.cli.emit import emit
from kvcalc.cli.engine_flags import count, share, tokens
from kvcalc.cli.options import (
    Assume,
    Download,
    Dtype,
    EncoderTokens,
    KvDtypeOption,
    Model,
    OutputOptions,
    Overrides,
    ShardingOptions,
    StateDtype,
    tokens_or,
    verb,
)
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec

if TYPE_CHECKING:
    from kvcalc.speed.calibrated import CalibrationFile
    from kvcalc.speed.question import Question
    from kvcalc.speed.setting import Use
    from kvcalc.speed.throughput import Load


class LoadOptions(msgspec.Struct, frozen=True):
    """Prompts, answers, and how many at once."""

    PANEL: ClassVar = "Workload"
    isl: Annotated[
        int | None,
        typer.Option("--isl", "--prompt-tokens", metavar="TOKENS", help="A prompt's (1,024).", parser=tokens("--isl")),
    ] = None
    osl: Annotated[
        int | None,
        typer.Option("--osl", "--output-tokens", metavar="TOKENS", help="An answer's (128).", parser=tokens("--osl")),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="Sequences at once (1); with --served requests.", parser=count("--batch")),
    ] = None
    shared_prefix: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Tokens of every prompt that are in the cache already.")
    ] = None
    draft_tokens: Annotated[int, typer.Option(metavar="N", help="Drafted tokens that a step checks.", min=0)] = 0
    acceptance: Annotated[
        float | None, typer.Option(metavar="SHARE", help="How often one is right: 0.7.", parser=share("--acceptance"))
    ] = None
    served: Annotated[bool, typer.Option("--served", help="TPOT and TTFT under load too.")] = False
    rate: Annotated[str | None, typer.Option(metavar="RATE", help="Requests a second: 2/s (with --served).")] = None


class NumberOptions(msgspec.Struct, frozen=True):
    """Formats of what is multiplied and kept."""

    PANEL: ClassVar = "Formats"
    dtype: Dtype = None
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="The weights': fp8, nvfp4; llama.cpp's q8_0, q4_0, q4_k_m.",
            autocompletion=complete_weights,
        ),
    ] = None
    state_dtype: StateDtype = None
    encoder_tokens: EncoderTokens = None
    set_: Overrides = None
    assume: Assume = False
    download: Download = False


class MachineOptions(msgspec.Struct, frozen=True):
    """On what it runs."""

    PANEL: ClassVar = "Machine"
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="The GPU (kvcalc gpus list).", autocompletion=complete_gpu)
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="vllm, sglang, tensorrt-llm, llama.cpp, transformers, gpt-fast, torch.",
            autocompletion=complete_timed_engine,
        ),
    ] = None
    attention_dp: Annotated[
        bool, typer.Option("--attention-dp", help="--dp ranks of --tp keep attention whole and share the rest.")
    ] = False
    calibration: Annotated[Path | None, typer.Option(metavar="FILE", help="Factors that kvcalc calibrate found.")] = (
        None
    )


@verb
def throughput(
    model: Model,
    *,
    load: LoadOptions,
    kv: KvDtypeOption,
    numbers: NumberOptions,
    machine: MachineOptions,
    sharding: ShardingOptions,
    output: OutputOptions,
) -> int:
    """Prefill and decode time, tokens a second, what limits them, and how sure that is."""
    from kvcalc.speed.report import throughput_report

    question = question_of(model, load, kv, numbers, machine, sharding, force=output.force)
    report = throughput_report(question.answer, question.calibration)
    emit(report, output)
    return report.exit_code


def question_of(
    model: str | ModelSpec,
    load: LoadOptions,
    kv: KvDtypeOption,
    numbers: NumberOptions,
    machine: MachineOptions,
    sharding: ShardingOptions,
    *,
    force: bool = False,
) -> "Question":
    """What the flags ask; the model by its name, or loaded as they say."""
    from kvcalc.model.catalog import load as load_model
    from kvcalc.speed.question import Question

    if machine.gpu is None:
        raise KvcalcError("no GPU is named", "--gpu h100-sxm; kvcalc gpus list shows them")
    calibration = _calibration(machine, machine.gpu)
    if isinstance(model, str):
        model = load_model(model, numbers.set_ or (), assume=numbers.assume, download=numbers.download)
    return Question(
        spec=model,
        gpu=machine.gpu,
        load=_load(load),
        use=_use(numbers, kv, machine, sharding),
        engine=machine.engine,
        served=load.served,
        calibration=calibration,
        force=force,
    )


def _load(options: LoadOptions) -> "Load":
    from kvcalc.speed.throughput import Load

    if options.rate is not None and not options.served:
        raise KvcalcError("--rate is the rate at which a server is asked", "add --served")
    if bool(options.draft_tokens) != (options.acceptance is not None):
        flag = f"--draft-tokens {options.draft_tokens}" if options.draft_tokens else "--acceptance"
        message = f"{flag}: drafting needs both its tokens and how often one is right"
        raise KvcalcError(message, "write --draft-tokens 3 --acceptance 0.7")
    prefix = options.shared_prefix
    given = {"isl": options.isl, "osl": options.osl, "batch": options.batch, "acceptance": options.acceptance}
    return Load(
        shared_prefix=0 if prefix is None else tokens_or(prefix, "--shared-prefix", 0),
        draft_tokens=options.draft_tokens,
        rate=None if options.rate is None else parse_rate(options.rate),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


def parse_rate(text: str) -> float:
    """Requests a second: `2/s` is 2, `90/min` is 1.5."""
    number, _, unit = text.partition("/")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if unit.strip() not in _SECONDS or not 0 < value < float("inf"):
        raise KvcalcError(f"--rate {text!r} is no rate above 0", "write 2/s or 90/min")
    return value / _SECONDS[unit.strip()]


_SECONDS = {"s": 1, "min": 60, "h": 3600}


def _use(numbers: NumberOptions, kv: KvDtypeOption, machine: MachineOptions, sharding: ShardingOptions) -> "Use":
    from kvcalc.cache.sharding import Sharding
    from kvcalc.speed.setting import Use

    encoder = numbers.encoder_tokens
    return Use(
        weights=numbers.weights,
        kv_dtype=kv.kv_dtype,
        dtype=numbers.dtype,
        state_dtype=numbers.state_dtype,
        encoder_tokens=None if encoder is None else tokens_or(encoder, "--encoder-tokens", 1),
        sharding=Sharding(**msgspec.structs.asdict(sharding)),
        attention_dp=machine.attention_dp,
    )


def _calibration(machine: MachineOptions, gpu: str) -> "CalibrationFile | None":
    if machine.calibration is None:
        return None
    from kvcalc.speed.calibrated import read_calibration

    return read_calibration(machine.calibration, gpu, machine.engine)
