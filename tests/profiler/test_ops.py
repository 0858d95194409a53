"""Single operations of a step, and a recorded step that fails: what they count, and what they leave behind."""

import msgspec
import pytest

torch = pytest.importorskip("torch")

from quick import KV, MACHINE, MODELS, QuickCpu, model_of, point_of, prompt, request, spec, with_keys  # noqa: E402

from kvcalc.model.feed_forward import Moe  # noqa: E402
from kvcalc.profiler.ops import attention_calls, decode_ops  # noqa: E402
from kvcalc.reference.session import Session  # noqa: E402
from kvcalc.reference.work import pass_flops  # noqa: E402

TOKENS = 32


def session_of(model):
    """One token before the end of its context."""
    session = Session(model, 2, TOKENS)
    session.prefill(prompt(2, TOKENS)[:, :-1])
    return session


def test_layers_that_reach_differently_far_are_operations_of_their_own():
    layers = [with_keys(KV, "ratio: 2"), with_keys(KV, "ratio: 16"), with_keys(KV, "ratio: 2")]
    ops = decode_ops(session_of(model_of(request(spec(layers)))), prompt(2, 1), QuickCpu(), MACHINE)
    attention = [op for op in ops if op["name"].startswith("attention")]
    # K and V, 2 sequences, 2 KV heads x 32 x 4 B; 4 query heads, 2 FLOPs for each number of K and of V.
    assert [(op["calls"], op["bytes"], op["flops"]) for op in attention] == [
        (2, 16 * 2 * 2 * 2 * 32 * 4, 2 * 4 * 16 * 2 * 64),
        (1, 2 * 2 * 2 * 2 * 32 * 4, 2 * 4 * 2 * 2 * 64),
    ]


def test_a_narrower_reader_counts_the_entries_that_it_meets():
    calls = attention_calls(session_of(model_of(request("shared"))), prompt(2, 1))
    per_entry = 2 * 4 * 2 * 64
    assert [call.flops // per_entry for call in calls] == [TOKENS, TOKENS, 5]


def test_projections_leave_feed_forward_parts_out():
    bare = spec([KV])
    layer = msgspec.structs.replace(bare.layers[0], mlp=Moe(intermediate_size=16, experts=8, active=2))
    model = model_of(request(msgspec.structs.replace(bare, layers=(layer,)), with_mlp=True))
    assert len(model.layers[0].mlp.experts) == 8
    *_, projections = decode_ops(session_of(model), prompt(2, 1), QuickCpu(), MACHINE)
    # Q and O of 4 heads, K and V of 2, 32 wide, in fp32.
    assert projections["bytes"] == 64 * 32 * (2 * 4 + 2 * 2) * 4


@pytest.mark.parametrize(("kv_dtype", "page", "width"), [("auto", None, 96), ("auto", 4, 288), ("fp8", None, 288)])
def test_a_prefill_of_latents_is_counted_the_way_it_goes(kv_dtype, page, width):
    """Spelled out, a pair costs 32 + 32 of K and 32 of V; absorbed, 128 + 32 of K and 128 of V."""
    model = model_of(request("latent", kv_dtype=kv_dtype))
    matrices = sum(2 * weight.numel() for weight in model.mixer_weights())
    pairs = TOKENS * (TOKENS + 1) // 2
    assert pass_flops(model, 0, TOKENS, page) == TOKENS * matrices + 2 * 4 * pairs * width


class FailingDevice(QuickCpu):
    """A device with graphs that cannot record this step: it dies in the middle of it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def capture(self, action):
        last = self.model.layers[-1].parts[-1]

        def fail(*_):
            raise RuntimeError("operation not permitted when stream is capturing")

        working, last.asker.attend = last.asker.attend, fail
        try:
            action()
        finally:
            last.asker.attend = working


@pytest.mark.parametrize("name", ["window", "sinks", "chunk", "pooled"])
def test_a_step_that_dies_while_it_is_recorded_leaves_the_caches_in_place(name):
    model = model_of(request(spec([*MODELS[name], KV])))
    session, ids = session_of(model), prompt(2, TOKENS)
    with pytest.raises(RuntimeError, match="capturing"):
        FailingDevice(model).capture(session.repeatable(ids[:, -1:]))
    whole = Session(model, 2, TOKENS).prefill(ids)
    assert torch.allclose(session.decode(ids[:, -1:]), whole[:, -1:], atol=1e-5)


def test_the_encoders_output_is_a_rule_of_its_own():
    point = point_of(request("cross"))
    rules = {rule["name"]: (rule["predicted_bytes"], rule["measured_bytes"]) for rule in point["rules"]}
    assert rules["encoder input"] == (2 * 20 * 64 * 4, 2 * 20 * 64 * 4)


def test_a_gated_memory_unit_has_its_weights_from_the_start():
    model = model_of(request("gmu"))
    before = model.weight_bytes
    session_of(model)
    assert model.weight_bytes == before
    assert {weight.shape for weight in model.layers[-1].parts[0].mixer.weights.values()} == {(32, 64), (64, 32)}
