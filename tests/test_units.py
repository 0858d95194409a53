"""Tokens and bytes: how they are read, and how they print."""

import doctest
import time
from fractions import Fraction

import pytest

import kvcalc
from kvcalc import units
from kvcalc.errors import KvcalcError
from kvcalc.units import binary_neighbour, column_unit, count_of, memory, parse_tokens, plain


@pytest.mark.parametrize("module", [units, kvcalc], ids=["units", "kvcalc"])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("8192", 8192), ("8_192", 8192), ("8,192", 8192), (" 8192 ", 8192), ("8k", 8000), ("8K", 8192), ("1m", 10**6),
        ("1M", 2**20), ("1g", 10**9), ("1G", 2**30), ("25.6k", 25_600), ("0.5m", 500_000), ("1000000000k", 10**12),
    ],
)  # fmt: skip
def test_counts_are_read_by_vllms_rule(text, tokens):
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k",
        "0",
        "-1",
        "1e5",
        "8,16",
        "8,,192",
        "8_",
        "_8",
        "1.5",
        "25.6K",
        "1.0005k",
        "٣",
        "8K8",
        "1" * 39 + "x",
        "9" * 41,
        "2000G",
    ],
)
def test_what_is_no_count_is_refused_at_once(text):
    start = time.process_time()
    with pytest.raises(KvcalcError) as caught:
        parse_tokens(text)
    assert caught.value.hint
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("text", "neighbour"),
    [
        ("128k", 131_072),
        ("1m", 2**20),
        ("128K", None),
        ("128000", None),
        ("1.5k", None),
        ("1g", None),
        ("1000000000k", None),
    ],
)
def test_the_binary_neighbour_of_a_decimal_suffix(text, neighbour):
    assert binary_neighbour(text) == neighbour


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (890, "890 B"), (10_239, "10,239 B"), (10_240, "10.0 KiB"), (131_072, "128.0 KiB"),
        (1_048_575, "1.00 MiB"), (2**30 - 1, "1.00 GiB"), (Fraction(14057, 4), "3,514.25 B"), (2**40, "1.00 TiB"),
        (12_482_248_704, "11.63 GiB"), (2**50, "1,024.00 TiB"), (Fraction(1, 10**6), "1e-06 B"),
    ],
)  # fmt: skip
def test_memory_reads_best_in_its_unit(count, text):
    assert memory(count) == text


def test_plain_numbers():
    assert [plain(value) for value in (5, 2.99999, 3514.25, 1234567)] == ["5", "3", "3,514.25", "1,234,567"]


@pytest.mark.parametrize(
    ("counts", "unit"), [([], 1), ([0], 1), ([2**30, 2**31], 2**30), ([2**30, 2**20], 2**20), ([2**30, 2**27], 2**30)]
)
def test_a_column_has_one_unit_in_which_nothing_vanishes(counts, unit):
    assert column_unit(counts) == unit


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999"),
        (8_030_261_248, "8.03 B"),
        (999_885_952, "1.00 B"),
        (671_026_404_352, "671 B"),
        (1_572_997_179_491, "1.57 T"),
    ],
)
def test_large_counts_have_names(count, text):
    assert count_of(count) == text
