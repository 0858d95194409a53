"""Caches and parameter counts against transformers itself: golden/transformers.json."""

import json

import pytest
from conftest import GOLDEN

import kvcalc
from kvcalc.cache.sharding import WHOLE
from kvcalc.model.parameters import count_parameters
from kvcalc.sizing.rows import Row

GOLDEN_ROWS = json.loads((GOLDEN / "transformers.json").read_text())["rows"]

# What transformers holds differently, by its own rules and not the model's.
OTHER_CACHE = {
    "falcon-40b": "repeats its 8 KV heads to 128 before caching",
    "falcon-180b": "repeats its 8 KV heads to 232 before caching",
    "deepseek-v4-flash": "keeps two tensors for a window and fp32 rows of open compressors",
    "deepseek-v4-pro": "keeps two tensors for a window and fp32 rows of open compressors",
    "minimax-text-01": "keeps the lightning state in bf16, where vLLM and the report keep fp32",
    "kimi-k3": "ran through a sibling model type with another latent width",
}

# Keeps the K - 1 columns that engines keep, outside its cache object.
K_MINUS_ONE_COLUMNS = {"recurrentgemma-2b", "recurrentgemma-9b"}


@pytest.mark.parametrize("row", GOLDEN_ROWS, ids=lambda row: f"{row['model']}-{row['config']}")
def test_parameters_are_exact(row):
    if row["parameters"] is None:
        pytest.skip("no count for a borrowed model type")
    assert count_parameters(kvcalc.load(row["model"])).total == row["parameters"]


@pytest.mark.parametrize("row", GOLDEN_ROWS, ids=lambda row: f"{row['model']}-{row['config']}")
def test_cache_is_what_transformers_held(row):
    if row["model"] in OTHER_CACHE:
        pytest.skip(OTHER_CACHE[row["model"]])
    spec = kvcalc.load(row["model"])
    for run in row["runs"]:
        encoder = run["encoder_tokens"] if _needs_encoder_tokens(spec) else None
        size = kvcalc.size(spec, run["tokens"], kv_dtype="bf16", dtype="bf16", encoder_tokens=encoder)
        columns = 0 if row["model"] in K_MINUS_ONE_COLUMNS else 1
        held = sum(_as_transformers(one, run["tokens"], columns) for one in size.rows)
        assert held * run["batch"] == run["bytes"]


def _needs_encoder_tokens(spec):
    return any(one.needs_encoder_tokens for layer in spec.layers for one in layer.components)


def _as_transformers(row: Row, tokens: int, more_columns: int) -> int:
    """The need with transformers' habits: W - 1 past tokens of a window or chunk, all K convolution columns."""
    entries = row.entries(tokens)
    cap = row.component.span.cap
    if row.component.keeps_entries and cap == entries and not row.component.is_encoder_fed and tokens >= cap:
        entries -= 1
    convolved = sum(state.shape[0] for state in row.component.states(WHOLE) if state.name == "conv")
    held = entries * row.bytes_per_entry + row.fixed_bytes_per_layer + more_columns * convolved * 2
    return row.layers * held
