"""What must hold for every model, whatever it is made of."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import models

from kvcalc.cache.sharding import Sharding
from kvcalc.sizing.grid import size_grid
from kvcalc.sizing.need import Workload, size_workload

tokens = st.integers(1, 3000)


def size(spec, context, batch=1, **spread):
    return size_workload(spec, Workload(context, batch), Sharding(**spread))


@given(models(), tokens, st.integers(1, 300))
def test_bytes_never_shrink_as_the_context_grows(spec, context, more):
    assert size(spec, context).bytes_per_sequence <= size(spec, context + more).bytes_per_sequence


@given(models(), tokens, st.integers(1, 9))
def test_the_whole_is_the_sum_of_its_components(spec, context, batch):
    answer = size(spec, context, batch)
    rows = answer.rows
    parts = [row.layers * (row.entries(context) * row.bytes_per_entry + row.fixed_bytes_per_layer) for row in rows]
    assert answer.bytes_per_sequence == sum(parts)
    assert answer.total_bytes == batch * answer.bytes_per_sequence


@given(models(), st.integers(3000, 6000))
def test_growth_over_a_whole_period_is_exact_once_windows_are_full(spec, context):
    """Over L tokens, L the least common multiple of the ratios, bytes grow by L x bytes_per_token."""
    answer = size(spec, context)
    period = math.lcm(1, *(row.component.span.ratio for row in answer.rows))
    grown = size(spec, context + period).bytes_per_sequence - answer.bytes_per_sequence
    assert grown == period * answer.bytes_per_token


@given(models(), st.integers(3000, 6000))
def test_fixed_bytes_are_what_is_left_without_growth(spec, context):
    answer = size(spec, context)
    period = math.lcm(1, *(row.component.span.ratio for row in answer.rows))
    whole = context - context % period
    assert size(spec, whole).bytes_per_sequence == answer.fixed_bytes_per_sequence + whole * answer.bytes_per_token


@given(models(), tokens)
def test_a_step_reads_no_more_than_all_readers_could(spec, context):
    answer = size(spec, context)
    most = sum(row.stored_bytes(context) * max(1, sum(count for _, count in row.reads)) for row in answer.rows)
    assert 0 <= answer.read_bytes_per_step <= most


@given(models(), tokens, st.integers(1, 4), st.integers(1, 8), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_ranks_hold_at_least_one_copy_between_them(spec, context, batch, tp, pp, dp, dcp):
    pp = min(pp, len(spec.layers))
    answer = size(spec, context, batch, tp=tp, pp=pp, dp=dp, dcp=dcp)
    ranks = answer.sharding.stage_ranks * pp * dp
    assert answer.total_bytes <= answer.all_ranks_bytes <= answer.bytes_per_rank * ranks
    assert answer.replication >= 1


@given(models(), tokens)
def test_one_rank_holds_everything(spec, context):
    answer = size(spec, context)
    assert answer.bytes_per_rank == answer.all_ranks_bytes == answer.total_bytes
    assert answer.replication == 1


@settings(max_examples=40)
@given(models(), st.lists(tokens, min_size=1, max_size=5), st.lists(st.integers(1, 64), min_size=1, max_size=3))
def test_the_grid_says_what_single_points_say(spec, contexts, batches):
    frame = size_grid(spec, contexts, batches, Workload())
    for row in frame.itertuples():
        answer = size(spec, row.context_tokens, row.batch)
        assert row.bytes_per_sequence == answer.bytes_per_sequence
        assert row.total_bytes == answer.total_bytes
        assert row.read_bytes_per_step == answer.read_bytes_per_step
