"""Published traces, where KVCALC_TRACES names the folder that they lie in; what their publishers say of them.

Azure 2023 (Splitwise, ISCA 2024) and Mooncake (FAST'25, table 2 and figure 9).
"""

import json
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import kvcalc
from kvcalc.workload.readers import read_trace
from kvcalc.workload.reuse import hit_curve

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


MOST = {"mooncake_conversation.jsonl": 0.40, "mooncake_synthetic.jsonl": 0.66}
"""The cache ratios of table 2, which counts blocks."""
AT_3M = {"mooncake_conversation.jsonl": 0.41, "mooncake_synthetic.jsonl": 0.48}
"""Of them with 3M tokens, read off figure 9."""


def found_by_lru(path, capacity, *, with_tails):
    """The share of prompt tokens that a plain LRU of so many blocks of 512 finds, request by request."""
    cache, hits, prompts = OrderedDict(), 0, 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        tokens = row["input_length"]
        prompts += tokens
        ids = row["hash_ids"] if with_tails else row["hash_ids"][: tokens // 512]
        lead = next((place for place, one in enumerate(ids) if one not in cache), len(ids))
        hits += min(512 * lead, tokens)
        for one in reversed(ids):
            cache[one] = None
            cache.move_to_end(one)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits / prompts


@pytest.mark.parametrize("name", MOST)
@pytest.mark.parametrize("with_tails", [False, True])
def test_the_curve_is_that_of_a_plain_lru(name, with_tails):
    path = found(name)
    capacities, rates = hit_curve(read_trace(path), 512, with_tails=with_tails)
    for blocks in (3_000_000 // 512, 50_000_000 // 512, 10**9):
        at = rates[np.searchsorted(capacities, blocks, side="right") - 1]
        assert at == pytest.approx(found_by_lru(path, blocks, with_tails=with_tails), abs=1e-12)


@pytest.mark.parametrize("name", MOST)
def test_what_prefixes_save(name):
    """Tokens within 3 points of table 2's blocks; 41% to 48% of them at 3M tokens within 4, nearly all at 50M."""
    trace = read_trace(found(name))
    document = kvcalc.simulate("deepseek-v3", trace, kv_cache_memory_bytes=200 << 30, engine="vllm",
                               engine_flags={"block_size": 512})  # fmt: skip
    curve = document["hit_curves"][0]
    assert curve["unlimited"] == pytest.approx(MOST[name], abs=0.03)

    def share(capacity):
        below = [
            rate
            for tokens, rate in zip(curve["capacity_tokens"], curve["hit_rates"], strict=True)
            if tokens <= capacity
        ]
        return max(below, default=0) / curve["unlimited"]

    assert share(3_000_000) == pytest.approx(AT_3M[name], abs=0.04)
    assert share(50_000_000) > 0.98
    run = document["runs"][0]
    assert run["requests"]["finished"] == document["trace"]["requests"]
    # Blocks in use push out what would be kept: a server finds less than a cache of its whole pool.
    assert run["prefixes"]["hit_rate"] <= curve["unlimited"]
