"""`--set`: a known model varied without a file."""

import pytest

import kvcalc
from kvcalc.errors import KvcalcError

HYBRID = """\
name: h
dtype: bf16
mixers:
  half: {kind: latent, latent_dim: 64, ratio: 2}
layers:
- {repeat: 3, mixer: {kind: kv, q_heads: 8, kv_heads: 2, head_dim: 64, window: 16}}
- {repeat: 2, mixer: {kind: kv, q_heads: 8, kv_heads: 2, head_dim: 64}}
- {mixer: half, mlp: {kind: moe, experts: 8, active: 2}}
"""


@pytest.fixture
def hybrid(spec_file):
    return str(spec_file(HYBRID))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("mixer.kv_heads=4", 2 * 4 * 64 * 4 + 64),
        ("mixers.half.ratio=4", 2 * 2 * 64 * 4 + 32),
        ("layers.1.repeat=5", 5 * 2 * 64 * 4 + 64),
        ("layers.1.mixer.head_dim=32", 2 * 2 * 32 * 4 + 64),
        ("mixers.half.ratio=null", 2 * 2 * 64 * 4 + 128),
        ("dtype=fp32", 2 * (2 * 2 * 64 * 4 + 64)),
    ],
)
def test_a_change_reaches_what_it_names(hybrid, override, expected):
    spec = kvcalc.load(hybrid, overrides=[override])
    assert kvcalc.size(spec).bytes_per_token == expected
    assert spec.overrides == (override,)


def test_a_key_that_some_state_changes_those(hybrid):
    spec = kvcalc.load(hybrid, overrides=["mixer.window=8"])
    assert [layer.components[0].span.cap for layer in spec.layers] == [8, 8, 8, None, None, None]


def test_a_key_that_none_states_changes_all_that_take_it(hybrid):
    spec = kvcalc.load(hybrid, overrides=["mixer.top_k=5"])
    assert {layer.components[0].top_k for layer in spec.layers} == {5}


def test_changes_add_up():
    spec = kvcalc.load("llama-8b", overrides=["mixer.kv_heads=4", "layers.repeat=40", "mlp.intermediate_size=1024"])
    assert len(spec.layers) == 40
    assert kvcalc.size(spec).bytes_per_token == 81_920
    assert spec.layers[0].mlp.intermediate_size == 1024


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("mixer.kv_heds=4", ["kv_heds", "kv_heads"]),
        ("kv_heads", ["is not PATH=VALUE"]),
        ("=4", ["is not PATH=VALUE"]),
        ("mixer..kv_heads=4", ["is not PATH=VALUE"]),
        ("nothing.here=4", ["here", "nothing stands at nothing"]),
        ("layers.9.repeat=4", ["repeat", "nothing stands at layers.9"]),
        ("mixer.kv_heads=3", ["--set mixer.kv_heads=3: ", "q_heads 8"]),
        ("mixer.kv_heads=[", ["--set mixer.kv_heads=["]),
        ("mixer.kv_heads=!!python/name:os.system", ["tag"]),
        ("mixer.kv_heads=two", ["two is not a whole number"]),
        ("layers.repeat=1000000000", ["layers"]),
        ("mixer.kind=latent", ["unknown key kv_heads in latent"]),
    ],
)
def test_wrong_changes_say_what_is_there(hybrid, override, words):
    with pytest.raises(KvcalcError) as caught:
        kvcalc.load(hybrid, overrides=[override])
    said = f"{caught.value.message} | {caught.value.hint}"
    assert all(word in said for word in words), said
