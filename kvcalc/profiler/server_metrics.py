"""What a server says of its cache: the Prometheus page at `/metrics`, read while streams run.

vLLM: https://docs.vllm.ai/en/stable/usage/metrics/, the labels of `vllm:cache_config_info` being its CacheConfig.
SGLang: https://docs.sglang.ai/references/production_metrics.html. llama.cpp: tools/server/README.md, `/metrics`.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from threading import Event
from time import perf_counter

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.profiler.server_client import Client

_MOST_PAGE_BYTES = 8 << 20
_PATIENCE_SECONDS = 5.0
_LEAST_PAUSE_SECONDS = 0.1
_PAUSES_PER_READ = 20
"""A page costs the server time which the streams then wait: one read takes at most a twentieth of it."""


class CacheFigures(msgspec.Struct, frozen=True):
    """The cache as the server counts it, summed over its engines; None for what it does not say.

    `peak_tokens` is the highest count seen, exact where the server counts tokens (SGLang, llama.cpp),
    else usage x capacity, so within one block an engine.
    """

    engine: str | None = None
    block_tokens: int | None = None
    blocks: int | None = None
    capacity_tokens: int | None = None
    peak_usage_fraction: float | None = None
    peak_tokens: int | None = None


class Sample(msgspec.Struct, frozen=True):
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


_LINE = re.compile(r'([a-zA-Z_:][\w:]*+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?\s+(\S+)')
_ONE_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_FAR_TOO_MANY = 10**18
_ESCAPE = re.compile(r"\\(.)")


def samples(page: str) -> list[Sample]:
    """The page's samples; lines of another form, and those of NaN or infinity, are passed over: no cache has them.

    >>> samples('vllm:kv_cache_usage_perc{engine="0"} 0.25')
    [Sample(name='vllm:kv_cache_usage_perc', labels={'engine': '0'}, value=0.25)]
    """
    found = (_LINE.match(line) for line in page.split("\n") if ":" in line)
    every = [Sample(line[1], _labels(line[2] or ""), _number(line[3])) for line in found if line]
    return [sample for sample in every if 0 <= sample.value < _FAR_TOO_MANY]


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPE.sub(_unescaped, value) for name, value in _ONE_LABEL.findall(text)}


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class _Gauges:
    """The samples of one engine kind, by name without its prefix."""

    def __init__(self, every: Iterable[Sample], engine: str) -> None:
        self.samples = [sample for sample in every if sample.name.startswith(f"{engine}:")]

    def named(self, *names: str) -> list[Sample]:
        """The samples of the first of `names` that the page has."""
        by_name = ([sample for sample in self.samples if sample.name.split(":", 1)[1] == name] for name in names)
        return next(filter(None, by_name), [])

    def ranks(self, *names: str) -> dict[tuple[tuple[str, str], ...], float]:
        """A figure for each engine: ranks that hold shards of one cache repeat its figure, so the largest stands."""
        figures: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in self.named(*names):
            rank = tuple(sorted((name, value) for name, value in sample.labels.items() if name not in _SHARD_RANKS))
            figures[rank] = max(sample.value, figures.get(rank, 0.0))
        return figures

    def total(self, *names: str) -> int | None:
        """The figures of all engines added, or None where the page has none."""
        figures = self.ranks(*names)
        return round(sum(figures.values())) if figures else None


_SHARD_RANKS = {"tp_rank", "pp_rank", "moe_ep_rank", "pid"}


def _vllm(gauges: _Gauges) -> CacheFigures:
    """Blocks stand in labels, usage in a gauge; each data-parallel engine has its own of both.

    `kv_cache_size_tokens` is vLLM's own capacity; without it, as in older versions, it is blocks x block size.
    """
    infos = {sample.labels.get("engine", ""): sample.labels for sample in gauges.named("cache_config_info")}
    usage = {
        sample.labels.get("engine", ""): sample.value
        for sample in gauges.named("kv_cache_usage_perc", "gpu_cache_usage_perc")
    }
    blocks = {engine: _whole(labels.get("num_gpu_blocks")) for engine, labels in infos.items()}
    capacity = {engine: _capacity_tokens(labels) for engine, labels in infos.items()}
    return _figures(
        "vllm",
        block_tokens=_common(_whole(labels.get("block_size")) for labels in infos.values()),
        blocks=_sum(blocks.values()),
        capacity_tokens=_sum(capacity.values()),
        usage=_mean([(fraction, capacity.get(engine)) for engine, fraction in usage.items()]),
    )


def _capacity_tokens(labels: dict[str, str]) -> int | None:
    blocks, block_tokens = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    product = blocks * block_tokens if blocks and block_tokens else None
    return _whole(labels.get("kv_cache_size_tokens")) or product


def _sglang(gauges: _Gauges) -> CacheFigures:
    """Tokens are counted outright; `token_usage` is that of the fullest pool."""
    capacity = gauges.ranks("max_total_num_tokens")
    usage = gauges.ranks("token_usage")
    return _figures(
        "sglang",
        block_tokens=_common(round(value) for value in gauges.ranks("page_size").values()),
        blocks=gauges.total("num_pages"),
        capacity_tokens=gauges.total("max_total_num_tokens"),
        usage=_mean([(fraction, capacity.get(rank)) for rank, fraction in usage.items()]),
        tokens=gauges.total("num_used_tokens"),
    )


def _llamacpp(gauges: _Gauges) -> CacheFigures:
    """Usage and tokens, whose quotient is the capacity; newer builds leave out both."""
    usage = _mean([(fraction, None) for fraction in gauges.ranks("kv_cache_usage_ratio").values()])
    tokens = gauges.total("kv_cache_tokens")
    capacity = round(tokens / usage) if tokens and usage and usage > _LEAST_FRACTION else None
    return _figures("llama.cpp", capacity_tokens=capacity, usage=usage, tokens=tokens)


_LEAST_FRACTION = 1e-9


def _figures(
    engine: str,
    *,
    usage: float | None,
    capacity_tokens: int | None,
    block_tokens: int | None = None,
    blocks: int | None = None,
    tokens: int | None = None,
) -> CacheFigures:
    if tokens is None and usage is not None and capacity_tokens is not None:
        tokens = round(usage * capacity_tokens)
    return CacheFigures(engine, block_tokens, blocks, capacity_tokens, usage, tokens)


def _whole(text: str | None) -> int | None:
    """The count that a label holds; vLLM writes what is not known as `None`."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def _common(values: Iterable[int | None]) -> int | None:
    """The value on which all agree."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return sum(value or 0 for value in known) if known and None not in known else None


def _mean(weighed: Sequence[tuple[float, float | None]]) -> float | None:
    """The mean of fractions by capacity, or the plain one where a capacity is not known."""
    if not weighed:
        return None
    weights = [capacity for _, capacity in weighed]
    even = not all(weights)
    parts = [(fraction, 1 if even else capacity or 0) for fraction, capacity in weighed]
    return sum(fraction * weight for fraction, weight in parts) / sum(weight for _, weight in parts)


_READERS: dict[str, Callable[[_Gauges], CacheFigures]] = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}


def cache_figures(page: str) -> CacheFigures:
    """The figures of one page; those of no known engine are all None."""
    every = samples(page)
    for prefix, read in _READERS.items():
        gauges = _Gauges(every, prefix)
        if gauges.samples:
            return read(gauges)
    return CacheFigures()


def peak(readings: list[CacheFigures]) -> CacheFigures:
    """The fullest reading; usage and tokens each with the highest value seen."""
    fullest = max(readings, key=lambda reading: (reading.peak_usage_fraction or 0.0, reading.peak_tokens or 0))
    tokens = [reading.peak_tokens for reading in readings if reading.peak_tokens is not None]
    return msgspec.structs.replace(fullest, peak_tokens=max(tokens, default=None))


class CacheMeter:
    """Readings of one server's `/metrics`, and what is to be doubted of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._url = f"{client.root}/metrics"
        self._readings: list[CacheFigures] = []
        self._doubts: list[str] = []

    def read(self) -> bool:
        """Read the page once; False where it tells no usage, so that there is no peak to look for."""
        patience_seconds = min(_PATIENCE_SECONDS, self._client.timeout_seconds)
        try:
            content = self._client.read(self._url, most_bytes=_MOST_PAGE_BYTES, patience_seconds=patience_seconds)
        except KvcalcError as failure:
            what = "the cache figures end early" if self._readings else "no cache figures"
            self._doubts.append(f"{what}: {failure.message} ({_HINT})")
            return False
        figures = cache_figures(content.decode("utf-8", "replace"))
        self._readings.append(figures)
        if figures.peak_usage_fraction is None:
            self._doubts.append(f"no peak usage of the cache: {self._url} does not tell it ({_HINT})")
        return figures.peak_usage_fraction is not None

    def poll(self, over: Event) -> None:
        """Read until `over`, at least once."""
        while True:
            began_at = perf_counter()
            if not self.read():
                return
            if over.wait(max(_LEAST_PAUSE_SECONDS, _PAUSES_PER_READ * (perf_counter() - began_at))):
                return

    def figures(self) -> CacheFigures:
        """The peak of all readings."""
        return peak(self._readings) if self._readings else CacheFigures()

    def doubts(self) -> list[str]:
        """What keeps the peak from being that of the streams alone."""
        doubts = list(self._doubts)
        at_first = self._readings[0].peak_usage_fraction if self._readings else None
        if at_first is not None and at_first > _LEAST_BUSY_FRACTION:
            doubts.append(f"{at_first:.1%} of the cache was in use before the streams began: others share the server")
        if self.figures().peak_usage_fraction == 0:
            doubts.append("every reading of the cache's usage was 0: more --output-tokens gives it time to show")
        return doubts


_LEAST_BUSY_FRACTION = 0.01
_HINT = "SGLang tells them with --enable-metrics, llama.cpp up to 2025 with --metrics"
