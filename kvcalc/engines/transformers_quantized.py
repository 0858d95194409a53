"""What transformers' QuantizedCache holds, to the byte: packed K and V, their scales, and what waits in full.

Read in transformers 5.24.0, QuantizedLayer and its kin of cache_utils.py, with optimum-quanto 0.2.7 (tensor/packed.py,
tensor/grouped.py) and hqq 0.2.8 (core/quantize.py, core/bitpack.py). A prefill is quantised whole; tokens that follow
one by one wait in the model's format until `residual_length` of them are there, and are then quantised with all others.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.cache.layout import Part
from kvcalc.cache.sharding import WHOLE
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import components_of

_SCALE_OF_FP8 = 4


class Quantizing(msgspec.Struct, frozen=True, kw_only=True):
    """How a cache is quantised; the names and defaults of `cache_config`."""

    backend: str = "quanto"
    nbits: int = 4
    axis_key: int = 0
    axis_value: int = 0
    q_group_size: int = 64
    residual_length: int = 128


class Block(NamedTuple):
    """One tensor to quantise: `sequences` x `heads` x `tokens` x `width` values of `value_bytes` each."""

    sequences: int
    heads: int
    tokens: int
    width: int
    value_bytes: int

    @property
    def values(self) -> int:
        """All of them."""
        return self.sequences * self.heads * self.tokens * self.width


def quantized_bytes(size: CacheSize, how: Quantizing, generated: int) -> tuple[int, list[str]]:
    """Bytes of the cache of the whole batch, of whose context the last `generated` tokens came one by one; and rules.

    KvcalcError for models and options that the library refuses, and where values make no whole groups.
    """
    _check(size, how)
    waits = 0 if how.backend == "fp8" else generated % max(1, how.residual_length)
    kept = size.workload.context_tokens - waits
    held = 0
    for component in components_of(size.layers):
        for part, axis in zip(component.parts(WHOLE), (how.axis_key, how.axis_value), strict=True):
            held += BACKENDS[how.backend](_block(size, part, kept), how, axis) + _plain_bytes(_block(size, part, waits))
    rules = [f"{kept:,} tokens are quantised ({how.backend})"]
    return held, rules + ([f"{waits:,} wait in the model's format for --residual-length"] if waits else [])


def _check(size: CacheSize, how: Quantizing) -> None:
    """What QuantizedCache refuses: layers that are not full attention, or share another's cache (`dummy` ones)."""
    plain = all(
        one.span.cap is None and one.span.ratio == 1 and len(one.parts(WHOLE)) == 2 and not one.states(WHOLE)
        for one in components_of(size.layers)
    )
    if not plain or size.spec.reads:
        hint = "leave --cache-implementation out for the dynamic one"
        raise KvcalcError(f"transformers quantises full attention alone, and {size.spec.name} has other layers", hint)
    if how.backend not in BACKENDS:
        raise KvcalcError(
            f"no backend of a quantised cache is called {how.backend}", f"there are {', '.join(BACKENDS)}"
        )
    bits, axes = _TAKES.get(how.backend, ({how.nbits}, {how.axis_key, how.axis_value}))
    if how.nbits not in bits:
        raise KvcalcError(
            f"{how.backend} has no {how.nbits} bits", f"--nbits takes {', '.join(map(str, sorted(bits)))}"
        )
    if not {how.axis_key, how.axis_value} <= axes:
        raise KvcalcError(f"{how.backend} quantises along axes {sorted(axes)}", "change --axis-key or --axis-value")


def _block(size: CacheSize, part: Part, tokens: int) -> Block:
    value_bytes = find_format(size.packer.dtype).bulk_bytes(1, part.name)
    return Block(size.workload.batch, part.heads, tokens, part.width, value_bytes)


def _plain_bytes(block: Block) -> int:
    return block.values * block.value_bytes


def _quanto_bytes(block: Block, how: Quantizing, axis: int) -> int:
    """Groups lie within one sequence (axis 0) or one channel (axis -1); rows are packed into bytes."""
    along = block.values // (block.sequences if axis == 0 else block.width)
    _check_groups(along, how)
    groups = block.values // how.q_group_size
    rows, columns = (groups, how.q_group_size) if axis == 0 else (how.q_group_size, groups)
    # A single row counts as no axis at all, and every column of it then has a scale (AffineOptimizer).
    scales = columns if rows == 1 else groups
    return -(-rows * how.nbits // 8) * columns + 2 * scales * block.value_bytes


def _hqq_bytes(block: Block, how: Quantizing, axis: int) -> int:
    """Groups are rows (axis 1) or columns (axis 0); 3 bits lie by ten in an int32, others by whole bytes."""
    _check_groups(block.values, how)
    groups = block.values // how.q_group_size
    rows, columns = (groups, how.q_group_size) if axis == 1 else (how.q_group_size, groups)
    scales = 2 * groups * block.value_bytes
    if how.nbits == 3:
        if axis == 1:
            raise KvcalcError("hqq cannot read 3 bits along axis 1 back", "use axis 0, or other --nbits")
        return -(-rows // 10) * columns * 4 + scales
    if rows * how.nbits % 8:
        raise KvcalcError(f"hqq packs whole bytes, and {rows:,} rows of {how.nbits} bits are none", "use other --nbits")
    return rows * how.nbits // 8 * columns + scales


def _fp8_bytes(block: Block, how: Quantizing, axis: int) -> int:
    """A byte a value and one scale for all sequences of a layer's K, or V."""
    return block.values + _SCALE_OF_FP8


def _check_groups(values: int, how: Quantizing) -> None:
    if values % how.q_group_size:
        message = f"{how.backend} makes no whole groups of {how.q_group_size} out of {values:,} values"
        raise KvcalcError(message, "choose another --q-group-size, or another --ctx")


_TAKES = {"quanto": ({2, 4}, {0, -1}), "hqq": ({1, 2, 3, 4, 8}, {0, 1})}
"""Bits and axes by backend."""

BACKENDS: dict[str, Callable[[Block, Quantizing, int], int]] = {
    "quanto": _quanto_bytes,
    "hqq": _hqq_bytes,
    "fp8": _fp8_bytes,
}
