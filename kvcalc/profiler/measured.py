"""Runs of `kvcalc profile` as points to calibrate on, beside CSVs of them.

A run calibrates what ran: kvcalc's own layers under the engine name `torch`, transformers' models under
`transformers`. Of the own layers a decode step is taken as its CUDA graph took it, without the host's time; a prompt
as it was timed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.kinds import AnyComponent
from kvcalc.cache.sharding import WHOLE, Sharding
from kvcalc.errors import KvcalcError, shorten
from kvcalc.hardware.gpus import match_device
from kvcalc.model.feed_forward import AnyMlp
from kvcalc.model.spec import Layer, ModelSpec
from kvcalc.profiler.documents import PointDocument, ProfileDocument
from kvcalc.profiler.record import read_run
from kvcalc.speed.calibration import Part, Point
from kvcalc.speed.kernels import Cost, Setting
from kvcalc.speed.measured import Measurement
from kvcalc.speed.points import Built, Found, read_points, standing_at
from kvcalc.speed.setting import Use, decode_costs, machine_for, make_setting, prefill_costs

ENGINES = {"reference": "torch", "transformers": "transformers"}
"""Under which engine's name a backend's times stand."""
SMALL_KERNELS, OF_MIXERS = 58, 46
"""Small kernels that a layer of the reference starts in a step, and those of them that stay without a feed-forward
part; tests/profiler/test_measured.py counts them at dispatch."""


def read_measured(paths: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """Every point of some CSVs and runs, and notes on those that cannot be used."""
    found: list[Found] = []
    notes: list[str] = []
    for path in paths:
        if path.suffix.casefold() != ".json":
            found += read_points(path)
            continue
        run = _Run(str(path), read_run(path))
        found += run.points()
        notes += run.notes
    return found, notes


class _Timed(NamedTuple):
    """One time of a point of a run: what it is, how many tokens a sequence have come in all, and the seconds."""

    metric: str
    tokens: int
    seconds: float


class _Run:
    """A run file that was read; KvcalcError where no point of such a run says anything of a GPU."""

    def __init__(self, where: str, document: ProfileDocument) -> None:
        self.where, self.document, self.request = where, document, document["request"]
        self.notes: list[str] = []
        with standing_at(where):
            self.gpu = self._gpu()
            self.spec = self._spec()

    def _gpu(self) -> str:
        environment, backend = self.document["environment"], self.request["backend"]
        if backend not in ENGINES:
            raise KvcalcError(
                "a server's run does not say on which GPU it ran",
                "write a CSV row: metric tpot_ms, with gpu and engine",
            )
        if environment["device"] == "cpu":
            raise KvcalcError("it ran on a CPU, whose peaks are not known", "kvcalc profile --device cuda on the GPU")
        gpu = match_device(environment["device_name"], environment["memory_bytes"])
        if gpu is None:
            raise KvcalcError(f"{shorten(environment['device_name'])!r} is no known GPU", "kvcalc gpus list shows them")
        return gpu.name

    def _spec(self) -> ModelSpec:
        """The layers that ran: those that a run leaves out are none of the spec's."""
        request = self.request
        if request["dtype"] not in ("bf16", "fp16"):
            message = f"it ran in {request['dtype']}, and only bf16 and fp16 matrices are priced at their own rate"
            raise KvcalcError(message, "kvcalc profile --dtype bf16")
        spec = spec_of(self.document["spec"])
        if not self.is_whole:
            left_out = _left_out(spec, request["with_mlp"])
            if left_out:
                raise KvcalcError(f"the reference runs {left_out}", "time a server, and write its points as a CSV")
        if not request["with_mlp"]:
            layers = tuple(msgspec.structs.replace(layer, mlp=None) for layer in spec.layers)
            spec = msgspec.structs.replace(spec, layers=layers)
        return spec

    @property
    def is_whole(self) -> bool:
        """Whether a library's whole model ran, its LM head too."""
        return self.request["backend"] == "transformers"

    def points(self) -> list[Found]:
        """Its prefills and decode steps; those that cannot be used are noted."""
        request = self.request
        if request["page_tokens"] is not None or not self._is_plain():
            self.notes.append(f"{self.where}: left out, its caches are gathered or unpacked before they are read")
            return []
        found = [self._found(point, timed) for point in self.document["points"] for timed in self._times(point)]
        if not found and not self.notes:
            self.notes.append(f"{self.where}: left out, it has no finished point")
        return found

    def _is_plain(self) -> bool:
        """Whether caches lie in a format that attention reads as it is."""
        formats = {one["format"] for point in self.document["points"] for one in point["components"]}
        return formats <= {"bf16", "fp16"}

    def _times(self, point: PointDocument) -> Iterator[_Timed]:
        prefill, decode = point["prefill"], point["decode"]
        if prefill is not None:
            yield _Timed("prefill_tok_s", prefill["tokens"], prefill["median_seconds"])
        if decode is None:
            return
        seconds = decode["median_seconds"] if self.is_whole else decode["graph_seconds"]
        if seconds is None:
            place = f"{point['context_tokens']:,} tokens x {point['batch']}"
            self.notes.append(f"{self.where}: {place}: a step without a CUDA graph is the host's time: left out")
            return
        yield _Timed("decode_tok_s_total", point["context_tokens"], seconds)

    def _found(self, point: PointDocument, timed: _Timed) -> Found:
        request, environment = self.request, self.document["environment"]
        batch, is_prompt = point["batch"], timed.metric == "prefill_tok_s"
        row = msgspec.convert(
            {
                "model": self.document["model"]["name"],
                "precision": request["dtype"],
                "kv_precision": request["kv_dtype"],
                "gpu": self.gpu,
                "tp": request["tp"],
                "batch": batch,
                "isl": timed.tokens,
                "osl": 0,
                "engine": ENGINES[request["backend"]],
                "metric": timed.metric,
                "value": batch * (timed.tokens if is_prompt else 1) / timed.seconds,
                "unit": "tok/s",
                "date": environment["started"][:10],
                "device": environment["device_name"],
                "driver": environment["driver"],
            },
            Measurement,
        )
        where = f"{self.where} ({point['context_tokens']:,} x {batch}, {row.predicts})"
        return Found(where, row, lambda: self._built(row, timed))

    def _built(self, row: Measurement, timed: _Timed) -> Built:
        setting = self._setting(row)
        if row.predicts == "prefill":
            costs = prefill_costs(setting, timed.tokens, 0, row.batch)
        else:
            costs = decode_costs(setting, row.batch, timed.tokens)
        ran = costs if self.is_whole else list(_as_run(costs, self.request["with_mlp"]))
        return Built(Point((Part(1.0, ran),), timed.seconds), setting)

    def _setting(self, row: Measurement) -> Setting:
        request = self.request
        use = Use(
            kv_dtype=request["kv_dtype"],
            dtype=request["dtype"],
            encoder_tokens=request["encoder_tokens"],
            sharding=Sharding(tp=request["tp"]),
        )
        return make_setting(self.spec, machine_for(row.gpu, row.engine, use), use)


def _left_out(spec: ModelSpec, with_mlp: bool) -> str:
    """What of these layers the reference runs in another way than the model of a GPU has it, empty where nothing is."""
    for layer in spec.layers:
        for one in layer.components:
            if len(layer.components) > 1 or not _is_one_kernel(one):
                return f"`{one.name}` in many operations where engines run one kernel"
        if with_mlp and layer.mlp is not None and layer.mlp.routed(spec.hidden_size or 1, WHOLE) is not None:
            return "experts one by one from the host, where engines group them"
    return ""


WIDEST_HEAD = 256
"""torch's flash attention on CUDA takes heads up to this width (aten native/transformers/cuda/sdp_utils.cpp)."""


def _is_one_kernel(one: Component) -> bool:
    """Whether the reference hands its whole cache to one fused kernel: K and V of one width, nothing chosen or cut."""
    widths = {part.width for part in one.parts(WHOLE)}
    is_whole = one.grows and one.span.ratio == 1 and one.top_k is None and not one.selects
    return is_whole and len(widths) == 1 and max(widths) <= WIDEST_HEAD


def _as_run(costs: Sequence[Cost], with_mlp: bool) -> Iterator[Cost]:
    """Without the LM head and a server's host, and without the small kernels of feed-forward parts that did not run."""
    for cost in costs:
        if cost.term in ("LM head", "host"):
            continue
        yield cost._replace(start=cost.start * OF_MIXERS / SMALL_KERNELS) if _is_less(cost, with_mlp) else cost


def _is_less(cost: Cost, with_mlp: bool) -> bool:
    return cost.term == "small kernels" and not with_mlp


def spec_of(document: dict[str, Any]) -> ModelSpec:
    """The spec that a run file carries; KvcalcError where it is none of this version."""
    try:
        stacks = {name: tuple(map(_layer, document.get(name, ()))) for name in ("layers", "draft_layers", "encoder")}
        rest = {name: value for name, value in document.items() if name not in stacks}
        spec = msgspec.convert({**rest, "layers": ()}, ModelSpec)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise KvcalcError(f"its spec cannot be read: {error}", "run kvcalc profile again") from error
    return msgspec.structs.replace(spec, **stacks, checkpoint=None)


def _layer(document: dict[str, Any]) -> Layer:
    return Layer(
        components=tuple(msgspec.convert(one, AnyComponent) for one in document["components"]),
        mlp=msgspec.convert(document["mlp"], AnyMlp | None),
        norm_vectors=document["norm_vectors"],
        extra_parameters=document["extra_parameters"],
    )
