"""Models, contexts and devices that nobody wrote down, sized here and by llama.cpp itself, to 0.01 MiB.

They need the wheel: `pip install xllamacpp==2026.10.11549 gguf`, `pytest -m oracle tests/engines`. hypothesis shrinks
what disagrees.
"""

import importlib.util
import os

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from oracle.llama_cpp import TYPES, answer
from test_llama_cpp import RUNS, allocate, assert_printed, spec_from

from kvcalc.errors import KvcalcError

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

ROLLS_BACK = {"qwen35", "qwen35moe", "nemotron_h", "nemotron_h_moe"}
ONE_SLOT = {"t5"}
MODELS = RUNS["models"]


@st.composite
def models(draw):
    """One that llama.cpp was given before, of another length where its metadata lists nothing by layer; or a random one."""
    if draw(st.booleans()):
        heads = draw(st.sampled_from([8, 12, 32]))
        layers = draw(st.integers(1, 70))
        kv_heads = [one for one in (1, 2, 4, 8, 12, 32) if heads % one == 0]
        each, width = st.sampled_from(kv_heads), draw(st.sampled_from([32, 64, 96, 128, 256]))
        plain = {
            "vocab_size": 32000,
            "context_length": 8192,
            "embedding_length": 32 * heads,
            "feed_forward_length": 512,
            "block_count": layers,
            "attention.head_count": heads,
            "attention.head_count_kv": draw(st.one_of(each, st.lists(each, min_size=layers, max_size=layers))),
            "attention.key_length": width,
            "attention.value_length": draw(st.sampled_from([32, 64, 128])),
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": width,
        }
        return "llama", plain
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    metadata = dict(model["metadata"])
    if not any(isinstance(value, list) for value in metadata.values()) and "leading_dense_block_count" not in metadata:
        metadata["block_count"] = draw(st.integers(4, metadata["block_count"] + 8))
    return model["arch"], metadata


@st.composite
def cases(draw):
    arch, metadata = draw(models())
    types, slots = draw(st.sampled_from(sorted(TYPES))), 1 if arch in ONE_SLOT else draw(st.integers(1, 12))
    return {
        "arch": arch,
        "metadata": metadata,
        "n_ctx": draw(st.one_of(st.integers(slots, 3000), st.integers(3000, 70_000))),
        "n_seq": slots,
        "n_batch": draw(st.sampled_from([512, 2048, 4096])),
        "n_ubatch": draw(st.sampled_from([64, 300, 512, 2048])),
        "n_rs_seq": draw(st.sampled_from([0, 3])) if arch in ROLLS_BACK else 0,
        "unified": draw(st.booleans()),
        "swa_full": draw(st.booleans()),
        "flash_attn": draw(st.sampled_from([1, 1, 0])),
        "type_k": types,
        "type_v": draw(st.sampled_from([types, types, "f16"])),
        "shares": draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 0.0, 24.0, 79.6]), max_size=5).filter(_is_some)),
        "n_gpu_layers": draw(st.one_of(st.none(), st.integers(0, 80))),
    }


def _is_some(shares):
    return not shares or sum(shares) > 0


@settings(max_examples=int(os.environ.get("ORACLE_EXAMPLES", "100")))
@given(cases())
def test_any_model_is_what_llama_cpp_prints(case):
    shares, gpu_layers = tuple(case["shares"]), case["n_gpu_layers"] if case["shares"] else None
    try:
        run = {**case, **answer({**case, "n_gpu_layers": gpu_layers})}
    except KvcalcError:
        reject()  # a model that it does not make, or an assertion of its own
    # It makes a cache for no layers where all of them slide.
    run["caches"] = [cache for cache in run["caches"] if cache["layers"]]
    flags = {"batch_size": case["n_batch"], "spec_draft_n_max": case["n_rs_seq"]}
    spec = spec_from(case["arch"], case["metadata"])
    if run["refused"]:
        with pytest.raises(KvcalcError):
            allocate(run, spec, **flags)
        return
    allocation = allocate(run, spec, **flags, tensor_split=shares, n_gpu_layers=gpu_layers)
    assert_printed(allocation, run)
    assert sorted(map(_by_device, allocation.parts)) == sorted(
        [layers.get(name, 0) for name in [*(f"D{place}" for place in range(len(shares))), "CPU"]] if shares else []
        for layers in (cache["devices"] for cache in run["caches"] + run["recurrent"])
    )


def _by_device(part):
    """Layers on each device, where all of them weigh the same."""
    return [held * part.layers / part.bytes for held in part.devices] if part.bytes else list(part.devices)
