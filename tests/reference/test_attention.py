"""Attention with a cache against attention without one: whole prompts, single tokens, and every chunking between."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import naive  # noqa: E402
from tiny import (  # noqa: E402
    BATCH,
    FULL,
    HIDDEN,
    MODELS,
    TOKENS,
    YOCO,
    build,
    chunkings,
    encoded,
    in_passes,
    kv,
    near,
    reader,
    reindex,
    session,
    spec,
    tokens,
)
from torch.nn.attention.bias import CausalBias, CausalVariant  # noqa: E402
from torch.nn.functional import linear, scaled_dot_product_attention  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.reference import attend as attending  # noqa: E402
from kvcalc.reference import select as selecting  # noqa: E402
from kvcalc.reference.attend import attend  # noqa: E402
from kvcalc.reference.seen import Fresh, Rule, Seen  # noqa: E402


@cache
def models(name, exact):
    """The model called `name`, its tokens, and what they come to without a cache."""
    lower, layers = YOCO.get(name, (None, MODELS.get(name)))
    model, ids = build(layers, exact, prefill_layers=lower), tokens()
    # The first pass makes the weights of memory units.
    session(model).prefill(ids)
    return model, ids, naive.forward(model, ids, encoded(model.dtype))


# ---- by hand


def turned(x, positions):
    """Rotary positions in matrix form: each pair (i, i + half) turned by its own angle."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000 ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = (torch.cat((one, one), dim=-1) for one in (angles.cos(), angles.sin()))
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def test_the_textbook_layer_with_a_growing_cache():
    """Project, append with torch.cat, attend, project back: one token after another."""
    model = build([kv(kv_heads=8)])
    (part,) = model.parts
    w, ids = part.keeper.weights | part.asker.weights, tokens(12)
    running = session(model)
    k_cache = v_cache = torch.empty(BATCH, 8, 0, 16, dtype=torch.float64)
    for position in range(12):
        x = model.embedding[ids[:, position : position + 1]]
        h = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        q, k, v = (linear(h, w[name]).view(BATCH, 1, 8, 16).transpose(1, 2) for name in "qkv")
        here = torch.tensor([position], dtype=torch.float64)
        k_cache, v_cache = torch.cat((k_cache, turned(k, here)), dim=2), torch.cat((v_cache, v), dim=2)
        out = scaled_dot_product_attention(turned(q, here), k_cache, v_cache)
        y = x + linear(out.transpose(1, 2).reshape(BATCH, 1, 128), w["o"])
        expected = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        near(running.decode(ids[:, position : position + 1]), expected, 1e-12)


@pytest.mark.parametrize("is_whole", [True, False])
def test_two_keys_that_fit_alike_give_the_mean_of_their_values(is_whole):
    """q = (1, 1) meets K = ((1, 0), (0, 1)) with equal scores, so V = ((4, 0), (0, 2)) comes back as (2, 1)."""
    k, v = torch.eye(2).view(1, 1, 2, 2), torch.tensor([[4.0, 0.0], [0.0, 2.0]]).view(1, 1, 2, 2)
    pieces = (
        [Fresh((k, v), 0)] if is_whole else [Fresh((k[:, :, at : at + 1], v[:, :, at : at + 1]), at) for at in (0, 1)]
    )
    out = attend(torch.ones(1, 1, 1, 2), [Seen(tuple(pieces), Rule())], 1, 2**-0.5, torch.float32)
    assert out.flatten().tolist() == [2.0, 1.0]


# ---- against the oracle


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_at_once_and_token_by_token(name):
    model, ids, expected = models(name, torch.float64)
    near(in_passes(model, ids, [TOKENS]), expected, 1e-10)
    near(in_passes(model, ids, [1] * TOKENS), expected, 1e-10)


@pytest.mark.parametrize("name", MODELS)
@given(sizes=chunkings(TOKENS))
@settings(max_examples=8)
def test_a_prompt_in_chunks(name, sizes):
    model, ids, expected = models(name, torch.float64)
    near(in_passes(model, ids, sizes), expected, 1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_single_precision(name):
    model, ids, expected = models(name, None)
    for sizes in ([TOKENS], [1] * TOKENS, [17, 1, 14]):
        near(in_passes(model, ids, sizes), expected, 1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_few_entries_and_queries(name, monkeypatch):
    """What happens beyond 1,024 entries and 256 queries, at a size where the oracle is quick."""
    model, ids, expected = models(name, torch.float64)
    for module in (attending, selecting):
        monkeypatch.setattr(module, "UNPACKED_AT_ONCE", 4)
        monkeypatch.setattr(module, "QUERIES_AT_ONCE", 3)
    for page in (None, 3):
        near(in_passes(model, ids, [TOKENS - 9, 1, 8], page), expected, 1e-10)


@pytest.mark.parametrize("name", YOCO)
@given(st.integers(1, TOKENS), st.integers(1, TOKENS - 3))
@settings(max_examples=5)
def test_upper_layers_that_skip_the_prompt_lose_nothing(name, chunk, prompt):
    """The last token, and those decoded behind it, come out as if every layer had passed over every token."""
    model, ids, expected = models(name, torch.float64)
    running = session(model)
    out = [running.prefill(ids[:, :prompt], chunk)[:, -1:]]
    out += [running.decode(ids[:, at : at + 1]) for at in range(prompt, prompt + 3)]
    near(torch.cat(out, dim=1), expected[:, prompt - 1 : prompt + 3], 1e-10)


def test_only_the_last_tokens_reach_the_upper_layers():
    for name in YOCO:
        model, ids, _ = models(name, torch.float64)
        out = session(model).prefill(ids)
        widest_window = {"YOCO, one upper window": 5, "YOCO, window and choice from below": 7}
        assert out.shape == (BATCH, widest_window.get(name, 1), HIDDEN), name


# ---- how it is computed


class KernelCalls(TorchFunctionMode):
    """Every call of torch's attention kernel: queries, entries, and its mask."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        keys = kwargs or {}
        if func is scaled_dot_product_attention:
            q, k, _ = args
            self.calls.append((q.shape[2], k.shape[2], keys.get("is_causal", False), keys.get("attn_mask")))
        return func(*args, **keys)

    def during(self, run, *args):
        """The calls that `run` makes."""
        self.calls.clear()
        with self:
            run(*args)
        return list(self.calls)


@pytest.mark.parametrize("name", ["MHA", "GQA", "MLA", "flat latent"])
def test_a_kernel_is_causal_for_a_square_and_lower_right_behind_a_cache(name):
    """`is_causal=True` is aligned upper left: for one query it would show the first entry alone."""
    kernel, running, ids = KernelCalls(), session(build(MODELS[name])), tokens()
    square = kernel.during(running.prefill, ids[:, :8])
    assert square and all(call == (8, 8, True, None) for call in square)
    behind = kernel.during(running.prefill, ids[:, 8:20])
    assert behind and all(call[:3] == (12, 20, False) for call in behind)
    assert all(isinstance(call[3], CausalBias) and call[3].variant is CausalVariant.LOWER_RIGHT for call in behind)
    single = kernel.during(running.decode, ids[:, 20:21])
    assert single and all(call[1:] == (21, False, None) for call in single)


@pytest.mark.parametrize("name", MODELS)
def test_no_single_token_meets_a_causal_mask(name):
    """Queries of a group stand in one call together, so that a call of many may still be one token's."""
    kernel, running, ids = KernelCalls(), session(build(MODELS[name])), tokens()
    for position in range(4):
        calls = kernel.during(running.decode, ids[:, position : position + 1])
        assert all(call[2:] == (False, None) for call in calls)
    calls = kernel.during(running.prefill, ids[:, 4:])
    assert all(queries == entries or not is_causal for queries, entries, is_causal, _ in calls)


class Allocations(TorchDispatchMode):
    """The largest tensor, in numbers, that torch makes beyond the storages in `known`."""

    def __init__(self, known):
        super().__init__()
        self.known, self.largest = {one.untyped_storage().data_ptr() for one in known}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in self.known:
                self.largest = max(self.largest, one.untyped_storage().nbytes() // one.element_size())
        return made


def largest_made(model, count):
    """Numbers of the largest tensor made while the token behind `count` is decoded, and those of one cache."""
    running, ids = session(model, capacity=count + 1), tokens(count + 1)
    running.prefill(ids[:, :count])
    kept = [one.held.tensor for one in running.allocated() if one.held.role == "entries"]
    with Allocations([*kept, *model.weights()]) as made:
        running.decode(ids[:, count:])
    return made.largest, min(one.numel() for one in kept)


@pytest.mark.parametrize("name", ["MHA", "GQA", "MQA", "wide values", "MLA", "flat latent", "CLA", "cross"])
def test_a_step_copies_no_cache_and_repeats_no_head(name):
    """Neither K nor V comes twice, however many query heads read them: all that is made is as small as scores."""
    model = build(MODELS[name], None)
    largest, _ = largest_made(model, 600)
    scores = 2 * BATCH * 8 * 601
    assert 0 < largest <= scores < 600 * BATCH * 2 * 16


def test_a_packed_cache_is_never_unpacked_as_a_whole():
    largest, packed_bytes = largest_made(build([kv(head_dim=32)], None, "q8_0"), 2100)
    block = BATCH * 2 * 1024 * 34
    assert packed_bytes == BATCH * 2 * 2101 * 34
    assert 0 < largest <= block


# ---- what cannot run


@pytest.mark.parametrize(
    ("layers", "complaint"),
    [
        ([kv(top_k=5)], "layer 0: `kv` reads 5 entries that no index chooses"),
        ([kv(), [kv(top_k=5), {"kind": "index", "q_heads": 16, "head_dim": 8, "ratio": 2}]], "layer 1: `kv` reads 5"),
        ([[kv(top_k=5, window=9), {"kind": "index", "q_heads": 16, "head_dim": 8}]], "`window` reads 5 entries"),
        ([FULL, "{kind: shared, source: global, q_heads: 4, top_k: 5}"], "layer 1: `shared` reads 5 entries"),
        ([[kv(), {"kind": "index", "q_heads": 16, "head_dim": 8, "window": 9}]], "layer 0: an index keeps a window"),
        ([[kv(), {"kind": "index", "head_dim": 8}]], "states no q_heads to choose with"),
        (["{kind: kv, kv_heads: 2, head_dim: 16}"], "`kv` states no q_heads, so nothing asks"),
    ],
)
def test_what_nothing_chooses_or_asks_is_refused(layers, complaint):
    with pytest.raises(KvcalcError, match=complaint):
        build(layers)


def test_layers_above_the_prompt_keep_nothing_of_it():
    with pytest.raises(KvcalcError, match="layer 2: `kv` keeps something of every token above prefill_layers"):
        build([kv(), reader(q_heads=4), kv()], prefill_layers=1)


def test_a_model_without_a_hidden_size_is_refused():
    with pytest.raises(KvcalcError, match="tiny states no hidden_size"):
        build([kv()], hidden_size=None)


def test_candidates_are_kept_for_every_later_choice():
    """Two layers that choose among 12 and among 9 read 12 and 9 keys, whichever stands last."""
    running, ids = session(build([FULL, reindex(12), reindex(9)])), tokens()
    running.prefill(ids[:, :-1])
    before = running.read_bytes()[0, 2]
    running.decode(ids[:, -1:])
    entry_bytes = BATCH * 8 * 8
    assert running.read_bytes()[0, 2] - before == (TOKENS // 2 + 12 + 9) * entry_bytes
    assert spec([FULL, reindex(12), reindex(9)]).reads[1].reader == 2
