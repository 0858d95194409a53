"""What the command line says of one profile run, and which of its flags mean something to which backend."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kvcalc.cli.options import KvDtypeOption
from kvcalc.cli.profile_options import BackendOptions, GridOptions, MeasureOptions
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import load
from kvcalc.units import parse_tokens

if TYPE_CHECKING:
    from kvcalc.model.spec import ModelSpec
    from kvcalc.profiler.asking import Wanted


class Flags(msgspec.Struct, frozen=True):
    """Everything that the command line says of one run."""

    model: str | None
    grid: GridOptions
    kv: KvDtypeOption
    measure: MeasureOptions
    backend: BackendOptions

    def spec(self, model: str) -> "ModelSpec":
        """The model of that name or path, varied as asked."""
        grid = self.grid
        return load(model, grid.set_ or (), assume=grid.assume, download=grid.download)

    def wanted(self) -> "Wanted":
        """What to measure, None where a default decides."""
        from kvcalc.profiler.asking import Wanted

        grid = self.grid
        return Wanted(
            contexts=_counts(grid.ctx, "--ctx"),
            batches=_counts(grid.batch, "--batch"),
            layers=grid.layers,
            with_mlp=grid.with_mlp,
            kv_dtype=self.kv.kv_dtype,
            dtype=grid.dtype,
            state_dtype=grid.state_dtype,
            encoder_tokens=_count(grid.encoder_tokens, "--encoder-tokens"),
            page=_count(grid.page, "--paged"),
            seed=self.measure.seed,
            seconds_per_point=self.measure.seconds,
        )

    def tolerance(self) -> float | None:
        """The share by which times may be off, None where they are not judged."""
        text = self.measure.tolerance
        if text is None:
            return None
        try:
            percent = float(text.removesuffix("%"))
        except ValueError:
            percent = -1.0
        if not 0 < percent <= 1000:
            raise KvcalcError(f"--tolerance {text!r} is no percentage", "write 20% or 20")
        return percent / 100

    def one(self, flag: str, default: int) -> int:
        """The only count that `--ctx` or `--batch` gives; KvcalcError where it gives several."""
        counts = _counts({"--ctx": self.grid.ctx, "--batch": self.grid.batch}[flag], flag) or [default]
        if len(counts) > 1:
            raise KvcalcError(
                f"{flag} gives {len(counts)} numbers, and a server is asked for one shape",
                "name one, or run several times",
            )
        return counts[0]

    def output_tokens(self) -> int:
        """Tokens that each stream of a server is to send."""
        return parse_tokens(self.backend.output, "--output-tokens", "number")


def _count(given: str | None, flag: str) -> int | None:
    return None if given is None else parse_tokens(given, flag, "number")


def _counts(given: list[str] | None, flag: str) -> list[int] | None:
    """Counts behind commas and repeated flags, in the order given."""
    if not given:
        return None
    return [parse_tokens(item, flag, "number") for text in given for item in text.split(",")]


class _Taken(NamedTuple):
    """Where a flag stands in Flags, and the backends to which it means something."""

    group: str
    field: str
    backends: tuple[str, ...]


def refuse_foreign(flags: Flags) -> None:
    """KvcalcError for the first flag that was given and means nothing to the backend, or nothing without a MODEL."""
    backend = flags.backend.backend
    for flag, taken in _TAKEN.items():
        if backend not in taken.backends and _is_given(flags, taken):
            raise KvcalcError(
                f"{flag}: --backend {backend} {_LEAVES[backend]}",
                f"leave {flag} out, or use --backend {' or '.join(taken.backends)}",
            )
    if backend == "openai" and flags.model is None:
        _refuse_without_model(flags, (flag for flag, taken in _TAKEN.items() if backend in taken.backends))


def _refuse_without_model(flags: Flags, known: Iterable[str]) -> None:
    for flag in known:
        if flag not in _ABOUT_SERVERS and _is_given(flags, _TAKEN[flag]):
            raise KvcalcError(f"{flag} is about a prediction, and no MODEL is named", f"name one, or leave {flag} out")


def _is_given(flags: Flags, taken: _Taken) -> bool:
    options: Any = getattr(flags, taken.group)
    defaults = dict(zip(options.__struct_fields__, options.__struct_defaults__, strict=True))
    # The key may stand in the environment for good.
    default = os.environ.get("KVCALC_API_KEY") if taken.field == "api_key" else defaults[taken.field]
    return bool(getattr(options, taken.field) != default)


_LEAVES = {
    "reference": "asks no server",
    "transformers": "leaves that to the library",
    "openai": "leaves that to the server",
}
_OWN, _LOCAL, _PREDICTED, _REMOTE = ("reference",), ("reference", "transformers"), ("reference", "openai"), ("openai",)
_TAKEN = {
    "--layers": _Taken("grid", "layers", _OWN),
    "--with-mlp": _Taken("grid", "with_mlp", _OWN),
    "--encoder-tokens": _Taken("grid", "encoder_tokens", _OWN),
    "--paged": _Taken("grid", "page", _OWN),
    "--tp": _Taken("measure", "tp", _OWN),
    "--device": _Taken("measure", "device", _LOCAL),
    "--threads": _Taken("measure", "threads", _LOCAL),
    "--seconds": _Taken("measure", "seconds", _LOCAL),
    "--tolerance": _Taken("measure", "tolerance", _LOCAL),
    "--seed": _Taken("measure", "seed", _LOCAL),
    "--kv-dtype": _Taken("kv", "kv_dtype", _PREDICTED),
    "--state-dtype": _Taken("grid", "state_dtype", _PREDICTED),
    "--set": _Taken("grid", "set_", _PREDICTED),
    "--dtype": _Taken("grid", "dtype", tuple(_LEAVES)),
    "--assume": _Taken("grid", "assume", tuple(_LEAVES)),
    "--download": _Taken("grid", "download", tuple(_LEAVES)),
    "--url": _Taken("backend", "url", _REMOTE),
    "--served-model": _Taken("backend", "served", _REMOTE),
    "--api-key": _Taken("backend", "api_key", _REMOTE),
    "--output-tokens": _Taken("backend", "output", _REMOTE),
}
_ABOUT_SERVERS = ("--url", "--served-model", "--api-key", "--output-tokens")
