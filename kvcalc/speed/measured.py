"""Measurements, a row each, as points to calibrate on or to be held against.

Columns: model, precision, gpu, batch, isl, osl, engine, metric, value, unit, and where they are not 1, `auto` or the
middle of the answer: tp, pp, dp, ep, kv_precision, context_mid; date, device and driver are kept; more are passed over.
`tpot_ms` is served with `batch` requests at work; `output_tok_s_total` counts a static batch from its prompts on; the
other metrics are steps or prompts on their own.
"""

import datetime
import gzip
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from kvcalc.cache.formats import AUTO
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError, UnknownNameError, shorten
from kvcalc.model.catalog import load
from kvcalc.model.spec import ModelSpec
from kvcalc.speed.calibration import Part, Point
from kvcalc.speed.kernels import Cost, Setting
from kvcalc.speed.room import most_sequences
from kvcalc.speed.setting import Use, decode_costs, machine_for, make_setting, prefill_costs

Positive = Annotated[int, msgspec.Meta(ge=1)]
Tokens = Annotated[int, msgspec.Meta(ge=0)]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One row; `batch` counts all data-parallel ranks, `value` is in `unit`. Without `context_mid` half is answered."""

    model: str
    precision: str
    kv_precision: str = AUTO
    gpu: str
    tp: Positive = 1
    pp: Positive = 1
    dp: Positive = 1
    ep: Positive = 1
    batch: Positive
    isl: Tokens
    osl: Tokens
    context_mid: Annotated[float, msgspec.Meta(ge=1, le=1e12)] | None = None
    engine: str
    metric: str
    value: float
    unit: str
    category: str = ""
    date: datetime.date | None = None
    device: str | None = None
    driver: str | None = None

    @property
    def context(self) -> int:
        """Tokens of a sequence in the middle of what was measured."""
        return self.isl + self.osl // 2 if self.context_mid is None else int(self.context_mid)

    @property
    def configuration(self) -> tuple[Hashable, ...]:
        """What tells it from others but for the batch."""
        ranks = self.tp, self.pp, self.dp, self.ep
        return (self.model, self.precision, self.kv_precision, *ranks, self.isl, self.osl, self.context, self.metric)

    @property
    def predicts(self) -> str:
        """Which prediction it is a measurement of: `prefill`, `decode` or `served`."""
        return METRICS[self.metric].predicts


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
        raise _unreadable(row, str(error)) from error
    if found.metric not in METRICS:
        raise UnknownNameError("metric", found.metric, METRICS, f"known: {', '.join(METRICS)}")
    unit = METRICS[found.metric].unit
    if found.unit != unit:
        raise KvcalcError(f"{found.metric} in {shorten(found.unit)!r}", f"its unit is {unit}")
    if not 0 < found.value < float("inf"):
        raise KvcalcError(f"{found.metric} {found.value}", "a measurement is a number above 0")
    empty = [name for name in METRICS[found.metric].needs if not getattr(found, name)]
    if empty:
        raise KvcalcError(f"{found.metric} with {' and '.join(empty)} 0", f"{found.metric} needs its tokens")
    return found


def _unreadable(row: Mapping[str, str], complaint: str) -> KvcalcError:
    """What msgspec complains of, with the cell that it is about."""
    reason, _, column = complaint.partition(" - at `$.")
    column = column.rstrip("`")
    cell = f"{column} {shorten(row[column])!r}: " if column in row else ""
    return KvcalcError(f"{cell}{reason[:1].casefold()}{reason[1:]}", "check the columns of that row")


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
    return METRICS[row.metric].point(row, setting)


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


def _prompts(row: Measurement, setting: Setting) -> list[Cost]:
    """All prompts of the batch at once, a data-parallel rank its share of them."""
    return prefill_costs(setting, row.isl, 0, -(-row.batch // row.dp))


def _first_token(row: Measurement, setting: Setting) -> Point:
    return Point((Part(1.0, _prompts(row, setting)),), row.value / 1e3)


def _decode(row: Measurement, setting: Setting) -> Point:
    return Point((Part(1.0, decode_costs(setting, row.batch, row.context)),), row.batch / row.value)


def _prefill(row: Measurement, setting: Setting) -> Point:
    return Point((Part(1.0, _prompts(row, setting)),), row.isl * row.batch / row.value)


def _static(row: Measurement, setting: Setting) -> Point:
    """One token of a static batch: a share of its prompts, and a step in the middle of its answers."""
    prompts = Part(1 / row.osl, _prompts(row, setting))
    step = Part(1.0, decode_costs(setting, row.batch, row.isl + row.osl // 2))
    return Point((prompts, step), row.batch / row.value)


def _static_per_gpu(row: Measurement, setting: Setting) -> Point:
    gpus = setting.model.sharding.tp * row.pp
    return _static(msgspec.structs.replace(row, value=row.value * gpus), setting)


class Metric(NamedTuple):
    """Something to measure: its unit, which prediction it is held against, and how a row of it becomes a point.

    `needs` are the columns of tokens that cannot be 0.
    """

    unit: str
    predicts: str
    point: Callable[[Measurement, Setting], Point]
    needs: tuple[str, ...] = ()


METRICS = {
    "tpot_ms": Metric("ms", "served", _served, ("isl", "osl")),
    "ttft_ms": Metric("ms", "prefill", _first_token, ("isl",)),
    "decode_tok_s": Metric("tok/s", "decode", _decode),
    "decode_tok_s_total": Metric("tok/s", "decode", _decode),
    "prefill_tok_s": Metric("tok/s", "prefill", _prefill, ("isl",)),
    "output_tok_s_total": Metric("tok/s", "decode", _static, ("isl", "osl")),
    "output_tok_s_per_gpu": Metric("tok/s/GPU", "decode", _static_per_gpu, ("isl", "osl")),
}
