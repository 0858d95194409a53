"""Accelerators: published figures, names that lead to one card, and devices that match none."""

from itertools import combinations

import msgspec
import pytest
import yaml
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import KvcalcError, UnknownNameError
from kvcalc.hardware.gpus import find_gpu, load_gpus, load_sources, match_device, read_registry

TEXT = (ROOT / "kvcalc" / "hardware" / "gpus.yaml").read_text()
GPUS = load_gpus()
GB, TERA, MIB, GIB = 10**9, 10**12, 2**20, 2**30

# name, memory on the label in GB, bandwidth in GB/s, dense TFLOP/s of a format: NVIDIA's and AMD's product pages and data sheets.
PUBLISHED = [
    ("Tesla T4", 16, 320, "fp16", 65),  # T4 data sheet: 65 TFLOPS, "320+ GB/s"
    ("Tesla V100-SXM2-32GB", 32, 900, "fp16", 125),  # V100 data sheet, SXM2
    ("NVIDIA A10", 24, 600.2, "fp16", 125),  # A10 data sheet: 600 GB/s
    ("NVIDIA A100-SXM4-40GB", 40, 1_555, "bf16", 312),  # A100 data sheet
    ("NVIDIA A100 80GB PCIe", 80, 1_935, "bf16", 312),
    ("NVIDIA A100-SXM4-80GB", 80, 2_039, "bf16", 312),
    ("NVIDIA L40S", 48, 864, "bf16", 362.05),  # L40S data sheet: 362.05, with sparsity 733
    ("NVIDIA H100 80GB HBM3", 80, 3_350, "bf16", 989),  # H100 data sheet: 1,979 with sparsity
    ("NVIDIA H100 80GB HBM3", 80, 3_350, "fp8", 1_978),  # 3,958 with sparsity
    ("NVIDIA H200", 141, 4_800, "bf16", 989),  # H200 data sheet
    ("NVIDIA GB200", 186, 8_000, "bf16", 2_500),  # GB200 NVL72: 13.4 TB and 576 TB/s in 72; 5 PFLOPS with sparsity
    ("NVIDIA GeForce RTX 3090", 24, 936.2, "fp16", 71),  # GA102 white paper, fp32 accumulation
    ("NVIDIA GeForce RTX 4090", 24, 1_008, "fp16", 165.2),  # Ada white paper, fp32 accumulation
    ("NVIDIA GeForce RTX 5090", 32, 1_792, "fp16", 209.5),  # RTX Blackwell white paper, fp32 accumulation
    ("AMD Instinct MI300X", 192, 5_300, "bf16", 1_307),  # MI300X data sheet: 5.3 TB/s, 1,307.4
    ("AMD Instinct MI325X", 256, 6_000, "fp8", 2_614.9),  # MI325X data sheet
]

# What nvidia-smi prints, in MiB.
SMI = {
    "NVIDIA H100 80GB HBM3": 81_559,
    "NVIDIA H100 PCIe": 81_559,
    "NVIDIA H200": 143_771,
    "NVIDIA H200 NVL": 143_771,
    "NVIDIA B200": 183_359,
    "NVIDIA L4": 23_034,
    "NVIDIA L40": 46_068,
    "NVIDIA A10G": 23_028,
    "NVIDIA A100-PCIE-40GB": 40_960,
    "NVIDIA A100 80GB PCIe": 81_920,
    "NVIDIA RTX A6000": 49_140,
    "NVIDIA GeForce RTX 3090": 24_576,
    "NVIDIA GeForce RTX 4080": 16_376,
    "Tesla V100-SXM2-32GB": 32_768,
    "Tesla V100-PCIE-16GB": 16_384,
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 97_887,
}

# What torch.cuda.get_device_properties prints: total_memory in its MB (2^20 B), multi_processor_count, L2_cache_size.
TORCH = [
    ("NVIDIA A10G", 22_587, 80, 6),
    ("NVIDIA H20", 97_285, 78, None),
    ("NVIDIA B200", 182_642, 148, 126),
    ("NVIDIA GeForce RTX 4080", 16_049, 76, None),
    ("AMD Instinct MI300X", 196_592, None, None),
]


def value(figure):
    return None if figure is None else figure.value


@pytest.mark.parametrize(("name", "memory", "bandwidth", "form", "rate"), PUBLISHED)
def test_published_figures(name, memory, bandwidth, form, rate):
    gpu = find_gpu(name)
    assert value(gpu.memory_label_gb) == memory
    assert value(gpu.bandwidth_bytes_per_second) == round(bandwidth * GB)
    assert value(gpu.dense_flops_per_second[form]) == round(rate * TERA)


@pytest.mark.parametrize(("name", "shown"), SMI.items())
def test_what_drivers_show(name, shown):
    assert value(find_gpu(name).driver_memory_bytes) == shown * MIB


@pytest.mark.parametrize(("name", "memory", "processors", "cache"), TORCH)
def test_what_torch_prints(name, memory, processors, cache):
    gpu = match_device(name, memory * MIB)
    assert gpu is find_gpu(name)
    assert value(gpu.sm_count) == processors
    assert cache is None or value(gpu.l2_bytes) == cache * MIB


def test_every_number_has_a_listed_source_and_every_source_a_number():
    used = {figure.source for gpu in GPUS for _, figure in gpu.figures()}
    assert used == set(load_sources())


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_no_rate_is_one_with_sparsity(gpu):
    """8 bits run at the pace of 16 or at twice that; a sparse figure among dense ones would make it four times."""
    rates = gpu.dense_flops_per_second
    wide = rates.get("bf16") or rates.get("fp16")
    if "fp8" in rates:
        assert rates["fp8"].value / wide.value == pytest.approx(1 if gpu.name == "gaudi3" else 2, rel=0.02)
    if {"bf16", "fp16"} <= set(rates):
        assert rates["bf16"].value == rates["fp16"].value


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu.driver_memory_bytes], ids=lambda gpu: gpu.name)
def test_a_driver_shows_the_label_in_decimal_or_in_binary_gigabytes(gpu):
    label = gpu.memory_label_gb.value
    assert label * GB <= gpu.driver_memory_bytes.value <= label * GIB


def test_names_lead_to_one_card():
    spellings = {
        gpu.name: {"".join(filter(str.isalnum, text.lower())) for text in (gpu.name, *gpu.aliases, *gpu.driver_names)}
        for gpu in GPUS
    }
    assert len(spellings) == len(GPUS)
    for one, other in combinations(spellings, 2):
        assert not spellings[one] & spellings[other], (one, other)
    for gpu in GPUS:
        assert all(find_gpu(text) is gpu for text in (gpu.name, *gpu.aliases, *gpu.driver_names))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("h200-sxm", "h200-sxm-141gb"),
        ("H200 NVL", "h200-nvl"),
        ("h100-sxm", "h100-sxm5-80gb"),
        ("H100_SXM5", "h100-sxm5-80gb"),
        ("H100 SXM5 80GB", "h100-sxm5-80gb"),
        ("4090", "rtx-4090"),
        ("a100 sxm 80", "a100-sxm4-80gb"),
        ("a100-40g-pcie", "a100-pcie-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("A6000", "rtx-a6000"),
        ("L40", "l40"),
        ("H20", "h20-96gb"),
        ("b200", "b200-sxm"),
        ("m3 max", "apple-m3-max-40c"),
        ("rtx4090", "rtx-4090"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("h100_sxm", "h100-sxm5-80gb"),
        ("a100-sxm4-80gb", "a100-sxm4-80gb"),
        ("NVIDIA Tesla T4", "t4"),
        ("mi300x", "mi300x"),
    ],
)
def test_spellings(text, name):
    assert find_gpu(text).name == name


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("rtx-4091", "rtx-4090"),
        ("NVIDIA GeForce RTX 4091", "NVIDIA GeForce RTX 4090"),
        ("h1000", "h100-sxm"),
        ("MI300", "mi300x"),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones(text, offered):
    with pytest.raises(UnknownNameError) as caught:
        find_gpu(text)
    assert caught.value.message == f"unknown GPU {text!r}"
    assert offered in caught.value.hint


@pytest.mark.parametrize("text", ["", "-", "nvidia", "abacus"])
def test_a_name_that_resembles_nothing(text):
    with pytest.raises(UnknownNameError):
        find_gpu(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h100", "h100-pcie-80gb (80 GB, 2,000 GB/s, 756 TFLOP/s), h100-sxm5-80gb (80 GB, 3,350 GB/s, 989 TFLOP/s), "
                 "h100-nvl-94gb (94 GB, 3,940 GB/s, 835 TFLOP/s)"),
        ("a100-80gb", "a100-pcie-80gb (80 GB, 1,935 GB/s, 312 TFLOP/s), a100-sxm4-80gb (80 GB, 2,039 GB/s, 312 TFLOP/s)"),
        ("H200", "h200-sxm-141gb (141 GB, 4,800 GB/s, 989 TFLOP/s), h200-nvl (141 GB, 4,800 GB/s, 835 TFLOP/s)"),
        ("a100-sxm", "a100-sxm4-40gb (40 GB, 1,555 GB/s, 312 TFLOP/s), a100-sxm4-80gb (80 GB, 2,039 GB/s, 312 TFLOP/s)"),
        ("GeForce RTX 3080", "rtx-3080-10gb (10 GB, 760 GB/s, 60 TFLOP/s), rtx-3080-12gb (12 GB, 912 GB/s)"),
        ("Orin", "jetson-agx-orin-64gb (64 GB, 205 GB/s), jetson-agx-orin-32gb (32 GB, 205 GB/s)"),
    ],
)  # fmt: skip
def test_a_name_of_several_cards_is_refused_with_what_tells_them_apart(text, names):
    with pytest.raises(KvcalcError) as caught:
        find_gpu(text)
    assert not isinstance(caught.value, UnknownNameError)
    assert caught.value.message == f"{text!r} may be any of {names.count('(')} GPUs"
    assert caught.value.hint == f"name one: {names}"


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu.shared_driver_names], ids=lambda gpu: gpu.name)
def test_what_a_driver_prints_for_several_cards_names_them_all(gpu):
    for text in gpu.shared_driver_names:
        with pytest.raises(KvcalcError) as caught:
            find_gpu(text)
        assert gpu.name in caught.value.hint


# The cards that people have: nobody should have to look one of these up.
COMMON = [gpu.name for gpu in GPUS if gpu.name.startswith(("v100", "t4", "a10", "l4", "h100", "h200", "rtx-", "mi3"))]


@pytest.mark.parametrize("name", COMMON)
def test_the_figures_that_people_need_are_known(name):
    gpu = find_gpu(name)
    assert gpu.memory_label_gb
    assert gpu.bandwidth_bytes_per_second
    assert gpu.l2_bytes
    assert gpu.pcie_bytes_per_second
    assert gpu.dense_flops_per_second
    assert gpu.driver_memory_bytes or name in ("rtx-5000-ada", "mi325x")


MATCHABLE = [(gpu, name) for gpu in GPUS for name in (*gpu.driver_names, *gpu.shared_driver_names)]


@given(st.sampled_from(MATCHABLE), st.floats(0.92, 1.0))
def test_a_device_is_matched_by_name_and_memory(case, share):
    """ECC takes 1/16 of a GDDR card and CUDA up to two percent of the rest: 0.92 at the least."""
    gpu, name = case
    shown = gpu.driver_memory_bytes.value if gpu.driver_memory_bytes else gpu.memory_label_gb.value * GB
    assert match_device(name, round(shown * share)) is gpu


@given(st.sampled_from(MATCHABLE), st.floats(0.01, 0.85) | st.floats(1.09, 4))
def test_other_memory_is_another_card(case, share):
    gpu, name = case
    shown = gpu.driver_memory_bytes.value if gpu.driver_memory_bytes else gpu.memory_label_gb.value * GB
    assert match_device(name, round(shown * share)) is not gpu


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_name_alone_matches_where_one_card_prints_it(gpu):
    assert all(match_device(name) is gpu for name in gpu.driver_names)
    assert all(match_device(name) is None for name in gpu.shared_driver_names)


@pytest.mark.parametrize(
    ("name", "memory_bytes", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 79 * GIB, "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-80GB", 39 * GIB, None),
        ("NVIDIA A100-SXM4-40GB", 39 * GIB, "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 10_200_547_328, None),
        ("NVIDIA GeForce RTX 3080", 10_240 * MIB, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 12_288 * MIB, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3080", 20_470 * MIB, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16 * GIB, None),
        ("NVIDIA GeForce RTX 4090 D", 24_564 * MIB, None),
        ("NVIDIA H20-3e", 143_771 * MIB, None),
        ("NVIDIA RTX A6000", 46_068 * MIB, "rtx-a6000"),  # ECC on
        ("NVIDIA L40S", 49_140 * MIB, "l40s"),  # ECC off
        ("Orin", 30_622 * MIB, "jetson-agx-orin-32gb"),
        ("Orin", 62_800 * MIB, "jetson-agx-orin-64gb"),
        ("Orin", 7_620 * MIB, None),  # an Orin Nano
        ("AMD Instinct MI300X", 24 * GIB, None),  # one of eight partitions
        ("AMD Instinct MI250X/MI250", 65_520 * MIB, None),  # one of two dies
        ("Apple M3 Max", 128 * GIB, None),  # 30 cores or 40, at 300 or 400 GB/s
        ("rtx-4090", None, None),  # our name, not a driver's
        ("", None, None),
        ("abacus", 24 * GIB, None),
    ],
)
def test_devices(name, memory_bytes, expected):
    gpu = match_device(name, memory_bytes)
    assert (gpu and gpu.name) == expected


GOOD = "sources: {sheet: a sheet}\ngpus:\n  - name: x\n    l2_bytes: {value: 1_024, source: sheet}\n"


def test_a_small_registry_is_read():
    (gpu,) = read_registry(GOOD).gpus
    assert list(gpu.figures()) == [("l2_bytes", gpu.l2_bytes)]
    assert (gpu.l2_bytes.value, gpu.bandwidth_bytes_per_second) == (1_024, None)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("l2_bytes", "l2_mb", "unknown field `l2_mb`"),
        ("source: sheet", "source: rumour", "x: l2_bytes names the source 'rumour', which is not listed"),
        (", source: sheet", "", "missing required field `source`"),
        ("1_024", "0", ">= 1"),
        ("1_024", "1.5", "Expected `int`"),
        ("1_024", '"1024"', "Expected `int`"),
        ("source: sheet", "source: sheet, unverified: true", "unknown field `unverified`"),
        ("l2_bytes: {value: 1_024, source: sheet}", "dense_flops_per_second: {fp7: {}}", "Invalid enum value 'fp7'"),
        ("- name: x", "- title: x", "unknown field `title`"),
        ("gpus:", "cards:", "unknown field `cards`"),
    ],
)
def test_reading_is_strict(old, new, complaint):
    with pytest.raises(msgspec.ValidationError, match=complaint):
        read_registry(GOOD.replace(old, new))


def test_no_key_stands_twice():
    """YAML's loader keeps the last of two; a number must not vanish that way."""
    nodes = [yaml.compose(TEXT, Loader=yaml.SafeLoader)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len(keys) == len(set(keys)), node.start_mark
            nodes.extend(child for _, child in node.value)
        elif isinstance(node, yaml.SequenceNode):
            nodes.extend(node.value)


def test_mebibytes_in_comments_are_those_of_the_numbers():
    lines = [line for line in TEXT.splitlines() if line.endswith(" MiB")]
    assert len(lines) > len(GPUS)
    for line in lines:
        number, mebibytes = line.partition("value: ")[2].split(",")[0], line.rpartition("# ")[2].removesuffix(" MiB")
        assert int(number) == int(mebibytes.replace(",", "")) * MIB, line
