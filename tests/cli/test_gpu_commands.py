"""kvcalc gpus: a list and one GPU, in every format; figures and sources are those of gpus.yaml."""

import csv
import io

import pytest

from kvcalc.hardware.gpus import find_gpu, load_gpus, load_sources


def rows(answer):
    return list(csv.DictReader(io.StringIO(answer.out)))


def test_the_list_has_every_gpu_in_every_format(kvcalc):
    names = [gpu.name for gpu in load_gpus()]
    assert [gpu["name"] for gpu in kvcalc("gpus", "list", "--format", "json").json["gpus"]] == names
    assert [row["name"] for row in rows(kvcalc("gpus", "list", "--format", "csv"))] == names
    table, markdown = kvcalc("gpus", "list").out, kvcalc("gpus", "list", "--format", "markdown").out
    assert all(f" {name} " in table and f"| {name} |" in markdown for name in names)


def test_a_line_of_the_list(kvcalc):
    """H200 data sheet: 141 GB, 4.8 TB/s, 989 and 1,979 TFLOP/s dense, NVLink 900 GB/s both ways; nvidia-smi: 143,771 MiB."""
    (line,) = kvcalc("gpus", "list", "h200-sxm", "--format", "json").json["gpus"]
    assert line == {
        "name": "h200-sxm-141gb",
        "aliases": ["h200-sxm"],
        "memory_label_gb": 141,
        "driver_memory_bytes": 143_771 * 2**20,
        "bandwidth_bytes_per_second": 4_800 * 10**9,
        "bf16_flops_per_second": 989 * 10**12,
        "fp8_flops_per_second": 1_978 * 10**12,
        "fp4_flops_per_second": None,
        "link_bytes_per_second": 450 * 10**9,
    }
    (row,) = rows(kvcalc("gpus", "list", "h200-sxm", "--format", "csv"))
    expected = {**line, "aliases": "h200-sxm", "fp4_flops_per_second": ""}
    assert row == {key: str(value) for key, value in expected.items()}
    shown = kvcalc("gpus", "list", "h200-sxm").out.splitlines()[-1].split()
    assert shown == ["h200-sxm-141gb", "141", "140.40", "GiB", "4,800", "989", "1,978", "-", "450"]


def test_a_pattern_is_part_of_a_name_or_of_an_alias(kvcalc):
    listed = kvcalc("gpus", "list", "H100", "--format", "json").json["gpus"]
    assert [gpu["name"] for gpu in listed] == ["h100-pcie-80gb", "h100-sxm5-80gb", "h100-nvl-94gb"]
    assert [row["name"] for row in rows(kvcalc("gpus", "list", "a100-80-pcie", "--format", "csv"))] == [
        "a100-pcie-80gb"
    ]
    answer = kvcalc("gpus", "list", "voodoo")
    assert answer.code == 2
    assert "no GPU's name holds 'voodoo'" in answer.err


@pytest.mark.parametrize("gpu", load_gpus(), ids=lambda gpu: gpu.name)
def test_show_has_every_figure_with_its_source(kvcalc, gpu):
    document = kvcalc("gpus", "show", gpu.name, "--format", "json").json
    figures = {figure["figure"]: (figure["value"], figure["source"]) for figure in document["figures"]}
    assert figures == {field: (figure.value, load_sources()[figure.source]) for field, figure in gpu.figures()}
    assert not set(document["unknown"]) & set(figures)
    assert len(document["unknown"]) + len(figures) == 14  # nine figures and five rates
    assert (document["name"], document["note"], document["device"]) == (gpu.name, gpu.note, None)


def test_show_for_people(kvcalc):
    out = kvcalc("gpus", "show", "h100").err + kvcalc("gpus", "show", "H100_SXM5").out
    assert "'h100' may be any of 3 GPUs" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "h100-sxm5-80gb also h100-sxm, NVIDIA H100 80GB HBM3" in lines
    assert "not known, or not there: fp4, link along an axis, link to the CPU" in lines
    assert "bandwidth 3,350 GB/s ai-dynamo/aiconfigurator@095f58a51c4c, systems/*.yaml" in lines
    assert (
        "driver shows 85,520,809,984 B (79.65 GiB) nvidia-smi total as printed in nine or more public repositories"
        in lines
    )


@pytest.fixture
def driver(monkeypatch, tmp_path):
    def answer(line):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\necho '{line}'\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return answer


def test_show_auto(kvcalc, driver):
    driver("NVIDIA L4, 23034, [N/A]")
    document = kvcalc("gpus", "show", "auto", "--format", "json").json
    assert document["name"] == find_gpu("l4").name
    assert document["device"] == {"name": "NVIDIA L4", "total_bytes": 23_034 * 2**20}
    assert "this machine: NVIDIA L4, 24,152,899,584 B (22.49 GiB)" in kvcalc("gpus", "show", "auto").out


def test_show_auto_of_a_gpu_that_is_not_listed(kvcalc, driver):
    driver("NVIDIA L20, 46068, [N/A]")
    answer = kvcalc("gpus", "show", "auto")
    assert answer.code == 2
    assert (
        "the driver prints NVIDIA L20 with 48,305,799,168 B (44.99 GiB), which is none of the GPUs listed" in answer.err
    )


def test_show_auto_without_a_driver(kvcalc, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = kvcalc("gpus", "show", "auto")
    assert answer.code == 2
    assert "no NVIDIA or AMD driver answers" in answer.err
    assert "--gpu h100-sxm" in answer.err
