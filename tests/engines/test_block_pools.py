"""The blocks that a simulation takes from an engine are those that its own planning counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import engine_classes, find_engine
from kvcalc.engines.plain import Plain
from kvcalc.engines.vllm_holding import ChunkBlocks, SlidingBlocks
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import catalogue_names, load
from kvcalc.sizing.blocks import Window
from kvcalc.sizing.need import Workload, size_workload

POOL = 64 * 2**30


def asked(name, context=8192, **spread):
    spec = load(name)
    encoder = 1500 if any(one.needs_encoder_tokens for layer in spec.layers for one in layer.components) else None
    return size_workload(spec, Workload(context, encoder_tokens=encoder), Sharding(**spread))


@pytest.mark.parametrize("name", catalogue_names())
@pytest.mark.parametrize("version", ["vllm", "vllm@0.11.0", "vllm@0.6.6"])
def test_vllm_counts_as_many_blocks_for_a_request(name, version):
    size, engine = asked(name, 40_000), find_engine(version)
    try:
        capacity = engine.capacity(size, POOL)
    except KvcalcError:
        pytest.skip(f"{version} does not take {name}")
    pool = engine.blocks(size, POOL)
    assert pool.layout.most_units(40_000) == capacity.blocks_per_request
    assert pool.layout.bytes_per_unit == capacity.bytes_per_block
    assert pool.units in (capacity.num_blocks, capacity.num_blocks - 1)
    comes_and_goes = any(isinstance(group, SlidingBlocks | ChunkBlocks) for group in pool.layout.groups)
    live = pool.layout.units(40_000)
    assert live < capacity.blocks_per_request if comes_and_goes else live == capacity.blocks_per_request
    lengths = np.array([1, 100, 5000, 40_000])
    assert (pool.layout.held_bytes(lengths) >= pool.layout.written_bytes(lengths)).all()


def test_ranks_of_a_decode_context_share_a_block():
    size = asked("deepseek-v3", 40_000, tp=8, dcp=8)
    pool = find_engine("vllm").blocks(size, POOL)
    capacity = find_engine("vllm").capacity(size, POOL)
    assert pool.layout.units(40_000) == capacity.blocks_per_request == -(-40_000 // (8 * capacity.block_tokens[0]))


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 200), st.integers(1, 30))
def test_a_chunk_is_given_back_when_the_next_begins(chunk, block, tokens, step):
    """By brute force: before a step all but the tokens of the chunk that computed tokens end in are skipped."""
    step = min(step, tokens)
    held = ChunkBlocks.of(block, chunk, 0)
    first_kept = (tokens - step) // chunk * chunk
    assert held.blocks(tokens, step) == len({place // block for place in range(first_kept, tokens)})


@pytest.mark.parametrize("name", catalogue_names())
def test_sglang_takes_as_many_requests(name):
    size, engine = asked(name, 10_000), find_engine("sglang")
    try:
        capacity = engine.capacity(size, POOL)
    except KvcalcError:
        pytest.skip(f"SGLang does not take {name}")
    pool = engine.blocks(size, POOL)
    each = pool.layout.units(10_000)
    fitting = min(pool.units // each if each else pool.most_sequences, pool.most_sequences)
    if capacity.sequences:
        assert fitting == capacity.sequences


@pytest.mark.parametrize("name", sorted(engine_classes()))
def test_every_engine_says_how_requests_share_a_pool(name):
    size, engine = asked("llama-3.1-8b"), find_engine(name)
    pool, capacity = engine.blocks(size, POOL), engine.capacity(size, POOL)
    fits = pool.units // pool.layout.units(8192)
    assert min(fits, pool.most_sequences or fits) == capacity.sequences


def test_the_need_by_itself_shares_all_of_the_pool():
    pool = Plain().blocks(asked("gemma-3-27b"), POOL)
    assert pool.most_sequences is None
    assert pool.units * pool.layout.bytes_per_unit <= POOL
    assert any(isinstance(group, Window) for group in pool.layout.groups)
