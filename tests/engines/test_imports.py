"""Every golden config imported: what transformers held to the byte, and its parameters."""

import coverage_table
import pytest

from kvcalc.model.importers.families import FAMILIES
from kvcalc.model.importers.fields import known_types

ROWS = coverage_table.rows()
NAMES = [row["config"] for row in ROWS]

# Not reproduced, with the reason; docs/coverage.md prints the difference.
CACHE_DIFFERS: dict[str, str] = {}
NO_HEAD = "the text tower was built there without its LM head, which the model has: vocabulary x hidden more here"
TOWERS = "the count there includes vision or audio towers; the text model's is what is counted here"
DECODER = "the decoder alone was built there; the whole model is counted here"
PARAMETERS_DIFFER: dict[str, str] = {
    **dict.fromkeys(
        [
            "Qwen__Qwen3-VL-32B-Instruct", "Qwen__Qwen3-VL-32B-Thinking", "Qwen__Qwen3-VL-8B-Instruct", "default-qwen3_vl",
            "default-qwen2_5_vl", "default-qwen2_vl", "default-cosmos3_omni", "default-cosmos3_edge", "default-glm5_next",
            "default-glm_ocr", "default-hy_v4_vl", "default-mistral_large4", "default-molmo2", "default-muse_glimmer",
            "default-muse_spark",
        ],
        NO_HEAD,
    ),
    **dict.fromkeys(
        [
            "default-ernie4_5_vl_moe", "default-phi4_multimodal", "default-qwen2_5_omni_thinker", "default-t5gemma2",
            "default-csm", "default-unlimited_ocr",
        ],
        TOWERS,
    ),
    **dict.fromkeys(["default-bart", "default-bigbird_pegasus", "default-blenderbot"], DECODER),
    **dict.fromkeys(["default-git", "default-trocr"], "a niche decoder: the spec states too little, and the count is unknown"),
    **dict.fromkeys(
        [
            *(f"decoder-{name}" for name in ("bert-generation", "big_bird", "electra", "ernie", "megatron-bert", "prophetnet")),
            *(f"decoder-{name}" for name in ("rembert", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta-xl", "xmod")),
        ],
        "an encoder used as a decoder: how it is built has no rule here, and the count is unknown",
    ),
    "default-longcat_flash": "transformers allocates weights for experts that do nothing; the checkpoint has none",
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_cache_is_what_transformers_held(row):
    verdict = coverage_table.cache_verdict(row)
    assert (verdict == "exact") != (row["config"] in CACHE_DIFFERS), verdict


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_parameters_are_what_transformers_counted(row):
    if row["parameters"] is None:
        pytest.skip("no count for a borrowed model type")
    verdict = coverage_table.parameters_verdict(row)
    assert (verdict == "exact") != (row["config"] in PARAMETERS_DIFFER), verdict


def test_every_causal_type_has_defaults():
    types = known_types()
    assert len(types.causal) == 196
    assert set(types.causal) - set(types.defaults) <= {"gemma4_assistant", "gpt-sw3"}


def test_a_type_is_run_or_says_why_not():
    run = {row["model_type"] for row in ROWS}
    assert set(coverage_table.NOT_RUN) == set(known_types().causal) - run


def test_few_types_need_a_rule_of_their_own(capsys):
    rules = {id(rule) for rule in FAMILIES.values()}
    with capsys.disabled():
        print(f"\n{len(FAMILIES)} model types have a rule of their own, in {len(rules)} functions")
    assert len(FAMILIES) <= 60
