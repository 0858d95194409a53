"""One point: FLOP counts against torch's own counter and by hand, doubts, and running out of memory."""

import math

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from quick import HIDDEN, KV, MACHINE, QuickCpu, model_of, point_of, prompt, request, spec  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from kvcalc.model.feed_forward import Dense, Moe  # noqa: E402
from kvcalc.profiler import point as module  # noqa: E402
from kvcalc.profiler.timed import decode_steps, timed_prefills, timed_steps  # noqa: E402
from kvcalc.reference.session import Session  # noqa: E402
from kvcalc.reference.work import pass_flops  # noqa: E402

TOKENS, BATCH = 40, 2


def session_of(model):
    needs_encoder = any(part.reference.encoder_tokens for part in model.parts)
    return Session(model, BATCH, TOKENS, encoded=torch.rand(BATCH, 20, HIDDEN) if needs_encoder else None)


FLASH_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def counted(action):
    """FLOPs that torch counts, where attention is spelled out as products of matrices.

    torch knows no count of its fused kernel on a CPU, which is called by name where a softmax is merged.
    """
    fused = {FLASH_ON_CPU: lambda q, k, v, *_, **__: 2 * math.prod(q[:3]) * k[2] * (k[3] + v[3])}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=fused) as counter:
        action()
    return counter.get_total_flops()


def decode_flops(model):
    """What torch counts of the last step of a context of 40 tokens."""
    session, ids = session_of(model), prompt(BATCH, TOKENS)
    session.prefill(ids[:, :-1])
    return counted(lambda: session.decode(ids[:, -1:]))


def prefill_flops(model):
    session = session_of(model)
    return counted(lambda: session.prefill(prompt(BATCH, TOKENS)))


ATTENTION = ["kv", "wide values", "window", "sinks", "chunk", "pooled", "overlap", "flat latent", "cross", "shared"]


@pytest.mark.parametrize("name", ATTENTION)
def test_a_decode_step_does_what_torch_counts(name):
    model = model_of(request(name))
    assert BATCH * pass_flops(model, TOKENS - 1, 1) == decode_flops(model)


def test_a_decode_step_over_latents_takes_their_first_numbers_as_values():
    """The kernel takes all 160 numbers of an entry as its values, and 128 of what comes out are kept."""
    model = model_of(request("latent"))
    assert BATCH * (pass_flops(model, TOKENS - 1, 1) + 2 * 4 * TOKENS * 32) == decode_flops(model)


def test_an_index_adds_up_its_heads_beside_what_torch_counts():
    """20 keys, 4 heads: a multiplication and an addition each, which torch does not count."""
    model = model_of(request("index"))
    assert BATCH * pass_flops(model, TOKENS - 1, 1) - decode_flops(model) == BATCH * 20 * 4 * 2


CAUSAL = TOKENS * (TOKENS + 1) // 2
ALL = TOKENS * TOKENS
# Pairs of a query and an entry that it sees, pairs that a masked product computes, and 2 x heads x (K + V) of a pair.
PAIRS = {
    "kv": (2 * CAUSAL, 2 * ALL, 2 * 4 * 64),
    "wide values": (CAUSAL, ALL, 2 * 4 * 96),
    "window": (sum(min(9, n) for n in range(1, 41)) + CAUSAL, 2 * ALL, 2 * 4 * 64),
    "sinks": (sum(min(11, n) for n in range(1, 41)), ALL, 2 * 4 * 64),
    # Four chunks of 10.
    "chunk": (4 * 55, ALL, 2 * 4 * 64),
    # 13 entries of three tokens each, seen from their last token on.
    "pooled": (sum(n // 3 for n in range(1, 41)), TOKENS * 13, 2 * 4 * 64),
    "flat latent": (CAUSAL, ALL, 2 * 4 * 256),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_prefill_counts_matrices_as_torch_does_and_attention_as_far_as_it_is_causal(name):
    seen, computed, each = PAIRS[name]
    model = model_of(request(name))
    assert BATCH * (pass_flops(model, 0, TOKENS) + each * (computed - seen)) == prefill_flops(model)


def test_a_prefill_of_latents_spells_out_keys_and_values():
    """Four heads: K 32 + 32 wide and V 32; torch computes V padded to 64, for every pair."""
    model = model_of(request("latent"))
    assert BATCH * (pass_flops(model, 0, TOKENS) - 2 * 4 * 96 * CAUSAL + 2 * 4 * 128 * ALL) == prefill_flops(model)


def test_an_encoder_is_projected_once_and_by_its_own_length():
    """K and V of a decoder's 40 tokens and of an encoder's 20; every query meets all of those 20."""
    model = model_of(request("cross"))
    assert BATCH * (pass_flops(model, 0, TOKENS) + 2 * 4 * 64 * (ALL - CAUSAL)) == prefill_flops(model)
    keeper = next(part.keeper for part in model.parts if part.reference.encoder_tokens)
    projected = sum(2 * one.numel() for one in keeper.weights.values())
    whole, first, second = (pass_flops(model, past, count) for past, count in ((0, 40), (0, 30), (30, 10)))
    assert whole == first + second
    assert pass_flops(model, 0, 1) - pass_flops(model, 1, 1) + 2 * 4 * 64 == 20 * projected


def test_a_prompt_passes_the_upper_layers_with_its_last_token_alone():
    layers = [KV, KV, "{kind: shared, source: previous, q_heads: 4}"]
    model = model_of(request(spec(layers, prefill_layers=1)))
    assert BATCH * (pass_flops(model, 0, TOKENS) + 2 * 4 * 64 * (ALL - CAUSAL)) == prefill_flops(model)
    assert BATCH * pass_flops(model, TOKENS - 1, 1) == decode_flops(model)


@pytest.mark.parametrize(
    "mlp",
    [
        Dense(intermediate_size=96),
        Dense(intermediate_size=96, gated=False),
        Moe(intermediate_size=32, experts=8, active=2, shared=1, shared_intermediate_size=48),
    ],
)
def test_feed_forward_parts_count_the_experts_that_a_token_takes(mlp):
    one = spec([KV])
    layers = tuple(replace(layer, mlp=mlp) for layer in one.layers)
    model = model_of(request(replace(one, layers=layers), with_mlp=True))
    assert BATCH * pass_flops(model, TOKENS - 1, 1) == decode_flops(model)


def test_a_step_reads_no_weights_of_an_encoder_that_was_projected_before():
    model = model_of(request("cross"))
    assert model.weight_bytes - model.step_weight_bytes(BATCH) == 2 * 2 * 32 * HIDDEN * 4


def test_rates_are_bytes_and_flops_over_seconds():
    """A second for everything: rates are the counts themselves."""

    class Slow(QuickCpu):
        def time(self, action):
            action()
            return 1.0

    point = point_of(request("kv", contexts=[40]), device=Slow())
    model = model_of(request("kv"))
    prefill, decode = point["prefill"], point["decode"]
    assert (prefill["tokens"], decode["steps"]) == (36, 2)
    assert prefill["achieved_flops_per_second"] == prefill["flops"] == BATCH * pass_flops(model, 0, 36)
    assert prefill["tokens_per_second"] == BATCH * 36
    assert prefill["predicted_seconds"] == prefill["flops"] / MACHINE["gemm_flops_per_second"]
    read = 2 * BATCH * 40 * 2 * 2 * 32 * 4
    assert decode["read_bytes_per_step"] == read
    assert decode["achieved_bytes_per_second"] == read + model.weight_bytes
    assert decode["bandwidth_fraction"] == (read + model.weight_bytes) / MACHINE["read_bytes_per_second"]
    assert decode["overhead_seconds_per_layer"] == pytest.approx(0.5, rel=1e-4)
    attention, projections = point["ops"]
    assert (attention["calls"], attention["seconds"]) == (2, 0.5)
    # A call reads one layer, and there is a call a layer.
    assert attention["bytes"] * 2 == read
    assert attention["flops"] == BATCH * 2 * 4 * 40 * 64
    assert projections["bytes"] * 2 == model.weight_bytes
    assert projections["flops"] * 2 == BATCH * 2 * model.weight_bytes // 4


def test_a_context_of_one_token_has_no_prefill():
    point = point_of(request("kv", contexts=[1]))
    assert point["prefill"] is None
    assert point["decode"]["steps"] == 1


@pytest.mark.parametrize(("context", "most", "steps"), [(1, 9, 1), (7, 9, 1), (8, 9, 2), (400, 9, 9)])
def test_the_last_quarter_is_decoded_at_most(context, most, steps):
    assert decode_steps(context, most) == steps


def test_steps_end_with_the_budget_and_leave_warm_ups_out():
    assert timed_steps(float, 6, 100).samples == (2, 3, 4, 5)
    assert timed_steps(lambda at: 1.0, 50, 4.5).samples == (1, 1, 1)
    assert timed_steps(lambda at: 9.0, 50, 1).samples == (9,)
    assert timed_steps(lambda at: 9.0, 1, 1).samples == (9,)


def test_a_prefill_that_takes_the_budget_is_the_only_one():
    seconds = iter([3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert timed_prefills(lambda: next(seconds), 2.0).samples == (3.0,)
    # The first warmed up where more follow.
    assert timed_prefills(lambda: next(seconds), 3.5).samples == (1.0,) * 3


@pytest.mark.parametrize(
    ("where", "reached", "kept"),
    [
        ("__init__", "nothing", ()),
        ("prefill", "caches", ("components",)),
        ("decode", "prefill", ("components", "prefill")),
    ],
)
@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to\nmore"), MemoryError()]
)
def test_out_of_memory_ends_a_point_and_says_how_far_it_got(monkeypatch, where, reached, kept, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module.Session, where, fail)
    point = point_of(request("kv", contexts=[40]), device=QuickCpu(free=12345))
    reason = "out of memory: " + (str(error).partition("\n")[0] or "MemoryError")
    held = 2 * BATCH * 40 * 2 * 2 * 32 * 4
    assert point["stopped"] == {
        "reason": reason, "reached": reached, "asked_bytes": held, "available_bytes": 12345
    }  # fmt: skip
    assert {key for key in ("components", "prefill", "decode") if point[key]} == set(kept)


def test_any_other_error_is_passed_on(monkeypatch):
    def fail(*_):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(module.Session, "prefill", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        point_of(request("kv"))


class Graphs(QuickCpu):
    """A CPU that records graphs: a replay takes a quarter of the second that a step takes. Or `error` is raised."""

    error = None

    def time(self, action):
        return action() or 1.0

    def capture(self, action):
        if self.error is not None:
            raise self.error
        return lambda: (action(), 0.25)[1]


def test_a_graph_tells_the_device_from_the_host():
    decode = point_of(request("window", contexts=[40]), device=Graphs())["decode"]
    assert (decode["measured_seconds"], decode["graph_seconds"], decode["host_seconds"]) == (1, 0.25, 0.75)


@pytest.mark.parametrize("words", ["operation not permitted when stream is capturing\nmore", ""])
def test_a_step_that_cannot_be_recorded_is_a_doubt(words):
    device = Graphs()
    device.error = RuntimeError(words)
    point = point_of(request("kv", contexts=[40]), device=device)
    assert f"decode: no graph ({words.partition(chr(10))[0] or 'RuntimeError'})" in point["doubts"]
    assert point["decode"]["graph_seconds"] is None
    assert point["ops"]
