"""Reading logs: what lines say, whatever stands before, between and around them; numbers are read, never invented."""

import io
import re
import time
import tracemalloc
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.engines.logs.lines import BLOCK_BYTES, MOST_LINE_BYTES
from kvcalc.engines.logs.pattern import GIB, MIB, printed
from kvcalc.engines.logs.reader import MOST_FINDINGS, rank_of, read_log
from kvcalc.errors import KvcalcError

TOKENS = "GPU KV cache size: 686,320 tokens"
SGLANG = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 387968, K size: 5.92 GB, V size: 5.92 GB"


def read(text):
    return read_log(io.BytesIO(text if isinstance(text, bytes) else text.encode()))


def said(text):
    """Every value of a text by kind and key."""
    return {(one.kind, key): value.text for one in read(text).findings for key, value in one.values.items()}


class Endless(io.RawIOBase):
    """One block over and over, so that the test itself holds no more of it."""

    def __init__(self, block, blocks):
        self.block, self.left = block, blocks

    def read(self, size=-1):
        self.left -= 1
        return self.block if self.left >= 0 else b""


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("INFO 05-07 ", ""),
        ("(Worker_TP0 pid=123) INFO ", "TP0"),
        ("(Worker_PP1_EP0 pid=1749) INFO ", "PP1 EP0"),
        ("(EngineCore_DP0 pid=178) INFO ", "DP0"),
        ("(VllmWorker rank=1 pid=12) INFO ", "rank 1"),
        ("(VllmWorkerProcess pid=8719) INFO ", "pid 8719"),
        ("(RayWorkerWrapper pid=33, ip=10.0.0.2) INFO ", "pid 33"),
        ("[2026-07-01 15:19:55 TP10] ", "TP10"),
        ("[2026-07-01 15:19:55 DP1 TP5 EP5] ", "DP1 TP5 EP5"),
        ("[12/20/2025-04:21:50] [TRT-LLM] [RANK 3] [I] ", "rank 3"),
        ("[1,2]<stdout>:", "2"),
        ("vllm-1  | 2026-01-01T00:00:00.123Z (Worker_TP1 pid=9) ", "TP1"),
    ],
)
def test_the_prefix_names_the_rank(prefix, rank):
    assert rank_of(prefix) == rank
    (found,) = read(f"{prefix}{TOKENS}\n").findings
    assert (found.rank, found.values["tokens"].value) == (rank, 686320)


@pytest.mark.parametrize(
    "form",
    [
        "{}\n",
        "{}\r\n",
        "\x1b[32mINFO\x1b[0m {}\n",
        "\x1b[1;36m(EngineCore pid=7)\x1b[0;0m {}\n",
        '{{"log":"{}\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}}\n',
        "2026-01-01T00:00:00.1Z stderr F {}\n",
        "Loading: 50%|##   |\rLoading: 100%|####|\r{}\n",
        "torn \udcff\udcfe bytes {}\n",
        "\0\0\0{}\n",
    ],
)
@pytest.mark.parametrize("line", [TOKENS, SGLANG])
def test_what_stands_around_a_line_does_not_matter(form, line):
    log = read_log(io.BytesIO(form.format(line).encode(errors="surrogateescape")))
    (found,) = log.findings
    assert found.values["tokens"].text in ("686,320", "387968")
    assert found.line == 1


def test_a_colour_in_the_middle_of_a_message_does_not_matter():
    assert said("GPU KV \x1b[1mcache\x1b[0m size: 12 tokens\n") == {("tokens", "tokens"): "12"}


def test_utf_16_as_a_windows_shell_writes_it():
    for encoding in ("utf-16-le", "utf-16-be"):
        text = f"\ufeff{TOKENS}\r\n".encode(encoding)
        assert [one.kind for one in read(text).findings] == ["tokens"]


def test_lines_are_counted_over_blocks():
    filler = "x" * 99 + "\n"
    count = 3 * BLOCK_BYTES // len(filler)
    (found,) = read(filler * count + TOKENS + "\n").findings
    assert found.line == count + 1


def test_a_line_over_the_edge_of_a_block_is_whole():
    for shift in range(0, len(TOKENS) + 2, 7):
        text = "y" * 79 + "\n"
        filler = text * (BLOCK_BYTES // 80 - 1)
        filler += "z" * (BLOCK_BYTES - len(filler) - shift - 1) + "\n"
        assert said(filler + TOKENS + "\n") == {("tokens", "tokens"): "686,320"}


@pytest.mark.parametrize("end", range(1, len(TOKENS)))
def test_a_log_that_ends_in_a_line_invents_no_number(end):
    assert said(TOKENS[:end]) in ({}, {("tokens", "tokens"): "686,320"})


def test_a_number_at_the_end_of_a_cut_line_is_not_read():
    log = read("# GPU blocks: 3366")
    assert log.findings == ()
    assert log.notes == ("the log ends in the middle of line 1, which is not read as far as that matters",)
    assert said("# GPU blocks: 3366\n") == {("blocks", "blocks"): "3366"}


def test_settings_at_the_end_of_a_cut_line_are_not_read():
    assert said("non-default args: {'max_model_len': 8192, 'block_size': 1") == {("arguments", "ctx"): "8192"}


def test_of_an_endless_line_the_beginning_is_read():
    log = read_log(Endless(TOKENS.encode() + b" " + b"q" * (BLOCK_BYTES - 40), 5))
    assert [one.line for one in log.findings] == [1]
    assert log.notes == ("line 1 is too long: only the beginning is read",)
    again = read("a" * (MOST_LINE_BYTES + BLOCK_BYTES) + "\n" + TOKENS + "\n")
    assert [one.line for one in again.findings] == [2]


@pytest.mark.parametrize("magic", [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\xfd7zXZ"])
def test_a_packed_log_is_refused_by_name(magic):
    with pytest.raises(KvcalcError, match="packed with"):
        read(magic + b"rest")


TRAFFIC = (
    "(APIServer pid=13) INFO 11-28 23:05:41 [loggers.py:310] Engine 000: Avg prompt throughput: 1594.0 tokens/s, "
    "Running: 1 reqs, GPU KV cache usage: 3.2%\n"
)


@pytest.mark.parametrize(
    "block",
    [
        TRAFFIC.encode() * (BLOCK_BYTES // len(TRAFFIC)),
        b"x" * BLOCK_BYTES,
        b"progress 50%\r" * (BLOCK_BYTES // 13),
        b"1" * (BLOCK_BYTES - 26) + b"Available KV cache memory: ",
    ],
    ids=["traffic", "one line", "progress bars", "digits"],
)
def test_a_hundred_megabytes_are_read_in_constant_memory(block):
    began = time.process_time()
    tracemalloc.start()
    log = read_log(Endless(block, 100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.bytes >= 99 * BLOCK_BYTES
    assert peak < 12 * BLOCK_BYTES
    assert time.process_time() - began < 60


def test_a_log_that_says_too_much_is_cut_and_says_so():
    log = read("".join(f"GPU KV cache size: {count} tokens\n" for count in range(MOST_FINDINGS + 5)))
    assert len(log.findings) == MOST_FINDINGS
    assert "the rest is not read" in log.notes[0]


@pytest.mark.parametrize(
    "hostile",
    [
        "Available KV cache memory: " + "1" * 200_000,
        "Load weight end. " * 12_000,
        "print_info: n_head_kv = [" + "8, " * 60_000,
        "with config: " + "model=" * 30_000,
        "max seq len (1), 1 GiB KV cache is needed, which is larger than the available KV cache memory (1 GiB). "
        * 2000,
    ],
    ids=["digits", "starts", "list", "names", "needs"],
)
def test_no_line_costs_more_than_it_is_long(hostile):
    began = time.process_time()
    read(hostile + "\n")
    assert time.process_time() - began < 10


WORDS = [
    TOKENS,
    SGLANG,
    "n_ctx = 4",
    "# GPU blocks: ",
    "12",
    "llama_context: ",
    "server_args=ServerArgs(",
    "\r",
    "\x1b[3",
    "size = ",
]


@given(st.lists(st.one_of(st.sampled_from([word.encode() for word in WORDS]), st.binary(max_size=40)), max_size=30))
def test_junk_is_read_without_complaint_and_no_number_is_invented(pieces):
    text = b"".join(pieces)
    if any(
        text.startswith(magic)
        for magic in (b"\x1f\x8b", b"\x28\xb5", b"\xfd7z", b"PK", b"BZh", b"\xff\xfe", b"\xfe\xff")
    ):
        return
    clean = re.sub(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\\u001b\[[0-9;]*m", b"", text)
    for one in read(text).findings:
        for value in one.values.values():
            assert value.text.strip() in clean.decode(errors="replace")


@given(st.integers(0, 10**9), st.integers(0, 3))
def test_a_printed_number_allows_what_is_printed_like_it(count, digits):
    text = f"{count / 1000:.{digits}f}"
    value = printed(text, GIB)
    assert value.allows(Fraction(count, 1000) * GIB) or digits == 0
    assert not value.allows(value.number + Fraction(GIB, 10**digits))


def test_a_value_is_shown_with_the_digits_of_the_log():
    value = printed("1,280.00", MIB)
    assert value.as_printed(1280 * MIB + MIB // 4) == "1,280.25 MiB"
    assert printed("3.0", GIB, 2).half == Fraction(GIB, 200)
    assert printed("4", GIB, 2).half == Fraction(GIB, 200)
    assert printed("torch.bfloat16").value is None


LINES = {
    "vLLM's arguments": (
        "non-default args: {'model_tag': '/m/', 'model': 'a/b', 'max_model_len': 65536, 'tensor_parallel_size': 4}",
        {"model": "/m/", "ctx": "65536", "tp": "4"},
    ),
    "vLLM's namespace": (
        "args: Namespace(host=None, model='a/b', block_size=16, swap_space=4, enable_prefix_caching=False)",
        {"model": "a/b", "block_size": "16", "swap_space": "4", "enable_prefix_caching": "False"},
    ),
    "a command": (
        "+ vllm serve a/b --max-model-len 4096 --tensor-parallel-size=2",
        {"model": "a/b", "ctx": "4096", "tp": "2"},
    ),
    "SGLang's arguments": (
        "server_args=ServerArgs(model_path='a/b', tp_size=2, page_size=1, mem_fraction_static=0.85, dtype='auto')",
        {"model": "a/b", "tp": "2", "page_size": "1", "mem_fraction_static": "0.85", "dtype": "auto"},
    ),
    "SGLang's states": (
        "Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, ssm_state size: 17.58GB ",
        {"mamba_slots": "124", "conv_bytes": "0.34", "ssm_bytes": "17.58"},
    ),
    "SGLang's windows": (
        "Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288",
        {"full_tokens": "375360", "swa_tokens": "300288"},
    ),
    "SGLang's graphs": (
        "Capture target decode CUDA graph end. elapsed=10.10 s, mem usage=0.79 GB, avail mem=10.39 GB.",
        {"graphs_bytes": "0.79"},
    ),
    "SGLang's weights": (
        "Load weight end. elapsed=329.53 s, type=X, quant=fp8, fmt=e4m3, avail mem=29.67 GB, mem usage=80.31 GB.",
        {"free_bytes": "29.67", "weights_bytes": "80.31"},
    ),
    "TensorRT-LLM's pool": (
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 63.44 GiB for max tokens in paged KV cache (259840).",
        {"kv_bytes": "63.44", "tokens": "259840"},
    ),
    "TensorRT-LLM's windows": (
        "Max KV cache blocks per sequence: 8192 [window size=262144], tokens per block=32, primary blocks=158543, "
        "secondary blocks=0, max sequence length=262144",
        {
            "sequence_blocks": "8192",
            "window": "262144",
            "tokens_per_block": "32",
            "blocks": "158543",
            "ctx": "262144",
        },
    ),
    "TensorRT-LLM's peak": (
        "Peak memory during memory usage profiling (torch + non-torch): 113.65 GiB, available KV cache memory when "
        "calculating max tokens: 5.95 GiB, fraction is set 0.8999999761581421, kv size is 73728. device total memory "
        "119.70 GiB, , tmp kv_mem 0.56 GiB",
        {
            "peak_bytes": "113.65",
            "available_bytes": "5.95",
            "kv_cache_free_gpu_mem_fraction": "0.8999999761581421",
            "token_cost": "73728",
            "total_bytes": "119.70",
        },
    ),
    "llama.cpp's metadata": (
        "llama_model_loader: - kv   5:                gemma3.attention.head_count u32              = 4",
        {"key": "gemma3.attention.head_count", "type": "u32", "text": "4"},
    ),
    "ollama's runner": (
        'msg="starting runner" cmd="/usr/bin/ollama runner --model /m/x --ctx-size 8192 --batch-size 512 --parallel 4"',
        {"path": "/m/x", "n_ctx": "8192", "n_batch": "512", "n_seq_max": "4"},
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_what_a_line_says(name):
    line, values = LINES[name]
    assert {key: value for (_, key), value in said(line + "\n").items()} == values
