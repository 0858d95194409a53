"""transformers' own models as `kvcalc profile` runs them, against formulas from their configs and the oracle's sums."""

import json
import shutil
import sys
from types import SimpleNamespace

import msgspec
import oracle
import pytest
from conftest import GOLDEN

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvcalc as sizing  # noqa: E402
from kvcalc.engines.transformers import Transformers  # noqa: E402
from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.profiler import machine  # noqa: E402
from kvcalc.profiler.device import CpuDevice  # noqa: E402
from kvcalc.profiler.library import LibraryPoint  # noqa: E402
from kvcalc.profiler.library_build import Blueprint, find_config  # noqa: E402
from kvcalc.profiler.library_model import LibraryModel, Pass, cache_tensors, storage_bytes  # noqa: E402
from kvcalc.profiler.record import read_run  # noqa: E402

B, N = 2, 40
FP32 = 4


def config_of(name):
    return GOLDEN / "configs" / f"tiny-{name}.json"


def stated(name):
    return json.loads(config_of(name).read_text())


@pytest.fixture(autouse=True)
def quick_machine(monkeypatch):
    """The machine's own rates are not what is tested here."""
    monkeypatch.setitem(machine.PROBE_BYTES, "cpu", 2**20)
    monkeypatch.setitem(machine.PROBE_SIDE, "cpu", 64)
    monkeypatch.setattr(machine, "LEAST_BYTES", 2**20)


@pytest.fixture
def run(kvcalc, tmp_path):
    """Profile a config: run(path, "--seconds", "1") -> the answer and the run file, N tokens x B in fp32."""

    def profile(path, *flags):
        out = tmp_path / "run.json"
        given = {"--ctx": N, "--batch": B, "--seconds": 0.05, "--dtype": "fp32", "--threads": 1}
        given |= dict(zip(flags[::2], flags[1::2], strict=True))
        spread = [part for pair in given.items() for part in pair]
        answer = kvcalc("profile", path, "--backend", "transformers", *spread, "-o", out, "--force")
        return SimpleNamespace(code=answer.code, err=answer.err, document=read_run(out) if out.exists() else None)

    return profile


# The cache, byte for byte

# Values of one sequence of N tokens, from the meaning of each config's fields.
VALUES = {
    "llama": 3 * 2 * 2 * (48 // 6) * N,
    # Five layers see 16 tokens, of which the library keeps the 15 that the next token sees too; two see all.
    "gemma3-text": 2 * 2 * 24 * (5 * 15 + 2 * N),
    # DeepSeek-V2 (arXiv 2405.04434), section 2.1.3: d_c + d_h^R values a token and layer.
    "deepseek-v3": 3 * (32 + 8) * N,
    # A convolution 4 wide over x (12 x 8), B and C (2 groups x 16 each), and 12 x 8 x 16 states; no token adds to it.
    "mamba2": 3 * ((12 * 8 + 2 * 2 * 16) * 4 + 12 * 8 * 16),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_cache_is_what_its_config_says(run, name):
    answer = run(config_of(name))
    (point,) = answer.document["points"]
    (held,) = point["components"]
    expected = VALUES[name] * B * FP32
    assert answer.code == 0
    assert answer.document["verdict"]["memory"] == "exact"
    assert (held["name"], held["kind"], held["format"]) == ("cache", "transformers", "fp32")
    assert held["layers"] == stated(name)["num_hidden_layers"]
    assert held["measured_bytes"] == held["predicted_bytes"] == expected
    assert held["counted_read_bytes_per_step"] is None


@pytest.mark.parametrize("name", ["jamba", "qwen3-next", "gpt-oss", "falcon"])
def test_the_cache_is_what_the_oracle_finds(run, name):
    found = oracle.cache_bytes(stated(name), N, B, "bfloat16")
    answer = run(config_of(name), "--dtype", "bf16")
    (held,) = answer.document["components"]
    assert held["measured_bytes"] == held["predicted_bytes"] == found.kv_bytes
    assert answer.code == 0


def test_storages_behind_a_windows_views_are_told(run):
    """A window is a view of the whole prompt's keys until the next step: all seven layers still hold N tokens."""
    behind = 7 * 2 * 2 * 24 * N * B * FP32
    assert f"cache: its tensors are views, of storages of {behind:,} B" in run(config_of("gemma3-text")).err
    assert "its tensors are views" not in run(config_of("llama")).err


def test_every_point_of_a_grid_is_measured(run):
    document = run(config_of("llama"), "--ctx", "2,12", "--batch", "1,3").document
    held = {(one["context_tokens"], one["batch"]): one["components"][0] for one in document["points"]}
    assert {place: one["measured_bytes"] for place, one in held.items()} == {
        (tokens, batch): 3 * 2 * 2 * 8 * tokens * batch * FP32 for tokens in (2, 12) for batch in (1, 3)
    }
    assert all(
        one["decode"]["steps"] >= 1 and one["prefill"]["tokens"] == one["context_tokens"] for one in document["points"]
    )


def test_a_rule_that_does_not_hold_is_exit_1(run, monkeypatch):
    right = Transformers.allocate

    def wrong(self, size):
        allocation = right(self, size)
        return msgspec.structs.replace(allocation, allocated_bytes=allocation.allocated_bytes + 1)

    monkeypatch.setattr(Transformers, "allocate", wrong)
    answer = run(config_of("llama"))
    assert answer.code == 1
    assert answer.document["verdict"]["memory"] == "off"
    (reason,) = answer.document["verdict"]["reasons"]
    assert "`cache` holds 30,720 B, predicted 30,721 B" in reason


# Time: what is read and computed


def test_a_prefills_flops_are_those_of_its_matrices_and_of_attention(run):
    """2 a weight and token for each matrix, 4 a pair of tokens and channel for attention; the LM head sees one token."""
    hidden, inner, kv, vocabulary, layers = 48, 112, 2 * 8, 128, 3
    matrices = layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner)
    expected = B * (2 * matrices * N + 2 * hidden * vocabulary + layers * 4 * N * N * hidden)
    assert run(config_of("llama")).document["prefill"]["flops"] == expected


def test_flops_of_experts_are_those_of_the_routed_tokens(run):
    """DeepSeek-V2 (arXiv 2405.04434), sections 2.1 and 2.2: projections, 24 + 12 channels a pair and head, experts."""
    hidden, heads, queries, latent, rope, nope, value = 48, 6, 24, 32, 8, 16, 12
    attention = hidden * queries + queries * heads * (nope + rope)
    attention += hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    dense, routed = 3 * hidden * 112, 8 * hidden + (2 + 1) * 3 * hidden * 32
    matrices = 3 * attention + dense + 2 * routed
    pairs = 3 * 2 * N * N * heads * (nope + rope + value)
    expected = B * (2 * matrices * N + pairs + 2 * hidden * 128)
    assert run(config_of("deepseek-v3")).document["prefill"]["flops"] == expected


def test_a_step_reads_all_weights_but_the_embedding_and_the_cache(run):
    hidden, inner, kv, vocabulary, layers = 48, 112, 2 * 8, 128, 3
    read = layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden) + hidden
    document = run(config_of("llama")).document
    decode = document["decode"]
    assert decode["weight_bytes"] == (read + vocabulary * hidden) * FP32
    assert document["points"][0]["weight_bytes"] == decode["weight_bytes"] + vocabulary * hidden * FP32
    # Two steps at least: a short budget may end before the context does.
    assert decode["read_bytes_per_step"] % (3 * 2 * kv * B * FP32) == 0
    assert N - 10 <= decode["read_bytes_per_step"] // (3 * 2 * kv * B * FP32) <= N
    bandwidth = document["machine"]["read_bytes_per_second"]
    total = decode["weight_bytes"] + decode["read_bytes_per_step"]
    assert decode["predicted_seconds"] == pytest.approx(total / bandwidth)
    assert document["components"][0]["predicted_read_bytes_per_step"] == 3 * 2 * kv * N * B * FP32


def test_a_tied_embedding_is_read_as_the_head(run, tmp_path):
    path = tmp_path / "tied.json"
    path.write_text(json.dumps(stated("llama") | {"tie_word_embeddings": True}))
    point = run(path).document["points"][0]
    assert point["decode"]["weight_bytes"] == point["weight_bytes"]


@pytest.mark.parametrize("batch", [1, 3])
def test_experts_that_nobody_is_routed_to_are_not_read(run, batch):
    """Each of B sequences leaves an expert out with 1 - 2/8; 8 experts of 3 x 48 x 32 in two of three layers."""
    point = run(config_of("deepseek-v3"), "--batch", batch).document["points"][0]
    idle = 2 * 8 * (3 * 48 * 32) * (1 - 2 / 8) ** batch
    embedding = 128 * 48
    assert point["weight_bytes"] - point["decode"]["weight_bytes"] == (embedding + int(idle)) * FP32


def test_times_are_judged_where_a_tolerance_is_named(run):
    assert run(config_of("llama")).document["verdict"]["time"] == "not judged"
    judged = run(config_of("llama"), "--tolerance", "0.0001%")
    assert (judged.code, judged.document["verdict"]["time"]) == (1, "off")


# The model that runs


def library_model(name_or_path, dtype=torch.float32):
    path = config_of(name_or_path) if isinstance(name_or_path, str) else name_or_path
    return LibraryModel(Blueprint(path, dtype).build("cpu", 0), CpuDevice(1))


@pytest.mark.parametrize("name", ["llama", "gemma3-text", "deepseek-v3", "mamba2", "jamba"])
def test_cached_steps_choose_as_one_pass_over_all_tokens_does(name):
    model = library_model(name)
    text = torch.randint(0, 128, (B, 20), generator=torch.Generator().manual_seed(1))
    last = model.forward(text)
    for _ in range(4):
        text = torch.cat([text, last.tokens], dim=1)
        last = model.forward(last.tokens, last)
    torch.testing.assert_close(last.logits, model.forward(text).logits, atol=1e-4, rtol=1e-4)
    assert last.tokens.tolist() == last.logits[:, -1].argmax(-1)[:, None].tolist()


def test_the_next_tokens_are_the_likeliest_ones():
    logits = torch.tensor([[[9.0, 0.0, 0.0], [0.0, 1.0, 2.0]], [[0.0, 9.0, 0.0], [3.0, 1.0, 2.0]]])
    assert Pass(logits, "cache", None).tokens.tolist() == [[2], [0]]


def test_a_seed_gives_its_weights():
    first, again, other = (Blueprint(config_of("llama"), torch.float32).build("cpu", seed) for seed in (3, 3, 4))
    same = [torch.equal(one, two) for one, two in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not all(torch.equal(one, two) for one, two in zip(first.parameters(), other.parameters(), strict=True))


def test_tensors_of_a_cache_are_found_at_every_depth_once_and_counters_left_out():
    shared, other = torch.zeros(2, 3), torch.zeros(4, 5)
    holder = SimpleNamespace(layers=[SimpleNamespace(keys=shared, values=shared, length=torch.zeros(()))])
    holder.itself, holder.more = holder, {"states": (other, torch.arange(7))}
    assert sorted(one.numel() for one in cache_tensors(holder)) == [6, 20]


def test_views_of_one_storage_count_it_once():
    whole = torch.zeros(10, 4)
    assert storage_bytes([whole[:3], whole[5:], torch.zeros(2, 2)]) == whole.nbytes + 16


# Checkpoints


@pytest.fixture
def checkpoint(tmp_path):
    """A folder with a tiny Llama's config, and weights in fp16: checkpoint("model.safetensors")."""

    def save(file, change=lambda weights: weights):
        folder = tmp_path / "tiny"
        folder.mkdir()
        config = transformers.LlamaConfig(**stated("llama"))
        weights = change(transformers.LlamaForCausalLM(config).half().state_dict())
        (folder / "config.json").write_text(json.dumps(stated("llama")))
        if file.endswith(".bin"):
            torch.save(weights, folder / file)
        else:
            from safetensors.torch import save_file

            save_file(weights, folder / file, metadata={"format": "pt"})
        return folder, weights

    return save


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_the_weights_beside_a_config_are_those_that_run(run, checkpoint, file):
    folder, weights = checkpoint(file)
    answer = run(folder)
    assert answer.code == 0
    assert f"the weights in {folder}" in answer.err
    built = Blueprint(folder / "config.json", torch.float32).build("cpu", 0)
    assert {name: one.dtype for name, one in built.state_dict().items()} == dict.fromkeys(weights, torch.float32)
    assert all(torch.equal(one, weights[name].float()) for name, one in built.state_dict().items())


def test_a_config_of_another_name_has_no_weights_beside_it(run, checkpoint):
    folder, _ = checkpoint("model.safetensors")
    shutil.copy(folder / "config.json", folder / "other.json")
    assert "random weights" in run(folder / "other.json").err


def test_a_model_that_sees_reads_no_weights_of_its_eyes(tmp_path):
    """Its checkpoint fills the whole model; a decode step still reads what that of the text model alone reads."""
    eyes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    eyes |= {"image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=stated("gemma3-text"), vision_config=eyes, mm_tokens_per_image=4)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    whole, text = library_model(tmp_path / "config.json"), library_model("gemma3-text")
    size = sizing.size(sizing.load(str(config_of("gemma3-text"))), N, B, dtype="fp32")
    assert whole.weight_bytes > text.weight_bytes
    assert whole.step_weight_bytes(size) == text.step_weight_bytes(size)


def test_a_checkpoint_that_lacks_a_tensor_is_refused(run, checkpoint):
    folder, _ = checkpoint("pytorch_model.bin", lambda weights: dict(list(weights.items())[1:]))
    answer = run(folder)
    assert answer.code == 2
    assert "the checkpoint lacks 1 tensors, the first model.embed_tokens.weight" in answer.err


def test_quantised_weights_are_refused(run, checkpoint):
    folder, _ = checkpoint("pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(stated("llama") | {"quantization_config": {"quant_method": "fp8"}}))
    answer = run(folder)
    assert answer.code == 2
    assert "are quantised" in answer.err


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """Put a tiny Llama into an empty hub cache: hub_cache("org/name")."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repo_id):
        snapshot = tmp_path / "hub" / f"models--{repo_id.replace('/', '--')}" / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        shutil.copy(config_of("llama"), snapshot / "config.json")
        return snapshot / "config.json"

    return put


@pytest.mark.parametrize("repo_id", ["somebody/tiny-thing", "meta-llama/Llama-3.1-8B"])
def test_a_hub_id_is_the_cached_config_even_where_the_catalogue_knows_the_name(hub_cache, repo_id):
    config = hub_cache(repo_id)
    assert find_config(repo_id) == config


def test_a_hub_id_that_only_the_catalogue_has_is_refused(hub_cache):
    with pytest.raises(KvcalcError, match="is a spec of kvcalc's own"):
        find_config("meta-llama/Llama-3.1-8B")


# What ends early, and what is refused


def test_ctrl_c_shows_what_was_measured(run, monkeypatch):
    def interrupt(self, prompt):
        raise KeyboardInterrupt

    monkeypatch.setattr(LibraryPoint, "_decode", interrupt)
    answer = run(config_of("llama"))
    (point,) = answer.document["points"]
    assert answer.code == 130
    assert point["components"] and point["prefill"] and point["decode"] is None
    assert any("interrupted" in note for note in answer.document["notes"])


def test_running_out_of_memory_ends_the_point_alone(run, monkeypatch):
    model_forward, short = LibraryModel.forward, 10

    def forward(self, tokens, before=None):
        if tokens.shape[1] > short:
            self.model.forward = lambda **_: torch.empty(2**60)
        return model_forward(self, tokens, before)

    monkeypatch.setattr(LibraryModel, "forward", forward)
    document = run(config_of("llama"), "--ctx", "8,40").document
    first, second = document["points"]
    assert first["stopped"] is None and first["decode"]
    assert second["stopped"]["reached"] == "nothing"
    assert second["stopped"]["reason"].startswith("out of memory")
    assert second["stopped"]["asked_bytes"] == 3 * 2 * 2 * 8 * N * B * FP32


@pytest.mark.parametrize(("free", "says"), [(2**10, "the weights of 3 layers take"), (2**20, "40 tokens x 2 ask for")])
def test_what_does_not_fit_is_refused_before_it_is_built(run, monkeypatch, free, says):
    monkeypatch.setattr(CpuDevice, "available_bytes", lambda self: free)
    monkeypatch.setattr(Blueprint, "build", lambda *_: pytest.fail("weights were allocated"))
    answer = run(config_of("llama"))
    assert (answer.code, answer.document) == (2, None)
    assert says in answer.err


def test_a_model_that_fails_while_it_runs_is_one_line(run, monkeypatch):
    class Broken(transformers.LlamaForCausalLM):
        def forward(self, input_ids=None, use_cache=None, cache=None):
            raise AttributeError("no such\nthing")

    monkeypatch.setattr(Blueprint, "build", lambda self, *_: Broken(self.plans[0].config))
    answer = run(config_of("llama"))
    assert answer.code == 2
    assert "error: llama of transformers does not run: AttributeError: no such thing\n" in answer.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_attention_heads": 5}, "transformers does not take this config of llama"),
        ({"hidden_act": "no such"}, "transformers cannot build this llama"),
    ],
)
def test_a_config_that_the_library_cannot_build_is_one_line(change, says, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(stated("llama") | change))
    with pytest.raises(KvcalcError, match=says) as caught:
        Blueprint(path, torch.float32).build("cpu", 0)
    assert "\n" not in caught.value.message


def test_a_type_that_the_library_does_not_know_is_refused(run, tmp_path):
    path = tmp_path / "new.json"
    path.write_text(json.dumps(stated("llama") | {"model_type": "brand_new"}))
    answer = run(path)
    assert answer.code == 2
    assert f"transformers {transformers.__version__} knows no model_type 'brand_new'" in answer.err


REFUSED = {
    "a catalogue name": (["llama-8b"], "is a spec of kvcalc's own"),
    "no model": ([], "runs no model by default"),
    "an encoder": ([config_of("t5")], "t5 has an encoder"),
    "layers": ([config_of("llama"), "--layers", "1"], "--layers: --backend transformers leaves that to the library"),
    "pages": ([config_of("llama"), "--paged", "16"], "--paged: --backend transformers leaves that to the library"),
    "a KV format": ([config_of("llama"), "--kv-dtype", "fp8"], "--kv-dtype: --backend transformers leaves that"),
    "ranks": ([config_of("llama"), "--tp", "2"], "--tp: --backend transformers leaves that to the library"),
    "a server": ([config_of("llama"), "--url", "http://x/v1"], "--url: --backend transformers leaves that"),
    "one token": ([config_of("llama"), "--ctx", "1"], "--ctx 1: a prompt and a token behind it are needed"),
    "past the model": ([config_of("llama"), "--ctx", "513"], "takes at most 512 tokens"),
    "a quantised model": ([config_of("llama"), "--dtype", "fp8"], "--dtype fp8"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_library_cannot_be_asked_is_refused(kvcalc, what):
    arguments, says = REFUSED[what]
    answer = kvcalc("profile", *arguments, "--backend", "transformers")
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err
    assert "\nhint: " in answer.err
    assert answer.err.count("\n") == 2


def test_a_gguf_is_refused(kvcalc, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for path in (tmp_path, tmp_path / "model.gguf"):
        answer = kvcalc("profile", path, "--backend", "transformers")
        assert answer.code == 2
        assert "config.json" in answer.err


def test_a_missing_library_names_the_extra(kvcalc, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    answer = kvcalc("profile", config_of("llama"), "--backend", "transformers")
    assert answer.code == 2
    assert "needs transformers, which is not installed" in answer.err
    assert "pip install 'kvcalc[oracle]'" in answer.err
