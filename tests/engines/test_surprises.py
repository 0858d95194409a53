"""Numbers that surprise come with the sentence that says why."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        # Two numbers a token fewer in the entries; the state of (48 x 128 x 128 x 4 + 3 x 10,240 x 2) B stays.
        (
            ("qwen3.5-27b", "--kv-dtype", "fp8", "--engine", "vllm"),
            "longer and no smaller: a state is as large as before",
        ),
        (("qwen3.5-27b", "--kv-dtype", "fp8"), "--kv-dtype does not reach `state`"),
        (("deepseek-v3", "--tp", "8"), "`latent` is whole on each of 8 ranks: not divided by --tp"),
        (("gemma-3-27b", "--engine", "vllm", "--max-num-batched-tokens", "65536"), "131,072 in flight"),
        (("gemma-3-27b", "--engine", "vllm@0.25.1", "--max-num-batched-tokens", "65536"), "65,536 in flight"),
        # 10,000 tokens over 3 slots are 3,584 cells each, over 4 they are 2,560.
        (("llama-8b", "--engine", "llama.cpp", "-c", "10000", "-np", "3"), "3 slots cost more than 4"),
    ],
)
def test_the_reason_stands_beside_the_number(kvcalc, arguments, said):
    answer = kvcalc("size", *arguments)
    assert answer.code == 0
    assert said in answer.out + answer.err
