"""Every cache kind, through the questions that all of them answer."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KEYS, component

from kvcalc.cache.kinds import KINDS, AnyComponent
from kvcalc.cache.sharding import WHOLE, Sharding
from kvcalc.cache.span import at_most

tokens = st.integers(1, 5000)
every_kind = st.sampled_from(sorted(KINDS)).flatmap(component)


def make(kind, **keys):
    return msgspec.convert({"kind": kind, **keys}, AnyComponent)


def test_every_kind_has_a_strategy():
    assert set(KEYS) == set(KINDS)


@given(every_kind)
def test_what_keeps_entries_has_parts_of_them(one):
    assert one.keeps_entries == bool(one.parts(WHOLE))


@given(every_kind, tokens, st.integers(0, 500))
def test_entries_never_shrink_and_reads_never_pass_them(one, n, more):
    assert 0 <= one.entries(n) <= one.entries(n + more)
    assert one.entries_read(n) <= one.entries(n)


@given(every_kind, tokens)
def test_entries_stay_below_tokens_but_for_encoder_and_sinks(one, n):
    if one.keeps_entries and not one.is_encoder_fed:
        assert one.entries(n) <= n


@given(every_kind, st.lists(tokens, min_size=1, max_size=20))
def test_arrays_are_answered_like_integers(one, counts):
    assert list(one.entries(np.array(counts)) + np.zeros(len(counts), dtype=int)) == [one.entries(n) for n in counts]


@given(every_kind, st.integers(1, 700), st.one_of(st.none(), st.integers(1, 200)))
def test_pairs_of_a_prompt_are_counted_one_by_one(one, n, limit):
    read = [at_most(one.entries(one.tokens_in_sight(i)), limit) for i in range(1, n + 1)] if one.keeps_entries else None
    if read is not None:
        assert one.pairs(n, limit) == sum(read)
        assert list(one.pairs(np.array([n, 1]), limit)) == [sum(read), read[0]]


@given(every_kind, st.integers(1, 32))
def test_ranks_together_hold_at_least_one_copy(one, tp):
    spread = Sharding(tp=tp)
    for whole, part in zip(one.parts(WHOLE), one.parts(spread), strict=True):
        assert part.heads <= whole.heads <= part.heads * tp
        assert part.width == whole.width
    for whole, part in zip(one.states(WHOLE), one.states(spread), strict=True):
        assert part.values <= whole.values <= part.values * tp


@given(every_kind)
def test_a_kind_says_what_it_is(one):
    assert one.kind in KINDS
    assert one.name
    assert (one.geometry != "") == (one.keeps_entries or bool(one.states(WHOLE)))


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (4, 4), (516, 516), (517, 516), (100_000, 516)])
def test_streaming_llm_keeps_start_and_recent(n, expected):
    # StreamingLLM's defaults: 4 sinks and 512 recent tokens.
    assert make("kv", kv_heads=1, head_dim=64, window=512, sinks=4).entries(n) == expected


def test_compressed_entries_are_floored():
    assert [make("latent", latent_dim=32, ratio=4).entries(n) for n in (3, 4, 7, 8)] == [0, 1, 1, 2]


def test_at_most_agrees_with_min():
    assert [at_most(n, 5) for n in (0, 4, 5, 6, 10**15)] == [0, 4, 5, 5, 5]
    assert at_most(7, None) == 7


STATES = [
    # vllm mamba_utils.py: mamba1, mamba2, gated delta net, KDA, lightning; elements of one layer.
    (make("mamba1", inner=8192, state=16, kernel=4), 8192 * 16 + 8192 * 3),
    (make("mamba2", heads=128, head_dim=64, state=128, groups=8, kernel=4), 128 * 64 * 128 + (8192 + 2048) * 3),
    (
        make("gated_delta", k_heads=16, v_heads=32, k_dim=128, v_dim=128, kernel=4),
        32 * 128 * 128 + (2 * 2048 + 4096) * 3,
    ),
    (
        make("gated_delta", k_heads=32, v_heads=32, k_dim=128, v_dim=128, kernel=4),
        32 * 128 * 128 + 3 * 32 * 128 * 3,
    ),
    (make("linear", heads=64, k_dim=128, v_dim=128), 64 * 128 * 128),
    (make("short_conv", width=2048, kernel=3), 2048 * 2),
    (make("rg_lru", width=2560, kernel=4), 2560 * 3 + 2560),
    (make("rwkv", hidden=4096, heads=64, head_dim=64), 2 * 4096 + 4096 * 64),
    (make("recurrent", states=[{"name": "conv", "heads": 2048, "kernel": 3, "format": "model"}]), 2048 * 2),
    (make("recurrent", states=[{"name": "h", "heads": 2560}]), 2560),
]


@pytest.mark.parametrize(("one", "expected"), STATES, ids=lambda value: getattr(value, "kind", None))
def test_state_shapes(one, expected):
    assert sum(state.values for state in one.states(WHOLE)) == expected


def test_convolutions_follow_the_model_and_states_do_not():
    conv, ssm = make("mamba1", inner=32, state=4, kernel=4).states(WHOLE)
    assert (conv.format, ssm.format) == ("model", None)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"kind": "kv", "kv_heads": 3, "q_heads": 8, "head_dim": 64}, "q_heads 8"),
        ({"kind": "kv", "kv_heads": 1, "head_dim": 64, "window": 4, "ratio": 2}, "window and ratio"),
        ({"kind": "kv", "kv_heads": 1, "head_dim": 64, "sinks": 4}, "sinks need a window"),
        ({"kind": "kv", "kv_heads": 1, "head_dim": 64, "overlap": True}, "overlap needs a ratio"),
        ({"kind": "cross", "kv_heads": 1, "head_dim": 64, "window": 4}, "takes no window"),
        ({"kind": "mamba2", "heads": 6, "head_dim": 64, "state": 4, "groups": 4, "kernel": 4}, "multiple of groups"),
        ({"kind": "gated_delta", "k_heads": 4, "v_heads": 6, "k_dim": 8, "v_dim": 8, "kernel": 4}, "multiple of k"),
        ({"kind": "recurrent", "states": [{"name": "x"}]}, "heads, a shape"),
        ({"kind": "recurrent", "states": []}, "length >= 1"),
        ({"kind": "kv", "kv_heads": 1, "head_dim": 64, "format": "fp9"}, "fp9"),
    ],
)
def test_impossible_values_are_refused(keys, words):
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(keys, AnyComponent)
