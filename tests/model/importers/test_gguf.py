"""GGUF headers: what is read, what is walked past, and that no file brings anything but one line."""

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from gguf_writer import ARRAY, F64, I8, I64, U8, U64, Tensor, Typed, gguf_bytes, model, write
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import SpecError
from kvcalc.model.importers.ggml_types import BLOCK_TYPES
from kvcalc.model.importers.gguf import read_header
from kvcalc.model.importers.gguf_model import gguf_checkpoint, gguf_document

LLAMA = model(
    "llama",
    {
        "block_count": 2,
        "context_length": 4096,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "tokenizer.ggml.tokens": ["a", "bc", "", "d"],
        "tokenizer.ggml.scores": [0.5] * 4,
        "general.name": "A small one",
    },
)
TENSORS = [
    Tensor("token_embd.weight", (64, 4), 1),
    Tensor("blk.0.attn_k.weight", (256, 32), 12),
    Tensor("x.bias", (7,)),
]


def complaint(path):
    with pytest.raises(SpecError) as caught:
        read_header(path)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_in_both_byte_orders(tmp_path, version, order):
    header = read_header(write(tmp_path / "m.gguf", LLAMA, TENSORS, version=version, order=order))
    assert header.version == version
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["general.name"] == "A small one"
    assert header.metadata["tokenizer.ggml.scores"] == [0.5] * 4
    assert header.lengths == {"tokenizer.ggml.tokens": 4}
    assert [(one.name, one.shape, one.type) for one in header.tensors] == [
        ("token_embd.weight", (64, 4), "f16"),
        ("blk.0.attn_k.weight", (256, 32), "q4_k"),
        ("x.bias", (7,), "f32"),
    ]


def test_every_type_of_value(tmp_path):
    values = {
        "a": Typed(U8, 200),
        "b": Typed(I8, -3),
        "c": Typed(U64, 2**63),
        "d": Typed(I64, -(2**40)),
        "e": Typed(F64, 0.25),
        "f": True,
        "g": "é",
        "h": [Typed(U8, 1), Typed(U8, 0)],
        "i": [True, False],
        "j": Typed(ARRAY, []),
        "k": "",
    }
    metadata = read_header(write(tmp_path / "m.gguf", values)).metadata
    assert metadata == {"a": 200, "b": -3, "c": 2**63, "d": -(2**40), "e": 0.25, "f": True, "g": "é", "k": ""} | {
        "h": [1, 0],
        "i": [True, False],
        "j": [],
    }


def test_weight_bytes_are_those_of_the_blocks(tmp_path):
    header = read_header(write(tmp_path / "m.gguf", LLAMA, TENSORS))
    checkpoint = gguf_checkpoint(header)
    assert [tensor.bytes for tensor in header.tensors] == [64 * 4 * 2, 32 * 144, 7 * 4]
    assert checkpoint.bytes == 512 + 4608 + 28
    assert checkpoint.formats == ("q4_k", "f16", "f32")


def test_the_table_of_types_is_that_of_gguf_py():
    constants = pytest.importorskip("gguf.constants")
    listed = {
        kind.value: (kind.name.lower(), *constants.GGML_QUANT_SIZES[kind]) for kind in constants.GGMLQuantizationType
    }
    assert {number: tuple(block) for number, block in BLOCK_TYPES.items()} == listed


def test_it_reads_what_gguf_py_writes(tmp_path):
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(3)
    writer.add_head_count_kv([1, 2, 3])
    writer.add_token_list(["x"] * 1000)
    writer.add_tensor("w", numpy.zeros((4, 64), dtype=numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(tmp_path / "m.gguf")
    assert header.metadata["llama.attention.head_count_kv"] == [1, 2, 3]
    assert (header.lengths["tokenizer.ggml.tokens"], header.tensors[0].shape) == (1000, (64, 4))


def test_a_large_vocabulary_is_walked_past_quickly_and_not_kept(tmp_path):
    words = [f"token number {number}" for number in range(150_000)]
    file = write(tmp_path / "m.gguf", LLAMA | {"tokenizer.ggml.merges": words, "z": [1.0] * 20_000})
    began = time.process_time()
    read_header(file)
    assert time.process_time() - began < 2
    tracemalloc.start()
    header = read_header(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert header.lengths["tokenizer.ggml.merges"] == 150_000
    assert header.lengths["z"] == 20_000


def header_of(tensors, keys, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


KEY = struct.pack("<Q", 1) + b"k"
HUGE = 2**64 - 1
HOSTILE = {
    "tensors": header_of(HUGE, 0, bytes(1000)),
    "keys": header_of(0, HUGE, bytes(1000)),
    "a key's length": header_of(0, 1, struct.pack("<Q", HUGE) + bytes(1000)),
    "a string's length": header_of(0, 1, KEY + struct.pack("<IQ", 8, HUGE) + bytes(1000)),
    "an array's length": header_of(0, 1, KEY + struct.pack("<IIQ", 9, 4, HUGE) + bytes(1000)),
    "an array of strings": header_of(0, 1, KEY + struct.pack("<IIQ", 9, 8, HUGE) + bytes(1000)),
    "a string in an array": header_of(0, 1, KEY + struct.pack("<IIQQ", 9, 8, 2, HUGE) + bytes(1000)),
    "an array of arrays": header_of(0, 1, KEY + struct.pack("<IIQ", 9, 9, 1) + bytes(1000)),
    "a value's type": header_of(0, 1, KEY + struct.pack("<I", 99) + bytes(1000)),
    "dimensions": header_of(1, 0, KEY + struct.pack("<I", 2**32 - 1) + bytes(1000)),
    "a tensor's size": header_of(1, 0, KEY + struct.pack("<IQQIQ", 2, 2**63, 2**63, 0, 0) + bytes(1000)),
    "a tensor's type": header_of(1, 0, KEY + struct.pack("<IQIQ", 1, 32, 4, 0)),
    "a row that its block does not divide": header_of(1, 0, KEY + struct.pack("<IQIQ", 1, 33, 2, 0)),
    "a key that stands twice": header_of(0, 2, 2 * (KEY + struct.pack("<IB", 0, 1)) + bytes(100)),
    "a tensor that stands twice": header_of(2, 0, 2 * (KEY + struct.pack("<IQIQ", 1, 32, 0, 0))),
    "zeros as keys": header_of(0, 65536, bytes(2**20)),
    "zeros as tensors": header_of(65536, 0, bytes(2**21)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_counts_are_answered_at_once(tmp_path, what):
    file = tmp_path / "m.gguf"
    file.write_bytes(HOSTILE[what])
    began = time.process_time()
    tracemalloc.start()
    complaint(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert time.process_time() - began < 1


def test_a_sparse_file_that_has_room_for_its_counts_is_answered_at_once(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(header_of(0, 1, KEY + struct.pack("<IIQ", 9, 8, 2**33)))
    os.truncate(file, 2**38)
    began = time.process_time()
    assert "8,589,934,592 strings" in complaint(file).message
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"GG", "begins with"),
        (b"GGUF", "ends inside"),
        (b"ggjt" + bytes(40), "begins with b'ggjt'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (gguf_bytes(LLAMA, version=1), "version 1 "),
        (gguf_bytes(LLAMA, version=1, order=">"), "version 1 "),
        (gguf_bytes(LLAMA, version=4), "version 4 "),
    ],
)
def test_what_is_no_gguf(tmp_path, raw, words):
    file = tmp_path / "m.gguf"
    file.write_bytes(raw)
    assert words in complaint(file).message


def test_a_header_that_ends_anywhere(tmp_path):
    raw = gguf_bytes(LLAMA, TENSORS)
    file = tmp_path / "m.gguf"
    for length in range(len(raw)):
        file.write_bytes(raw[:length])
        complaint(file)
    file.write_bytes(raw)
    read_header(file)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "locked.gguf").symlink_to(tmp_path / "locked.gguf")
    assert "directory" in complaint(tmp_path).message
    assert "no regular file" in complaint(tmp_path / "pipe.gguf").message
    assert "No such file" in complaint(tmp_path / "none.gguf").message
    assert complaint(tmp_path / "locked.gguf").message
    assert complaint(tmp_path / ("x" * 5000)).message
    assert complaint(Path("a\0b")).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path):
    file = write(tmp_path / "m.gguf", LLAMA)
    file.chmod(0)
    assert "Permission denied" in complaint(file).message


def split(folder, count=3):
    for number in range(count):
        keys = {"split.no": Typed(2, number), "split.count": Typed(2, count), "split.tensors.count": Typed(5, count)}
        tensors = [Tensor(f"blk.{number}.attn_k.weight", (32, 2))]
        write(folder / f"big-{number + 1:05}-of-{count:05}.gguf", (LLAMA if number == 0 else {}) | keys, tensors)
    return [folder / f"big-{number + 1:05}-of-{count:05}.gguf" for number in range(count)]


def test_any_part_of_a_split_file_answers_for_all(tmp_path):
    headers = [read_header(part) for part in split(tmp_path)]
    assert headers[0] == headers[1] == headers[2]
    assert headers[0].metadata["llama.block_count"] == 2
    assert gguf_checkpoint(headers[0]).bytes == 3 * 32 * 2 * 4
    assert "3 parts" in gguf_checkpoint(headers[0]).source


def test_a_missing_part_is_named(tmp_path):
    parts = split(tmp_path)
    parts[1].unlink()
    assert "big-00002-of-00003.gguf is missing" in complaint(parts[2]).message


def test_parts_under_wrong_names(tmp_path):
    parts = split(tmp_path)
    assert "does not say which" in complaint(parts[0].rename(tmp_path / "one.gguf")).message
    parts = split(tmp_path)
    parts[1].write_bytes(parts[2].read_bytes())
    assert "another part" in complaint(parts[0]).message
    parts = split(tmp_path)
    write(parts[2], {"split.no": Typed(2, 2), "split.count": Typed(2, 3)})
    assert "2 tensors of 3" in complaint(parts[0]).message


WHOLE = gguf_bytes(LLAMA | {"llama.attention.sliding_window": 64, "llama.ssm.state_size": 8}, TENSORS)


@given(
    edits=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=9)), max_size=6),
    end=st.integers(0, len(WHOLE)),
)
def test_a_mutated_header_is_read_or_refused(tmp_path_factory, edits, end):
    raw = bytearray(WHOLE)
    for at, new in edits:
        raw[at : at + len(new)] = new
    file = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    file.write_bytes(raw if end % 2 else raw[:end])
    try:
        header = read_header(file)
        gguf_checkpoint(header)
        gguf_document(header, file)
    except SpecError as error:
        assert "\n" not in error.message
