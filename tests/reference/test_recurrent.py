"""The recurrent references against equations taken token by token, against themselves in chunks, and over ranks."""

import threading
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from naive_recurrent import NAIVE  # noqa: E402

from kvcalc.cache.kinds import KINDS, AnyComponent  # noqa: E402
from kvcalc.cache.sharding import WHOLE, Sharding  # noqa: E402
from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.reference.build import Build, Rank  # noqa: E402
from kvcalc.reference.recurrent import RECURRENT  # noqa: E402
from kvcalc.reference.scans import decay_scan  # noqa: E402
from kvcalc.sizing.packing import FormatRequest, Packer  # noqa: E402

HIDDEN = 24
PACKER = Packer(FormatRequest(), "bf16", None, None)
WHOLE_RANK = Rank()

few, kernels = st.integers(1, 4), st.integers(1, 5)
FIELDS = {
    "mamba1": st.fixed_dictionaries({"inner": st.integers(1, 6), "state": few, "kernel": kernels, "dt_rank": few}),
    "mamba2": st.tuples(few, few, few, few, kernels).map(
        lambda n: {"groups": n[0], "heads": n[0] * n[1], "head_dim": n[2], "state": n[3], "kernel": n[4]}
    ),
    "gated_delta": st.tuples(few, few, few, few, kernels).map(
        lambda n: {"k_heads": n[0], "v_heads": n[0] * n[1], "k_dim": n[2], "v_dim": n[3], "kernel": n[4]}
    ),
    "linear": st.fixed_dictionaries({"heads": few, "k_dim": few, "v_dim": few}),
    "short_conv": st.fixed_dictionaries({"width": st.integers(1, 6), "kernel": kernels}),
    "rg_lru": st.tuples(few, few, kernels).map(lambda n: {"heads": n[0], "width": n[0] * n[1], "kernel": n[2]}),
    "rwkv": st.fixed_dictionaries({"hidden": st.just(HIDDEN), "heads": few, "head_dim": few}),
    "gmu": st.just({}),
}
# Large enough that fp32 and bf16 norms are not taken over a number or two; each head count is even.
LARGER = {
    "mamba1": {"inner": 16, "state": 8, "kernel": 4},
    "mamba2": {"heads": 4, "head_dim": 16, "state": 8, "groups": 2, "kernel": 4},
    "gated_delta": {"k_heads": 2, "v_heads": 4, "k_dim": 16, "v_dim": 8, "kernel": 4},
    "linear": {"heads": 2, "k_dim": 8, "v_dim": 16},
    "short_conv": {"width": 16, "kernel": 3},
    "rg_lru": {"width": 16, "kernel": 4, "heads": 4},
    "rwkv": {"hidden": HIDDEN, "heads": 2, "head_dim": 16},
    "gmu": {},
}
# What else may be spread over two ranks: one group or key head on both ranks, gates that cross them.
SPREAD = [
    *LARGER.items(),
    ("mamba2", LARGER["mamba2"] | {"groups": 1}),
    ("gated_delta", LARGER["gated_delta"] | {"k_heads": 1}),
    ("rg_lru", {"width": 16, "kernel": 4}),
    ("rg_lru", {"width": 18, "kernel": 1, "heads": 3}),
]


def made(kind, fields, dtype=torch.float64, rank=WHOLE_RANK, hidden=HIDDEN):
    """A mixer with its component beside it."""
    component = msgspec.convert({"kind": kind, **fields}, AnyComponent)
    exact = dtype if dtype == torch.float64 else None
    mixer = RECURRENT[kind](component, Build(hidden, PACKER, dtype, rank=rank, exact=exact))
    mixer.component = component
    return mixer


def inputs(tokens, dtype=torch.float64, batch=2, seed=0, width=HIDDEN):
    return torch.randn(batch, tokens, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def empty(mixer, batch=2, dtype=torch.float64):
    return {name: torch.zeros(batch, *shape, dtype=dtype) for name, shape in mixer.state_shapes().items()}


def passed(mixer, x, memory, chunks, state_dtype=None):
    """Output, memory and states after the tokens of x in passes of `chunks` tokens each."""
    states, outputs, memories = empty(mixer, len(x), state_dtype or x.dtype), [], []
    held = {name: state.data_ptr() for name, state in states.items()}
    for x_part, memory_part in zip(x.split(chunks, dim=1), memory.split(chunks, dim=1), strict=True):
        step = SimpleNamespace(memory=memory_part)
        outputs.append(mixer.mix(x_part, states, step))
        memories.append(step.memory)
    assert {name: state.data_ptr() for name, state in states.items()} == held
    return torch.cat(outputs, dim=1), torch.cat(memories, dim=1), states


def near(got, expected, tolerance):
    """Equal to `tolerance` of the largest number."""
    assert got.shape == expected.shape
    assert got.isfinite().all()
    if expected.numel():
        assert (got.double() - expected.double()).abs().max() <= tolerance * expected.double().abs().max().clamp(min=1)


def alike(got, expected, tolerance):
    for one, other in zip(got[:2], expected[:2], strict=True):
        near(one, other, tolerance)
    assert got[2].keys() == expected[2].keys()
    for name in expected[2]:
        near(got[2][name], expected[2][name], tolerance)


def chunkings(tokens):
    return st.lists(st.integers(1, 90), min_size=1, max_size=8).map(lambda sizes: _summing_to(sizes, tokens))


def _summing_to(sizes, tokens):
    chunks = []
    while (rest := tokens - sum(chunks)) > 0:
        chunks.append(min(sizes[len(chunks) % len(sizes)], rest))
    return chunks


def test_every_kind_with_a_state_has_a_reference_except_the_one_that_lists_them():
    home = {kind for kind, component in KINDS.items() if component.__module__ == "kvcalc.cache.recurrent"}
    assert set(RECURRENT) == home - {"recurrent"} | {"gmu"}


@pytest.mark.parametrize("kind", RECURRENT)
@settings(max_examples=25)
@given(data=st.data())
def test_whole_and_chunks_and_single_tokens_match_the_equations(kind, data):
    mixer = made(kind, data.draw(FIELDS[kind]))
    tokens = data.draw(st.one_of(st.integers(1, 5), st.integers(14, 18), st.integers(62, 70), st.just(130)))
    x, memory = inputs(tokens, seed=tokens), inputs(tokens, seed=1, width=6)
    whole = passed(mixer, x, memory, [tokens])
    alike(passed(mixer, x, memory, data.draw(chunkings(tokens))), whole, 1e-10)
    alike(passed(mixer, x, memory, [1] * tokens), whole, 1e-10)
    for row in range(len(x)):
        y, states, left = NAIVE[kind](mixer, x[row], memory[row])
        expected = (y, memory[row] if left is None else left, states)
        alike((whole[0][row], whole[1][row], {name: state[row] for name, state in whole[2].items()}), expected, 1e-10)


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("chunks", [[1] * 150, [64, 64, 22], [100, 1, 1, 48]], ids=["tokens", "chunks", "ragged"])
def test_fp32_agrees_however_the_tokens_are_cut(kind, chunks):
    mixer = made(kind, LARGER[kind], torch.float32)
    x, memory = inputs(150, torch.float32), inputs(150, torch.float32, seed=1, width=6)
    alike(passed(mixer, x, memory, chunks), passed(mixer, x, memory, [150]), 1e-5)


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bf16_states_stay_near_exact_ones(kind, dtype):
    mixer = made(kind, LARGER[kind], dtype)
    x, memory = inputs(80, dtype), inputs(80, dtype, seed=1, width=6)
    rounded = passed(mixer, x, memory, [64, *[1] * 16], torch.bfloat16)
    assert rounded[0].dtype == dtype
    assert {state.dtype for state in rounded[2].values()} <= {torch.bfloat16}
    # 8 bits of mantissa, rounded at each of 17 passes.
    alike(rounded, passed(mixer, x, memory, [80], torch.float32), 0.05)


@pytest.mark.parametrize("kind", RECURRENT)
@settings(max_examples=20)
@given(data=st.data())
def test_states_have_the_shapes_that_the_component_names(kind, data):
    fields = data.draw(FIELDS[kind])
    mixer = made(kind, fields)
    assert mixer.state_shapes() == {state.name: state.shape for state in mixer.component.states(WHOLE)}


@pytest.mark.parametrize(("kind", "fields"), SPREAD, ids=str)
def test_two_ranks_add_up_to_one(kind, fields):
    """Each rank in a thread of its own; they meet where a real rank would meet the others."""
    whole = made(kind, fields)
    x, memory = inputs(70), inputs(70, seed=1, width=6)
    expected = passed(whole, x, memory, [69, 1])
    meeting, summands, results = threading.Barrier(2, timeout=30), [None, None], [None, None]

    def run(index):
        def reduce(tensor):
            summands[index] = tensor.clone()
            meeting.wait()
            tensor.copy_(summands[0] + summands[1])
            meeting.wait()

        mixer = made(kind, fields, rank=Rank(index, 2, reduce))
        shapes = {state.name: state.shape for state in mixer.component.states(Sharding(tp=2))}
        assert mixer.state_shapes() == shapes
        results[index] = passed(mixer, x, memory.chunk(2, dim=-1)[index], [69, 1])[:2]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for output, _ in results:
        near(output, expected[0], 1e-10)
    near(torch.cat([memory_left for _, memory_left in results], dim=-1), expected[1], 1e-10)


# Added to the numbers that set how fast a state decays, for decays near 1 and near 0.
SLOW_AND_FAST = [
    ("mamba1", "log_rate", (-20, 8)),
    ("mamba2", "log_rate", (-20, 8)),
    ("gated_delta", "log_rate", (-20, 8)),
    ("rg_lru", "rate", (-20, 9)),
    ("rwkv", "decay_shift", (-20, 5)),
]


@pytest.mark.parametrize(("kind", "name", "shifts"), SLOW_AND_FAST)
@pytest.mark.parametrize("index", [0, 1], ids=["slow", "fast"])
def test_extreme_decays_neither_overflow_nor_cancel(kind, name, shifts, index):
    mixer = made(kind, LARGER[kind], torch.float32)
    mixer.weights[name] += shifts[index]
    x = inputs(150, torch.float32)
    alike(passed(mixer, x, x, [1] * 150), passed(mixer, x, x, [150]), 2e-5)


def test_a_near_forgotten_chunk_keeps_the_digits_of_small_decays():
    """After decays that sum to -30,000 a difference of two running sums in fp32 has no digit behind the point left."""
    log_decay = torch.full((1, 1, 64, 1), -1e-3)
    log_decay[:, :, 1:31] = -1000.0
    q, k, v = (inputs(64, torch.float32, 1, seed, 8).unsqueeze(1) for seed in range(3))
    state = torch.zeros(1, 1, 8, 8)
    y, after = decay_scan(q, k, v, log_decay, state)
    s = state.double()[0, 0]
    for t in range(64):
        s = s * log_decay[0, 0, t, 0].double().exp() + torch.outer(k[0, 0, t], v[0, 0, t]).double()
        near(y[0, 0, t], q[0, 0, t].double() @ s, 1e-5)
    near(after[0, 0], s, 1e-5)


@pytest.mark.parametrize("kind", ["mamba1", "mamba2", "gated_delta", "short_conv", "rg_lru"])
def test_weights_count_what_the_component_counts(kind):
    """The counts of kvcalc.cache.recurrent follow the tensors of published checkpoints."""
    mixer = made(kind, LARGER[kind])
    assert sum(one.numel() for one in mixer.weights.values()) == mixer.component.parameter_count(HIDDEN)


def test_linear_has_a_decay_a_head_beyond_lightning_attention():
    mixer = made("linear", LARGER["linear"])
    counted = mixer.component.parameter_count(HIDDEN) + HIDDEN * LARGER["linear"]["heads"]
    assert sum(one.numel() for one in mixer.weights.values()) == counted


def test_rwkv_has_as_many_weights_as_the_published_time_mix():
    """Five projections 4096^2, blends 4096 x (6 + 2 x 5 x 64), decay 4096 x (1 + 2 x 128), bonus, group norm.

    Source: RWKV-x060-World-7B, as model_specs/rwkv6-7b.yaml counts it.
    """
    mixer = made("rwkv", {"hidden": 4096, "heads": 64, "head_dim": 64}, torch.bfloat16, hidden=4096)
    assert sum(one.numel() for one in mixer.weights.values()) == 87_597_056


@pytest.mark.parametrize(
    ("kind", "numbers", "operations"),
    [
        ("mamba1", 16 * 8, 6),
        ("mamba2", 4 * 16 * 8, 6),
        ("gated_delta", 4 * 16 * 8, 8),
        ("linear", 2 * 8 * 16, 6),
        ("short_conv", 0, 0),
        ("rg_lru", 16, 4),
        ("rwkv", 2 * 16 * 16, 6),
        ("gmu", 0, 0),
    ],
)
def test_flops_are_those_of_every_state_number_and_little_more(kind, numbers, operations):
    mixer = made(kind, LARGER[kind])
    # What comes on top is a skip or a bonus: at most 4 operations a channel, of which none has more than 32.
    assert numbers * operations <= mixer.flops(1) <= numbers * operations + 4 * 64
    assert mixer.flops(100) == 100 * mixer.flops(1)


@pytest.mark.parametrize("kind", ["mamba2", "gated_delta", "linear", "rwkv"])
def test_a_rank_does_its_share_of_the_flops(kind):
    halves = [made(kind, LARGER[kind], rank=Rank(index, 2)).flops(10) for index in range(2)]
    assert sum(halves) == made(kind, LARGER[kind]).flops(10)


def test_a_gmu_without_a_memory_says_so():
    with pytest.raises(KvcalcError, match="no layer before it leaves a memory"):
        made("gmu", {}).mix(inputs(1), {}, SimpleNamespace(memory=None))


@pytest.mark.parametrize(
    ("kind", "fields", "size", "words"),
    [
        ("rwkv", LARGER["rwkv"] | {"hidden": 32}, 1, "hidden 32 in a model that is 24 wide"),
        ("rg_lru", {"width": 16, "kernel": 4, "heads": 3}, 1, "width 16 is no multiple of heads 3"),
        ("mamba2", LARGER["mamba2"], 3, "4 state heads do not divide over 3 ranks"),
        ("gated_delta", LARGER["gated_delta"], 3, "2 key heads do not divide over 3 ranks"),
        ("short_conv", LARGER["short_conv"], 3, "16 channels do not divide over 3 ranks"),
    ],
)
def test_what_does_not_fit_is_refused(kind, fields, size, words):
    with pytest.raises(KvcalcError, match=words):
        made(kind, fields, rank=Rank(0, size))
