"""Saved answers side by side: the verbs' own documents, read back, and figures that are the documents' own."""

import json
from pathlib import Path

import pytest
from sample import run_document

from kvcalc.cli.app import main
from kvcalc.plan import results
from kvcalc.plan.results import answers_of, read_result


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def save(name, *arguments):
        assert main([*arguments, "-o", name, "-q"]) in (0, 1)
        return json.loads((tmp_path / name).read_text())

    return save


def compared(capsys, *arguments):
    capsys.readouterr()
    code = main(["compare", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def figure(document, name, case=""):
    return next(row for row in document["figures"] if row["figure"] == name and row["case"] == case)


def test_two_sizes_are_held_figure_by_figure_and_explained_by_their_parts(saved, capsys):
    first = saved("a.json", "size", "gemma-3-27b", "--ctx", "32K", "--batch", "4")["kv_cache"]
    second = saved("b.json", "size", "gemma-3-27b", "--ctx", "64K", "--batch", "4", "--kv-dtype", "fp8")["kv_cache"]
    code, document = compared(capsys, "a.json", "b.json")
    assert code == 0  # without --fail-on nothing fails
    row = figure(document, "total_bytes")
    assert (row["first_value"], row["second_value"]) == (first["total_bytes"], second["total_bytes"])
    assert row["ratio"] == second["total_bytes"] / first["total_bytes"]
    assert row["change"] == "better"
    assert document["differences"] == [
        "b.json: asked otherwise: context_tokens 32768, then 65536; kv_dtype auto, then fp8"
    ]
    main(["compare", "a.json", "b.json"])
    # 52 windows of 1,024 tokens x 16 heads x 128 x 2 x 2 B halve; ten global layers double and halve.
    assert "total_bytes by part: window -832.00 MiB" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_the_parts_of_a_pool_add_up_to_it(saved, engine):
    many = ("--gpus", "2") if engine == "llama.cpp" else ("--tp", "2", "--dp", "2")
    document = saved("a.json", "fit", "llama-8b", "--gpu", "h200-sxm", "--engine", engine, *many)
    [answer] = answers_of(document, "a.json")
    assert sum(answer.parts["pool_bytes"].values()) == document["pool_bytes"]
    assert answer.parts["pool_bytes"]["card"] == document["gpu"]["total_bytes"] * (2 if engine == "llama.cpp" else 1)


def test_a_larger_card_is_a_part_of_what_a_pool_gained(saved, capsys):
    """Of what a larger card has more, vLLM takes nine tenths here (v1/worker/utils.py: request_memory)."""
    flags = ("--engine", "vllm@0.33", "--gpu-memory-utilization", "0.9")
    first, second = (saved(f"{gpu}.json", "fit", "llama-8b", "--gpu", gpu, *flags) for gpu in ("h100-sxm", "h200-sxm"))
    more = second["gpu"]["total_bytes"] - first["gpu"]["total_bytes"]
    parts = [answers_of(one, "a")[0].parts["pool_bytes"] for one in (first, second)]
    assert parts[1]["left by the engine"] - parts[0]["left by the engine"] == pytest.approx(-more / 10, abs=1)
    capsys.readouterr()
    main(["compare", "h100-sxm.json", "h200-sxm.json"])
    assert "pool_bytes by part: card +60.75 GiB, left by the engine -6.08 GiB" in capsys.readouterr().out


def test_a_pool_that_was_given_has_no_parts(saved):
    [answer] = answers_of(saved("a.json", "fit", "llama-8b", "--kv-cache-memory", "9GiB"), "a.json")
    assert answer.parts == {}


def test_what_got_worse_fails_only_where_it_is_asked(saved, capsys):
    saved("a.json", "size", "llama-8b", "--ctx", "8K")
    saved("b.json", "size", "llama-8b", "--ctx", "8448")
    assert compared(capsys, "a.json", "b.json")[0] == 0
    assert compared(capsys, "a.json", "b.json", "--fail-on", "5%")[0] == 0  # 8,448 / 8,192 is 1.03125
    code, document = compared(capsys, "a.json", "b.json", "--fail-on", "3%")
    assert (code, document["passed"]) == (1, False)
    assert compared(capsys, "b.json", "a.json", "--fail-on", "0%")[0] == 0


def test_more_is_better_where_it_is(saved, capsys):
    card = ("fit", "llama-8b", "--gpu", "l40s", "--engine", "vllm", "--ctx", "16K")
    saved("a.json", *card)
    saved("b.json", *card, "--kv-dtype", "fp8")
    _, document = compared(capsys, "a.json", "b.json")
    assert figure(document, "max_batch")["change"] == "better"
    code, document = compared(capsys, "b.json", "a.json", "--fail-on", "5%")
    assert (code, figure(document, "max_batch")["change"]) == (1, "worse")
    assert figure(document, "pool_bytes")["change"] == "same"


def test_times_that_are_bounded_move_with_their_terms(saved, capsys):
    slow = saved("a.json", "throughput", "llama-8b", "--gpu", "h100-sxm", "--served", "--batch", "8")
    fast = saved("b.json", "throughput", "llama-8b", "--gpu", "h200-sxm", "--served", "--batch", "8")
    _, document = compared(capsys, "a.json", "b.json")
    step = figure(document, "step_seconds")
    assert step["ratio"] == fast["decode"]["step_seconds"] / slow["decode"]["step_seconds"]
    assert (step["change"], step["basis"]) == ("better", "assumed")
    main(["compare", "a.json", "b.json"])
    assert "step_seconds by part: feed-forward -" in capsys.readouterr().out


def test_a_model_stands_beside_a_saved_answer(saved, capsys):
    saved("a.json", "size", "llama-8b", "--ctx", "8K", "--batch", "4")
    code, document = compared(capsys, "llama-8b", "a.json", "--ctx", "8K")
    assert (code, document["sources"]) == (0, ["llama-8b", "a.json"])
    assert figure(document, "total_bytes")["ratio"] == 4
    assert figure(document, "bytes_per_token")["ratio"] == 1


def test_models_with_formats_are_judged_too(capsys):
    code, document = compared(capsys, "llama-8b", "--kv-dtype", "fp8,bf16", "--ctx", "8K", "--fail-on", "5%")
    assert code == 1
    assert figure(document, "total_bytes")["ratio"] == 2


def test_engines_of_one_model_are_judged_too(capsys):
    _, document = compared(capsys, "gemma-4-31b", "--engine", "vllm,llama.cpp", "--ctx", "32K", "--fail-on", "5%")
    # docs/compare.md: 15.79 GiB in vLLM 0.33, 3.67 GiB in llama.cpp
    assert figure(document, "allocated_bytes")["ratio"] == pytest.approx(0.232, abs=0.001)


def test_points_of_two_sweeps_meet_by_what_they_are(saved, capsys):
    saved("a.json", "sweep", "llama-8b", "--ctx", "1K..8K", "--batch", "1,2")
    saved("b.json", "sweep", "llama-8b", "--ctx", "4K..16K", "--batch", "1,2")
    _, document = compared(capsys, "a.json", "b.json")
    cases = {row["case"] for row in document["figures"]}
    assert len(cases) == 4  # 4K and 8K, each with two batches
    assert all(row["change"] == "same" for row in document["figures"])
    assert [line.split(":")[0] for line in document["only"]] == ["only in a.json", "only in b.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": "kvcalc.size/1", "model": {}}', "damaged"),
        ('{"schema": "kvcalc.size/2"}', "unknown schema"),
        ('{"schema": "kvcalc.size/1", "mod', "cut short"),
        ('{"schema": "kvcalc.check/1", "cases": []}', "no figures"),
        ('["schema", "kvcalc.size/1"]', "no JSON object"),
    ],
)
def test_what_is_no_whole_answer_is_refused(text, said, tmp_path, capsys):
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_text(text)
    main(["size", "llama-8b", "-o", str(good), "-q"])
    assert main(["compare", str(good), str(bad)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_answers_that_share_nothing_and_flags_that_mean_nothing(saved, capsys):
    saved("a.json", "size", "llama-8b")
    saved("t.json", "throughput", "llama-8b", "--gpu", "h100-sxm")
    assert main(["compare", "a.json", "t.json"]) == 2
    assert "share no figure" in capsys.readouterr().err
    assert main(["compare", "a.json", "a.json", "--ctx", "8K"]) == 2
    assert "--ctx: a saved answer or a plan has its own workload" in capsys.readouterr().err


def test_every_figure_of_the_table_is_found_in_a_real_document(saved):
    """A path that leads nowhere would leave a figure out in silence."""
    saved("s.json", "size", "llama-8b", "--engine", "vllm")
    saved("f.json", "fit", "llama-8b", "--gpu", "l40s", "--engine", "vllm")
    saved("t.json", "throughput", "llama-8b", "--gpu", "h100-sxm", "--served")
    saved("w.json", "sweep", "llama-8b", "--gpu", "h100-sxm", "--served", "--batch", "1")
    for name, wanted in (("s", results._SIZE), ("f", results._FIT), ("t", results._SPEED), ("w", results._POINT)):
        (answer,) = answers_of(read_result(Path(f"{name}.json")), name)
        assert set(answer.figures) == set(wanted), name
        for found in answer.figures.values():
            assert found["low"] <= found["value"] <= found["high"]


def test_a_run_stands_beside_a_prediction_and_a_third_run(saved, capsys):
    run = run_document(contexts=(8192,), batches=(4,))
    Path("r.json").write_text(json.dumps(run))
    saved("s.json", "size", "llama-8b", "--ctx", "8192", "--batch", "4")
    _, document = compared(capsys, "s.json", "r.json")
    row = figure(document, "total_bytes")
    assert row["basis"] == "exact, then measured"
    assert row["second_value"] == sum(part["measured_bytes"] for part in run["points"][0]["components"])
    _, document = compared(capsys, "r.json", "r.json", "r.json")
    assert {row["figure"] for row in document["figures"]} == {"total_bytes", "prefill_seconds", "step_seconds"}
    assert {row["change"] for row in document["figures"]} == {"same"}


PLAN = """
defaults: {{gpu: l40s, engine: vllm@0.26, batch: 8}}
cases:
  - {{name: chat, model: llama-8b, ctx: {ctx}}}
  - {{name: long, model: gemma-3-12b, ctx: 32K{more}}}
"""


def test_two_plans_meet_case_by_case_and_a_result_of_one(saved, capsys, tmp_path):
    (tmp_path / "old.yaml").write_text(PLAN.format(ctx="8K", more=""))
    (tmp_path / "new.yaml").write_text(PLAN.format(ctx="16K", more=", kv_dtype: fp8"))
    code, document = compared(capsys, "old.yaml", "new.yaml")
    assert code == 0
    assert figure(document, "total_bytes", "chat")["ratio"] == 2
    assert figure(document, "total_bytes", "long")["ratio"] == 0.5
    assert any("chat of new.yaml" in line and "ctx" in line for line in document["differences"])
    assert compared(capsys, "old.yaml", "new.yaml", "--fail-on", "5%")[0] == 1
    saved("old.json", "check", "old.yaml")
    _, document = compared(capsys, "old.json", "old.yaml")
    assert {row["change"] for row in document["figures"]} == {"same"}


def test_a_screen_leaves_out_what_is_the_same_where_that_is_much(saved, capsys):
    saved("a.json", "sweep", "llama-8b", "--ctx", "1K..64K", "--batch", "1,2")
    capsys.readouterr()
    assert main(["compare", "a.json", "a.json"]) == 0
    told = capsys.readouterr().out
    assert "same (--format" in told and len(told.splitlines()) < 10
    assert main(["compare", "a.json", "a.json", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 20


def test_a_plan_with_a_case_that_has_no_answer_is_refused(capsys, tmp_path):
    plan = tmp_path / "p.yaml"
    plan.write_text("cases:\n  - {name: chat, model: no-such-model}\n")
    assert main(["compare", str(plan), "llama-8b"]) == 2
    assert "p.yaml:2: chat: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kv_cache", "total_bytes"), "16 GiB"),
        (("kv_cache", "total_bytes"), 10**40),
        (("kv_cache", "total_bytes"), True),
        (("kv_cache", "components", 0, "name"), 7),
        (("kv_cache", "components", 0, "bytes_per_token"), [1]),
        (("request", "batch"), "x"),
        (("request", "batch"), None),
        (("model", "name"), None),
    ],
)
def test_a_saved_answer_with_a_value_of_another_kind_is_damaged(saved, capsys, path, value):
    document = saved("whole.json", "size", "llama-8b")
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    Path("damaged.json").write_text(json.dumps(document))
    for names in (("damaged.json", "whole.json"), ("whole.json", "damaged.json"), ("damaged.json", "llama-8b")):
        capsys.readouterr()
        assert main(["compare", *names]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("error: damaged.json is damaged: it is no whole kvcalc.size/1\nhint: ")


def test_a_figure_of_a_check_without_its_unit_is_damaged(saved, capsys):
    Path("plan.yaml").write_text("cases: [{name: a, model: llama-8b, gpu: h100-sxm}]")
    document = saved("check.json", "check", "plan.yaml")
    del document["cases"][0]["figures"]["total_bytes"]["unit"]
    Path("damaged.json").write_text(json.dumps(document))
    assert main(["compare", "damaged.json", "check.json"]) == 2
    assert "damaged.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_nothing_that_a_saved_answer_says_moves_a_cursor(saved, capsys, form):
    """ESC starts a colour, U+202E turns a line around, U+0085 ends one."""
    document = saved("a.json", "size", "llama-8b")
    document["request"]["dtype"] = document["kv_cache"]["components"][0]["name"] = "\x1b[31m\u202e\u0085::error::x"
    Path("b.json").write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["compare", "a.json", "b.json", "--format", form]) == 0
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.split("\n"))
    assert "_[31m_" in printed
