"""ggml's blocks against the `gguf` package, which llama.cpp's authors publish."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import FormatError
from kvcalc.reference.codecs import VectorShape, make_codec

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")

QUANTISED = ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
FORMATS = [*QUANTISED, "iq4_nl"]
# ggml-common.h, kvalues_iq4nl
IQ4_NL = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def kind_of(name):
    return gguf.GGMLQuantizationType[name.upper()]


def drawn(seed, power, heads=3, tokens=5, width=64):
    """Normal random vectors with blocks of zeros, of one value, of ties and of halves among them."""
    values = torch.randn(2, heads, tokens, width, generator=torch.Generator().manual_seed(seed)) * 2.0**power
    values[0, :, 0] = 0.0
    values[0, 0, 1] = 1.5
    values[0, 1, 1] = values[0, 1, 1].sign()
    values[0, 2, 1] = torch.arange(-width // 2, width // 2) / 2
    values[0, 2, 1, ::32] = 127.0
    return values


def rows_of(values):
    """Each token's row, head after head."""
    return values.transpose(1, 2).reshape(-1, values.shape[1] * values.shape[3]).numpy()


def entries_of(name, values):
    codec = make_codec(name, VectorShape("k", values.shape[1], values.shape[3]))
    return codec, codec.pack(values)["entries"]


@given(st.sampled_from(QUANTISED), st.integers(0, 999), st.integers(-12, 12))
def test_the_bytes_are_ggml_s(name, seed, power):
    values = drawn(seed, power)
    expected = gguf.quantize(rows_of(values), kind_of(name))
    assert numpy.array_equal(entries_of(name, values)[1].flatten(0, 2).numpy(), expected)


@given(st.sampled_from(FORMATS), st.integers(0, 999), st.integers(-12, 12))
def test_the_values_are_ggml_s(name, seed, power):
    codec, entries = entries_of(name, drawn(seed, power))
    expected = gguf.dequantize(entries.flatten(0, 2).numpy(), kind_of(name))
    assert numpy.array_equal(rows_of(codec.unpack({"entries": entries}, torch.float32)), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_every_byte_is_read_as_ggml_reads_it(name):
    codec = make_codec(name, VectorShape("k", 2, 128))
    size = codec.buffers()["entries"].width
    stored = torch.randint(0, 256, (1, 1, 500, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    per_block = size // 8
    stored.unflatten(-1, (8, per_block))[..., [1, 3] if name.endswith("_1") else [1]] &= 0xBF  # no infinite fields
    expected = gguf.dequantize(stored.flatten(0, 2).numpy(), kind_of(name))
    assert numpy.array_equal(rows_of(codec.unpack({"entries": stored}, torch.float32)), expected)


@given(st.integers(0, 999), st.integers(-6, 6))
def test_iq4_nl_takes_the_nearest_of_its_sixteen_values(seed, power):
    """By a search through them, at the scale that puts the largest value on -127."""
    values = drawn(seed, power, tokens=3, width=32)
    codes = entries_of("iq4_nl", values)[1].reshape(-1, 18)[:, 2:]
    found = torch.cat((codes & 15, codes >> 4), -1).tolist()
    blocks = rows_of(values).reshape(-1, 32)
    for block, block_codes in zip(blocks, found, strict=True):
        largest = max(block, key=abs)
        steps = [float(value / largest) * -127 if largest else 0.0 for value in block]
        for step, code in zip(steps, block_codes, strict=True):
            assert abs(IQ4_NL[code] - step) <= min(abs(value - step) for value in IQ4_NL) + 1e-4


def test_halfway_between_two_values_iq4_nl_takes_the_upper_one():
    """ggml-quants.c, best_index_int8: the lower one only where it is strictly nearer. The scale here is 1."""
    values = torch.tensor([-127.0, 7.0, -4.5, 19.0, *([1.0] * 28)]).view(1, 1, 1, 32)
    codes = entries_of("iq4_nl", values)[1].flatten().tolist()[2:]
    assert [IQ4_NL[code & 15] for code in codes[:4]] == [-127, 13, 1, 25]


def test_a_row_of_heads_may_fill_a_block_together():
    assert make_codec("q4_0", VectorShape("k", 4, 8)).buffers()["entries"][:2] == (1, 18)
    with pytest.raises(FormatError, match="q4_0 for `k`: a width of 24 is no whole number of 32-value blocks"):
        make_codec("q4_0", VectorShape("k", 3, 8))


def test_a_block_of_q4_0_by_hand():
    """d = -8 / -8 = 1; value j is code x + 8, in the low half of byte j, and value j + 16 in the high half."""
    values = torch.tensor([-8.0, *range(-7, 8), *([0.0] * 16)]).view(1, 1, 1, 32)
    assert entries_of("q4_0", values)[1].flatten().tolist() == [0x00, 0x3C, *(0x80 + code for code in range(16))]
