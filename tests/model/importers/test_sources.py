"""Files as models, wherever a model is taken: config.json, folders, GGUF; what is none of them; and the way back to YAML."""

import json
import os

import coverage_table
import pytest

import kvcalc as api
from kvcalc.errors import KvcalcError
from kvcalc.model.importers.export import document_yaml
from kvcalc.model.importers.hf_config import config_document

QWEN = {
    "model_type": "qwen3", "torch_dtype": "bfloat16", "hidden_size": 1024, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    """Write a config.json into a folder of its own and return its path."""

    def write(content, folder="Qwen3-0.6B"):
        path = tmp_path / folder / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_config_a_folder_and_a_set(kvcalc, config):
    path = config(QWEN)
    for source in (path, path.parent):
        document = kvcalc("size", str(source), "--ctx", "8K", "--format", "json").json
        # Qwen3-0.6B states a head width of 128, twice hidden size / heads.
        assert document["kv_cache"]["bytes_per_token"] == 2 * 28 * 8 * 128 * 2
        assert document["weights"]["parameters"] == 596_049_920
        assert document["model"]["name"] == "Qwen3-0.6B"
    varied = kvcalc("size", str(path), "--set", "mixer.kv_heads=4", "--format", "json").json
    assert varied["kv_cache"]["bytes_per_token"] == 2 * 28 * 4 * 128 * 2
    assert api.size(str(path)).bytes_per_token == 114_688


def test_an_unseen_model_type_sizes_by_its_fields_and_says_so(kvcalc, config):
    answer = kvcalc("size", str(config({**QWEN, "model_type": "never_seen"})), "--format", "json")
    assert answer.json["kv_cache"]["bytes_per_token"] == 114_688
    assert answer.json["kv_cache"]["basis"] == "assumed"
    assert "never_seen" in answer.err
    assert kvcalc("size", str(config({**QWEN, "model_type": "never_seen"})), "--strict").code == 2


def test_a_field_that_touches_the_cache_and_is_not_understood_is_refused(kvcalc, config):
    path = config({**QWEN, "kv_cache_share_every": 3})
    refused = kvcalc("size", str(path))
    assert refused.code == 2
    assert "kv_cache_share_every" in refused.err
    assert "--assume" in refused.err
    taken = kvcalc("size", str(path), "--assume", "--format", "json")
    assert taken.code == 0
    assert "kv_cache_share_every" in " ".join(taken.json["notes"])
    assert kvcalc("size", str(path), "--assume", "--strict").code == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "JSON object"),
        ('"text"', "JSON object"),
        ("{}", "no field of a language model"),
        ({"version": "1.0", "truncation": None, "added_tokens": []}, ""),
        ({"log_history": [{"loss": 1.0}], "global_step": 3}, ""),
        ({**QWEN, "num_hidden_layers": "28"}, "num_hidden_layers"),
        ({**QWEN, "num_hidden_layers": None}, ""),
        ({**QWEN, "num_hidden_layers": [28]}, "num_hidden_layers"),
        ({**QWEN, "num_hidden_layers": 0}, "num_hidden_layers"),
        ({**QWEN, "num_hidden_layers": 10**9}, "layers"),
        ({**QWEN, "num_attention_heads": 0}, "num_attention_heads"),
        ({**QWEN, "num_key_value_heads": 3}, "kv_heads 3"),
        ({**QWEN, "hidden_size": True}, "hidden_size"),
        ({**QWEN, "model_type": 7}, "model_type"),
        ({**QWEN, "layer_types": ["full_attention"] * 5}, "layer types"),
        ({**QWEN, "layer_types": ["no_such_attention"] * 28}, "no_such_attention"),
    ],
)
def test_what_is_no_config(kvcalc, config, content, words):
    answer = kvcalc("size", str(config(content)))
    assert answer.code == 2, answer.out
    assert answer.out == ""
    assert len(answer.err.strip().splitlines()) <= 2
    assert words in answer.err, answer.err


def test_files_that_are_no_source(kvcalc, tmp_path):
    (tmp_path / "a.json").mkdir()
    os.mkfifo(tmp_path / "b.json")
    (tmp_path / "c.json").write_bytes(b" " * (5 * 2**20))
    (tmp_path / "d.txt").write_text("hello")
    for name in ("a.json", "b.json", "c.json", "d.txt", "none.json", "none.gguf"):
        assert kvcalc("size", str(tmp_path / name)).code == 2
    assert kvcalc("size", str(tmp_path)).code == 2


def test_more_layer_types_than_layers_are_the_draft_layers(kvcalc, config):
    types = ["full_attention"] * 28
    short = kvcalc("size", str(config({**QWEN, "layer_types": types})), "--format", "json").json
    longer = kvcalc("size", str(config({**QWEN, "layer_types": [*types, "full_attention"]})), "--format", "json").json
    assert short["kv_cache"]["bytes_per_token"] == longer["kv_cache"]["bytes_per_token"]


def test_import_writes_a_spec_that_sizes_identically(kvcalc, config, tmp_path):
    path, spec = config(QWEN), tmp_path / "spec.yaml"
    assert kvcalc("models", "import", str(path), "-o", str(spec)).code == 0
    assert kvcalc("models", "import", str(path)).out == spec.read_text()
    assert kvcalc("models", "import", str(path), "-o", str(spec)).code == 2
    assert kvcalc("models", "import", "llama-8b").code == 2
    first, second = (kvcalc("size", str(one), "--format", "json").json for one in (path, spec))
    assert first["kv_cache"] == second["kv_cache"]
    assert first["weights"] == second["weights"]


@pytest.mark.parametrize("name", sorted(coverage_table.configs()))
def test_every_import_survives_the_way_to_yaml_and_back(name, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(document_yaml(config_document(coverage_table.configs()[name], name, name, assume=True)))
    there, back = coverage_table.imported(name), api.load(str(path))
    for context in (1, 777, 9000):
        one, other = api.size(there, context, 2, tp=2), api.size(back, context, 2, tp=2)
        assert one.bytes_per_sequence == other.bytes_per_sequence
        assert one.read_bytes_per_step == other.read_bytes_per_step
        assert one.bytes_per_rank == other.bytes_per_rank
    assert one.parameters == other.parameters


MODELS = [pytest.param(row["model"], row["config"], id=row["config"]) for row in coverage_table.rows() if row["model"]]

# A catalogue spec that says more, or other, than the config that was at hand.
DIFFERS: dict[str, str] = {
    "kimi-k3-text-as-kimi_linear": "the config was written for a sibling model type",
}


@pytest.mark.parametrize(("model", "name"), MODELS)
def test_a_catalogue_spec_and_the_import_of_its_config_agree(model, name):
    if name in DIFFERS:
        pytest.skip(DIFFERS[name])
    spec, imported = api.load(model), coverage_table.imported(name)
    for context in (100, 5000, 100_001):
        one, other = (
            api.size(each, context, kv_dtype="bf16", dtype="bf16", state_dtype="fp32") for each in (spec, imported)
        )
        assert one.bytes_per_sequence == other.bytes_per_sequence
        assert one.bytes_per_token == other.bytes_per_token
        assert one.fixed_bytes_per_sequence == other.fixed_bytes_per_sequence
        assert one.read_bytes_per_step == other.read_bytes_per_step
    assert one.parameters == other.parameters


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "bart", "encoder_layers": 10**9}, "1,000,000,000 encoder layers"),
        ({"model_type": "llama", "num_hidden_layers": None, "layer_types": 7}, "no num_hidden_layers"),
        ({"model_type": "deepseek_v4", "index_n_heads": None}, "no index_n_heads"),
        ({"model_type": "qwen3", "per_layer_config": {"²": {}}}, "per_layer_config"),
        ('{"model_type": "\\ud800x"}', "half a character"),
    ],
)
def test_hostile_fields_are_one_line(kvcalc, config, content, message):
    answer = kvcalc("size", str(config(content)))
    assert answer.code == 2 and message in answer.err


def test_a_long_name_and_a_null_byte_are_errors_of_the_name():
    for name in ("x" * 5000 + ".json", "a\0.json", "a\0/config.json"):
        with pytest.raises(KvcalcError):
            api.load(name)


def test_a_folder_in_a_hub_cache_has_the_repository_s_name(tmp_path):
    snapshot = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    blob = tmp_path / "models--Qwen--Qwen3-0.6B" / "blobs" / "hash"
    for folder in (snapshot, blob.parent):
        folder.mkdir(parents=True)
    blob.write_text(json.dumps(QWEN))
    (snapshot / "config.json").symlink_to(blob)
    assert api.load(str(snapshot)).name == "Qwen3-0.6B"


def test_an_index_without_shards_gives_bytes_and_no_formats(kvcalc, config):
    path = config(QWEN)
    index = {"metadata": {"total_size": 751_632_384}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (path.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = kvcalc("size", str(path), "--format", "json").json["weights"]
    assert (weights["bytes"], weights["format"], weights["basis"]) == (751_632_384, "unknown format", "assumed")


def test_a_config_that_says_quantised_without_files_is_assumed(kvcalc, config):
    document = kvcalc(
        "size", str(config(QWEN | {"quantization_config": {"quant_method": "fp8"}})), "--format", "json"
    ).json
    assert (document["weights"]["basis"], document["kv_cache"]["basis"]) == ("assumed", "exact")


def test_weights_of_another_model_are_noticed(kvcalc, config):
    path = config(QWEN)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    file = path.parent / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    answer = kvcalc("size", str(path), "--format", "json")
    assert answer.json["weights"]["basis"] == "assumed"
    assert "the files hold 4 parameters, and the config makes 596,049,920" in answer.err


def test_an_adapter_is_no_model_s_weights(config):
    path = config(QWEN)
    (path.parent / "adapter_model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    assert api.load(str(path)).checkpoint is None


# Sources: bigcode/santacoder's config, inclusionAI/Ring-linear's, ByteDance/Ouro-1.4B's (a slot for each pass and
# layer), microsoft/Phi-4-mini-instruct's, LiquidAI/LFM2-1.2B's older file, xai-org/grok-2's.
@pytest.mark.parametrize(
    ("content", "token_bytes", "fixed_bytes"),
    [
        (
            {"model_type": "gpt2", "attention_head_type": "multiquery", "n_layer": 24, "n_head": 16, "n_embd": 2048},
            24 * 2 * 128 * 2,
            0,
        ),
        (
            {
                "model_type": "bailing_moe_linear", "num_hidden_layers": 20, "hidden_size": 2048, "layer_group_size": 5,
                "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
            },
            4 * 2 * 4 * 128 * 2,
            16 * 16 * 128 * 128 * 4,
        ),
        (
            {
                "model_type": "ouro", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
                "total_ut_steps": 4,
            },
            4 * 24 * 2 * 2048 * 2,
            0,
        ),
        (
            {
                "model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 24,
                "num_key_value_heads": 8, "full_attn_mod": 1, "sliding_window": 262144,
            },
            131_072,
            0,
        ),
        (
            {
                "model_type": "git", "num_hidden_layers": 64, "hidden_size": 8192, "num_attention_heads": 64,
                "num_key_value_heads": 8, "head_dim": 128, "sliding_window_size": -1, "global_attn_every_n": 1,
            },
            262_144,
            0,
        ),
        (
            {
                "model_type": "lfm2", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
                "num_key_value_heads": 8, "conv_L_cache": 3, "conv_dim": 2048, "conv_dim_out": 2048,
                "layer_types": ["full_attention" if at in (2, 5, 8, 10, 12, 14) else "conv" for at in range(16)],
            },
            12_288,
            10 * 2048 * 2 * 2,
        ),
    ],
    ids=["santacoder", "ring-linear", "ouro", "phi-4-mini", "grok-2", "lfm2"],
)  # fmt: skip
def test_configs_from_the_wild(kvcalc, config, content, token_bytes, fixed_bytes):
    path = config(content | {"torch_dtype": "bfloat16"})
    cache = kvcalc("size", str(path), "--ctx", "1K", "--format", "json").json["kv_cache"]
    assert (cache["bytes_per_token"], cache["fixed_bytes_per_sequence"]) == (token_bytes, fixed_bytes)


@pytest.mark.parametrize("name", ["expand_k", "attention_projection_size", "expand_ratio"])
def test_what_shapes_a_state_or_a_head_is_never_passed_over(kvcalc, config, name):
    answer = kvcalc("size", str(config(QWEN | {name: 2})))
    assert answer.code == 2 and name in answer.err
