"""Hypothesis strategies: a component of every kind, and models made of them."""

import msgspec
from hypothesis import strategies as st

from kvcalc.cache.kinds import KINDS, AnyComponent
from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document

small = st.integers(1, 12)
widths = st.integers(1, 4).map(lambda n: 32 * n)
spans = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"window": st.integers(1, 400)}),
    st.fixed_dictionaries({"window": st.integers(1, 400), "sinks": st.integers(0, 8)}),
    st.fixed_dictionaries({"chunk": st.integers(1, 400)}),
    st.fixed_dictionaries({"ratio": st.integers(1, 12)}),
    st.fixed_dictionaries({"ratio": st.integers(1, 12), "overlap": st.booleans()}),
)
top_ks = st.one_of(st.just({}), st.fixed_dictionaries({"top_k": st.integers(1, 300)}))


def _merged(*parts):
    return st.tuples(*parts).map(lambda dicts: {key: value for one in dicts for key, value in one.items()})


def _fields(**fields):
    return st.fixed_dictionaries(fields)


KEYS = {
    "kv": _merged(_fields(kv_heads=small, head_dim=widths, v_head_dim=st.one_of(st.none(), widths)), spans, top_ks),
    "latent": _merged(_fields(latent_dim=widths, rope_dim=st.sampled_from([0, 32, 64])), spans, top_ks),
    "index": _merged(_fields(head_dim=widths), spans),
    "cross": _fields(kv_heads=small, head_dim=widths, encoder_tokens=st.integers(1, 2000)),
    "shared": _fields(source=st.just("previous"), q_heads=small),
    "mamba1": _fields(inner=widths, state=small, kernel=st.integers(1, 5)),
    "mamba2": _fields(heads=small, head_dim=widths, state=widths, groups=st.just(1), kernel=st.integers(1, 5)),
    "gated_delta": small.flatmap(
        lambda heads: _fields(
            k_heads=st.just(heads), v_heads=st.just(2 * heads), k_dim=widths, v_dim=widths, kernel=st.integers(1, 5)
        )
    ),
    "linear": _fields(heads=small, k_dim=widths, v_dim=widths),
    "short_conv": _fields(width=widths, kernel=st.integers(1, 5)),
    "rg_lru": _fields(width=widths, kernel=st.integers(1, 5)),
    "rwkv": _fields(hidden=widths, heads=small, head_dim=widths),
    "recurrent": _fields(
        states=st.lists(
            _fields(name=st.sampled_from(["a", "b"]), heads=small, shape=st.lists(small, max_size=2)),
            min_size=1,
            max_size=3,
        )
    ),
    "gmu": _fields(),
}


def component(kind: str):
    """A component of one kind."""
    return KEYS[kind].map(lambda keys: msgspec.convert({"kind": kind, **keys}, AnyComponent))


KEEPING = [kind for kind in KINDS if kind not in ("shared", "gmu")]


@st.composite
def models(draw):
    """A model of a few layers of every kind, some of them read by later ones."""
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KEEPING))
        keys = {"kind": kind, **draw(KEYS[kind])}
        if kind in ("kv", "latent") and draw(st.booleans()):
            layers.append({"mixer": keys})
            reader = {"kind": "shared", "source": "previous", **draw(top_ks)}
            layers.append({"repeat": draw(st.integers(1, 3)), "mixer": reader})
        else:
            layers.append({"repeat": draw(st.integers(1, 3)), "mixer": keys})
    return resolve(msgspec.convert({"name": "drawn", "dtype": "bf16", "layers": layers}, Document))
