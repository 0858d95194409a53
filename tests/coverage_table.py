"""What comes out exactly for every model type of transformers: computed from golden/, printed in docs/coverage.md."""

import json
from functools import cache
from typing import Any

import msgspec
from conftest import GOLDEN

from kvcalc.cache.sharding import WHOLE
from kvcalc.engines.engine import find_engine
from kvcalc.errors import KvcalcError
from kvcalc.model.importers.fields import known_types
from kvcalc.model.importers.hf_config import config_document
from kvcalc.model.parameters import count_parameters
from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document, ModelSpec
from kvcalc.sizing.need import Workload, size_workload


@cache
def configs() -> dict[str, dict[str, Any]]:
    """Every golden config by name."""
    lines = (GOLDEN / "configs.jsonl").read_text().splitlines()
    return {entry["name"]: entry["config"] for entry in map(json.loads, lines)}


@cache
def rows() -> list[dict[str, Any]]:
    """What transformers held and counted for each of them."""
    return json.loads((GOLDEN / "transformers.json").read_text())["rows"]


def imported(name: str) -> ModelSpec:
    """The import of a golden config."""
    document = config_document(configs()[name], f"{name}.json", name, assume=True)
    return resolve(msgspec.convert(document, Document))


def held_bytes(spec: ModelSpec, run: dict[str, Any]) -> int:
    """What `--engine transformers --dtype bf16` says for one run."""
    needs = any(one.needs_encoder_tokens for layer in spec.layers for one in layer.components)
    workload = Workload(
        run["tokens"], run["batch"], dtype="bf16", encoder_tokens=run["encoder_tokens"] if needs else None
    )
    return find_engine("transformers").allocate(size_workload(spec, workload, WHOLE)).allocated_bytes


def cache_verdict(row: dict[str, Any]) -> str:
    """`exact`, or how far the bytes are off, or why the config is refused."""
    try:
        spec = imported(row["config"])
        off = [held_bytes(spec, run) - run["bytes"] for run in row["runs"]]
    except KvcalcError as error:
        return f"refused: {error.message.rpartition('.json: ')[2]}"
    return "exact" if not any(off) else f"{off[0]:+,} B"


def parameters_verdict(row: dict[str, Any]) -> str:
    """`exact`, the difference of the count, or why there is none."""
    if row["parameters"] is None:
        return "not counted there"
    try:
        total = count_parameters(imported(row["config"])).total
    except KvcalcError:
        return "refused"
    if total is None:
        return "unknown"
    return "exact" if total == row["parameters"] else f"{total - row['parameters']:+,}"


NOT_RUN = {
    "blt": "its default config has no layer count, and it does not build",
    "cohere_compass_text": "its default config does not build (no rotary parameters for full attention)",
    "gemma4_assistant": "has no cache of its own",
    "gemma4_unified_assistant": "has no cache of its own",
    "musicgen": "no causal class builds from the whole model's config",
    "musicgen_melody": "no causal class builds from the whole model's config",
    "openai-gpt": "runs without a cache: transformers computes every token again",
    "qwen4_exp": "its default config has no text model; `qwen4_exp_text` is run",
    "reformer": "returns buckets",
    "xlm": "its cache is created by its own generation code and not returned",
    "xlnet": "returns hidden states",
}


def assumed(model_type: str) -> str:
    """What the import of a type's default config takes its cache to be."""
    try:
        spec = resolve(
            msgspec.convert(config_document({"model_type": model_type}, "x.json", "x", assume=True), Document)
        )
    except KvcalcError as error:
        return f"refused: {error.message.rpartition('x.json: ')[2].rstrip('.')}"
    kinds = dict.fromkeys(one.kind for layer in spec.layers for one in layer.components)
    return f"sized as {' and '.join(kinds)}" if kinds else "no cache"


def coverage_table() -> str:
    """A Markdown row a causal language model type: cache and parameters of its default config."""
    by_type = {row["model_type"]: row for row in rows() if row["confidence"] == "library default"}
    lines = ["| model type | cache | parameters |", "|---|---|---|"]
    for model_type in known_types().causal:
        row = by_type.get(model_type) or next((row for row in rows() if row["model_type"] == model_type), None)
        if row:
            verdicts = cache_verdict(row), parameters_verdict(row)
        else:
            verdicts = f"not run: {NOT_RUN[model_type]}; {assumed(model_type)}", "not run"
        lines.append(f"| `{model_type}` | {verdicts[0]} | {verdicts[1]} |")
    return "\n".join(lines) + "\n"
