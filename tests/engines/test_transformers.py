"""Caches and parameter counts against transformers itself: golden/transformers.json."""

import json

import pytest
from conftest import GOLDEN

import kvcalc
from kvcalc.engines.engine import find_engine
from kvcalc.model.parameters import count_parameters

GOLDEN_ROWS = [row for row in json.loads((GOLDEN / "transformers.json").read_text())["rows"] if row["model"]]


@pytest.mark.parametrize("row", GOLDEN_ROWS, ids=lambda row: f"{row['model']}-{row['config']}")
def test_parameters_are_exact(row):
    if row["parameters"] is None:
        pytest.skip("no count for a borrowed model type")
    assert count_parameters(kvcalc.load(row["model"])).total == row["parameters"]


@pytest.mark.parametrize("row", GOLDEN_ROWS, ids=lambda row: f"{row['model']}-{row['config']}")
def test_the_engine_holds_what_transformers_held(row):
    spec = kvcalc.load(row["model"])
    for run in row["runs"]:
        encoder = run["encoder_tokens"] if _needs_encoder_tokens(spec) else None
        size = kvcalc.size(spec, run["tokens"], run["batch"], dtype="bf16", encoder_tokens=encoder)
        assert find_engine("transformers").allocate(size).allocated_bytes == run["bytes"]


def _needs_encoder_tokens(spec):
    return any(one.needs_encoder_tokens for layer in spec.layers for one in layer.components)
