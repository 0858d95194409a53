"""Grids: whole arrays at once, and what they refuse."""

import numpy as np
import pytest

import kvcalc
from kvcalc.errors import KvcalcError

LLAMA = kvcalc.load("llama-8b")


def test_contexts_times_batches():
    frame = kvcalc.grid(LLAMA, [1024, 8192], [1, 32])
    assert frame["context_tokens"].tolist() == [1024, 1024, 8192, 8192]
    assert frame["batch"].tolist() == [1, 32, 1, 32]
    assert frame["total_bytes"].tolist() == [2**27, 2**32, 2**30, 2**35]
    assert set(frame.dtypes.astype(str)) == {"int64"}


def test_it_takes_the_workload_too():
    frame = kvcalc.grid(kvcalc.load("t5-large"), [100], encoder_tokens=512, dtype="bf16")
    assert frame["bytes_per_sequence"].tolist() == [24 * 2 * 16 * 64 * 2 * (100 + 512)]


@pytest.mark.parametrize(
    "contexts",
    [[], [0], [-1], [1.5], ["8K"], [[1, 2]], [True], [10**13], np.array([2**63], dtype=np.uint64), [10**30]],
)
def test_contexts_that_are_no_counts(contexts):
    with pytest.raises(KvcalcError):
        kvcalc.grid(LLAMA, contexts)


def test_a_corner_past_int64_is_refused_and_not_wrapped():
    with pytest.raises(KvcalcError, match="8 EiB"):
        kvcalc.grid(LLAMA, [10**12], [10**9])


def test_a_format_for_nothing_is_refused_as_in_size():
    with pytest.raises(KvcalcError, match="foo"):
        kvcalc.grid(LLAMA, [1024], kv_dtype="foo=fp8")
