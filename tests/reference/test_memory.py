"""What sessions hold and read, in bytes, against what sizing predicts: exactly, for every kind and every format."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import KEYS

torch = pytest.importorskip("torch")

import tiny  # noqa: E402
from tiny import MODELS, YOCO  # noqa: E402

from kvcalc.cache.formats import find_format  # noqa: E402
from kvcalc.cache.sharding import WHOLE  # noqa: E402
from kvcalc.errors import FormatError  # noqa: E402
from kvcalc.reference.codecs import packed_formats  # noqa: E402
from kvcalc.reference.kinds import REFERENCES  # noqa: E402
from kvcalc.reference.model import ReferenceModel  # noqa: E402
from kvcalc.reference.session import Session  # noqa: E402
from kvcalc.sizing.need import Workload, size_workload  # noqa: E402

# What is beside the entries and states: the reference's own bookkeeping, and scales that a format holds outside.
BESIDE = {"scales", "open rows", "window positions", "block table", "token log", "encoder input"}
OWNERS = sorted(set(REFERENCES) - {"shared", "gmu"})


def test_every_kind_that_runs_is_drawn():
    assert set(OWNERS) <= set(KEYS)


def as_it_runs(draw, kind):
    """A layer of one kind that can run: with query heads, and with an index where a part of it is read."""
    keys = {"kind": kind, "id": "owner", **draw(KEYS[kind])}
    if kind == "index":
        return [{key: value for key, value in keys.items() if key not in ("window", "sinks", "chunk")} | {"q_heads": 2}]
    if kind in ("kv", "cross", "latent"):
        keys["q_heads"] = keys.get("kv_heads", 1) * draw(st.integers(1, 2))
    if "top_k" not in keys:
        return [keys]
    if "window" in keys or "chunk" in keys:
        del keys["top_k"]
        return [keys]
    span = {key: keys[key] for key in ("ratio", "overlap") if key in keys}
    return [keys, {"kind": "index", "id": "choice", "q_heads": 2, "head_dim": draw(st.sampled_from([32, 64])), **span}]


@st.composite
def specs(draw, kinds=OWNERS):
    """A layer of some kind, and perhaps later layers that read what it keeps."""
    first = as_it_runs(draw, draw(st.sampled_from(kinds)))
    owner = first[0]
    layers = [first]
    if owner["kind"] in ("kv", "cross", "latent") and draw(st.booleans()):
        layers += [{"kind": "shared", "source": "owner", "q_heads": owner["q_heads"]}] * draw(st.integers(1, 2))
    return tiny.spec(layers, hidden_size=owner.get("hidden", 32), dtype=draw(st.sampled_from(["fp32", "bf16"])))


def fitting(spec):
    """The formats that can hold every entry of `spec`, and for which a codec is written."""
    parts = [one.parts(WHOLE) for layer in spec.layers for one in layer.components if one.keeps_entries]

    def fits(form):
        try:
            return all(find_format(form).entry_bytes(each, "c") for each in parts)
        except FormatError:
            return False

    return [form for form in packed_formats() if fits(form)]


def opened(spec, workload, page=None):
    """A session with room for the context of `workload`."""
    counts = [one.span.cap for layer in spec.layers for one in layer.components if one.is_encoder_fed]
    model = ReferenceModel(spec, workload)
    encoded = torch.zeros(workload.batch, counts[0], spec.hidden_size, dtype=model.dtype) if counts else None
    return Session(model, workload.batch, workload.context_tokens, page=page, encoded=encoded)


def by_name(spec, figures):
    """Figures by place, summed by the name of the component."""
    total = Counter()
    for (layer, at), figure in figures.items():
        total[spec.layers[layer].components[at].name] += figure
    return dict(+total)


def stored(session, used_only=False):
    """Bytes of entries and states by component, from the storages of the tensors."""
    found = Counter()
    for one in session.allocated():
        if one.held.role in BESIDE:
            continue
        assert one.held.role in ("entries", "states")
        found[one.place] += one.held.used_bytes if used_only else one.held.tensor.untyped_storage().nbytes()
    return by_name(session.model.spec, found)


def predicted(spec, workload, figure):
    """A figure of every row of the prediction, for the batch, by component."""
    total = Counter()
    for row in size_workload(spec, workload, WHOLE).rows:
        total[row.component.name] += getattr(row, figure)(workload.context_tokens) * workload.batch
    return dict(+total)


@given(specs(), st.integers(1, 600), st.integers(1, 3), st.data())
@settings(max_examples=150)
def test_a_session_holds_the_bytes_that_sizing_predicts(spec, count, batch, data):
    form = data.draw(st.sampled_from(["auto", *fitting(spec)]))
    workload = Workload(context_tokens=count, batch=batch, kv_dtype=form)
    assert stored(opened(spec, workload)) == predicted(spec, workload, "stored_bytes")


@given(specs(["kv", "latent"]), st.integers(1, 300), st.integers(1, 40), st.data())
@settings(max_examples=40)
def test_pages_hold_the_same_and_what_rounding_up_leaves(spec, count, page, data):
    workload = Workload(count, 2, data.draw(st.sampled_from(fitting(spec))))
    session = opened(spec, workload, page)
    assert stored(session, used_only=True) == predicted(spec, workload, "stored_bytes")
    for one in session.allocated():
        if one.held.role == "entries":
            owner = spec.component(*one.place)
            pages = one.held.tensor.shape[0] * one.held.tensor.shape[2]
            bounded = owner.window is not None or owner.chunk is not None
            entries = int(owner.entries(count))
            assert pages == 2 * (entries if bounded else -(-entries // page) * page)


def peak(spec, count):
    """A context of about `count` tokens at which chunks are as full as sizing counts them."""
    chunks = [one.chunk for layer in spec.layers for one in layer.components if getattr(one, "chunk", None)]
    return count - count % chunks[0] if chunks and count > chunks[0] else count


@given(specs(), st.integers(1, 200), st.integers(1, 2), st.data())
@settings(max_examples=120)
def test_a_step_reads_the_bytes_that_sizing_predicts(spec, count, batch, data):
    form = data.draw(st.sampled_from(["auto", *fitting(spec)]))
    workload = Workload(context_tokens=peak(spec, count), batch=batch, kv_dtype=form)
    assert read_by_one_step(spec, workload) == predicted(spec, workload, "read_bytes")


def read_by_one_step(spec, workload, page=None):
    """Bytes that the last token of the context reads, by component."""
    session = opened(spec, workload, page)
    ids = tiny.tokens(workload.context_tokens, workload.batch)
    if workload.context_tokens > 1:
        session.prefill(ids[:, :-1])
    before = session.read_bytes()
    session.decode(ids[:, -1:])
    return by_name(spec, {place: after - before[place] for place, after in session.read_bytes().items()})


# ---- models of several layers


# Beside them: a window that narrows another ring reads all of that ring, and no more is read than there are candidates.
READ_AS_PREDICTED = [
    name for name in [*MODELS, *YOCO] if not name.startswith("narrow reader of") and "few candidates" not in name
]


def whole_model(name):
    """The model called `name` with a name for every component."""
    lower, layers = YOCO.get(name, (None, MODELS.get(name)))
    return tiny.spec(layers, prefill_layers=lower)


def in_total(spec, workload, figure):
    return sum(predicted(spec, workload, figure).values())


@pytest.mark.parametrize("page", [None, 5])
@pytest.mark.parametrize("name", [*MODELS, *YOCO])
def test_a_model_holds_what_its_layers_hold(name, page):
    spec, workload = whole_model(name), Workload(context_tokens=37, batch=3)
    found = stored(opened(spec, workload, page), used_only=True)
    assert found == predicted(spec, workload, "stored_bytes")
    assert sum(found.values()) == size_workload(spec, workload, WHOLE).total_bytes


@pytest.mark.parametrize("page", [None, 5])
@pytest.mark.parametrize("name", READ_AS_PREDICTED)
def test_readers_of_a_cache_are_counted_where_it_is_kept(name, page):
    spec = whole_model(name)
    workload = Workload(context_tokens=peak(spec, 37), batch=3)
    found = read_by_one_step(spec, workload, page)
    assert found == predicted(spec, workload, "read_bytes")
    assert sum(found.values()) == size_workload(spec, workload, WHOLE).read_bytes_per_step


# ---- by hand


def held_by_role(layer, count, form="auto", page=None):
    """Bytes of every role of one layer's session, batch 2, by arithmetic to compare with."""
    found = Counter()
    for one in opened(tiny.spec([layer]), Workload(count, 2, form), page).allocated():
        found[one.held.role] += one.held.tensor.untyped_storage().nbytes()
    return dict(found)


def test_what_serves_a_cache_has_a_role_of_its_own():
    """Two sequences, fp32; K and V of 2 heads x 16; a log of 8 bytes a token beside every one of them."""
    log = 2 * 30 * 8
    assert held_by_role(tiny.kv(), 30) == {"entries": 2 * 30 * 2 * 2 * 16 * 4, "token log": log}
    ring = {"entries": 2 * 11 * 2 * 2 * 16 * 4, "window positions": 11 * 8, "token log": log}
    assert held_by_role(tiny.kv(window=9, sinks=2), 30) == ring
    # 30 // 4 entries; 3 tokens of an open entry and 4 that it looks back at, each with a gate beside its value.
    pooled = {"entries": 2 * 7 * 2 * 2 * 16 * 4, "open rows": 2 * 7 * 2 * 2 * 32 * 4, "token log": log}
    assert held_by_role(tiny.kv(ratio=4, overlap=True), 30) == pooled
    # 8 pages of 4 a sequence, of K and of V.
    paged = {"entries": 2 * 32 * 2 * 2 * 16 * 4, "block table": 2 * 2 * 8 * 8, "token log": log}
    assert held_by_role(tiny.kv(), 30, page=4) == paged
    scaled = {"entries": 2 * 30 * 2 * 2 * 16, "scales": 2 * 30 * 2 * 2 * 4, "token log": log}
    assert held_by_role(tiny.kv(), 30, "int8") == scaled


def test_passing_tokens_allocates_nothing_more():
    for layer in (tiny.kv(), tiny.kv(window=9, sinks=2), tiny.kv(ratio=3, overlap=True), tiny.MLA):
        session = opened(tiny.spec([layer]), Workload(30, 2))
        before = [(one.held.role, one.held.tensor.data_ptr()) for one in session.allocated()]
        session.prefill(tiny.tokens(29))
        session.decode(tiny.tokens(1))
        assert [(one.held.role, one.held.tensor.data_ptr()) for one in session.allocated()] == before
