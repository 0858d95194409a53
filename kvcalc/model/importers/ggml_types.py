"""The block types of ggml: how many values stand in one block of a tensor's row, and in how many bytes.

The numbers are those of ggml-common.h's block structs (llama.cpp), as gguf-py lists them under
GGML_QUANT_SIZES; ids that are missing here (4, 5, 31-33, 36-38) were withdrawn from the format.
"""

from typing import NamedTuple


class BlockType(NamedTuple):
    """A tensor type: its name, the values in one block, and the bytes of one block."""

    name: str
    values: int
    bytes: int

    def row_bytes(self, values: int) -> int | None:
        """Bytes of a row of so many values; None where the block does not divide it."""
        blocks, rest = divmod(values, self.values)
        return None if rest else blocks * self.bytes


_NAMES = """
0 f32 1 4        1 f16 1 2        30 bf16 1 2      28 f64 1 8
24 i8 1 1        25 i16 1 2       26 i32 1 4       27 i64 1 8
2 q4_0 32 18     3 q4_1 32 20     6 q5_0 32 22     7 q5_1 32 24     8 q8_0 32 34     9 q8_1 32 40
10 q2_k 256 84   11 q3_k 256 110  12 q4_k 256 144  13 q5_k 256 176  14 q6_k 256 210  15 q8_k 256 292
16 iq2_xxs 256 66  17 iq2_xs 256 74  22 iq2_s 256 82   18 iq3_xxs 256 98  21 iq3_s 256 110
19 iq1_s 256 50    29 iq1_m 256 56   20 iq4_nl 32 18   23 iq4_xs 256 136
34 tq1_0 256 54    35 tq2_0 256 66   39 mxfp4 32 17    40 nvfp4 64 36     41 q1_0 128 18
"""


def _read_table() -> dict[int, BlockType]:
    words = _NAMES.split()
    rows = zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True)
    return {int(number): BlockType(name, int(values), int(size)) for number, name, values, size in rows}


BLOCK_TYPES = _read_table()
BY_NAME = {one.name: one for one in BLOCK_TYPES.values()}
