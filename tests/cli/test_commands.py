"""The command line: what it prints where, and how it ends."""

import csv
import io
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
from conftest import ROOT

import docs

SCHEMAS = {name: json.loads((docs.DOCS / "schemas" / f"{name}.json").read_text()) for name in docs.SCHEMAS}


def test_the_main_job(kvcalc):
    answer = kvcalc("size", "llama-8b", "--ctx", "8192", "--batch", "32")
    assert answer.code == 0
    for figure in ("32.00 GiB", "per sequence 1.00 GiB", "131,072 B (128.0 KiB)", "14.96 GiB", "8,030,261,248"):
        assert figure in answer.out
    assert answer.err == ""


def test_the_json_contract(kvcalc):
    answer = kvcalc("size", "llama-8b", "--ctx", "8192", "--batch", "32", "--format", "json").json
    jsonschema.validate(answer, SCHEMAS["kvcalc.size-1"])
    assert answer["schema"] == "kvcalc.size/1"
    assert answer["model"]["name"] == "llama-3.1-8b"
    expected = {"context_tokens": 8192, "batch": 32, "kv_dtype": "auto", "engine": None}
    expected |= {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "dcp": 1}
    assert expected.items() <= answer["request"].items()
    assert {
        "bytes_per_token": 131072, "fixed_bytes_per_sequence": 0, "bytes_per_sequence": 1073741824,
        "total_bytes": 34359738368, "bytes_per_rank": 34359738368, "all_ranks_bytes": 34359738368,
        "replication": 1, "read_bytes_per_step": 34359738368,
    }.items() <= answer["kv_cache"].items()  # fmt: skip
    (component,) = answer["kv_cache"]["components"]
    assert {
        "name": "kv", "kind": "kv", "layers": 32, "format": "bf16", "entries_per_sequence": 8192, "bytes_per_entry": 4096,
        "fixed_bytes_per_layer": 0, "bytes_per_sequence": 1073741824, "read_bytes_per_step": 1073741824,
    }.items() <= component.items()  # fmt: skip
    weights = answer["weights"]
    assert (weights["parameters"], weights["format"], weights["bytes"]) == (8030261248, "bf16", 16060522496)
    assert answer["notes"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("size", "deepseek-v4.1-flash", "--ctx", "128K", "--tp", "8"),
        ("size", "textbook-toy"),
        ("size", "mamba-codestral-7b"),
        ("explain", "qwen3-next-80b-a3b"),
        ("explain", "deepseek-v4-flash", "--kv-dtype", "fp8"),
        ("compare", "llama-8b", "mamba-codestral-7b", "--kv-dtype", "bf16,fp8"),
        ("models", "list"),
        ("gpus", "list"),
        ("gpus", "show", "h100-sxm"),
    ],
)
def test_every_document_satisfies_its_schema(kvcalc, arguments):
    document = kvcalc(*arguments, "--format", "json").json
    name = document["schema"].replace("/", "-")
    jsonschema.validate(document, SCHEMAS[name])
    keys = docs.SCHEMAS[name].__annotations__
    assert set(document) == set(keys)


def test_growth_of_a_compressed_cache_is_a_number(kvcalc):
    cache = kvcalc("size", "deepseek-v4-flash", "--format", "json").json["kv_cache"]
    assert cache["bytes_per_token"] == 3514.25


@pytest.mark.parametrize("model", ["gemma-3-27b", "deepseek-v4.1-flash", "whisper-large-v3", "phi-4-mini-flash"])
def test_all_formats_tell_the_same(kvcalc, model):
    arguments = ("size", model, "--ctx", "16K", "--batch", "3")
    document = kvcalc(*arguments, "--format", "json").json
    rows = list(csv.DictReader(io.StringIO(kvcalc(*arguments, "--format", "csv").out)))
    by_name = {row["component"]: row for row in rows}
    for component in document["kv_cache"]["components"]:
        row = by_name[component["name"]]
        assert all(row[key] == str(value) for key, value in component.items() if key in row)
        assert int(row["total_bytes"]) == 3 * component["bytes_per_sequence"]
    assert int(by_name["kv_cache"]["total_bytes"]) == document["kv_cache"]["total_bytes"]
    assert by_name["weights"]["total_bytes"] == str(document["weights"]["bytes"])
    table, markdown = kvcalc(*arguments).out, kvcalc(*arguments, "--format", "markdown").out
    for bar in (line.split()[0] for line in table.splitlines() if line.startswith("    ")):
        assert bar in markdown
    assert markdown.startswith(f"**{model}**")


def test_explain_prints_the_formula_with_numbers_put_in(kvcalc):
    out = kvcalc("explain", "llama-8b", "--ctx", "8192").out
    assert "2 x 32 x 8 x 128 x 2 B = 131,072 B" in out
    assert "33,558,528" in out  # n(n+1)/2 for n = 8,192
    assert "config.json" in out
    assert "bfloat16" in out


@pytest.mark.parametrize(("n", "without"), [(3, 6), (4, 10), (1000, 500_500)])
def test_projection_work_with_and_without_the_cache(kvcalc, n, without):
    work = kvcalc("explain", "llama-8b", "--ctx", str(n), "--format", "json").json["projections"]
    assert work == {"without_cache": without, "with_cache": n, "ratio": (n + 1) / 2}


def every_model(kvcalc):
    return [model["name"] for model in kvcalc("models", "list", "--format", "json").json["models"]]


def test_every_formula_multiplies_out(kvcalc):
    """Each printed formula, evaluated as arithmetic, is the printed figure, for the whole catalogue."""
    for model in every_model(kvcalc):
        for kv_dtype in (
            "auto",
            "nvfp4" if "toy" not in model and "h46" not in model and "h90" not in model else "fp8",
        ):
            encoder = ["--encoder-tokens", "100"] if model.startswith("t5") else []
            document = kvcalc("explain", model, "--kv-dtype", kv_dtype, *encoder, "--format", "json").json
            for term in document["terms"]:
                assert evaluate(term["formula"]) == Fraction(term["bytes"]), (model, term)
            growth = sum(Fraction(term["bytes"]) for term in document["terms"] if term["scope"] == "a token")
            assert growth == Fraction(document["bytes_per_token"])


def evaluate(formula: str) -> Fraction:
    """The value of a printed formula; every number a fraction, so that nothing is rounded."""
    code = formula.replace(",", "").replace(" B", "").replace(" x ", " * ")
    tokens = [f"Fraction({token})" if token.isdigit() else token for token in _split(code)]
    return eval("".join(tokens), {"Fraction": Fraction})  # noqa: S307


def _split(code):
    import re

    return re.findall(r"\d+|[-+*/() ]", code)


def test_compare_has_ratios_to_the_first(kvcalc):
    answer = kvcalc("compare", "deepseek-v3", "qwen2.5-72b", "llama-405b", "--format", "json").json
    ratios = [case["ratios"]["bytes_per_token"] for case in answer["cases"]]
    # "Insights into DeepSeek-V3", Table 1: 1x, 4.66x, 7.28x (exactly 7.344).
    assert [round(ratio, 2) for ratio in ratios] == [1, 4.66, 7.34]
    out = kvcalc("compare", "textbook-mha", "textbook-cla2", "--ctx", "8K").out
    assert "0.5x" in out


def test_compare_multiplies_models_and_formats(kvcalc):
    answer = kvcalc(
        "compare", "llama-8b", "llama-2-7b", "--kv-dtype", "bf16,fp8", "--kv-dtype", "k=q8_0,v=q4_0", "--format", "json"
    )
    assert [case["request"]["kv_dtype"] for case in answer.json["cases"]] == ["bf16", "fp8", "k=q8_0,v=q4_0"] * 2


def test_models_show_prints_the_spec_itself(kvcalc):
    assert (
        kvcalc("models", "show", "meta-llama/Llama-3.1-8B").out
        == (ROOT / "model_specs" / "llama-3.1-8b.yaml").read_text()
    )
    assert kvcalc("models", "show", "h64-mqa-3b").out.startswith("name: cla-3b-h64-mqa\n")
    assert "---" not in kvcalc("models", "show", "h64-mqa-3b").out


def test_models_validate(kvcalc, tmp_path):
    assert kvcalc("models", "validate").code == 0
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: x\nlayer: []\n")
    answer = kvcalc("models", "validate", str(broken))
    assert answer.code == 2
    assert "broken.yaml:2: unknown key layer" in answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["size", "lama-8b"], ["unknown model 'lama-8b'", "llama-8b"]),
        (["size"], ["MODEL"]),
        (["sizes"], ["sizes"]),
        (["size", "llama-8b", "--ctx", "0"], ["--ctx", "at least 1"]),
        (["size", "llama-8b", "--ctx", "1e5"], ["--ctx", "8K"]),
        (["size", "llama-8b", "--ctx", "25.6K"], ["25.6k is 25,600"]),
        (["size", "llama-8b", "--ctx", "9" * 30], ["--ctx"]),
        (["size", "llama-8b", "--batch", "0"], ["--batch", "at least 1"]),
        (["size", "llama-8b", "--format", "xml"], ["--format", "json"]),
        (["size", "llama-8b", "--tp", "x"], ["--tp"]),
        (["size", "llama-8b", "--tp", "0"], ["--tp"]),
        (["size", "llama-8b", "--nope"], ["--nope"]),
        (["size", "llama-8b", "--set", "mixer.nope=4"], ["nope", "kv_heads"]),
        (["size", "llama-8b", "--kv-dtype", "fp8_ds_mla"], ["fp8_ds_mla", "`kv`"]),
        (["size", "llama-8b", "--draft-layers", "1"], ["--draft-layers"]),
        (["size", "t5-large", "--strict"], ["--strict"]),
        (["size", "hunyuan-large", "--strict"], ["--strict", "head_dim 80"]),
        (["size", "llama-8b", "--ctx", "1000000000000", "--batch", "1000000000"], ["8 EiB"]),
        (["size", "llama-8b", "--ctx", "8K", "-c", "4K"], ["--ctx", "keep --ctx"]),
        (["compare"], ["MODEL"]),
        (["compare", "llama-8b", "--kv-dtype", "bf16,fp9"], ["fp9"]),
        (["models", "show", "nope"], ["nope"]),
        (["models", "validate", "/nowhere/at/all.yaml"], ["No such file"]),
    ],
)
def test_a_wrong_question_is_one_line_a_hint_and_exit_2(kvcalc, arguments, words):
    answer = kvcalc(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    lines = answer.err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert all(word in answer.err for word in words), answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ctx", "128k"], ["128k is 128,000 tokens", "131,072"]),
        (["--ctx", "1M"], ["past the model's own limit of 131,072"]),
        ([], ["context 8,192 by default"]),
        (["-c", "4K"], ["read as --ctx"]),
        (["--max_model_len", "4096"], ["read as --ctx"]),
        (["--ctx", "4K", "-np", "8"], ["read as --batch"]),
        (["--ctx", "4K", "--set", "mixer.kv_heads=4"], ["changed by --set"]),
        (["--ctx", "4K", "--tp", "16"], ["replicated"]),
        (["--ctx", "4K", "--encoder-tokens", "9"], ["--encoder-tokens changes nothing"]),
    ],
)
def test_notes_go_to_stderr_and_quiet_hides_them(kvcalc, arguments, words):
    answer = kvcalc("size", "llama-8b", *arguments, "--format", "json")
    assert answer.code == 0
    assert answer.json["schema"] == "kvcalc.size/1"
    assert all(word in answer.err for word in words), answer.err
    assert kvcalc("size", "llama-8b", *arguments, "--quiet").err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--context-length", "8192", "--kv-cache-dtype", "fp8", "--tensor-parallel-size", "2"],
        ["--context_length=8192", "--kv_cache_dtype=fp8", "-tp", "2"],
        ["--ctx", "8K", "--kv-dtype", "fp8", "--tp", "2"],
        ["--ctx", "8_192", "--kv-dtype", "fp8_e4m3", "--tp", "2"],
    ],
)
def test_spellings_that_people_know(kvcalc, arguments):
    cache = kvcalc("size", "llama-8b", *arguments, "--format", "json").json["kv_cache"]
    assert cache["bytes_per_rank"] == 2**28


def test_files_are_whole_or_absent_and_announced(kvcalc, tmp_path):
    path = tmp_path / "size.json"
    answer = kvcalc("size", "llama-8b", "--ctx", "8K", "-o", str(path))
    assert (answer.code, answer.out) == (0, "")
    assert f"Wrote {path}" in answer.err
    assert json.loads(path.read_text())["schema"] == "kvcalc.size/1"
    again = kvcalc("size", "llama-8b", "-o", str(path))
    assert again.code == 2
    assert "--force" in again.err
    assert kvcalc("size", "llama-8b", "--ctx", "4K", "-o", str(path), "--force").code == 0
    assert json.loads(path.read_text())["request"]["context_tokens"] == 4096
    assert kvcalc("size", "llama-8b", "-o", str(tmp_path)).code == 2
    assert kvcalc("size", "llama-8b", "-o", str(tmp_path / "no" / "size.json")).code == 2
    assert kvcalc("size", "nope", "-o", str(tmp_path / "none.json")).code == 2
    assert [one.name for one in tmp_path.iterdir()] == ["size.json"]


@pytest.mark.parametrize(("name", "start"), [("a.csv", "model,"), ("a.md", "**llama"), ("a.txt", "llama-3.1-8b")])
def test_the_suffix_chooses_the_format(kvcalc, tmp_path, name, start):
    kvcalc("size", "llama-8b", "-o", str(tmp_path / name))
    assert (tmp_path / name).read_text().startswith(start)


def test_links_are_written_through_and_devices_are_left_alone(kvcalc, tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    assert kvcalc("size", "llama-8b", "-o", str(link)).code == 2
    assert kvcalc("size", "llama-8b", "-o", str(link), "--force").code == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["schema"] == "kvcalc.size/1"
    assert kvcalc("size", "llama-8b", "-o", "/dev/null", "--format", "json").code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["a.html", "a.yml"])
def test_a_suffix_that_names_no_format_is_refused(kvcalc, tmp_path, name):
    answer = kvcalc("size", "llama-8b", "-o", str(tmp_path / name))
    assert answer.code == 2
    assert "--format" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_dash_is_stdout_and_a_long_name_is_an_error(kvcalc, tmp_path):
    assert json.loads(kvcalc("size", "llama-8b", "-o", "-", "--format", "json").out)["schema"] == "kvcalc.size/1"
    assert kvcalc("size", "llama-8b", "-o", str(tmp_path / ("x" * 300 + ".json"))).code == 2


def test_notes_on_the_flags_stand_in_the_document_too(kvcalc):
    notes = kvcalc("size", "llama-8b", "--max-model-len", "128k", "--format", "json").json["notes"]
    assert any("128K is the model's own limit" in note for note in notes)
    assert any("read as --ctx" in note for note in notes)


def test_compare_takes_one_context_for_all(kvcalc):
    cases = kvcalc("compare", "llama-8b", "opt-13b", "--format", "json").json["cases"]
    assert [case["request"]["context_tokens"] for case in cases] == [2048, 2048]
    assert cases[1]["ratios"]["total_bytes"] == cases[1]["ratios"]["bytes_per_token"] == 6.25


@pytest.mark.parametrize("form", ["table", "csv", "markdown", "json"])
@pytest.mark.parametrize("verb", ["size", "explain", "compare"])
def test_ranks_show_in_every_form(kvcalc, verb, form):
    arguments = (verb, "llama-8b", "--ctx", "8K", "--format", form, "-q")
    assert kvcalc(*arguments).out != kvcalc(*arguments, "--tp", "8").out


def test_a_name_in_kv_dtype_reaches_only_what_it_names(kvcalc, spec_file):
    path = spec_file(
        "name: f\ndtype: bf16\nlayers:\n- mixer: [{kind: latent, id: g, latent_dim: 512, rope_dim: 64}, {kind: latent, latent_dim: 512}]"
    )
    parts = kvcalc("size", str(path), "--kv-dtype", "latent=fp8", "--format", "json").json["kv_cache"]["components"]
    assert [(part["name"], part["bytes_per_entry"]) for part in parts] == [("g", 1152), ("latent", 512)]


def test_one_side_stands_before_the_whole_component(kvcalc):
    cache = kvcalc("size", "llama-8b", "--kv-dtype", "kv=fp8,k=bf16", "--format", "json").json["kv_cache"]
    assert cache["bytes_per_token"] == 32 * 8 * 128 * 3


def test_models_show_finds_documents_of_a_file(kvcalc, spec_file):
    layers = "layers: [{mixer: {kind: gmu}}]\n"
    path = spec_file(f'# a family\n---\nname: "first one"\n{layers}--- # and\n# next\nname: second # here\n{layers}')
    assert kvcalc("models", "show", f"{path}#second").out.endswith(f"name: second # here\n{layers}")
    assert kvcalc("models", "show", f"{path}#first one").out == f'name: "first one"\n{layers}'
    assert kvcalc("models", "show", f"{path}#third").code == 2
    assert kvcalc("models", "show", "/nowhere.yaml").code == 2


def test_models_validate_refuses_a_format_that_a_component_cannot_take(kvcalc, spec_file):
    path = spec_file(
        "name: f\ndtype: bf16\nlayers: [{mixer: {kind: kv, kv_heads: 1, head_dim: 8, format: fp8_ds_mla}}]"
    )
    answer = kvcalc("models", "validate", str(path))
    assert answer.code == 2
    assert "fp8_ds_mla" in answer.err


def shell(*arguments, **environment):
    command = [sys.executable, "-m", "kvcalc", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, cwd="/"
    )


def test_it_runs_as_a_module_from_anywhere():
    answer = shell("size", "llama-8b", "--ctx", "8192", "--batch", "32")
    assert answer.returncode == 0
    assert "32.00 GiB" in answer.stdout
    assert shell("--version").stdout.startswith("kvcalc ")


def test_a_pipe_cuts_nothing_and_carries_no_colour():
    out = shell("size", "deepseek-v4.1-flash", "--ctx", "128K", COLUMNS="40").stdout
    assert "…" not in out
    assert "\x1b" not in out
    assert "read by 20" in out


@pytest.mark.parametrize("columns", ["30", "60", "100", "200"])
def test_a_narrow_terminal_loses_decoration_before_content(columns):
    out = shell("size", "gemma-3-27b", "--ctx", "32K", FORCE_COLOR="1", COLUMNS=columns, TERM="xterm").stdout
    words = out.replace("\n", " ").split()
    for word in ("2.91", "81,920", "window", "global"):
        assert word in words or any(word in one for one in words)


def test_no_colour_when_asked():
    assert (
        "\x1b[3" not in shell("size", "gemma-3-27b", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm", COLUMNS="120").stdout
    )


def test_an_ascii_terminal_is_no_reason_to_fail():
    assert shell("size", "gemma-3-27b", PYTHONIOENCODING="ascii", LC_ALL="C").returncode == 0


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    command = f"{sys.executable} -m kvcalc models list 2>{tmp_path}/err | head -1"
    out = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert out.returncode == 0
    assert Path(tmp_path / "err").read_text() == ""


@pytest.mark.parametrize("command", ["size llama-8b -q", "models list", "models", "size --help", "--version"])
def test_a_closed_pipe_is_no_error_for_any_verb(command):
    line = f"{sys.executable} -m kvcalc {command} | true; exit ${{PIPESTATUS[0]}}"
    out = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (0, "")


def test_streams_that_cannot_be_written():
    def run(redirected):
        line = f"{sys.executable} -m kvcalc size llama-8b --format json {redirected}"
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)

    assert run(">&-").returncode == 0
    assert "note" not in run("2>&-").stdout.rpartition("}")[2]
    assert run("2>/dev/full").returncode == 0
    full = run(">/dev/full")
    assert full.returncode == 2
    assert full.stderr.splitlines()[-2].startswith("error: stdout")


def test_completion_knows_models_and_formats():
    def complete(words):
        return shell(
            _KVCALC_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1)
        ).stdout.split()

    assert "llama-3.1-8b" in complete("kvcalc size llama-3")
    assert complete("kvcalc size llama-8b --kv-dtype nvfp") == ["nvfp4", "nvfp4_ds_mla"]
    assert "size" in complete("kvcalc si")
    assert complete("kvcalc gpus show h200") == ["h200-sxm-141gb", "h200-sxm", "h200-nvl"]
    assert complete("kvcalc gpus show au") == ["auto"]
    assert complete("kvcalc gpus show DGX") == ["DGX-spark-gb10", "DGX-spark"]


def test_help_names_the_program():
    assert "kvcalc" in shell().stdout
    assert shell("size", "--help").returncode == 0
    assert shell("models").returncode == 0
