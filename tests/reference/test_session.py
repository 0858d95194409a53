"""Sessions: positions that survive resuming, prefixes that do not fit, rooms that are full, passes that fail."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tiny import (  # noqa: E402
    BATCH,
    ENCODED,
    FULL,
    KV,
    MLA,
    MODELS,
    REUSE,
    TOKENS,
    build,
    encoded,
    in_passes,
    kv,
    near,
    session,
    tokens,
)

from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.reference.session import Session, StalePrefixError  # noqa: E402

# Everything that a session can hold at once: rings, open rows, latents, choices, an encoder's entries and states.
MIXED = build(
    [
        kv(window=9, sinks=2),
        kv(ratio=3, overlap=True),
        MLA,
        FULL,
        REUSE,
        f"[{KV}, {{kind: mamba2, heads: 4, head_dim: 8, state: 8, groups: 2, kernel: 4}}]",
        f"[{KV}, {{kind: cross, q_heads: 4, kv_heads: 4, head_dim: 16, encoder_tokens: {ENCODED}}}]",
        kv(chunk=10),
    ]
)
IDS = tokens()
WHOLE = in_passes(MIXED, IDS, [TOKENS])


# ---- resuming


@given(st.integers(1, TOKENS - 1), st.integers(1, TOKENS))
@settings(max_examples=15)
def test_a_resumed_prompt_is_as_good_as_one_go(cached, chunk):
    """What is cached keeps its positions: they are absolute, and not those of the new tokens."""
    running = session(MIXED)
    first = running.prefill(IDS[:, :cached], chunk)
    rest = running.resume(IDS)
    near(torch.cat([first, rest], dim=1), WHOLE, 1e-10)
    assert running.length == TOKENS


def test_a_conversation_resumes_turn_after_turn():
    running, outputs = session(MIXED), []
    outputs.append(running.prefill(IDS[:, :7]))
    outputs += [running.decode(IDS[:, at : at + 1]) for at in (7, 8)]
    outputs.append(running.resume(IDS[:, :20]))
    outputs.append(running.decode(IDS[:, 20:21]))
    outputs.append(running.resume(IDS))
    near(torch.cat(outputs, dim=1), WHOLE, 1e-10)


@pytest.mark.parametrize("changed", [(0, 0), (1, 4), (0, 11)])
def test_a_prompt_with_another_beginning_is_refused(changed):
    running, prompt = session(MIXED), IDS.clone()
    running.prefill(IDS[:, :12])
    prompt[changed] += 1
    with pytest.raises(StalePrefixError, match=f"the prompt differs from token {changed[1]} on: the cache was built"):
        running.resume(prompt)
    near(running.resume(IDS), WHOLE[:, 12:], 1e-10)


def test_what_comes_behind_the_cached_part_may_differ():
    running, prompt = session(MIXED), IDS.clone()
    running.prefill(IDS[:, :12])
    prompt[0, 12] += 1
    near(running.resume(prompt), in_passes(MIXED, prompt, [TOKENS])[:, 12:], 1e-10)


@pytest.mark.parametrize("length", [1, 11, 12])
def test_a_prompt_that_ends_within_the_cached_part_is_refused(length):
    """Its last token's state is gone, and rings no longer hold what came before."""
    running = session(MIXED)
    running.prefill(IDS[:, :12])
    with pytest.raises(StalePrefixError, match="the prompt ends within the 12 cached"):
        running.resume(IDS[:, :length])
    near(running.resume(IDS), WHOLE[:, 12:], 1e-10)


# ---- room


def test_a_full_session_takes_no_more():
    running = session(MIXED)
    running.prefill(IDS)
    with pytest.raises(KvcalcError, match=f"{TOKENS} tokens are cached and 1 more come, with room for {TOKENS}"):
        running.decode(IDS[:, :1])


def test_tokens_that_do_not_fit_leave_no_trace():
    running = session(MIXED)
    running.prefill(IDS[:, :20])
    with pytest.raises(KvcalcError, match=f"20 tokens are cached and {TOKENS} more come"):
        running.prefill(IDS)
    near(running.prefill(IDS[:, 20:]), WHOLE[:, 20:], 1e-10)


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        (IDS[:1, :5], "1 x 5 tokens come to a session of 2 sequences"),
        (tokens(5, batch=3), "3 x 5 tokens come to a session of 2 sequences"),
        (IDS[:, :0], "2 x 0 tokens come to a session"),
    ],
)
def test_rows_that_do_not_match_are_refused(ids, complaint):
    running = session(MIXED)
    running.prefill(IDS[:, :4])
    for take in (running.prefill, running.decode, running.resume):
        with pytest.raises(KvcalcError, match=complaint):
            take(ids)
    near(running.prefill(IDS[:, 4:]), WHOLE[:, 4:], 1e-10)


@pytest.mark.parametrize("chunk", [1, 5, TOKENS - 1, TOKENS, TOKENS + 10])
def test_a_chunk_may_be_any_number_of_tokens(chunk):
    running = session(MIXED)
    near(running.prefill(IDS, chunk), WHOLE, 1e-10)
    assert running.passes == -(-TOKENS // chunk)


@pytest.mark.parametrize("chunk", [0, -3])
def test_a_chunk_of_nothing_is_refused(chunk):
    with pytest.raises(KvcalcError, match=f"a chunk of {chunk} tokens"):
        session(MIXED).prefill(IDS, chunk)


@pytest.mark.parametrize("given_tokens", [None, ENCODED - 1, ENCODED + 1])
def test_an_encoder_of_another_length_is_refused(given_tokens):
    handed = None if given_tokens is None else torch.zeros(BATCH, given_tokens, 48, dtype=torch.float64)
    with pytest.raises(KvcalcError, match=f"`cross` keeps 2 x {ENCODED} encoder tokens, and is handed"):
        Session(MIXED, BATCH, TOKENS, encoded=handed).prefill(IDS)


# ---- passes that fail, and new beginnings


def fails(*args):
    raise MemoryError


def test_nothing_is_computed_from_a_pass_that_failed_half_way(monkeypatch):
    """Layers 0 to 3 have kept the tokens, and their rings and states cannot be taken back."""
    running = session(MIXED)
    running.prefill(IDS[:, :20])
    with monkeypatch.context() as broken, pytest.raises(MemoryError):
        broken.setattr(MIXED.layers[4], "run", fails)
        running.prefill(IDS[:, 20:25])
    assert running.length == 20
    for take in (lambda: running.decode(IDS[:, 20:21]), lambda: running.resume(IDS)):
        with pytest.raises(KvcalcError, match="a pass failed half-way"):
            take()
    running.reset()
    near(running.prefill(IDS), WHOLE, 1e-10)


@pytest.mark.parametrize("page", [None, 4])
def test_a_reset_session_is_a_new_one(page):
    running = session(MIXED, page=page)
    running.prefill(tokens(25, seed=3))
    running.reset()
    assert running.length == 0
    outputs = [running.prefill(IDS[:, :9]), running.decode(IDS[:, 9:10]), running.prefill(IDS[:, 10:])]
    near(torch.cat(outputs, dim=1), WHOLE, 1e-10)


def test_a_reset_session_can_be_given_another_encoder():
    running = session(MIXED)
    running.prefill(IDS)
    running.reset()
    running.encoded = encoded() * 2
    fresh = Session(MIXED, BATCH, TOKENS, encoded=encoded() * 2).prefill(IDS)
    near(running.prefill(IDS), fresh, 1e-10)
    assert (fresh - WHOLE).abs().max() > 1e-3


# ---- sequences and sessions beside each other


def test_the_rows_of_a_batch_know_nothing_of_each_other():
    ids = tokens(batch=3)
    together = in_passes(MIXED, ids, [20, 1, TOKENS - 21])
    for row in range(3):
        running = Session(MIXED, 1, TOKENS, encoded=encoded(batch=3)[row : row + 1])
        alone = torch.cat([running.prefill(ids[row : row + 1, :20]), running.prefill(ids[row : row + 1, 20:])], dim=1)
        near(together[row : row + 1], alone, 1e-10)


def test_one_model_serves_several_sessions_at_once():
    one, other, outputs = session(MIXED), session(MIXED), []
    for at in range(0, TOKENS, 4):
        outputs.append(one.prefill(IDS[:, at : at + 4]))
        other.prefill(tokens(4, seed=at))
    near(torch.cat(outputs, dim=1), WHOLE, 1e-10)


@pytest.mark.parametrize("name", ["GQA", "window and sinks", "chunk", "MLA", "V4.1", "pooled with overlap"])
def test_what_comes_later_changes_nothing_before_it(name):
    """Two prompts that part at token 20 agree up to there."""
    model, other = build(MODELS[name]), IDS.clone()
    other[:, 20:] += 1
    first, second = in_passes(model, IDS, [TOKENS]), in_passes(model, other, [TOKENS])
    near(first[:, :20], second[:, :20], 1e-12)
    assert (first[:, 20:] - second[:, 20:]).abs().amax(-1).min() > 1e-6
