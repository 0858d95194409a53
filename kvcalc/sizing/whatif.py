"""What a page needs to size a model by itself: the components of every KV format and TP, as JSON-able data.

`whatif_data([whatif_case(name, spec, workload, sharding), ...])` is what `kvcalc.render.whatif.panel` takes. A card and
an engine are added by `kvcalc.engines.whatif.plan_case`. Every number that moves with the context or the batch is
left to the page; every other one stands here, printed as the command line prints it.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from kvcalc.cache.component import Component
from kvcalc.cache.formats import AUTO
from kvcalc.cache.sharding import Sharding
from kvcalc.errors import KvcalcError, printable
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import MOST_BYTES, CacheSize, Workload, size_workload
from kvcalc.sizing.panel_data import CaseData, Exact, FormatData, RanksData, RowData, Span, TermData, WhatIfData
from kvcalc.sizing.report import behaviour, kv_formats, stack
from kvcalc.sizing.rows import Row
from kvcalc.sizing.shards import weights_per_rank
from kvcalc.units import MOST_TOKENS, exact_bytes

KV_FORMATS = ("bf16", "fp8", "int8", "mxfp8", "nvfp4", "q8_0", "q4_0")
"""Formats that are offered where nobody names any; one that a model's shapes do not take is left out."""

TENSOR_PARALLEL = (1, 2, 4, 8, 16)

_SHORTEST, _LONGEST, _MOST_SEQUENCES = 128, 2**20, 1024
"""Ends of the sliders, in tokens and sequences; a model's own limit goes before."""
_SAFE = 2**53 - 1


def whatif_data(cases: Sequence[CaseData]) -> WhatIfData:
    """The data of one panel; KvcalcError where two cases bear one name, since links tell them apart by it."""
    names = [case["name"] for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise KvcalcError(f"two cases are named {name!r}", "give each case a name of its own")
    return {"cases": list(cases), "most_tokens": MOST_TOKENS, "most_bytes": exact(MOST_BYTES)}


def whatif_case(
    name: str,
    spec: ModelSpec,
    workload: Workload,
    sharding: Sharding,
    *,
    model: str | None = None,
    formats: Sequence[str] = KV_FORMATS,
    tps: Sequence[int] = TENSOR_PARALLEL,
    contexts: Iterable[int] | None = None,
) -> CaseData:
    """One case: `workload` and `sharding` are shown first, `formats` and `tps` beside theirs.

    `model` is what stands on the command line, the spec's name by default; `contexts` are the stops of the slider, by
    default powers of two and halves between, up to what the model takes. KvcalcError where the workload itself does
    not fit the model.
    """
    ranks = sorted({*tps, sharding.tp})
    shards = [msgspec.structs.replace(sharding, tp=tp) for tp in ranks]
    plain = msgspec.structs.replace(workload, context_tokens=1, batch=1)
    first = size_workload(spec, plain, sharding)
    most = spec.max_context or _LONGEST
    return {
        "name": printable(name),
        "stack": f"{len(first.layers)} layers: {stack(first)}",
        "command": shlex.join(["kvcalc", "size", model or spec.name]),
        "flags": shlex.join(_flags(spec, workload, sharding)),
        "asked": _asked(workload, sharding),
        "contexts": sorted({workload.context_tokens, *(_stops(_SHORTEST, most) if contexts is None else contexts)}),
        "batches": sorted({workload.batch, *_stops(1, _MOST_SEQUENCES)}),
        "most_context": spec.max_context,
        "encoder_tokens": _encoder_tokens(first),
        "formats": [_format(spec, requests, shards) for requests in offered(spec, plain, formats)],
        "ranks": [_ranks(spec, plain, shard) for shard in shards],
        "engine": None,
    }


def _asked(workload: Workload, sharding: Sharding) -> dict[str, int | str]:
    """What the page shows first, under the names that its links use."""
    return {"ctx": workload.context_tokens, "batch": workload.batch, "kv": workload.kv_dtype, "tp": sharding.tp}


def offered(spec: ModelSpec, workload: Workload, formats: Iterable[str]) -> list[list[Workload]]:
    """The workload in its own format, in the model's and in each of `formats` that the model's shapes take.

    Those that come to the same for this model stand together.
    """
    alike: dict[str, list[Workload]] = {}
    for name in dict.fromkeys((workload.kv_dtype, AUTO, *formats)):
        varied = msgspec.structs.replace(workload, kv_dtype=name)
        size = _size_or_refusal(spec, varied, Sharding())
        if not isinstance(size, str):
            alike.setdefault(repr([(row.format, _row(row)) for row in size.rows]), []).append(varied)
    return list(alike.values())


def _size_or_refusal(spec: ModelSpec, workload: Workload, sharding: Sharding) -> CacheSize | str:
    try:
        return size_workload(spec, workload, sharding)
    except KvcalcError as error:
        return error.message


def powers_of_two(least: int, most: int) -> set[int]:
    """Those from `least` to `most`, and `most` itself."""
    return {2**power for power in range(most.bit_length()) if 2**power >= least} | {most}


def _stops(least: int, most: int) -> set[int]:
    """Powers of two and halves between."""
    powers = powers_of_two(least, most)
    return powers | {power * 3 // 2 for power in powers if power * 3 // 2 <= most}


def exact(count: int) -> Exact:
    """A whole number as the page can read it without rounding."""
    return count if count <= _SAFE else str(count)


def _flags(spec: ModelSpec, workload: Workload, sharding: Sharding) -> list[str]:
    """The flags that the panel does not move."""
    texts = {
        "--dtype": workload.dtype,
        "--weights": workload.weights,
        "--state-dtype": workload.state_dtype,
        "--encoder-tokens": workload.encoder_tokens,
        "--draft-layers": workload.draft_layers or None,
    }
    texts |= {f"--{name}": getattr(sharding, name) for name in ("pp", "dp", "ep", "dcp") if getattr(sharding, name) > 1}
    words = [word for flag, value in texts.items() if value is not None for word in (flag, str(value))]
    return [*(word for change in spec.overrides for word in ("--set", change)), *words]


def _encoder_tokens(size: CacheSize) -> int | None:
    """Tokens of the encoder, where a component keeps them."""
    return max((row.component.entries(1) for row in size.rows if row.component.is_encoder_fed), default=None)


def _format(spec: ModelSpec, requests: Sequence[Workload], shards: Sequence[Sharding]) -> FormatData:
    """What `requests`, which come to the same, cost; a TP that cuts an entry where the format cannot says so."""
    size = size_workload(spec, requests[0], Sharding())
    names, growth = kv_formats(size), size.bytes_per_token
    name = requests[0].kv_dtype
    return {
        "names": [request.kv_dtype for request in requests],
        "label": name if names in (name, "-") else f"{name} ({names})",
        "token_bytes": (exact(growth.numerator), exact(growth.denominator)),
        "token_text": exact_bytes(growth),
        "fixed_text": exact_bytes(size.fixed_bytes_per_sequence),
        "rows": [_row(row) for row in size.rows],
        "stages": [_stages(_size_or_refusal(spec, requests[0], shard)) for shard in shards],
    }


def _row(row: Row) -> RowData:
    full_at = 0 if row.component.grows else row.component.span.cap or 0
    return {
        "name": row.name,
        "layers": row.layers,
        "format": row.format,
        "entry_bytes": exact(row.bytes_per_entry),
        "fixed_bytes": exact(row.fixed_bytes_per_layer),
        "span": _span(row.component),
        "reads": [(limit if limit is None else exact(limit), count) for limit, count in row.reads],
        "says": (behaviour(row, 1), behaviour(row, max(1, full_at))),
        "full_at": exact(full_at),
    }


def _span(component: Component) -> Span:
    ratio, cap = component.span.ratio, component.span.cap
    return {
        "ratio": ratio,
        "cap": cap if cap is None else exact(cap),
        "starts_full": component.is_encoder_fed or not component.keeps_entries,
    }


def _stages(size: CacheSize | str) -> list[list[TermData]] | str:
    """The terms of a rank of each pipeline stage, alike ones counted together; or why there are none."""
    if isinstance(size, str):
        return size
    return [_terms(size, held) for held in size.held_by_stages]


def _terms(size: CacheSize, held: Sequence[Component]) -> list[TermData]:
    # Equal layers are mostly one object, so each is weighed once; equal terms of different ones are then put together.
    objects = Counter(map(id, held))
    counts: dict[str, TermData] = {}
    for component in {id(one): one for one in held}.values():
        term = _term(size, component)
        if term["entry_bytes"] or term["fixed_bytes"]:
            counts.setdefault(repr(term), term)["count"] += objects[id(component)]
    return list(counts.values())


def _term(size: CacheSize, component: Component) -> TermData:
    return {
        "count": 0,
        "entry_bytes": exact(size.packer.entry_bytes(component, size.sharding)),
        "fixed_bytes": exact(size.packer.state_bytes(component, size.sharding)),
        "span": _span(component),
        "split": size.sharding.dcp if component.grows else 1,
    }


def _ranks(spec: ModelSpec, workload: Workload, sharding: Sharding) -> RanksData:
    # Weights do not ask for the cache's format, which may not be one for every TP.
    size = size_workload(spec, msgspec.structs.replace(workload, kv_dtype=AUTO), sharding)
    weights = weights_per_rank(size)
    known = weights.fullest
    return {
        "tp": size.sharding.tp,
        "ranks": size.ranks,
        "stage_ranks": size.sharding.stage_ranks,
        "dp": size.sharding.dp,
        "weights_bytes": None if known is None else exact(known),
        "weights_text": f"{size.weights_format}, {weights.basis}: {weights.why}",
    }
