"""The oracle on tiny models, whose caches can be worked out by hand; tests of it need torch and transformers."""

import json
import math
import sys

import oracle
import pytest
from conftest import GOLDEN

import kvcalc
from kvcalc.engines.engine import find_engine

CONFIGS = GOLDEN / "configs"
B, N = 2, 40
KEPT = 15  # of a window of 16 the library keeps what the next token sees beside itself
ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}


def kv(heads, tokens, key_width, value_width=None):
    """Keys and values of one layer."""
    widths = (key_width, value_width or key_width)
    return [("bfloat16", (B, heads, tokens, width)) for width in widths]


def state(channels, *recurrent):
    """A convolution over `channels` with all 4 columns, and a recurrent state in float32."""
    return [("bfloat16", (B, channels, 4)), ("float32", (B, *recurrent))]


# For each model: how many layers in a row hold which tensors, from the meaning of its config.
HELD = {
    "llama": [(3, kv(2, N, 48 // 6))],
    "phi3": [(3, kv(3, N, 48 // 6))],
    "gpt2": [(3, kv(6, N, 48 // 6))],
    "qwen3": [(3, kv(2, N, 20))],  # head_dim is given, and is not 48 / 6
    "mistral": [(3, kv(2, KEPT, 8))],
    "falcon": [(3, kv(1, N, 8))],  # multi_query
    "gpt-bigcode": [(3, kv(1, N, 8))],
    "deepseek-v3": [(3, kv(1, N, 32, 8))],  # the latent of kv_lora_rank, and the one rotary key of all heads
    "gemma3-text": [(2, kv(2, KEPT, 24)), (1, kv(2, N, 24))] * 2 + [(1, kv(2, KEPT, 24))],
    "gpt-oss": [(1, kv(2, KEPT, 20)), (1, kv(2, N, 20))] * 2,
    # The convolution sees queries and keys of 2 heads of 8 and values of 4 heads of 12.
    "qwen3-next": [(3, state(2 * 2 * 8 + 4 * 12, 4, 8, 12)), (1, kv(2, N, 16))],
    # The convolution sees the 2 x 48 inner channels, and B and C of 2 groups with 16 states.
    "mamba2": [(3, state(96 + 2 * 2 * 16, 12, 8, 16))],
    "jamba": [(2, state(96, 96, 8)), (1, kv(2, N, 8)), (1, state(96, 96, 8))],
    # d_kv is given, and is not 48 / 6; the decoder's own 3 layers, then its views of the encoder's 40 tokens.
    "t5": [(3, kv(6, N, 10)), (3, kv(6, N, 10))],
}


def config_of(name):
    return json.loads((CONFIGS / f"tiny-{name}.json").read_text())


def size_of(tensors):
    return sum(ELEMENT_BYTES[dtype] * math.prod(shape) for dtype, shape in tensors)


@pytest.fixture
def ask():
    """cache_bytes of a tiny model: ask("llama")."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return lambda name, **how: oracle.cache_bytes(config_of(name), N, B, **how)


libraries_warn = pytest.mark.filterwarnings("ignore")


def test_every_tiny_config_is_worked_out():
    assert {path.stem.removeprefix("tiny-") for path in CONFIGS.glob("tiny-*.json")} == set(HELD)


@libraries_warn
@pytest.mark.parametrize("name", HELD)
def test_the_cache_holds_what_the_config_means(ask, name):
    answer = ask(name)
    found = [(run.last - run.first + 1, list(run.tensors.values())) for run in answer.layers]
    assert found == HELD[name]
    assert answer.kv_bytes == sum(layers * size_of(tensors) for layers, tensors in HELD[name])


@libraries_warn
@pytest.mark.parametrize("name", ["llama", "gemma3-text", "mamba2", "deepseek-v3"])
def test_narrow_models_on_the_cpu_answer_the_same(ask, name):
    assert ask(name, device="cpu") == ask(name)


@libraries_warn
def test_bytes_follow_the_dtype_and_parameters_do_not(ask):
    half, whole = ask("llama"), ask("llama", dtype="float32")
    assert (whole.kv_bytes, whole.parameters) == (2 * half.kv_bytes, half.parameters)
    # Embedding and head, then per layer: queries and output, keys and values, MLP, two norms; the last norm.
    assert half.parameters == 2 * 128 * 48 + 3 * (2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 112 + 2 * 48) + 48


@libraries_warn
def test_the_command_prints_one_document_for_each_length(ask, capsys):
    path = str(CONFIGS / "tiny-llama.json")
    assert oracle.main([path, "--tokens", "10", "--tokens", "20", "--batch", "3", "--json"]) == 0
    short, long = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert 2 * short["kv_bytes"] == long["kv_bytes"] == 3 * 3 * 2 * 2 * 20 * 8 * 2
    assert oracle.main([path]) == 0
    assert capsys.readouterr().out.startswith("1,000 tokens x 1, bfloat16: 192,000 bytes; 79,440 parameters\n")


@libraries_warn
@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"hidden_size": 8}, "knows no model_type"),
        ({"model_type": "no-such-model"}, "knows no model_type 'no-such-model'"),
        ({"model_type": "llama", "hidden_size": "wide"}, "this config of llama"),
        ({"model_type": "llama", "num_hidden_layers": 1, "pad_token_id": 99_999}, "cannot build this llama"),
    ],
)
def test_a_config_that_the_library_does_not_take_is_one_line(ask, tmp_path, capsys, config, what):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert_one_line(capsys, path, what)


@pytest.mark.parametrize(("text", "what"), [(None, "No such file"), ("{", "JSONDecodeError"), ("[]", "no JSON object")])
def test_a_file_that_is_no_config_is_one_line(tmp_path, capsys, text, what):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    assert_one_line(capsys, path, what)


def test_no_tokens_are_no_question(capsys):
    assert oracle.main([str(CONFIGS / "tiny-llama.json"), "--tokens", "0"]) == 2
    assert "counts of at least 1" in capsys.readouterr().err


def test_without_the_libraries_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert_one_line(capsys, CONFIGS / "tiny-llama.json", "kvcalc[oracle]")


def assert_one_line(capsys, path, what):
    assert oracle.main([str(path)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert what in printed.err


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("tiny-*.json")), ids=lambda path: path.stem)
def test_an_import_holds_and_counts_what_the_library_does(path):
    """kvcalc's import of the same file, under the engine's rules, without any stored answer between them."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    answer = oracle.cache_bytes(json.loads(path.read_text()), N, B)
    spec = kvcalc.load(str(path))
    size = kvcalc.size(spec, N, B, dtype="bf16", encoder_tokens=N)
    assert find_engine("transformers").allocate(size).allocated_bytes == answer.kv_bytes
    assert size.parameters.total == answer.parameters
