"""The GPU of this machine, asked of drivers whose tools are scripts on PATH that print what real ones print."""

import json
import os

import pytest

from kvcalc.errors import KvcalcError, UnknownNameError
from kvcalc.hardware import detect as detecting
from kvcalc.hardware.detect import detect, resolve_gpu
from kvcalc.hardware.gpus import find_gpu

MIB = 2**20
NAME_IT = "name the GPU: --gpu h100-sxm, or say --gpu-memory 80GiB"


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """Put a driver's tool on a PATH that holds nothing else; it prints `answer`, or runs `script`."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name, answer="", script=None, code=0):
        (tmp_path / f"{name}.out").write_text(answer)
        body = script or f"while IFS= read -r line; do printf '%s\\n' \"$line\"; done < {tmp_path}/{name}.out"
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/{name}.asked\n{body}\nexit {code}\n')
        path.chmod(0o755)
        return tmp_path / f"{name}.asked"

    return put


# nvidia-smi --query-gpu=name,memory.total,mig.mode.current --format=csv,noheader,nounits
H100 = "NVIDIA H100 80GB HBM3, 81559, Disabled\n"


def test_one_gpu(tool):
    asked = tool("nvidia-smi", H100)
    assert detect() == (find_gpu("h100-sxm"), "NVIDIA H100 80GB HBM3", 81_559 * MIB)
    assert asked.read_text() == "--query-gpu=name,memory.total,mig.mode.current --format=csv,noheader,nounits\n"


def test_eight_alike_are_one_kind(tool):
    tool("nvidia-smi", H100 * 8)
    assert detect()[0].name == "h100-sxm5-80gb"


def test_what_it_reports_counts_and_not_what_is_usual(tool):
    tool("nvidia-smi", "NVIDIA RTX A6000, 46068, [N/A]\n")  # ECC is on
    found = resolve_gpu("auto")
    assert (found.name, found.total_bytes) == ("rtx-a6000", 46_068 * MIB)
    assert resolve_gpu("rtx-a6000").total_bytes == 49_140 * MIB


def test_a_gpu_that_is_not_listed_has_its_memory(tool):
    tool("nvidia-smi", "NVIDIA L20, 46068, [N/A]\n")
    found = resolve_gpu(" AUTO ")
    assert (found.name, found.gpu, found.total_bytes) == ("NVIDIA L20", None, 46_068 * MIB)


def test_a_chip_that_shares_memory_tells_none(tool):
    tool("nvidia-smi", "NVIDIA GB10, [N/A], [N/A]\n")
    assert resolve_gpu("auto").total_bytes == 122_570 * MIB
    tool("nvidia-smi", "NVIDIA Thor, [N/A], [N/A]\n")
    with pytest.raises(KvcalcError) as caught:
        detect()
    assert caught.value.message == "the driver does not say how much memory NVIDIA Thor has"
    assert caught.value.hint == NAME_IT


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            H100 + "NVIDIA L4, 23034, [N/A]\n",
            "this machine has more than one kind of GPU: NVIDIA H100 80GB HBM3 with 79.65 GiB; NVIDIA L4 with 22.49 GiB",
        ),
        (
            "NVIDIA GeForce RTX 3080, 10240, [N/A]\nNVIDIA GeForce RTX 3080, 12288, [N/A]\n",
            "this machine has more than one kind of GPU: "
            "NVIDIA GeForce RTX 3080 with 10.00 GiB; NVIDIA GeForce RTX 3080 with 12.00 GiB",
        ),
        ("Unable to determine the device handle for GPU0\n", None),
        ("NVIDIA L4, many, [N/A]\n", None),
        ("NVIDIA L4, 0, [N/A]\n", None),
        (", 23034, [N/A]\n", None),
        ("\x1b[2J\x00\ufffd\n", None),
    ],
)
def test_answers_that_name_no_single_gpu(tool, answer, message):
    tool("nvidia-smi", answer)
    with pytest.raises(KvcalcError) as caught:
        detect()
    if message:
        assert caught.value.message == message
    else:
        assert caught.value.message.startswith("nvidia-smi answers ")
        assert caught.value.message.endswith(", which is no GPU")
    assert caught.value.hint == NAME_IT


def test_mig_is_refused(tool):
    tool("nvidia-smi", "NVIDIA A100-SXM4-40GB, 40960, Enabled\n")
    with pytest.raises(KvcalcError) as caught:
        detect()
    assert caught.value.message == "MIG cuts NVIDIA A100-SXM4-40GB up, and a process sees one slice"
    assert "--gpu-memory" in caught.value.hint


@pytest.mark.parametrize("code", [0, 9])
def test_no_driver(tool, code):
    """nvidia-smi prints its complaint on stdout and exits with 9 where the kernel module is not loaded."""
    tool(
        "nvidia-smi",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n" * bool(code),
        code=code,
    )
    with pytest.raises(KvcalcError) as caught:
        resolve_gpu("auto")
    assert (caught.value.message, caught.value.hint) == ("no NVIDIA or AMD driver answers", NAME_IT)


def test_no_tool_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KvcalcError, match="no NVIDIA or AMD driver answers"):
        detect()


def test_a_tool_that_hangs_is_left(tool, monkeypatch):
    monkeypatch.setattr(detecting, "_TIMEOUT_SECONDS", 0.2)
    tool("nvidia-smi", script="while :; do :; done")
    with pytest.raises(KvcalcError) as caught:
        detect()
    assert (caught.value.message, caught.value.hint) == ("nvidia-smi does not answer within 0.2 s", NAME_IT)


# rocm-smi --showproductname --showmeminfo vram --json; older releases write "Card series".
@pytest.mark.parametrize("key", ["Card Series", "Card series"])
def test_an_amd_gpu(tool, key):
    card = {key: "AMD Instinct MI300X OAM", "GFX Version": "gfx942", "VRAM Total Memory (B)": "206141652992"}
    tool("nvidia-smi", code=9)
    tool("rocm-smi", json.dumps({"card0": card, "card1": card, "system": {"Driver version": "6.10"}}) + "\n")
    assert detect() == (find_gpu("mi300x"), "AMD Instinct MI300X OAM", 206_141_652_992)


@pytest.mark.parametrize(
    "answer", ["WARNING: AMD GPU device(s) is/are in a low-power state\n", '{"card0": {}}\n', "[1]\n"]
)
def test_an_amd_answer_that_cannot_be_read(tool, answer):
    tool("rocm-smi", answer)
    with pytest.raises(KvcalcError, match=r"rocm-smi answers .*, which is no GPU"):
        detect()


@pytest.mark.parametrize(
    ("text", "name", "total_bytes"),
    [
        ("h100-sxm", "h100-sxm5-80gb", 81_559 * MIB),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb", 81_920 * MIB),
        ("mi300x", "mi300x", 206_141_652_992),
    ],
)
def test_a_named_gpu_asks_no_driver(monkeypatch, text, name, total_bytes):
    monkeypatch.setenv("PATH", os.devnull)
    found = resolve_gpu(text)
    assert (found.name, found.gpu, found.total_bytes) == (name, find_gpu(name), total_bytes)


def test_a_gpu_whose_driver_total_is_not_known_wants_it_said():
    with pytest.raises(KvcalcError) as caught:
        resolve_gpu("m3 max")
    assert caught.value.message == "what a driver reports of apple-m3-max-40c is not known, 128 GB on its label"
    assert "--gpu-memory" in caught.value.hint


def test_an_unknown_name_is_unknown():
    with pytest.raises(UnknownNameError):
        resolve_gpu("h101")
