"""Logs that people published, held against kvcalc: every figure is explained, and what is not is said to be."""

import io
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.engines.logs.reader import read_log
from kvcalc.engines.overheads_file import read_overheads
from kvcalc.engines.reconcile.answer import reconcile as reconcile_log
from kvcalc.engines.reconcile.report import reconcile_report
from kvcalc.engines.reconcile.row import BAD
from kvcalc.engines.reconcile.subject import Asked
from kvcalc.engines.reconcile.tables import TABLES
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import load

HERE = Path(__file__).parent
EXCERPTS = {one["id"]: one for one in yaml.safe_load((HERE / "excerpts.yaml").read_text())}
QWEN = EXCERPTS["qwen3.8-27b-two-ranks"]["log"]
GIB = 2**30


@pytest.fixture
def reconcile(kvcalc, tmp_path):
    """Hold a text against the command: reconcile(text, *arguments) -> Answer."""

    def run(text, *arguments):
        log = tmp_path / "engine.log"
        log.write_bytes(text if isinstance(text, bytes) else text.encode())
        return kvcalc("reconcile", log, *arguments)

    return run


def verdicts(answer):
    return Counter(one["verdict"] for one in answer.json["figures"] if one["verdict"] != "measured")


def whys(answer):
    return {(one["figure"], one["verdict"]): one["why"] for one in answer.json["figures"]}


@pytest.mark.parametrize("name", EXCERPTS)
def test_a_published_log_is_explained(name, reconcile, spec_file):
    one = EXCERPTS[name]
    arguments = [str(spec_file(one["model"])) if word == "MODEL" else word for word in one["arguments"]]
    answer = reconcile(one["log"], *arguments, "--format", "json")
    assert (dict(verdicts(answer)), answer.code) == (one["verdicts"], 0), answer.out


def test_a_pool_is_the_least_of_its_ranks_and_lines_narrow_it(reconcile):
    """208 blocks of 16 x 1568 x 2 x 256 x 2 B are 4.976 GiB; 5.02 GiB would hold 210."""
    assert reconcile(QWEN.replace("4.99", "5.02")).code == 1
    assert reconcile(QWEN).code == 0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (("tensor_parallel_size=2", "tensor_parallel_size=4"), "equal with --tp 2"),
        (("kv_cache_dtype=fp8_e4m3", "kv_cache_dtype=auto"), "equal with --kv-dtype fp8"),
        (("enable_prefix_caching=True", "enable_prefix_caching=False"), "equal with --enable-prefix-caching"),
    ],
)
def test_a_figure_that_differs_names_the_change_that_would_explain_it(wrong, why, reconcile):
    answer = reconcile(QWEN.replace(*wrong), "--format", "json")
    assert answer.code == 1
    assert why in whys(answer)["tokens", "different"]


def test_what_no_single_change_explains_is_said_to_be_unexplained(reconcile):
    answer = reconcile(QWEN.replace("302,921", "302,922"), "--format", "json")
    assert verdicts(answer) == {"equal": 2, "unexplained": 1}
    assert answer.code == 1


def test_another_release_is_an_explanation_where_the_user_names_one(reconcile):
    """A window holds all batches in flight since 0.26: 70.79 GiB there, 45.79 before (vllm-project/vllm#49878)."""
    text = EXCERPTS["gemma-4-31b-of-two-releases"]["log"].replace("(v0.26.0) ", "")
    answer = reconcile(text, "gemma-4-31b", "--engine", "vllm@0.25.1", "--format", "json")
    assert "--engine vllm@" in whys(answer)["needed_bytes", "different"]


def test_a_figure_between_two_steps_shows_both(reconcile):
    """DeepSeek's blocks hold 64 tokens here: 107,824 is no multiple, 1,684 x 64 and 1,685 x 64 are; 70,272 B a token."""
    text = "Available KV cache memory: 7.06 GiB\nGPU KV cache size: 107,824 tokens\n"
    answer = reconcile(text, "deepseek-v3", "--block-size", "64", "--ctx", "32768", "--format", "json")
    figure = answer.json["figures"][-1]
    assert (figure["computed_low"], figure["computed_high"]) == (1684 * 64, 1685 * 64)
    assert answer.code == 1


def test_another_model_is_ruled_out_by_its_figures(reconcile):
    """16 layers of 4 heads x 256 x 2 x 1 B and states, on two ranks, are not 32 of 8 x 128 x 2."""
    answer = reconcile(QWEN, "llama-3.1-8b")
    assert answer.code == 1
    assert "llama-3.1-8b does not match" in answer.out
    assert "302,921 tokens" in answer.out


def test_caches_of_other_layers_rule_a_model_out(reconcile):
    answer = reconcile(EXCERPTS["llama-3.1-70b-over-two-hosts"]["log"], "llama-3.1-8b")
    assert "the log has a cache of 80 layers, the model one of 32" in answer.out


def test_flags_count_before_the_log(reconcile):
    assert reconcile(QWEN, "--tp", "4").code == 1
    assert reconcile(QWEN.replace("tensor_parallel_size=2", "tensor_parallel_size=4"), "--tp", "2").code == 0


@pytest.mark.parametrize(
    "arguments", [["--cache-type-k", "q8_0"], ["--ubatch-size", "512"], ["--engine", "llama.cpp"], ["--engine", "x"]]
)
def test_flags_of_another_engine_are_refused(arguments, reconcile):
    answer = reconcile(QWEN, *arguments)
    assert (answer.code, answer.out) == (2, "")


def test_two_longest_requests_contradict_each_other(reconcile):
    answer = reconcile(QWEN.replace("max_seq_len=131072", "max_seq_len=65536"), "--format", "json")
    assert whys(answer)["ctx", "contradictory"] == "line 2 says 65536"
    assert answer.code == 1


def test_a_model_that_the_log_shrinks_to_fit_does_not(reconcile):
    fitted = QWEN.replace("max_seq_len=131072", "max_seq_len=262144") + "Auto-fit max_model_len: reduced\n"
    assert reconcile(fitted).code == 0


def test_two_engines_in_one_log_are_a_question(reconcile):
    both = QWEN + EXCERPTS["llama-3.1-70b-over-two-hosts"]["log"]
    assert "--engine" in reconcile(both).err
    answer = reconcile(both, "--engine", "vllm", "--format", "json")
    assert answer.code == 0
    assert any("llama.cpp are in it too" in note for note in answer.json["notes"])


def test_the_last_start_with_figures_counts(reconcile):
    crashed = QWEN.partition("(Worker_TP0")[0]
    answer = reconcile(QWEN.replace("302,921", "1") + QWEN + crashed, "--format", "json")
    assert answer.code == 0
    assert answer.json["figures"][0]["line"] > 6
    assert any("3 starts" in note for note in answer.json["notes"])


def test_the_pool_of_a_group_of_data_parallel_ranks_is_its_own(reconcile):
    """Two groups with 2 and 4 GiB for llama-3.1-8b in blocks of 2 MiB."""
    lines = "".join(
        f"(Worker_DP{rank} pid={rank}) Available KV cache memory: {gib}.0 GiB\n"
        f"(EngineCore_DP{rank} pid=9{rank}) GPU KV cache size: {tokens:,} tokens\n"
        for rank, gib, tokens in ((0, 2, 16384), (1, 4, 32768))
    )
    answer = reconcile(lines, "llama-3.1-8b", "--ctx", "4096", "--format", "json")
    assert verdicts(answer) == {"within rounding": 2}
    assert [one["rank"] for one in answer.json["figures"]] == ["DP0", "DP0", "DP1", "DP1"]


def test_overheads_are_kept_for_fit(reconcile, tmp_path):
    saved = tmp_path / "over.yaml"
    text = (
        "(Worker_TP0 pid=1) Model loading took 60.0 GiB memory and 3 seconds\n" + EXCERPTS["vllm-sums"]["log"]
    ).replace("TP0_EP0", "TP0")
    reconcile(text, "gpt-oss-120b", "--tp", "2", "--save", saved)
    found = read_overheads(saved)
    terms = {"weights": 60.0, "non-torch": 4.44, "activations": 4.19, "CUDA graphs": 0.25}
    assert {name: round(count / GIB, 2) for name, count in found.terms.items()} == terms
    assert (found.engine, found.model, found.tp) == ("vllm", "gpt-oss-120b", 2)
    assert found.gpu == "a card of 94.97 GiB"


def test_nothing_to_save_is_said(reconcile, tmp_path):
    text = EXCERPTS["qwen3-14b-without-a-version"]["log"]
    answer = reconcile(text, "qwen3-14b", "--save", tmp_path / "over.yaml")
    assert (answer.code, "says nothing of what lies beside" in answer.err) == (2, True)


def test_the_fullest_rank_is_kept_and_files_are_not_overwritten(reconcile, tmp_path):
    text = EXCERPTS["qwen3-14b-without-a-version"]["log"]
    for rank, gib in enumerate((14.0, 15.5, 15.0)):
        text += f"(Worker_TP{rank} pid={rank}) Model loading took {gib} GiB memory and 3 seconds\n"
    saved = tmp_path / "over.yaml"
    assert reconcile(text, "qwen3-14b", "--tp", "1", "--save", saved).code == 0
    assert read_overheads(saved).terms == {"weights": int(15.5 * GIB)}
    assert reconcile(text, "qwen3-14b", "--tp", "1", "--save", saved).code == 2
    assert reconcile(text, "qwen3-14b", "--tp", "1", "--save", saved, "--force").code == 0


def test_graphs_that_were_estimated_are_no_activations(reconcile, tmp_path):
    """gpu_worker.py of 0.33: peak_activation_memory has the estimate of the graphs in it where that is taken off."""
    text = (
        "(Worker_TP0_EP0 pid=1) Estimated CUDA graph memory: 0.40 GiB total\n"
        "(Worker_TP0_EP0 pid=1) CUDA graph memory profiling is enabled (default since v0.21.0).\n"
    ) + EXCERPTS["vllm-sums"]["log"]
    (rank,) = reconcile(text, "gpt-oss-120b", "--tp", "2", "--format", "json").json["overheads"]
    assert round(rank["activation_bytes"] / GIB, 2) == 3.79
    assert round(rank["graphs_bytes"] / GIB, 2) == 0.4
    assert rank["weights_bytes"] is None


def test_the_model_of_a_llama_cpp_log_is_in_its_metadata(reconcile):
    """An MTP model as https://github.com/ggml-org/llama.cpp loads it: states in every slot, a context for the drafts."""
    answer = reconcile((HERE / "qwen3.6-27b.log").read_text(), "--format", "json")
    assert answer.code == 0
    assert verdicts(answer) == {"equal": 17}
    assert answer.json["model"]["name"] == "Qwen3.6-27B-UD-Q4_K_XL"


def test_metadata_that_are_cut_short_are_not_guessed(reconcile):
    text = (HERE / "qwen3.6-27b.log").read_text()
    cut = text.replace("head_count_kv u32              = 4", "head_count_kv arr[i32,65]      = [4, 4, 4, 4, ...")
    answer = reconcile(cut)
    assert answer.code == 2
    assert "qwen35.attention.head_count_kv short" in answer.err
    whole = cut.replace("n_layer               = 65", f"n_head_kv = [{', '.join(['4'] * 65)}]")
    assert reconcile(whole).code == 0


def test_layers_on_devices_add_up_to_those_of_the_cache(reconcile):
    text = EXCERPTS["llama-3.1-70b-over-two-hosts"]["log"].replace("624.00", "608.00")
    answer = reconcile(text, "llama-3.1-70b", "--format", "json")
    assert "79 on all devices" in whys(answer)["kv_buffer_bytes", "unexplained"]
    dry = text.replace("656.00", "0.00").replace("608.00", "0.00")
    assert reconcile(dry, "llama-3.1-70b").code == 0


def test_the_total_of_all_slots_and_the_context_of_each(reconcile):
    text = EXCERPTS["llama-3.1-70b-over-two-hosts"]["log"].replace("n_ctx         = 4096", "n_ctx         = 512")
    assert reconcile(text, "llama-3.1-70b").code == 1
    assert reconcile(text, "llama-3.1-70b", "-c", "4096").code == 0
    assert reconcile(text, "llama-3.1-70b", "--ctx", "4096").code == 0
    assert "--ubatch-size" not in reconcile(text, "llama-3.1-70b", "--ubatch-size", "256").err


def test_blocks_on_the_cpu_are_of_a_release_that_had_them():
    """V0 is gone since 0.11, and V1 prints tokens since 0.8."""
    releases = ("0.33.0", "0.11.0", "0.10.2", "0.7.3")
    era = TABLES["vllm"].era
    assert era(read_log(io.BytesIO(b"# GPU blocks: 9, # CPU blocks: 4\n")).findings, releases) == ["0.10.2", "0.7.3"]
    assert era(read_log(io.BytesIO(b"GPU KV cache size: 9 tokens\n")).findings, releases) == list(releases[:3])
    assert era((), releases) == releases


BAD_LOGS = {
    "empty": (b"", "is empty"),
    "binary": (b"\0\1\2" * 100, "binary"),
    "another program": (b"hello\nworld\n", "none of its 2 lines"),
    "packed": (b"\x1f\x8b\x08\x00", "gzip"),
    "no figures": (b"INFO Using max model len 4096\n", "says nothing about a cache: what is understood is context"),
    "no model": (b"GPU KV cache size: 42,656 tokens\n", "names no model"),
    "unknown model": (
        b"Initializing a V1 LLM engine (v0.9.0) with config: model='nobody/nothing', max_seq_len=99\n"
        b"GPU KV cache size: 42,656 tokens\n",
        "nobody/nothing",
    ),
    "no context": (b"llama_new_context_with_model: KV self size  =  9.00 MiB\n", "names no model"),
}


@pytest.mark.parametrize("name", BAD_LOGS)
def test_what_is_no_log_is_said_plainly(name, reconcile):
    content, complaint = BAD_LOGS[name]
    answer = reconcile(content)
    assert (answer.code, answer.out) == (2, "")
    assert complaint in answer.err
    assert "hint:" in answer.err


def test_a_figure_that_is_cut_off_is_not_read(reconcile):
    """`GPU KV cache size: 302,` is no number: the log's block size alone is left to compare."""
    answer = reconcile(QWEN[: QWEN.index("302,921") + 4], "--format", "json")
    assert [one["figure"] for one in answer.json["figures"]] == ["block_tokens", "available_bytes", "available_bytes"]


def test_files_that_cannot_be_read(kvcalc, tmp_path):
    assert "is a directory" in kvcalc("reconcile", tmp_path).err
    assert kvcalc("reconcile", tmp_path / "none.log").code == 2


def test_every_bad_verdict_is_exit_1():
    assert set(BAD) == {"different", "contradictory", "unexplained"}


@pytest.mark.parametrize("form", ["csv", "markdown", "json", "table"])
def test_every_format(form, reconcile):
    answer = reconcile(QWEN, "--format", form)
    assert answer.code == 0
    assert "302921" in answer.out or "302,921" in answer.out


NAMED = {name: one for name, one in EXCERPTS.items() if "model" not in one}
DAMAGE = st.lists(st.tuples(st.floats(0, 1), st.sampled_from("0 9-.,x\n'()=/")), max_size=6)


@settings(max_examples=25)
@given(name=st.sampled_from(sorted(NAMED)), damage=DAMAGE)
def test_a_damaged_log_is_answered_or_refused(name, damage):
    """Every figure that is judged still stands in the log as it was printed."""
    letters = list(NAMED[name]["log"])
    for place, letter in damage:
        letters[int(place * (len(letters) - 1))] = letter
    text = "".join(letters)
    model = next(iter(NAMED[name]["arguments"]), None)
    try:
        answer = reconcile_log(read_log(io.BytesIO(text.encode())), Asked(model=model), load)
    except KvcalcError:
        return
    report = reconcile_report(answer)
    assert report.exit_code == (0 if answer.agrees else 1)
    assert all(row.logged.text in text for row in answer.rows)


NEMOTRON = """\
vllm serve `
    --model /model `
    --max-model-len 131072 `
    --kv-cache-dtype fp8
(Worker_TP0 pid=271) INFO 02-02 13:25:04 [gpu_worker.py:375] Available KV cache memory: 4.02 GiB
(Worker_TP1 pid=272) INFO 02-02 13:19:32 [scheduler.py:230] Chunked prefill is enabled with max_num_batched_tokens=2048.
(EngineCore_DP0 pid=214) INFO 02-02 13:25:05 [kv_cache_utils.py:1291] GPU KV cache size: 183,744 tokens
(EngineCore_DP0 pid=214) INFO 02-02 13:25:05 [kv_cache_utils.py:1296] Maximum concurrency for 131,072 tokens per request: 6.17x
"""
"""Of https://github.com/vllm-project/vllm/issues/33333: rank 0 prints its memory, rank 1, which has less, does not."""


def test_a_rank_that_is_not_printed_may_have_less(reconcile):
    answer = reconcile(NEMOTRON, "nemotron-3-nano-30b-a3b", "--format", "json")
    why = "equal with a pool of 1.33 GiB, if a rank that is not printed has no more"
    assert whys(answer) == {
        ("available_bytes", "measured"): "",
        ("tokens", "different"): why,
        ("concurrency", "different"): why,
    }
    assert answer.json["request"]["tp"] == 2
    assert "0.13.0" in answer.json["notes"][0]
    alone = reconcile(NEMOTRON.replace("Worker_TP1", "Worker"), "nemotron-3-nano-30b-a3b", "--format", "json")
    assert alone.json["request"]["tp"] == 1
    assert "not printed" not in str(whys(alone))


def test_a_flag_counts_though_it_asks_for_the_default(reconcile):
    text = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2\n[gpu_worker.py:1] Available KV cache memory: 20.00 GiB\n"
    text += "GPU KV cache size: 145,632 tokens\n"
    assert reconcile(text).code == 1
    assert reconcile(text, "--tp", "1").code == 0


@pytest.mark.parametrize(
    ("line", "release"), [(716, "0.9.2"), (1087, "0.11.0"), (1319, "0.19.1"), (1711, "0.20.0"), (2464, "0.31.0")]
)
def test_a_line_of_the_source_names_its_release(line, release, reconcile):
    text = f"Available KV cache memory: 20.00 GiB\n[kv_cache_utils.py:{line}] GPU KV cache size: 145,632 tokens\n"
    answer = reconcile(text, "qwen3-8b", "--ctx", "8192", "--format", "json")
    assert answer.json["engine"] == f"vllm@{release}"
    assert answer.json["notes"] == [f"the log prints no version: its figures are held against the rules of {release}"]


def test_words_of_ggufs_from_before_mla_count(reconcile):
    """Without flash attention every K and V; a GGUF with `key_length_mla` would keep latents alone."""
    later = EXCERPTS["deepseek-r1-before-mla"]["log"].replace(
        "attention.key_length u32", "attention.key_length_mla u32"
    )
    assert reconcile(later, "deepseek-r1").code == 1
    assert reconcile(later, "deepseek-r1", "--no-mla").code == 0


@pytest.mark.parametrize(
    "joint", ["\\\n", "\\\r\n", "`\n", "^\r\n"], ids=["bash", "bash of Windows", "PowerShell", "cmd"]
)
@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ("docker run -p 8000:8000 | vllm/vllm-openai:v0.19.1 | --model Qwen/Qwen3-8B", "vllm@0.19.1"),
        ("docker run -p 8000:8000 | vllm/vllm-openai:latest | --model Qwen/Qwen3-8B", "vllm@0.31.0"),
        ("vllm serve | Qwen/Qwen3-8B", "vllm@0.31.0"),
    ],
)
def test_a_command_goes_over_several_lines(joint, words, engine, reconcile):
    """20 GiB on each of two ranks of 73,728 bytes a token are 291,264 tokens."""
    command = f"{words} | --max-model-len 32768 | --tensor-parallel-size 2".replace("| ", joint + "  ")
    text = "Available KV cache memory: 20.00 GiB\n[kv_cache_utils.py:2464] GPU KV cache size: 291,264 tokens\n"
    answer = reconcile(f"{command}\n{text}", "--format", "json")
    assert answer.code == 0, answer.out
    assert answer.json["engine"] == engine
    assert answer.json["request"]["context_tokens"] == 32768
