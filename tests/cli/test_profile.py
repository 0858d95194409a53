"""kvcalc profile on the command line: what it prints and writes, and what it refuses in one line."""

from functools import cache

import pytest

torch = pytest.importorskip("torch")

import kvcalc as library  # noqa: E402
from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.model.catalog import load  # noqa: E402
from kvcalc.model.subset import keep_layers  # noqa: E402
from kvcalc.profiler import course, device  # noqa: E402
from kvcalc.profiler.record import read_run  # noqa: E402
from kvcalc.reference.session import Session  # noqa: E402

MACHINE = {
    "read_bytes_per_second": 1e12, "copy_bytes_per_second": 1e12, "gemm_flops_per_second": 1e15, "gemm_dtype": "fp32",
    "specified_bytes_per_second": None, "specified_flops_per_second": None, "specified_source": None,
}  # fmt: skip
TINY = """name: tiny
hidden_size: 64
dtype: fp32
max_context: 4096
layers:
- {repeat: 3, mixer: {kind: kv, q_heads: 4, kv_heads: 2, head_dim: 32}}
- {mixer: {kind: kv, q_heads: 4, kv_heads: 2, head_dim: 32, window: 8}}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A machine whose peaks are stated, and little to evict."""
    monkeypatch.setattr(course, "measure_machine", lambda *_: dict(MACHINE))
    monkeypatch.setattr(device, "EVICTING_BYTES", 4096)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny(spec_file):
    return spec_file(TINY)


@pytest.fixture
def profile(kvcalc):
    """kvcalc profile on one thread of the CPU, a moment a point: profile(model, "--ctx", 16) -> Answer."""

    def run(*arguments):
        return kvcalc("profile", *arguments, "--threads", "1", "--device", "cpu", "--seconds", "0.05")

    return run


def test_a_run_says_what_was_asked_and_that_memory_is_exact(profile, tiny):
    answer = profile(tiny, "--ctx", "16,1K", "--batch", "1", "--batch", "2", "--layers", "2", "--format", "json")
    assert answer.code == 0
    document = answer.json
    assert [(one["context_tokens"], one["batch"]) for one in document["points"]] == [
        (16, 1),
        (16, 2),
        (1024, 1),
        (1024, 2),
    ]
    asked = document["request"]
    assert (asked["contexts"], asked["batches"]) == ([16, 1024], [1, 2])
    assert (asked["layers"], asked["layers_of_model"], asked["backend"]) == (2, 4, "reference")
    assert document["verdict"]["memory"] == "exact"
    assert "2 of 4 layers run" in document["notes"]


def test_a_table_is_printed_and_notes_go_to_stderr(profile, tiny):
    answer = profile(tiny, "--ctx", "16", "--batch", "1")
    assert answer.code == 0
    assert "memory exact to the byte" in answer.out
    assert "note: random weights" in answer.err


def test_the_file_that_is_written_can_be_read(profile, tiny, tmp_path):
    path = tmp_path / "run.json"
    assert profile(tiny, "--ctx", "16", "--batch", "1", "-o", path).code == 0
    assert read_run(path)["model"]["name"] == "tiny"


def test_pages_formats_seeds_and_feed_forward_parts_are_taken_up(profile, spec_file):
    one = spec_file(TINY.replace("head_dim: 32}}", "head_dim: 32}, mlp: {kind: dense, intermediate_size: 96}}"))
    more = ["--paged", "7", "--kv-dtype", "fp8", "--seed", "3", "--with-mlp", "--dtype", "bf16"]
    document = profile(one, "--ctx", "16", "--batch", "1", *more, "--format", "json").json
    asked = document["request"]
    assert (asked["page_tokens"], asked["kv_dtype"], asked["seed"], asked["with_mlp"]) == (7, "fp8", 3, True)
    assert (asked["dtype"], document["points"][0]["components"][0]["format"]) == ("bf16", "fp8")


def test_without_a_model_a_small_part_of_the_default_one_runs(profile, monkeypatch, tiny):
    monkeypatch.setattr("kvcalc.profiler.asking.DEFAULT_MODEL", str(tiny))
    document = profile("--format", "json").json
    assert document["request"]["layers"] == 2
    assert document["request"]["contexts"] == [512, 2048]
    assert any(note.startswith("no CUDA device: 2 of 4 layers of tiny") for note in document["notes"])


def test_textbook_toy_runs(profile):
    answer = profile("textbook-toy", "--ctx", "16", "--batch", "2", "--format", "json")
    assert (answer.code, answer.json["verdict"]["memory"]) == (0, "exact")


def test_a_time_that_is_off_is_exit_1(profile, tiny):
    answer = profile(tiny, "--ctx", "16", "--batch", "1", "--tolerance", "5%")
    assert answer.code == 1
    assert "allowed 5%" in answer.out


def test_weights_that_are_no_numbers_are_exit_1(profile, tiny, monkeypatch):
    real = Session.decode
    monkeypatch.setattr(Session, "decode", lambda *arguments: real(*arguments) * float("nan"))
    answer = profile(tiny, "--ctx", "16", "--batch", "1")
    assert answer.code == 1
    assert "16 tokens x 1: decode: NaN or infinity in its outputs" in answer.out


def test_ctrl_c_keeps_the_first_point_and_is_exit_130(profile, tiny, monkeypatch, tmp_path):
    real = Session.prefill

    def stops(session, tokens):
        if session.capacity == 32:
            raise KeyboardInterrupt
        return real(session, tokens)

    monkeypatch.setattr(Session, "prefill", stops)
    path = tmp_path / "run.json"
    answer = profile(tiny, "--ctx", "16,32", "--batch", "1", "-o", path)
    assert answer.code == 130
    first, second = read_run(path)["points"]
    assert (first["stopped"], second["stopped"]["reason"]) == (None, "interrupted")


# ---- what is refused

RECURRENT = """name: m
hidden_size: 64
layers: [{mixer: {kind: recurrent, states: [{name: s, heads: 2, shape: [4, 4]}]}}]
"""
KV = "{kind: kv, q_heads: 4, kv_heads: 2, head_dim: 32}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ctx", "0"], "--ctx '0': at least 1 is needed"),
        (["--ctx", "-5"], "--ctx '-5' is not a number"),
        (["--ctx", "16,,"], "--ctx '' is not a number"),
        (["--ctx", "4097"], "--ctx 4,097: tiny takes at most 4,096 tokens"),
        (["--batch", "0"], "--batch '0': at least 1 is needed"),
        (["--batch", "-1"], "--batch '-1' is not a number"),
        (["--batch", "many"], "--batch 'many' is not a number"),
        (["--layers", "0"], "--layers 0: tiny has 4 layers"),
        (["--layers", "5"], "--layers 5: tiny has 4 layers"),
        (["--layers", "1"], "--layers 1: tiny needs 2 to show every distinct layer and every source read"),
        (["--paged", "0"], "--paged '0': at least 1 is needed"),
        (["--backend", "vllm"], "unknown backend 'vllm'"),
        (["--tolerance", "near"], "--tolerance 'near' is no percentage"),
        (["--tolerance", "0%"], "--tolerance '0%' is no percentage"),
        (["--tolerance", "nan"], "--tolerance 'nan' is no percentage"),
        (["--tp", "2"], "--tp 2 needs 2 processes, and 1 run"),
        (["--tp", "0"], "--tp 0: at least 1 is needed"),
        (["--kv-dtype", "turboquant_k8v4"], "turboquant_k8v4"),
        (["--dtype", "int4"], "--dtype int4: layers compute in fp32, bf16, fp16 here"),
    ],
)
def test_bad_inputs_are_refused_in_one_line(profile, tiny, arguments, message):
    answer = profile(tiny, "--ctx", "16", *arguments) if "--ctx" not in arguments else profile(tiny, *arguments)
    assert (answer.code, answer.out) == (2, "")
    error, hint = answer.err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--device", "tpu", "--device tpu: no such device is known here"),
        ("--device", "mps", "--device mps: Apple's MPS counts no bytes"),
        ("--device", "cuda:9", "--device cuda:9: torch"),
        ("--threads", "0", "--threads 0: at least 1 is needed"),
        ("--threads", "-1", "--threads -1: at least 1 is needed"),
        ("--seconds", "0", "--seconds 0.0: a time above 0 is needed"),
        ("--seconds", "nan", "--seconds nan: a time above 0 is needed"),
        ("--seconds", "inf", "--seconds inf: a time above 0 is needed"),
    ],
)
def test_devices_and_times_that_cannot_be_are_refused(kvcalc, tiny, flag, value, message):
    answer = kvcalc("profile", tiny, "--ctx", "16", flag, value)
    assert answer.code == 2
    error, hint = answer.err.splitlines()
    assert message in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (RECURRENT, [], "`state` (recurrent) has no reference yet: it can be sized, not run"),
        (TINY.replace("hidden_size: 64\n", ""), [], "tiny states no hidden_size, so nothing can run"),
        (TINY.replace("q_heads: 4, ", ""), [], "layer 0: `kv` states no q_heads, so nothing asks for its entries"),
        (
            TINY.replace(KV, f"[{KV}, {{kind: cross, q_heads: 2, kv_heads: 2, head_dim: 32}}]"), [],
            "`cross` keeps an encoder's tokens",
        ),
        (TINY, ["--kv-dtype", "turboquant_k8v4"], "turboquant_k8v4: no packing of this format is written here"),
    ],
    ids=["recurrent", "no hidden size", "no query heads", "no encoder tokens", "a format without packing"],
)  # fmt: skip
def test_models_that_cannot_run_are_refused_by_name(profile, spec_file, text, arguments, message):
    answer = profile(spec_file(text), "--ctx", "16", "--batch", "1", *arguments)
    assert answer.code == 2
    assert message in answer.err.splitlines()[0]


def test_an_encoder_is_as_long_as_is_said(profile, spec_file):
    one = spec_file(TINY.replace(KV, f"[{KV}, {{kind: cross, q_heads: 2, kv_heads: 2, head_dim: 32}}]"))
    answer = profile(one, "--ctx", "16", "--batch", "1", "--encoder-tokens", "30", "--format", "json")
    held = {row["name"]: row["measured_bytes"] for row in answer.json["components"]}
    assert held["cross"] == 3 * 30 * 2 * 2 * 32 * 4


# ---- the catalogue


@cache
def least_of(name):
    """The fewest layers that show every sort of the model."""
    spec = load(name)
    for count in range(1, len(spec.layers)):
        try:
            keep_layers(spec, count)
        except KvcalcError:
            continue
        return count
    return len(spec.layers)


def representatives():
    """One model, the first by name, for every set of things that its layers keep and read."""
    found = {}
    for name in sorted(library.models()):
        kept = {
            (one.kind, one.span.cap is None, one.span.ratio > 1, one.top_k is None, one.overlaps)
            for layer in load(name).layers
            for one in layer.components
        }
        found.setdefault(frozenset(kept), name)
    return sorted(found.values())


@pytest.mark.parametrize("name", representatives())
def test_models_of_the_catalogue_run(profile, name):
    # fp32: a product in bf16 over 65536 numbers, as DeepSeek V4 Pro has it, ends oneDNN on some CPUs.
    parts = [one for layer in load(name).layers for one in layer.components]
    more = [] if any(hasattr(one, "hidden") for one in parts) else ["--set", "hidden_size=64"]
    more += ["--encoder-tokens", "24"] if any(one.is_encoder_fed for one in parts) else []
    asked = ["--layers", least_of(name), "--ctx", "16", "--batch", "1", "--dtype", "fp32", *more]
    answer = profile(name, *asked, "--format", "json")
    assert (answer.code, answer.json["verdict"]["memory"]) == (0, "exact"), answer.err
