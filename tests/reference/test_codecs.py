"""Packed vectors: their bytes against the predictor, their values against the formats' own definitions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.cache.formats import all_formats, find_format
from kvcalc.cache.layout import Part
from kvcalc.errors import FormatError, KvcalcError
from kvcalc.reference.codecs import VectorShape, make_codec, packed_formats

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

FORMATS = packed_formats()
PLAIN = ("fp32", "bf16", "fp16")
LATENT_ROWS = ("fp8_ds_mla", "fp8_ds_v4", "nvfp4_ds_mla")

# OCP MX v1.0, sections 5.3.2 and 5.3.3: the magnitudes by code, a sign bit above them.
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M3 = [*(step / 8 for step in range(16)), *(step / 4 for step in range(8, 16)), *(step / 2 for step in range(8, 16))]
# OCP FP8, table 1: E4M3 has a bias of 7, and only its last code is NaN.
E4M3 = [math.ldexp(code & 7, -9) if code < 8 else math.ldexp(8 + (code & 7), (code >> 3) - 10) for code in range(0x7F)]


def shape_for(name, heads=2, width=128, rope=0):
    """A vector that a format can hold: a latent row for the formats of latents, heads otherwise."""
    if name in LATENT_ROWS:
        return VectorShape("latent", 1, 512, 128) if name == "fp8_ds_mla" else VectorShape("latent", 1, 512, 64)
    return VectorShape("k", heads, width, rope)


def drawn(shape, seed=0, tokens=3, batch=2, power=0.0):
    """Normal random vectors (batch, heads, tokens, width), scaled by two to `power`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, shape.heads, tokens, shape.width, generator=generator) * 2.0**power


def round_trip(codec, values):
    return codec.unpack(codec.pack(values), torch.float32)


def packed(name, values, shape=None):
    """The bytes of one vector, as a list."""
    shape = shape or VectorShape("k", 1, len(values))
    entry = make_codec(name, shape).pack(torch.tensor(values).view(1, 1, 1, -1))["entries"]
    return entry.flatten().tolist()


def unpacked(name, stored, width):
    """The values of one vector's bytes, as a list."""
    entry = torch.tensor(stored, dtype=torch.uint8).view(1, 1, 1, -1)
    return make_codec(name, VectorShape("k", 1, width)).unpack({"entries": entry}, torch.float32).flatten().tolist()


def nearest_code(magnitudes, value):
    """The code whose magnitude is nearest to |value|: the even one of two, the last one above all."""
    size = min(abs(value), magnitudes[-1])
    return min(range(len(magnitudes)), key=lambda code: (abs(magnitudes[code] - size), code % 2))


# ---- bytes


@given(
    st.sampled_from(FORMATS),
    st.sampled_from(["k", "v", "latent", "index"]),
    st.integers(1, 5),
    st.one_of(st.integers(1, 80), st.sampled_from([96, 128, 192, 256, 448, 512])),
    st.sampled_from([0, 16, 24, 64]),
)
def test_an_entry_has_the_bytes_that_the_predictor_says(name, vector, heads, width, rope):
    heads, rope = (1, rope) if vector == "latent" else (heads, 0)
    parts = [Part(vector, heads, width), *([Part("rope", heads, rope)] if rope else [])]
    shape = VectorShape(vector, heads, width + rope, rope)
    try:
        predicted = find_format(name).entry_bytes(parts, "c")
    except FormatError:
        with pytest.raises(FormatError, match=name):
            make_codec(name, shape)
        return
    entries = make_codec(name, shape).buffers()["entries"]
    assert entries.heads * entries.width * entries.dtype.itemsize == predicted


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("batch", "tokens"), [(2, 3), (1, 1), (2, 0)])
def test_what_is_packed_fits_the_buffers_wherever_it_lies(name, batch, tokens):
    """Values as a projection leaves them (tokens before heads), and rows in the middle of a buffer."""
    shape = shape_for(name)
    codec = make_codec(name, shape)
    values = drawn(shape, batch=batch, tokens=tokens).transpose(1, 2).contiguous().transpose(1, 2)
    entry = codec.pack(values)
    buffers = codec.buffers()
    assert {key: (tuple(one.shape), one.dtype) for key, one in entry.items()} == {
        key: ((batch, one.heads, tokens, one.width), one.dtype) for key, one in buffers.items()
    }
    rows = {}
    for key, one in buffers.items():
        held = torch.zeros(batch, one.heads, tokens + 4, one.width, dtype=one.dtype)
        held[:, :, 1 : 1 + tokens] = entry[key]
        rows[key] = held[:, :, 1 : 1 + tokens]
    assert torch.equal(codec.unpack(rows, torch.float32), round_trip(codec, values.contiguous()))


# 656: vllm flashmla_sparse.py. 584, 288, 68, 528: vllm deepseek_v41/attention.py. 352: vllm nvfp4_ds_mla.
# 132: DeepSeek-V3.2 index key. 18 and 34: ggml-common.h, block_q4_0 and block_q8_0.
@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("fp8_ds_mla", VectorShape("latent", 1, 576, 64), 656),
        ("fp8_ds_v4", VectorShape("latent", 1, 512, 64), 584),
        ("nvfp4_ds_mla", VectorShape("latent", 1, 576, 64), 352),
        ("nvfp4", VectorShape("latent", 1, 512, 64), 288),
        ("mxfp8", VectorShape("latent", 1, 512, 64), 528),
        ("mxfp4", VectorShape("index", 1, 128), 68),
        ("fp8_f32x128", VectorShape("index", 1, 128), 132),
        ("q4_0", VectorShape("k", 1, 32), 18),
        ("q8_0", VectorShape("k", 2, 16), 34),
    ],
)
def test_published_entry_sizes(name, shape, size):
    entry = make_codec(name, shape).pack(drawn(shape, batch=1, tokens=1))["entries"]
    assert entry.numel() * entry.element_size() == size


def test_scales_held_outside_are_one_number_a_head_vector():
    values = torch.tensor([[127.0, -254.0, 1.0, 0.0], [0.5, 0.25, -0.5, 0.0]]).view(1, 2, 1, 4)
    codec = make_codec("int8", VectorShape("k", 2, 4))
    entry = codec.pack(values)
    assert entry["scales"].flatten().tolist() == pytest.approx([2.0, 0.5 / 127], rel=1e-6)
    # 63.5 steps round to the even 64, -127 is 129 in two's complement, 0.5 steps round to 0.
    assert entry["entries"].flatten().tolist() == [64, 129, 0, 0, 127, 64, 129, 0]


# ---- values by hand


def test_e2m1_ties_go_to_the_even_code():
    """A block whose largest value is 6 has the scale 1: codes are then the nibbles, first value lowest."""
    values = [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -6.0]
    codes = [0x07, 0x22, 0x44, 0x66, 0xA8, 0xCA, 0xEC, 0xFE]
    assert packed("nvfp4", values) == [*codes, 0x38]  # 0x38 is 1.0 in E4M3
    assert packed("mxfp4", values * 2) == [*codes, *codes, 127]  # floor(log2 6) - 2 = 0, biased by 127


@pytest.mark.parametrize(("amax", "stored"), [(0.0, 1), (1e-6, 1), (6.0, 0x38), (1e9, 0x7E), (math.nan, 0x7F)])
def test_nvfp4_scales_lie_between_the_least_and_the_largest_e4m3(amax, stored):
    """2^-9 is the code 1 and 448 the code 0x7E."""
    assert packed("nvfp4", [amax] + [0.0] * 15)[-1] == stored


@pytest.mark.parametrize(
    ("name", "amax", "stored"),
    # OCP MX v1.0, section 6.3: floor(log2 amax) less emax, which is 8, 2 and 2; 127 is the bias.
    [
        ("mxfp8", 1.0, 119),
        ("mxfp8", 1.99, 119),
        ("mxfp8", 448.0, 127),
        ("mxfp6", 0.3, 123),
        ("mxfp4", 1.0, 125),
        ("mxfp4", 0.0, 0),
        ("mxfp4", 3e38, 252),
        ("mxfp4", 1e-45, 0),
        ("mxfp4", math.nan, 255),
    ],
)
def test_e8m0_scales(name, amax, stored):
    assert packed(name, [amax] + [0.0] * 31)[-1] == stored


def test_four_e2m3_numbers_lie_in_three_bytes():
    values = [7.5, 0.125, 0.25, -7.5] * 8  # codes 31, 1, 2 and 63 at a scale of 1
    word = (31 | 1 << 6 | 2 << 12 | 63 << 18).to_bytes(3, "little")
    assert packed("mxfp6", values) == [*word * 8, 127]


def test_fp8_saturates_and_keeps_nan():
    assert packed("fp8", [1.0, -0.0, 448.0, 1000.0, -math.inf, math.nan, 2.0**-9]) == [56, 128, 126, 126, 254, 127, 1]


def test_the_row_of_fp8_ds_mla():
    """512 codes, four fp32 scales, then bf16: ones lie at 448 x 1/448."""
    row = packed("fp8_ds_mla", [1.0] * 576, VectorShape("latent", 1, 576, 64))
    scale = numpy.float32(1) / numpy.float32(448)
    assert row == [0x7E] * 512 + list(scale.tobytes() * 4) + [0x80, 0x3F] * 64


def test_the_row_of_fp8_ds_v4():
    """448 codes, seven power-of-two scales, bf16, one byte of padding: 1/448 rounds up to 2^-8."""
    row = packed("fp8_ds_v4", [1.0] * 512, VectorShape("latent", 1, 512, 64))
    assert row == [0x78] * 448 + [119] * 7 + [0x80, 0x3F] * 64 + [0]


def test_the_scale_of_a_head_lies_behind_it():
    assert packed("int4_per_token_head", [7.0, -7.0, 3.0, 0.0]) == [0x97, 0x03, *numpy.float32(1).tobytes()]


# ---- values by definition

floats = st.one_of(
    st.floats(-8, 8, width=32),
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.25, 0.75, 1.25, 2.5, 3.5, 5.0, -0.0625, 0.1875]),
)


def test_e4m3_codes_stand_for_the_values_of_their_definition():
    assert unpacked("fp8", list(range(0x7F)), 127) == E4M3
    assert unpacked("fp8", list(range(0x80, 0xFF)), 127) == [-value for value in E4M3]
    assert all(math.isnan(value) for value in unpacked("fp8", [0x7F, 0xFF], 2))


@given(
    st.sampled_from([("mxfp8", E4M3, 8), ("mxfp6", E2M3, 2), ("mxfp4", E2M1, 2)]),
    st.lists(floats, min_size=32, max_size=32),
)
def test_mx_blocks_hold_the_nearest_values(case, values):
    """OCP MX v1.0, section 6.3, by a search through all codes in exact arithmetic."""
    name, magnitudes, emax = case
    amax = max(map(abs, values))
    exponent = max(-127, math.frexp(amax)[1] - 1 - emax) if amax else -127
    nearest = [magnitudes[nearest_code(magnitudes, math.ldexp(value, -exponent))] for value in values]
    expected = [math.copysign(math.ldexp(size, exponent), value) for size, value in zip(nearest, values, strict=True)]
    assert unpacked(name, packed(name, values), 32) == expected


@given(st.lists(floats, min_size=16, max_size=16))
def test_nvfp4_blocks_hold_the_nearest_values(values):
    """scale = e4m3(clamp(amax / 6, 2^-9, 448)): sglang dsv41_kv_quant_reference.py; divisions in fp32."""
    wanted = numpy.float32(max(map(abs, values))) / numpy.float32(6)
    scale = E4M3[nearest_code(E4M3, min(max(float(wanted), 2.0**-9), 448.0))]
    steps = [float(numpy.float32(value) / numpy.float32(scale)) for value in values]
    expected = [math.copysign(E2M1[nearest_code(E2M1, step)] * scale, step) for step in steps]
    assert unpacked("nvfp4", packed("nvfp4", values), 16) == expected


@given(
    st.sampled_from([("int8", 127), ("int8_per_token_head", 127), ("int4", 7), ("int4_per_token_head", 7)]),
    st.integers(0, 99),
    st.integers(-60, 60),
)
def test_integers_are_off_by_half_a_step_at_most(case, seed, power):
    name, most = case
    shape = shape_for(name)
    values = drawn(shape, seed, power=power)
    half_step = values.abs().amax(-1, keepdim=True) / most / 2
    assert ((round_trip(make_codec(name, shape), values) - values).abs() <= half_step * (1 + 1e-5)).all()


@given(
    st.sampled_from([("fp8_f32x128", 128, 1), ("fp8_ds_mla", 128, 1), ("fp8_ds_v4", 64, 2)]),
    st.integers(0, 99),
    st.integers(-60, 60),
)
def test_scaled_fp8_is_off_by_half_a_step_at_most(case, seed, power):
    """E4M3 steps are at most 1/8 of a value, and 2^-9 of the scale below that; a power of two may double the scale."""
    name, block, slack = case
    shape = shape_for(name)
    values = drawn(shape, seed, power=power)
    latent = shape.width - shape.rope
    blocks = values[..., :latent].unflatten(-1, (latent // block, block))
    half_step = torch.maximum(blocks.abs() / 16, blocks.abs().amax(-1, keepdim=True) * (slack / 448 * 2.0**-10))
    found = round_trip(make_codec(name, shape), values)
    assert ((found[..., :latent] - values[..., :latent]).abs() <= half_step.flatten(-2) * (1 + 1e-5)).all()
    assert torch.equal(found[..., latent:], values[..., latent:].bfloat16().float())


@pytest.mark.parametrize(
    "name",
    [*PLAIN, "fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4", "fp8_ds_v4", "nvfp4_ds_mla", "q8_0", "q4_0", "q5_0", "iq4_nl"],
)
@pytest.mark.parametrize("power", [-3, 0, 5])
def test_packing_what_was_unpacked_changes_no_value(name, power):
    """True where a block's scale follows from its largest packed value; fp32 scales may move by one rounding."""
    shape = shape_for(name)
    codec = make_codec(name, shape)
    once = round_trip(codec, drawn(shape, power=power))
    assert torch.equal(round_trip(codec, once), once)


# ---- zeros, NaN and infinity


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_stay_zeros(name):
    shape = shape_for(name)
    zeros = torch.zeros(1, shape.heads, 2, shape.width)
    assert torch.equal(round_trip(make_codec(name, shape), zeros), zeros)


@pytest.mark.parametrize("name", FORMATS)
def test_a_nan_comes_back_and_stays_in_its_token(name):
    shape = shape_for(name)
    codec = make_codec(name, shape)
    values = drawn(shape)
    clean = round_trip(codec, values)
    values[1, 0, 1, 5] = math.nan
    found = round_trip(codec, values)
    assert found[1, 0, 1, 5].isnan()
    found[1, :, 1], clean[1, :, 1] = 0, 0
    assert torch.equal(found, clean)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
def test_an_infinity_stays_in_its_token(name, infinity):
    shape = shape_for(name)
    codec = make_codec(name, shape)
    values = drawn(shape)
    clean = round_trip(codec, values)
    values[1, 0, 1, 5] = infinity
    found = round_trip(codec, values)
    assert not found[1, 0, 1, 5].abs() < 448
    found[1, :, 1], clean[1, :, 1] = 0, 0
    assert torch.equal(found, clean)


# ---- the table


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", FORMATS)
def test_values_are_unpacked_in_the_type_asked_for(name, dtype):
    shape = shape_for(name)
    codec = make_codec(name, shape)
    entry = codec.pack(drawn(shape))
    found = codec.unpack(entry, dtype)
    assert found.dtype == dtype
    assert torch.equal(found, codec.unpack(entry, torch.float32).to(dtype))


@pytest.mark.parametrize("name", FORMATS)
def test_plain_formats_are_kept_as_they_are(name):
    """`exact` replaces their type alone, and unpacking them copies nothing."""
    shape = shape_for(name)
    codec = make_codec(name, shape, exact=torch.float64)
    assert codec.is_plain == (name in PLAIN)
    assert (codec.buffers()["entries"].dtype == torch.float64) == codec.is_plain
    if codec.is_plain:
        held = drawn(shape).double()
        assert codec.unpack({"entries": held}, torch.float64).data_ptr() == held.data_ptr()
    else:
        assert codec.buffers() == make_codec(name, shape).buffers()


def test_the_formats_come_in_the_order_of_the_format_table():
    names = [one.name for one in all_formats()]
    assert [name for name in names if name in FORMATS] == FORMATS
    assert {name.partition("_")[0] for name in set(names) - set(FORMATS)} == {"6bit", "turboquant", "ultraquant"}


@pytest.mark.parametrize("name", ["6bit", "turboquant_k8v4", "ultraquant_4bit"])
def test_a_format_without_packing_is_named(name):
    with pytest.raises(KvcalcError, match=name) as raised:
        make_codec(name, VectorShape("k", 1, 128))
    assert all(packing in raised.value.hint for packing in FORMATS)


@pytest.mark.parametrize("name", LATENT_ROWS)
@pytest.mark.parametrize("shape", [VectorShape("k", 1, 576, 64), VectorShape("latent", 2, 576, 64)])
def test_latent_rows_hold_latents_alone(name, shape):
    with pytest.raises(FormatError, match=f"{name}.*{shape.heads} x `{shape.name}`"):
        make_codec(name, shape)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", FORMATS)
def test_a_gpu_packs_the_same_bytes(name):
    shape = shape_for(name)
    codec = make_codec(name, shape)
    values = drawn(shape, tokens=50)
    here, there = codec.pack(values), codec.pack(values.cuda())
    assert all(torch.equal(here[key], there[key].cpu()) for key in here)
    assert torch.equal(codec.unpack(here, torch.float32), codec.unpack(there, torch.float32).cpu())
