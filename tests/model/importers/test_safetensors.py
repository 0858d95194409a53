"""Safetensors: exact bytes and formats from headers; whatever is wrong with a file is one line."""

import json
import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcalc.errors import SpecError
from kvcalc.model.importers.safetensors import read_checkpoint, read_header, tensor_summary

BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "I8": 8, "U8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8}
BITS |= {"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64}
BITS |= {"U64": 64, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
INDEX = "model.safetensors.index.json"


def volume(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def entries(tensors):
    """The header of tensors given as {name: (dtype, shape)}, one behind the other."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + volume(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return header, end


def pack(header, data_bytes=0):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(data_bytes)


def save(path, tensors, metadata=None):
    """A file whose data is a hole on the disk: what a reader of the data would pay for."""
    header, end = entries(tensors)
    raw = pack(header | ({"__metadata__": metadata} if metadata else {}))
    path.write_bytes(raw)
    os.truncate(path, len(raw) + end)
    return path


def save_index(folder, weight_map, total_size=None):
    metadata = {} if total_size is None else {"metadata": {"total_size": total_size}}
    (folder / INDEX).write_text(json.dumps({**metadata, "weight_map": weight_map}))


def logical_parameters(path, config):
    return read_checkpoint(path, config).parameters


def complaint(path, reader=read_checkpoint):
    with pytest.raises(SpecError) as caught:
        reader(path)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


TWO = {"a.weight": ("BF16", (4, 8)), "b.weight": ("F32", (3,))}


def test_one_file(tmp_path):
    found = read_checkpoint(save(tmp_path / "x.safetensors", TWO, {"format": "pt"}))
    assert (found.bytes, found.formats) == (76, ("bf16", "fp32"))
    assert "x.safetensors" in found.source


def test_the_largest_share_comes_first_and_empty_tensors_have_none(tmp_path):
    tensors = {"a": ("F32", (2,)), "b": ("F8_E4M3", (64,)), "c": ("BF16", (8,)), "d": ("I64", (0,))}
    assert read_checkpoint(save(tmp_path / "x.safetensors", tensors)).formats == ("fp8_e4m3", "bf16", "fp32")


@pytest.mark.parametrize("dtype", BITS)
def test_every_dtype(tmp_path, dtype):
    assert read_checkpoint(save(tmp_path / "x.safetensors", {"a": (dtype, (4, 6))})).bytes == 3 * BITS[dtype]


def test_a_terabyte_is_read_by_its_header(tmp_path):
    """No machine here could read that data: only the header is touched."""
    path = save(tmp_path / "model.safetensors", {"a": ("U8", (2**40,))})
    assert read_checkpoint(path).bytes == 2**40


def test_an_empty_header_weighs_nothing(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(pack({}))
    assert read_checkpoint(tmp_path).bytes == 0


def test_a_padded_header(tmp_path):
    header, end = entries(TWO)
    (tmp_path / "x.safetensors").write_bytes(pack(json.dumps(header).encode() + b"     ", end))
    assert read_checkpoint(tmp_path).bytes == end


def shards(folder):
    save(folder / "model-00001-of-00002.safetensors", {"a": ("BF16", (10,))})
    save(folder / "model-00002-of-00002.safetensors", {"b": ("BF16", (6,)), "c": ("F32", (1,))})
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    return {"a": first, "b": second, "c": second}


def test_a_folder_of_shards_with_and_without_an_index(tmp_path):
    weight_map = shards(tmp_path)
    assert read_checkpoint(tmp_path).bytes == 36
    save_index(tmp_path, weight_map, 999)
    assert read_checkpoint(tmp_path).bytes == read_checkpoint(tmp_path / INDEX).bytes == 36
    assert tensor_summary(tmp_path) == {"bf16": 16, "fp32": 1}


def test_a_copy_of_the_weights_beside_them_does_not_count(tmp_path):
    shards(tmp_path)
    save(tmp_path / "consolidated.safetensors", {"other": ("BF16", (16,))})
    assert read_checkpoint(tmp_path).bytes == 36
    save_index(tmp_path, shards(tmp_path))
    save(tmp_path / "model-extra.safetensors", {"x": ("BF16", (16,))})
    assert read_checkpoint(tmp_path).bytes == 36


def test_missing_shards_leave_the_total_of_the_index(tmp_path):
    weight_map = shards(tmp_path)
    save_index(tmp_path, weight_map, 36.0)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    found = read_checkpoint(tmp_path)
    assert (found.bytes, found.formats) == (36, ())
    assert "dtypes unknown: 1 of 2 shards missing" in found.source
    assert logical_parameters(tmp_path, None) is None
    assert "missing" in complaint(tmp_path, tensor_summary).message


@pytest.mark.parametrize("total", [None, 0, -1, "36", 1.5, float("1e300"), True])
def test_missing_shards_and_no_usable_total(tmp_path, total):
    save_index(tmp_path, {"a": "model-1.safetensors"}, total)
    assert "model-1.safetensors is missing" in complaint(tmp_path).message


def test_a_gap_in_the_numbering_is_noticed_without_an_index(tmp_path):
    shards(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    assert "'model-00001-of-00002.safetensors' is missing" in complaint(tmp_path).message


def test_more_tensors_than_a_file_can_mean(tmp_path):
    one = json.dumps(tensor(shape=(0,), offsets=(0, 0)))
    raw = "{" + ",".join(f'"{number}":{one}' for number in range(500_001)) + "}"
    (tmp_path / "x.safetensors").write_bytes(pack(raw.encode()))
    assert "length <= 500000" in complaint(tmp_path).message


def test_links_into_a_cache_of_blobs(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save(blobs / "0123abcd", TWO)
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123abcd")
    assert read_checkpoint(snapshot).bytes == 76
    (blobs / "0123abcd").unlink()
    assert "where a link leads" in complaint(snapshot).hint


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        ({}, "length >= 1"),
        ({"a": 3}, "Expected `str`, got `int`"),
        ({"a": "../../etc/x.safetensors"}, "no shard beside the index"),
        ({"a": "/etc/x.safetensors"}, "no shard beside the index"),
        ({"a": "a" * 300 + ".safetensors"}, "too long"),
        ({"a": "model.bin"}, "no shard beside the index"),
        ({"a": "x\x00.safetensors"}, "no shard beside the index"),
        ({"nowhere": "model.safetensors"}, "no shard holds tensor 'nowhere'"),
    ],
)
def test_a_bad_index(tmp_path, weight_map, says):
    save(tmp_path / "model.safetensors", TWO)
    save_index(tmp_path, weight_map, 76)
    assert says in complaint(tmp_path).message


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}']
)
def test_an_index_that_is_none(tmp_path, text):
    (tmp_path / INDEX).write_text(text)
    complaint(tmp_path)


def tensor(dtype="U8", shape=(2,), offsets=(0, 2), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


@pytest.mark.parametrize(
    ("header", "data_bytes", "says"),
    [
        ({"a": tensor("F9")}, 2, "tensor 'a': unknown dtype 'F9'"),
        ({"a": tensor(offsets=(0, 3))}, 3, "U8 [2] takes 16 bits, its offsets 24"),
        ({"a": tensor(offsets=(2, 0))}, 2, "takes 16 bits, its offsets -16"),
        ({"a": tensor("F4", (3,))}, 2, "F4 [3] takes 12 bits, its offsets 16"),
        ({"a": tensor(), "b": tensor(offsets=(1, 3))}, 3, "tensor 'b' overlaps"),
        ({"a": tensor(), "b": tensor()}, 2, "tensor 'b' overlaps"),
        ({"a": tensor(), "b": tensor(offsets=(3, 5))}, 5, "tensor 'b' leaves a hole before it"),
        ({"a": tensor()}, 1, "end at byte 2, the data at 1"),
        ({"a": tensor()}, 3, "end at byte 2, the data at 3"),
        ({"a": tensor(shape=(2**62, 2**62))}, 2, "bits, its offsets 16"),
        ({"a": tensor(shape=(-2,))}, 2, "Expected `int` >= 0"),
        ({"a": tensor(shape=(2.0,))}, 2, "Expected `int`, got `float`"),
        ({"a": tensor(shape="2")}, 2, "tensor 'a'"),
        ({"a": tensor(shape=(1,) * 65)}, 2, "length <= 64"),
        ({"a": tensor(offsets=(0,))}, 2, "length 2"),
        ({"a": tensor(extra=1)}, 2, "unknown field `extra`"),
        ({"a": {"dtype": "U8"}}, 2, "missing required field"),
        ({"a": 1}, 0, "tensor 'a': Expected `object`"),
        ({"a": tensor(dtype=None)}, 2, "Expected `str`, got `null`"),
        ({"__metadata__": {"a": 1}}, 0, "__metadata__: Expected `str`"),
        (b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}', 2, "'dtype' stands twice"),
        (b'{"a": 1', 0, "the header: Input data was truncated"),
        (b"{nope}", 0, "the header: JSON is malformed"),
        (b"", 0, "the header"),
        (b"[]", 0, "Expected `object`, got `array`"),
        (b'{"\xff": 1}', 0, "UTF-8"),
        (b'{"a": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", 0, "recursion"),
        (b'{"a": {"shape": [' + b"9" * 5_000 + b'], "dtype": "U8", "data_offsets": [0, 1]}}', 1, "out of range"),
    ],
)
def test_a_bad_header(tmp_path, header, data_bytes, says):
    (tmp_path / "x.safetensors").write_bytes(pack(header, data_bytes))
    error = complaint(tmp_path / "x.safetensors")
    assert says in error.message
    assert len(error.message) < 500 + len(str(tmp_path))


def test_a_name_that_stands_twice(tmp_path):
    one = json.dumps(tensor())
    (tmp_path / "x.safetensors").write_bytes(pack(f'{{"a": {one}, "a": {one}}}'.encode(), 2))
    assert "the key 'a' stands twice" in complaint(tmp_path).message


def test_an_unknown_dtype_is_told_the_known_ones(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(pack({"a": tensor("F9")}, 2))
    hint = complaint(tmp_path).hint
    assert all(dtype in hint.split() for dtype in BITS)


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(pack({"\x1b[31mred\n": tensor("F9")}, 2))
    assert "\x1b" not in complaint(tmp_path).message


@pytest.mark.parametrize("raw", [b"", b"1234567", b"\xff" * 8, b"\xff" * 20, struct.pack("<Q", 3) + b"{}"])
def test_a_length_past_the_file(tmp_path, raw):
    (tmp_path / "x.safetensors").write_bytes(raw)
    assert "a header of" in complaint(tmp_path).message


def test_a_length_above_the_limit_of_the_format(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001))
    os.truncate(path, 2**30)
    error = complaint(path)
    assert "a header of 100,000,001 bytes" in error.message
    assert "100,000,000" in error.hint


def test_what_is_no_file(tmp_path):
    assert "No such file" in complaint(tmp_path / "none.safetensors").message
    assert "no .safetensors file in it" in complaint(tmp_path).message
    (tmp_path / "dir.safetensors").mkdir()
    assert "no regular file" in complaint(tmp_path).message
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert "no regular file" in complaint(tmp_path / "pipe.safetensors").message
    assert "null" in complaint(tmp_path / "a\0b.safetensors").message
    assert "too long" in complaint(tmp_path / ("a" * 300 + ".safetensors")).message


def test_a_git_lfs_pointer(tmp_path):
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in complaint(tmp_path).hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path):
    save(tmp_path / "x.safetensors", TWO).chmod(0)
    assert "Permission denied" in complaint(tmp_path).message


def test_two_checkpoints_in_one_folder(tmp_path):
    save(tmp_path / "a.safetensors", TWO)
    save(tmp_path / "b.safetensors", TWO)
    assert "stands in another file too" in complaint(tmp_path).message


FP8 = {"w.weight": ("F8_E4M3", (256, 256)), "w.weight_scale_inv": ("F32", (2, 2)), "norm.weight": ("BF16", (256,))}
AWQ = {"w.qweight": ("I32", (256, 16)), "w.qzeros": ("I32", (2, 16)), "w.scales": ("F16", (2, 128))}
GPTQ = {"w.qweight": ("I32", (32, 128)), "w.qzeros": ("I32", (2, 16)), "w.scales": ("F16", (2, 128))}
GPTQ |= {"w.g_idx": ("I32", (256,)), "w.bias": ("F16", (128,))}
GPTQ3 = {"w.qweight": ("I32", (24, 128)), "w.qzeros": ("I32", (2, 12)), "w.scales": ("F16", (2, 128))}
MXFP4 = {"e.gate_up_proj_blocks": ("U8", (2, 64, 4, 16)), "e.gate_up_proj_scales": ("U8", (2, 64, 4))}
MXFP4 |= {"e.gate_up_proj_bias": ("BF16", (2, 64)), "sinks": ("BF16", (8,))}
NVFP4 = {"w.weight": ("U8", (64, 64)), "w.weight_scale": ("F8_E4M3", (64, 8)), "w.weight_scale_2": ("F32", ())}
NVFP4 |= {"w.input_scale": ("F32", ()), "k_proj.k_scale": ("F32", ()), "head.weight": ("BF16", (8, 8))}
MIXED = NVFP4 | {"x.weight": ("F8_E4M3", (8, 8)), "x.weight_scale": ("F32", ())}
BNB4 = {"w.weight": ("U8", (512, 1)), "w.weight.absmax": ("U8", (16,)), "w.weight.quant_map": ("F32", (16,))}
BNB4 |= {"w.weight.nested_absmax": ("F32", (1,)), "w.weight.nested_quant_map": ("F32", (256,))}
BNB4 |= {"w.weight.quant_state.bitsandbytes__nf4": ("U8", (80,)), "router.scale": ("BF16", (8,))}
BNB4_AS_BF16 = {"w.weight": ("BF16", (256, 1)), "w.weight.absmax": ("F32", (16,))}
BNB8 = {"w.weight": ("I8", (32, 32)), "w.SCB": ("F32", (32,)), "w.weight_format": ("U8", ())}
PACKED = {"w.weight_packed": ("I32", (64, 8)), "w.weight_scale": ("BF16", (64, 2)), "w.weight_shape": ("I64", (2,))}
PACKED |= {"w.weight_zero_point": ("I32", (8, 2)), "w.weight_g_idx": ("I32", (64,))}
NVFP4_PACKED = {"w.weight_packed": ("U8", (64, 32)), "w.weight_scale": ("F8_E4M3", (64, 4))}
NVFP4_PACKED |= {"w.weight_global_scale": ("F32", (1,)), "w.input_global_scale": ("F32", (1,))}
V4 = {"e.w1.weight": ("I8", (64, 32)), "e.w1.scale": ("F8_E8M0", (64, 2)), "wq.weight": ("F8_E4M3", (128, 128))}
V4 |= {"wq.scale": ("F8_E8M0", (1, 1)), "norm.weight": ("BF16", (64,)), "tid2eid": ("I64", (100,))}


def groups(bits, kind="int"):
    return {"config_groups": {"group_0": {"weights": {"num_bits": bits, "type": kind}, "targets": ["Linear"]}}}


@pytest.mark.parametrize(
    ("tensors", "quantisation", "parameters"),
    [
        (FP8, {"quant_method": "fp8"}, 256 * 256 + 256),
        (AWQ, {"quant_method": "awq", "bits": 4}, 256 * 128),
        (AWQ, {"quant_method": "awq", "w_bit": 4}, 256 * 128),
        (GPTQ, {"quant_method": "gptq", "bits": 4}, 256 * 128 + 128),
        (GPTQ, {"quant_method": "gptq", "bits": 8}, 128 * 128 + 128),
        (GPTQ3, {"quant_method": "gptq", "bits": 3}, 256 * 128),
        (GPTQ, {"quant_method": "gptq"}, None),
        (GPTQ, {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down": {"bits": 8}, "-:.*gate": {}}}, None),
        (GPTQ, {"quant_method": "gptq", "bits": "4"}, None),
        (GPTQ, {"quant_method": "gptq", "bits": 0}, None),
        (MXFP4, {"quant_method": "mxfp4"}, 2 * 64 * 128 + 2 * 64 + 8),
        (NVFP4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, 64 * 128 + 64),
        (MIXED, {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, 64 * 128 + 64 + 64),
        (NVFP4, {"quant_algo": "NVFP4", "producer": {"name": "modelopt"}}, 64 * 128 + 64),
        (BNB4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, 1024 + 8),
        (BNB4, {"load_in_4bit": True}, 1024 + 8),
        (BNB4_AS_BF16, {"quant_method": "bitsandbytes", "bnb_4bit_quant_storage": "bfloat16"}, 1024),
        (BNB8, {"quant_method": "bitsandbytes", "load_in_8bit": True}, 1024),
        (PACKED, {"quant_method": "compressed-tensors", "format": "pack-quantized", **groups(4)}, 64 * 64),
        (PACKED, {"quant_method": "compressed-tensors", "format": "pack-quantized", **groups(3)}, None),
        (NVFP4_PACKED, {"quant_method": "compressed-tensors", **groups(4, "float")}, 64 * 64),
        (PACKED, {"quant_method": "hqq"}, None),
        (PACKED, {"quant_method": ["awq"]}, None),
        (PACKED, None, None),
        (FP8, None, None),
        (TWO, None, 35),
        (TWO, {}, 35),
        (TWO, "fp8", 35),
    ],
)
def test_parameters_before_packing(tmp_path, tensors, quantisation, parameters):
    path = save(tmp_path / "model.safetensors", tensors)
    assert logical_parameters(path, {"quantization_config": quantisation}) == parameters
    in_text = {"text_config": {"quantization_config": quantisation}}
    assert logical_parameters(tmp_path, in_text) == parameters
    assert read_checkpoint(path).bytes == sum(volume(shape) * BITS[dtype] // 8 for dtype, shape in tensors.values())


def test_deepseek_v4_keeps_its_experts_in_fp4(tmp_path):
    config = {"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}}
    assert logical_parameters(save(tmp_path / "x.safetensors", V4), config) == 64 * 64 + 128 * 128 + 64


def test_buffers_are_no_parameters(tmp_path):
    tensors = {"h.0.attn.bias": ("F32", (1, 1, 16, 16)), "h.0.attn.masked_bias": ("F32", ())}
    tensors |= {
        "rotary_emb.inv_freq": ("F32", (4,)),
        "position_ids": ("I64", (16,)),
        "h.0.attn.c_attn.bias": ("F32", (9,)),
    }
    assert logical_parameters(save(tmp_path / "x.safetensors", tensors), None) == 9


def test_no_config_at_all(tmp_path):
    assert logical_parameters(save(tmp_path / "x.safetensors", TWO), None) == 35


FUZZ = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
names = st.text(max_size=8) | st.sampled_from(["__metadata__", "w.weight", "w.qweight"])
shapes = st.lists(st.integers(0, 8) | st.sampled_from([2**31, 2**63]), max_size=4)
offsets = st.lists(st.integers(-1, 64) | st.sampled_from([2**63, 2**64]), min_size=1, max_size=3)
junk = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)
described = st.fixed_dictionaries(
    {"dtype": st.sampled_from([*BITS, "F9"]) | junk, "shape": shapes | junk, "data_offsets": offsets | junk}
)
headers = st.dictionaries(names, described | junk, max_size=4)


def reads_or_complains(path):
    for reader in (read_checkpoint, tensor_summary, lambda one: logical_parameters(one, None)):
        try:
            reader(path)
        except SpecError as error:
            assert "\n" not in error.message


@FUZZ
@given(raw=st.binary(max_size=200))
def test_fuzz_random_bytes(tmp_path, raw):
    (tmp_path / "x.safetensors").write_bytes(raw)
    (tmp_path / "x.json").write_bytes(raw)
    reads_or_complains(tmp_path / "x.safetensors")
    reads_or_complains(tmp_path / "x.json")


@FUZZ
@given(header=headers, data_bytes=st.integers(0, 64))
def test_fuzz_headers(tmp_path, header, data_bytes):
    (tmp_path / "x.safetensors").write_bytes(pack(header, data_bytes))
    reads_or_complains(tmp_path)


@FUZZ
@given(place=st.integers(0, 400), new=st.binary(max_size=3), cut=st.integers(0, 3))
def test_fuzz_a_good_file_with_bytes_changed(tmp_path, place, new, cut):
    raw = pack(*entries(TWO))
    (tmp_path / "x.safetensors").write_bytes(raw[:place] + new + raw[place + cut :])
    reads_or_complains(tmp_path)


@FUZZ
@given(
    config=st.dictionaries(
        st.sampled_from(["quant_method", "bits", "config_groups", "dynamic"]), junk | st.just("gptq")
    )
)
def test_fuzz_quantisation_configs(tmp_path, config):
    path = save(tmp_path / "x.safetensors", PACKED)
    for whole in (
        {"quantization_config": config},
        {"text_config": config},
        {"quantization_config": {"config_groups": config}},
    ):
        found = logical_parameters(path, whole)
        assert found is None or found >= 0


def library_reads(path):
    """What the safetensors library says of a file: its tensors, or None."""
    library = pytest.importorskip("safetensors")
    try:
        return dict(library.deserialize(path.read_bytes()))
    except library.SafetensorError:
        return None


@FUZZ
@given(
    tensors=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 5), max_size=3)),
        max_size=4,
    )
)
def test_the_library_reads_the_same(tmp_path, tensors):
    whole = {name: one for name, one in tensors.items() if volume(one[1]) * BITS[one[0]] % 8 == 0}
    path = save(tmp_path / "x.safetensors", whole)
    theirs = library_reads(path)
    assert theirs is not None
    assert read_checkpoint(path).bytes == sum(len(one["data"]) for one in theirs.values())
    assert {name: list(one.shape) for name, one in read_header(path).items()} == {
        name: one["shape"] for name, one in theirs.items()
    }


@FUZZ
@given(header=headers, data_bytes=st.integers(0, 64))
def test_what_this_accepts_the_library_accepts(tmp_path, header, data_bytes):
    path = tmp_path / "x.safetensors"
    path.write_bytes(pack(header, data_bytes))
    theirs = library_reads(path)
    try:
        ours = read_header(path)
    except SpecError:
        return
    assert theirs is not None
    assert set(theirs) == set(ours)


def test_a_file_that_the_library_wrote(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    numpy = pytest.importorskip("numpy")
    arrays = {"a": numpy.zeros((3, 5), "float16"), "b": numpy.zeros((7,), "int64"), "c": numpy.zeros((), "float32")}
    library.save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "np"})
    assert read_checkpoint(tmp_path).bytes == sum(one.nbytes for one in arrays.values())
    assert tensor_summary(tmp_path) == {"fp16": 15, "int64": 7, "fp32": 1}
