"""Packed caches: attention over what the format gives back, and how far that is from the unpacked values."""

import pytest

torch = pytest.importorskip("torch")

import naive  # noqa: E402
from tiny import MLA, MODELS, build, encoded, in_passes, kv, near, tokens  # noqa: E402

from kvcalc.cache.formats import find_format  # noqa: E402
from kvcalc.cache.layout import Part  # noqa: E402
from kvcalc.errors import FormatError  # noqa: E402
from kvcalc.reference.codecs import make_codec, packed_formats  # noqa: E402

TOKENS = 24
IDS = tokens(TOKENS)
WIDE_MLA = MLA.replace("latent_dim: 24, rope_dim: 8", "latent_dim: 512, rope_dim: 64")
LAYERS = {"GQA": kv(head_dim=128), "MLA": WIDE_MLA}
PARTS = {"GQA": [Part("k", 2, 128), Part("v", 2, 128)], "MLA": [Part("latent", 1, 512), Part("rope", 1, 64)]}
PLAIN = ("fp32", "bf16", "fp16")


def takes(form, parts):
    try:
        return find_format(form).entry_bytes(parts, "c") > 0
    except FormatError:
        return False


FITTING = [(form, name) for form in packed_formats() for name, parts in PARTS.items() if takes(form, parts)]
PACKED = [(form, name) for form, name in FITTING if form not in PLAIN]


def test_every_format_is_tried_and_most_with_both():
    """Three rows are for latents only, and blocks of 128 do not divide a latent of 576."""
    assert {form for form, _ in FITTING} == set(packed_formats())
    assert len(FITTING) == 2 * len(packed_formats()) - 4


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


class RoundTrip:
    """For the oracle: vectors (entries, heads, width) as the codecs of a model's caches give them back.

    `errors` are the relative errors of what went through, one a vector of the first layer's cache.
    """

    def __init__(self, model):
        self.model, self.errors = model, []
        self.parts = {part.place: part for part in model.parts}

    def __call__(self, place, vectors):
        part = self.parts[place]
        shapes = part.keeper.shapes(part.reference.rotary_part())
        form = self.model.packer.entry_format(part.reference.component)
        return [
            self.one(make_codec(form.name_for(shape.name), shape, self.model.options.exact), v)
            for shape, v in zip(shapes, vectors, strict=True)
        ]

    def one(self, codec, vector):
        packed = codec.pack(vector.transpose(0, 1)[None])
        found = codec.unpack(packed, torch.float64)[0].transpose(0, 1)
        self.errors.append(relative_error(found, vector))
        return found


@pytest.mark.parametrize(("form", "name"), PACKED)
def test_attention_sees_what_the_format_gives_back(form, name):
    """A session over packed bytes is the oracle over vectors that went through the codec, token by token too.

    Both pack the same float64 numbers, so that not one code differs.
    """
    model = build([LAYERS[name]], kv_dtype=form)
    expected = naive.forward(model, IDS, stored=RoundTrip(model))
    near(in_passes(model, IDS, [TOKENS - 3, 1, 1, 1]), expected, 1e-9)
    near(in_passes(model, IDS, [1] * TOKENS), expected, 1e-9)


KV_FORMS = ["k=q8_0,v=q4_0", "int8", "fp8"]
CHOSEN_FORMS = ["keys=fp8,global=int8", "int8", "fp8"]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, form) for name in ("GQA", "window and sinks", "chunk", "pooled K and V") for form in KV_FORMS),
        *((name, form) for name in ("V4.1", "V4, chosen") for form in CHOSEN_FORMS),
    ],
)
def test_rings_pooled_and_chosen_entries_are_packed_too(name, form):
    """A prompt at once sees its own tokens as they would be read back, and so do single tokens."""
    model, ids = build(widened(name), kv_dtype=form), tokens()
    expected = naive.forward(model, ids, encoded(), RoundTrip(model))
    for sizes in ([32], [1] * 32, [11, 1, 20]):
        near(in_passes(model, ids, sizes), expected, 1e-9)


def widened(name):
    """The model's layers with heads that ggml's blocks of 32 divide."""
    return [layer | {"head_dim": 32, "v_head_dim": 32} if isinstance(layer, dict) else layer for layer in MODELS[name]]


def attended(model, page=None):
    """What the first layer's attention adds, (batch, tokens, hidden), before anything is normed."""
    asker, outputs = model.layers[0].attending[0][0], []
    answer = asker.answer
    asker.answer = lambda out: outputs.append(answer(out)) or outputs[-1]
    in_passes(model, IDS, [TOKENS - 3, 1, 1, 1], page)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize(("form", "name"), [pair for pair in FITTING if pair[0] != "fp32"])
def test_attention_is_as_far_off_as_its_keys_and_values(form, name):
    """To first order: sum p dv + sum p (ds - mean ds) v, where p is the softmax and ds = q . dk / sqrt(width).

    q . k / sqrt(width) has a spread of about one here, so ds is about as large as the relative error of K, and
    each term is to the output about what that error is to its vector. The terms are independent: their sum lies
    below the sum of the errors, and not far below the larger one.
    """
    exact = None if form in PLAIN else torch.float64
    model, plain = build([LAYERS[name]], exact, form), build([LAYERS[name]], exact, "fp32")
    through = RoundTrip(model)
    naive.forward(model, IDS[:1], stored=through)
    # A latent is K and V at once.
    of_k, of_v = through.errors[0], through.errors[-1]
    error = relative_error(attended(model), attended(plain))
    assert (of_k + of_v) / 3 < error < of_k + of_v


@pytest.mark.parametrize(("form", "name"), PACKED)
def test_packed_pages_compute_bit_for_bit_what_a_contiguous_cache_does(form, name):
    model = build([LAYERS[name]], kv_dtype=form)
    sizes = [TOKENS - 3, 1, 1, 1]
    assert torch.equal(in_passes(model, IDS, sizes, page=5), in_passes(model, IDS, sizes))
