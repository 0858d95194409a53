"""Stacks of layers that nobody wrote down, planned here and by vLLM's own code, block for block.

They need vLLM's source: `VLLM_SRC=FOLDER pytest -m oracle tests/engines`. hypothesis shrinks what disagrees.
"""

import json
import logging
import os

import pytest
from conftest import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.vllm import VARIABLE, find_planner, plan
from vllm_cases import answer

from kvcalc.errors import KvcalcError

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no folder with vLLM's source"),
]

ATTENTION = {
    "block_size": st.sampled_from([16, 32, 64]),
    "num_kv_heads": st.sampled_from([1, 2, 4, 8]),
    "head_size": st.sampled_from([64, 128, 192, 256]),
    "dtype": st.sampled_from(["bfloat16", "uint8"]),
}
LATENT = {
    "block_size": st.sampled_from([4, 8, 16, 64, 256]),
    "num_kv_heads": st.just(1),
    "head_size": st.sampled_from([128, 132, 512, 576]),
    "dtype": st.sampled_from(["bfloat16", "uint8"]),
}
PACKED = {
    "state_content_bytes": st.sampled_from([None, 288, 528, 584, 656]),
    "alignment": st.sampled_from([None, 512, 576]),
}
WINDOW = {"sliding_window": st.sampled_from([8, 128, 1024, 4096])}
STRIDE = {"block_stride_alignment": st.sampled_from([None, 256, 528, 9504])}


def layer(kind, *fields, **more):
    return st.fixed_dictionaries(
        {"type": st.just(kind), **{key: one for part in (*fields, more) for key, one in part.items()}}
    )


LAYERS = st.one_of(
    layer("full", ATTENTION, head_size_v=st.sampled_from([None, 128])),
    layer("mla", LATENT, PACKED, tokens_per_state=st.sampled_from([1, 2, 4])),
    layer("sw", ATTENTION, WINDOW),
    layer("sw_mla", LATENT, PACKED, WINDOW),
    layer("chunked", ATTENTION, attention_chunk_size=st.sampled_from([1024, 8192])),
    layer("cross", ATTENTION),
    layer("circular", LATENT, head_size_v=st.just(0)),
    layer(
        "mamba",
        block_size=st.sampled_from([16, 512]),
        shapes=st.sampled_from([[[3, 6144], [16, 64, 128]], [[5, 512], [8, 64, 16]]]),
        dtypes=st.sampled_from([["bfloat16", "float32"], ["bfloat16", "bfloat16"]]),
        num_speculative_blocks=st.sampled_from([0, 3]),
        num_prefill_checkpoint_blocks=st.sampled_from([0, 1]),
    ),
)


@st.composite
def cases(draw):
    """Up to four kinds of layers in any order, on one or two stages; the budget is a few requests' worth or too small."""
    kinds = draw(st.lists(LAYERS, min_size=1, max_size=4))
    keyed = [{**one, "key": str(place)} for place, one in enumerate(kinds)]
    layout = draw(st.sampled_from(["LBNHC", "BLHNC"]))
    if layout == "BLHNC":
        keyed = [{**one, **draw(st.fixed_dictionaries(STRIDE))} if one["type"] == "sw_mla" else one for one in keyed]
    budgets = draw(st.lists(st.integers(10**6, 10**11), min_size=1, max_size=2))
    return {
        "layers": keyed,
        "pattern": draw(st.lists(st.sampled_from([one["key"] for one in keyed]), min_size=len(budgets), max_size=40)),
        "available_bytes": budgets,
        "max_model_len": draw(st.one_of(st.integers(1, 5000), st.sampled_from([8192, 131072, 1048576]))),
        "max_num_batched_tokens": draw(st.sampled_from([512, 2048, 8192])),
        "async_scheduling": draw(st.booleans()),
        "layout": layout,
        "disable_hybrid": draw(st.booleans()),
        "mamba_cache_mode": draw(st.sampled_from(["none", "align"])),
        "max_encoder_len": draw(st.sampled_from([1, 1500])),
        "num_prefill_lookahead_tokens": draw(st.sampled_from([0, 1, 3])),
    }


@settings(max_examples=int(os.environ.get("ORACLE_EXAMPLES", "200")))
@given(cases())
def test_any_stack_is_planned_as_vllm_plans_it(case):
    logging.disable(logging.CRITICAL)
    try:
        expected = plan(case, find_planner())
    except Exception:  # wherever its planner stops
        with pytest.raises(KvcalcError):
            answer(case)
        return
    planned = answer(case)
    expected["groups"] = json.loads(json.dumps(expected["groups"]))
    if "error" in expected:
        longest, said = planned.pop("longest"), expected.pop("error")
        # Of several stages the message names the first that is too small, not the one that bounds the model.
        if len(case["available_bytes"]) == 1:
            assert (f"maximum model length is {longest}." in said) == bool(longest)
    assert planned == expected


def test_the_goldens_are_what_vllm_answers():
    logging.disable(logging.CRITICAL)
    for name in ("vllm.json", "vllm_models.json"):
        for case in json.loads((GOLDEN / name).read_text())["cases"].values():
            answered, kept = json.loads(json.dumps(plan(case["case"], find_planner()))), case["answer"]
            assert kept.get("error", "") in answered.pop("error", "")
            assert answered == {key: one for key, one in kept.items() if key != "error"}
