"""vLLM's own logs (golden/vllm_logs.yaml): what kvcalc says of the release and settings of a run, and what it printed."""

import pytest
import yaml
from conftest import GOLDEN

import kvcalc
from kvcalc.engines.engine import find_engine

LOGS = yaml.safe_load((GOLDEN / "vllm_logs.yaml").read_text())
GIB = 2**30
MOST_BLOCKS = 2**20


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["id"])
def test_a_log_says_what_is_computed(log, spec_file):
    model = str(spec_file(log["model"])) if "\n" in log["model"] else log["model"]
    size = kvcalc.size(model, log["ctx"], **log.get("ask", {}))
    engine = find_engine(log["engine"], log.get("flags", {}))
    possible = [printed(engine, size, pool) for pool in pools(log, engine, size)]
    assert any(log["log"].items() <= figures.items() for figures in possible), possible[:3]


def pools(log, engine, size):
    """The pools in bytes that the log leaves possible: one at least for every count of blocks."""
    block = engine.capacity(size, 1).bytes_per_block
    if "available_gib" in log:
        half = 0.005 if isinstance(log["available_gib"], float) else 0
        low, high = (int((log["available_gib"] + side) * GIB) for side in (-half, half))
        return [low, *range(-(-low // block) * block, high + 1, block), high]
    if "num_blocks" in log["log"]:
        return [log["log"]["num_blocks"] * block]
    if "tokens" not in log["log"]:
        return [block]
    return [count * block for count in near(log["log"]["tokens"], engine, size, block)]


def near(tokens, engine, size, block):
    """Counts of blocks of which the engine may print so many tokens, which grow with them."""
    low, high = 0, MOST_BLOCKS
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if engine.capacity(size, middle * block).tokens < tokens else (low, middle)
    return range(low, low + 8)


def printed(engine, size, pool):
    """What the release's log would say of that pool."""
    held = engine.capacity(size, pool)
    needed = held.figures.get("needed_bytes", engine.capacity(size, 1).figures["needed_bytes"])
    return {
        "num_blocks": held.num_blocks,
        "cpu_blocks": held.figures.get("cpu_blocks"),
        "block_sizes": list(held.block_tokens),
        "tokens": held.tokens,
        "concurrency": round(held.max_concurrency, 2),
        "starts": "needed_bytes" not in held.figures,
        "needed_gib": round(needed / GIB, 2),
        "longest": held.figures.get("estimated_max_model_len"),
    }
