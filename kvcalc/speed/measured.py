"""Measurements, a row each, as points to calibrate on or to be held against.

Columns: model, precision, kv_precision, gpu, tp, pp, dp, ep, batch, isl, osl, context_mid, engine, metric, value, unit;
more are passed over. `tpot_ms` is served with `batch` requests at work; `output_tok_s_total` counts a static batch from
its prompts on; the other metrics are steps or prompts on their own.
"""

import gzip
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError, shorten
from kvcalc.model.catalog import load
from kvcalc.model.spec import ModelSpec
from kvcalc.speed.calibration import Part, Point
from kvcalc.speed.kernels import Setting
from kvcalc.speed.room import most_sequences
from kvcalc.speed.setting import Use, decode_costs, machine_for, make_setting, prefill_costs


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One row; `batch` counts all data-parallel ranks, `value` is in `unit`."""

    model: str
    precision: str
    kv_precision: str
    gpu: str
    tp: int
    pp: int = 1
    dp: int = 1
    ep: int = 1
    batch: int
    isl: int
    osl: int
    context_mid: float
    engine: str
    metric: str
    value: float
    unit: str
    category: str = ""

    @property
    def context(self) -> int:
        """Tokens of a sequence in the middle of what was measured."""
        return int(self.context_mid)


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV, gzipped or not, by the names of its columns."""
    import csv

    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    yield from csv.DictReader(text.splitlines())


def measurement_of(row: Mapping[str, str]) -> Measurement:
    """A row as numbers; KvcalcError where a column is missing, is no number, or has another unit than its metric."""
    try:
        found = msgspec.convert(dict(row), Measurement, strict=False)
    except msgspec.ValidationError as error:
        raise KvcalcError(f"a row cannot be read: {error}", "check its columns") from error
    if found.metric not in METRICS:
        raise KvcalcError(f"metric {shorten(found.metric)!r} is not known", f"known: {', '.join(METRICS)}")
    unit = METRICS[found.metric][0]
    if found.unit != unit:
        raise KvcalcError(f"{found.metric} in {shorten(found.unit)!r}", f"its unit is {unit}")
    if not 0 < found.value < float("inf"):
        raise KvcalcError(f"{found.metric} {found.value}", "a measurement is a number above 0")
    return found


def use_of(row: Measurement) -> Use:
    """How the model of a row was used; its data-parallel ranks are those of attention-DP."""
    sharding = Sharding(tp=row.tp * row.dp, pp=row.pp, dp=row.dp, ep=row.ep)
    return Use(weights=row.precision, kv_dtype=row.kv_precision, sharding=sharding, attention_dp=row.dp > 1)


def setting_of(row: Measurement, spec: ModelSpec | None = None) -> Setting:
    """The setting of a row; `spec` where its model's name is no name of the catalogue."""
    use = use_of(row)
    return make_setting(spec or load(row.model), machine_for(row.gpu, row.engine, use), use)


def point_of(row: Measurement, setting: Setting) -> Point:
    """The row in seconds, with the parts that its prediction is the sum of."""
    return METRICS[row.metric][1](row, setting)


def _served(row: Measurement, setting: Setting) -> Point:
    """A step of those that fit, in the middle of their answers, and the prompts that are taken in meanwhile."""
    batch = running(row, setting)
    waiting = max(0.0, batch / row.dp - 1) * setting.machine.free["prefill_share"] / row.osl
    step = Part(1.0, decode_costs(setting, batch, row.isl + row.osl // 2))
    return Point((step, Part(waiting, prefill_costs(setting, row.isl), interferes=True)), row.value / 1e3)


def running(row: Measurement, setting: Setting) -> int:
    """Requests that are at work at once: those whose whole context fits, where any does."""
    try:
        return max(1, min(row.batch, int(most_sequences(setting, row.isl + row.osl))))
    except KvcalcError:
        # It ran, so the figure of the card or of the weights is too careful; that says nothing about the batch.
        return row.batch


def _first_token(row: Measurement, setting: Setting) -> Point:
    return Point((Part(1.0, prefill_costs(setting, row.isl, 0, row.batch)),), row.value / 1e3)


def _decode(row: Measurement, setting: Setting) -> Point:
    return Point((Part(1.0, decode_costs(setting, row.batch, row.context)),), row.batch / row.value)


def _prefill(row: Measurement, setting: Setting) -> Point:
    costs = prefill_costs(setting, row.isl, 0, row.batch)
    return Point((Part(1.0, costs),), row.isl * row.batch / row.value)


def _static(row: Measurement, setting: Setting) -> Point:
    """One token of a static batch: a share of its prompts, and a step in the middle of its answers."""
    prompts = Part(1 / row.osl, prefill_costs(setting, row.isl, 0, row.batch))
    step = Part(1.0, decode_costs(setting, row.batch, row.isl + row.osl // 2))
    return Point((prompts, step), row.batch / row.value)


def _static_per_gpu(row: Measurement, setting: Setting) -> Point:
    gpus = setting.model.sharding.tp * row.pp
    return _static(msgspec.structs.replace(row, value=row.value * gpus), setting)


METRICS: dict[str, tuple[str, Callable[[Measurement, Setting], Point]]] = {
    "tpot_ms": ("ms", _served),
    "ttft_ms": ("ms", _first_token),
    "decode_tok_s": ("tok/s", _decode),
    "decode_tok_s_total": ("tok/s", _decode),
    "prefill_tok_s": ("tok/s", _prefill),
    "output_tok_s_total": ("tok/s", _static),
    "output_tok_s_per_gpu": ("tok/s/GPU", _static_per_gpu),
}
"""What was measured: its unit, and how a row of it becomes a point."""
