"""Bytes that a run holds and reads against what sizing predicts: no error at all, for every kind, format and page."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import KEYS

torch = pytest.importorskip("torch")

from quick import CROSS, GLOBAL, INDEX, KV, MLA, MODELS, point_of, request, spec, with_keys  # noqa: E402

from kvcalc.cache.formats import find_format  # noqa: E402
from kvcalc.cache.sharding import WHOLE  # noqa: E402
from kvcalc.errors import FormatError, KvcalcError  # noqa: E402
from kvcalc.profiler.predict import Prediction  # noqa: E402
from kvcalc.profiler.room import longest_fitting, refuse_without_room, room_for  # noqa: E402
from kvcalc.profiler.verdict import judge  # noqa: E402
from kvcalc.reference.build import Rank  # noqa: E402
from kvcalc.reference.codecs import packed_formats  # noqa: E402
from kvcalc.reference.kinds import REFERENCES  # noqa: E402

WITH_ENTRIES = [
    "kv",
    "window",
    "sinks",
    "chunk",
    "pooled",
    "overlap",
    "latent",
    "flat latent",
    "index",
    "cross",
    "shared",
]


def held(point):
    """Measured bytes of all components and of all own rules of a point."""
    return sum(one["measured_bytes"] for one in (*point["components"], *point["rules"]))


def exact(asked):
    """The point of a request, whose every figure has to be as predicted."""
    point = point_of(asked)
    assert point["stopped"] is None
    assert judge([point], None)["reasons"] == []
    assert all(
        one["counted_read_bytes_per_step"] == one["predicted_read_bytes_per_step"] for one in point["components"]
    )
    assert all(one["measured_bytes"] == one["predicted_bytes"] > 0 for one in point["rules"])
    return point


def can_hold(model, form):
    """Whether every entry of the model fits the format."""
    parts = [one.parts(WHOLE) for layer in spec(MODELS[model]).layers for one in layer.components if one.keeps_entries]
    try:
        return all(find_format(form).entry_bytes(each, "entries") for each in parts)
    except FormatError:
        return False


def test_every_kind_that_runs_is_here():
    kinds = {one.kind for layers in MODELS.values() for layer in spec(layers).layers for one in layer.components}
    assert kinds == set(REFERENCES)


def test_every_format_that_packs_is_here():
    assert {form for _, form in PAIRS} == set(packed_formats())


PAIRS = [(model, form) for model in WITH_ENTRIES for form in packed_formats() if can_hold(model, form)]


@pytest.mark.parametrize(("model", "form"), PAIRS)
def test_every_kind_in_every_format(model, form):
    point = exact(request(model, contexts=[21], kv_dtype=form))
    assert sum(one["measured_bytes"] for one in point["components"]) > 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_every_kind_in_the_models_own_format(model, dtype):
    point = exact(request(spec(MODELS[model], dtype=dtype), contexts=[23], batches=[3]))
    assert held(point) > 0


@pytest.mark.parametrize("page", [1, 4, 7, 16, 64])
@pytest.mark.parametrize("model", WITH_ENTRIES)
def test_pages_that_divide_the_context_and_pages_that_do_not(model, page):
    point = exact(request(model, contexts=[24], page=page))
    rules = {one["name"]: one for one in point["rules"]}
    # 24 entries, or 12 or 8 where a few tokens share one, end within a block of 7 or 16; a ring is never paged.
    grows = model not in ("sinks", "chunk")
    assert ("block table" in rules) == grows
    if model == "kv":
        # Two layers, K and V, two sequences: 24 tokens of 2 heads x 32 fp32 in whole blocks.
        blocks = -(-24 // page)
        assert rules["block table"]["measured_bytes"] == 2 * 2 * 2 * blocks * 8
        padding = 2 * 2 * 2 * (blocks * page - 24) * 2 * 32 * 4
        assert rules.get("page padding", {"measured_bytes": 0})["measured_bytes"] == padding


@pytest.mark.parametrize(("form", "page"), [("fp8", 7), ("int8", 5), ("q4_0", 16), ("nvfp4", 3)])
def test_packed_pages(form, page):
    exact(request("window", contexts=[23], kv_dtype=form, page=page))


def test_bytes_of_a_point_by_hand():
    """Two layers of 2 KV heads x 32 in int8 beside fp32 scales, 21 tokens, batch 2; all but K and V are rules."""
    point = exact(request("kv", contexts=[21], kv_dtype="int8"))
    (kv,) = point["components"]
    assert kv["measured_bytes"] == 2 * 2 * 21 * 2 * 2 * 32
    assert kv["counted_read_bytes_per_step"] == kv["measured_bytes"]
    rules = {one["name"]: one["measured_bytes"] for one in point["rules"]}
    assert rules == {"token log": 2 * 21 * 8, "scales": 2 * 2 * 21 * 2 * 2 * 4}


def test_a_step_reads_a_window_and_a_choice_and_not_the_context():
    """A window of 9, a choice of 6 among 20 entries of 40 tokens in fp32, batch 1; K and V heads are 2 x 32."""
    window = exact(request(spec([with_keys(KV, "window: 9")]), contexts=[40], batches=[1]))["components"][0]
    assert window["counted_read_bytes_per_step"] == 9 * 2 * 2 * 32 * 4
    chosen, index = exact(request(spec([f"[{GLOBAL}, {INDEX}]"]), contexts=[40], batches=[1]))["components"]
    assert chosen["counted_read_bytes_per_step"] == 6 * 96 * 4
    assert index["counted_read_bytes_per_step"] == 20 * 32 * 4


@st.composite
def runs(draw):
    """A request over odd contexts, batches, windows, ratios and pages."""
    span = draw(
        st.sampled_from(
            ["", "window: {}", "window: {}, sinks: 2", "chunk: {}", "ratio: {}", "ratio: {}, overlap: true"]
        )
    ).format(draw(st.integers(1, 30)))
    mixer = draw(st.sampled_from([KV, MLA]))
    layers = [with_keys(mixer, span) if span else mixer, draw(st.sampled_from([KV, f"[{KV}, {CROSS}]"]))]
    heads = draw(st.sampled_from([None, 4, 8]))
    if heads:
        layers.append({"kind": "shared", "source": "previous", "q_heads": heads})
    return request(
        spec(layers, dtype=draw(st.sampled_from(["fp32", "bf16"]))),
        contexts=[draw(st.integers(1, 47))],
        batches=[draw(st.integers(1, 3))],
        kv_dtype=draw(st.sampled_from(["auto", "fp8", "int4", "q8_0", "mxfp4"])),
        page=draw(st.one_of(st.none(), st.integers(1, 50))),
    )


@settings(max_examples=40)
@given(runs())
def test_odd_contexts_batches_windows_ratios_and_pages(asked):
    exact(asked)


RECURRENT = ["mamba1", "mamba2", "gated_delta", "linear", "short_conv", "rg_lru", "rwkv"]


@settings(max_examples=25)
@given(
    st.sampled_from(RECURRENT).flatmap(lambda kind: KEYS[kind].map(lambda keys: {"kind": kind, **keys})),
    st.integers(1, 9),
)
def test_states_of_any_shape(mixer, context):
    try:
        exact(request(spec([mixer], hidden_size=mixer.get("hidden", 64)), contexts=[context]))
    except KvcalcError as refused:
        # Head counts that its maths cannot divide: said, not run.
        assert refused.hint


# ---- room


def test_room_is_what_will_be_held_and_scratch_beside_it():
    asked = request("window", contexts=[24], page=7)
    room, point = room_for(asked, 24, 2), point_of(asked)
    assert room.cache_bytes == sum(one["measured_bytes"] for one in point["components"])
    assert room.rule_bytes == sum(one["measured_bytes"] for one in point["rules"])
    assert room.total_bytes > room.cache_bytes + room.rule_bytes


@given(st.integers(1, 3000), st.integers(0, 80 * 2**20))
def test_the_longest_context_that_fits_is_the_longest(context, available):
    asked = request("kv", contexts=[context])
    found = longest_fitting(asked, context, 2, available)
    assert 0 <= found < context
    if found:
        assert room_for(asked, found, 2).total_bytes <= available
    if found + 1 < context:
        assert room_for(asked, found + 1, 2).total_bytes > available


def test_what_does_not_fit_is_told_with_what_would():
    asked = request("kv", contexts=[4096])
    room = room_for(asked, 4096, 2).total_bytes
    refuse_without_room(asked, 4096, 2, room)
    with pytest.raises(
        KvcalcError, match=r"4,096 tokens x 2 ask for .* \(caches 8.00 MiB\), and .* are available"
    ) as found:
        refuse_without_room(asked, 4096, 2, room - 1)
    assert found.value.hint == "--ctx 4095 --batch 2 would fit"
    with pytest.raises(KvcalcError) as found:
        refuse_without_room(asked, 4096, 2, 10)
    assert found.value.hint == "use a smaller --batch, or fewer --layers"


def test_a_rank_is_predicted_what_one_rank_holds():
    """4 ranks over 2 KV heads hold one head each; a latent is whole on every rank."""
    kv, latent = request("kv"), request("latent")
    size = kv.size(16, 2)
    assert sum(one.stored_bytes for one in Prediction(size, None).components()) == size.total_bytes
    for asked, ranks, share in ((kv, 2, 2), (kv, 4, 2), (latent, 4, 1)):
        on_ranks = msgspec.structs.replace(asked, rank=Rank(size=ranks))
        held_bytes = sum(one.stored_bytes for one in Prediction(on_ranks.size(16, 2), None).components())
        assert held_bytes * share == asked.size(16, 2).total_bytes
