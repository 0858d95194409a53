"""Published traces, where KVCALC_TRACES names the folder that they lie in; what their publishers say of them.

Azure 2023 (Splitwise, ISCA 2024) and Mooncake (FAST'25, table 2 and figure 9).
"""

import os
from pathlib import Path

import pytest

import kvcalc
from kvcalc.workload.readers import read_trace

FOLDER = Path(os.environ.get("KVCALC_TRACES", "/none"))
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="KVCALC_TRACES names no folder of traces")


def found(name):
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no {name} there")
    return path


def test_conversations_on_an_h100():
    """Little's law, and a load that one card carries: 5.5 requests a second of 1,155 and 211 tokens."""
    path = found("azure_2023_conv.csv")
    document = kvcalc.simulate("llama-8b", path, gpu="h100-sxm", engine="vllm", max_model_len=8192)
    run = document["runs"][0]
    assert document["trace"]["counted"] == {"left out: above the context limit": 1}
    assert run["requests"]["finished"] == 19_365
    stays = run["times"]["e2e"]["mean"] - run["times"]["queueing"]["mean"]
    assert run["at_once"]["running_mean"] == pytest.approx(run["rates"]["requests_per_second"] * stays, rel=0.01)
    # By hand: a prompt weighed by how long its answer takes and half of E[o^2] / E[o] = 337 tokens, a request.
    tokens = run["use"]["shares"]["token_states"] * run["pool"]["bytes"] / 131_072 / run["at_once"]["running_mean"]
    assert tokens == pytest.approx(1155 + 337 / 2, rel=0.15)


@pytest.mark.parametrize(
    ("name", "unlimited", "at_3m"),
    [("mooncake_conversation.jsonl", 0.40, 0.41), ("mooncake_synthetic.jsonl", 0.66, 0.48)],
)
def test_what_prefixes_save(name, unlimited, at_3m):
    """Table 2's cache ratios within 3 points, figure 9's 41% to 48% of them at 3M tokens within 6, at 50M nearly all."""
    trace = read_trace(found(name))
    document = kvcalc.simulate("deepseek-v3", trace, kv_cache_memory_bytes=200 << 30, engine="vllm",
                               engine_flags={"block_size": 512})  # fmt: skip
    curve = document["hit_curves"][0]
    assert curve["unlimited"] == pytest.approx(unlimited, abs=0.03)

    def share(capacity):
        below = [
            rate
            for tokens, rate in zip(curve["capacity_tokens"], curve["hit_rates"], strict=True)
            if tokens <= capacity
        ]
        return max(below, default=0) / curve["unlimited"]

    assert share(3_000_000) == pytest.approx(at_3m, abs=0.06)
    assert share(50_000_000) > 0.95
    run = document["runs"][0]
    assert run["requests"]["finished"] == document["trace"]["requests"]
    # Blocks in use push out what would be kept: a server finds less than a cache of its whole pool.
    assert run["prefixes"]["hit_rate"] <= curve["unlimited"]
