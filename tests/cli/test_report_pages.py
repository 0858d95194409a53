"""kvcalc report over what other verbs wrote: the page's numbers are the document's."""

import json

import pytest
from pages import Reader, seen

from kvcalc.chart import Axis
from kvcalc.cli.pages import PAGES
from kvcalc.render.ticks import ticks

pytest.importorskip("plotly")

ASKED = {
    "size": ("size", "gemma3-27b", "--ctx", "32K", "--batch", "4"),
    "compare": ("compare", "llama-8b", "gemma3-27b", "--ctx", "32K"),
    "fit": ("fit", "llama-8b", "--gpu", "h100-sxm", "--ctx", "32K", "--batch", "8"),
    "refused": ("fit", "llama-70b", "--gpu", "l40s", "--ctx", "32K", "--engine", "vllm"),
    "throughput": ("throughput", "llama-8b", "--gpu", "h100-sxm", "--isl", "2K", "--batch", "8", "--served"),
    "grid": ("sweep", "llama-8b", "--gpu", "h100-sxm,l40s", "--ctx", "1K..32K", "--batch", "1..64"),
    "one": ("sweep", "llama-8b", "--gpu", "h100-sxm,l40s", "--ctx", "4K", "--batch", "1..64"),
    "need": ("sweep", "llama-8b", "deepseek-v3", "--ctx", "1K..128K", "--batch", "1,8"),
    "simulated": (
        "simulate",
        "llama-8b",
        "--isl",
        "lognormal:mean=600",
        "--osl",
        "lognormal:mean=100",
        "--rate",
        "6/s",
        "--requests",
        "200",
        "--prefix",
        "prefix:groups=5,tokens=256",
        "--kv-cache-memory",
        "1GiB",
        "--step-time",
        "20ms",
        "--max-model-len",
        "4096",
        "--prefix-caching",
        "on,off",
        "--replicas",
        "2",
        "--routing",
        "least-loaded",
        "--max-ttft",
        "2s",
        "--find",
        "rate",
    ),
    "goals": ("sweep", "llama-8b", "--gpu", "h100-sxm", "--ctx", "4K", "--max-tpot", "30ms"),
}
PLAN = """\
defaults: {engine: vllm, gpu: h100-sxm}
cases:
  - name: chat <b>
    model: llama-8b
    isl: 2K
    osl: 256
    batch: 8
    matrix: {kv_dtype: [bf16, fp8]}
    limits: {min_sequences: 40, max_tpot: 1ms}
  - {name: need, model: gemma3-27b, gpu: null, engine: null, ctx: 32K, limits: {max_kv_cache: 1TiB}}
  - {name: nobody knows, model: llama-9000}
"""


@pytest.fixture
def made(kvcalc, tmp_path, monkeypatch):
    """Ask, save, make the page: made("size") -> (document, page, text)."""
    monkeypatch.chdir(tmp_path)

    def make(name, suffix="json", more=()):
        file = tmp_path / f"{name}.{suffix}"
        assert kvcalc(*ASKED[name], "-o", file, "-q").code in (0, 1)
        answer = kvcalc("report", file, "-o", f"{name}.html", *more)
        assert (answer.code, answer.err) == (0, f"Wrote {name}.html\n")
        text = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        return json.loads(file.read_text()) if suffix == "json" else None, Reader(text), text

    return make


def charts_of(page):
    return {one["key"]: {each["name"]: each for each in one["series"]} for one in page.data["chart-data"]}


def test_a_size(made):
    document, page, _ = made("size")
    charts = charts_of(page)
    for part in document["kv_cache"]["components"]:
        assert charts["breakdown"][part["name"]]["y"] == [part["bytes_per_sequence"] * 4]
    assert charts["breakdown"]["weights"]["y"] == [document["weights"]["bytes"]]
    growth = charts["context"]["all of it"]
    assert growth["y"][growth["x"].index(32768)] == document["kv_cache"]["total_bytes"]
    # Full since token 1,024: 52 layers x K and V x 16 heads x 128 x 2 B, and 4 sequences.
    assert set(charts["context"]["window"]["y"][3:]) == {1024 * 52 * 2 * 16 * 128 * 2 * 4}
    assert "What if" in page.text


def test_a_size_of_a_model_that_is_not_here_has_no_curve(kvcalc, tmp_path, spec_file):
    spec = spec_file(
        "name: mine\nlayers: [{repeat: 2, mixer: {kind: kv, q_heads: 8, kv_heads: 2, head_dim: 64}}]\nhidden_size: 512\n"
    )
    assert kvcalc("size", spec, "-o", tmp_path / "mine.json", "-q").code == 0
    assert kvcalc("report", tmp_path / "mine.json", "-o", tmp_path / "mine.html").code == 0
    page = Reader((tmp_path / "mine.html").read_text())
    assert list(charts_of(page)) == ["breakdown"]
    assert "no bytes against context of mine" in page.text


def test_a_comparison(made):
    document, page, _ = made("compare")
    charts = charts_of(page)
    assert charts["breakdown"]["kv"]["y"] == [document["cases"][0]["kv_cache"]["total_bytes"], None]
    for case in document["cases"]:
        line = charts["context"][case["model"]["name"]]
        assert line["y"][line["x"].index(32768)] == case["kv_cache"]["total_bytes"]


@pytest.mark.parametrize(("name", "verdict"), [("fit", "It fits: 8 sequences"), ("refused", "It does not fit")])
def test_a_card(made, name, verdict):
    document, page, _ = made(name)
    card = charts_of(page)["card"]
    assert verdict in page.text
    for term in document["terms"]:
        assert term["name"] not in card or card[term["name"]]["y"] == [term["expected_bytes"]]
    assert card["KV cache of the batch"]["y"] == [document["allocated_bytes"]]
    if document["fits"]:
        taken = sum(series["y"][0] for series in card.values())
        assert taken == document["gpu"]["total_bytes"]


def test_a_throughput(made):
    document, page, _ = made("throughput")
    step = charts_of(page)["step"]
    assert sum(series["y"][0] or 0 for series in step.values()) == pytest.approx(document["decode"]["step_seconds"])
    assert sum(series["y"][1] or 0 for series in step.values()) == pytest.approx(document["served"]["tpot_seconds"])
    assert "TTFT, served (uncertain)" in page.text


def test_a_sweep_with_its_front(made):
    document, page, _ = made("grid")
    charts = charts_of(page)
    fitting = [point for point in document["points"] if point["fits"]]
    front = charts["latency"].pop("Pareto front of each model and context")
    assert sum(len(series["x"]) for series in charts["latency"].values()) == len(fitting)
    best = {(point["step_seconds"], point["tokens_per_second_per_gpu"]) for point in fitting if point["pareto"]}
    assert {(x, y) for x, y in zip(front["x"], front["y"], strict=True) if y is not None} == best
    longest = charts["capacity"]["l40s"]
    at_once = [point["context_tokens"] for point in fitting if point["gpu"] == "l40s" and point["batch"] == 64]
    assert longest["y"][longest["x"].index(64)] == max(at_once)


def test_a_sweep_of_one_context_draws_nothing_against_contexts(made):
    _, page, _ = made("one")
    assert list(charts_of(page)) == ["latency"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("name", ["grid", "need"])
def test_points_of_every_format_make_the_same_charts(made, name, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    _, page, _ = made(name, suffix)
    _, other, _ = made(name, more=("--force",))
    assert charts_of(page) == charts_of(other)


def test_answers_of_a_sweep_are_a_table(made):
    document, page, _ = made("goals")
    assert page.data == {}
    assert f"{document['answers'][0]['most_users']:,}" in page.text


@pytest.fixture
def plan(tmp_path, kvcalc):
    """The page of a plan."""
    (tmp_path / "kvcalc.yaml").write_text(PLAN)
    answer = kvcalc("report", tmp_path / "kvcalc.yaml", "-o", tmp_path / "plan.html")
    assert answer.code == 0, answer.err
    return (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_a_plan_tells_what_is_broken_first(kvcalc, tmp_path, plan):
    page = Reader(plan)
    document = kvcalc("check", tmp_path / "kvcalc.yaml", "--format", "json", "-q").json
    assert "Failed: " in page.text
    verdicts = [word for word in page.words if word in ("holds", "broken")]
    assert verdicts == sorted(verdicts)
    assert "llama-9000" in page.text
    charts = charts_of(page)
    assert list(charts) == ["breakdown", "card", "context", "capacity", "latency"]
    names = [case["name"] for case in document["cases"] if case["error"] is None]
    assert list(charts["context"]) == names
    figures = {case["name"]: case["figures"] for case in document["cases"]}
    kept = [sum(series["y"][place] or 0 for series in charts["breakdown"].values()) for place in range(len(names))]
    assert kept == [figures[name]["total_bytes"]["value"] for name in names]
    tpot = {
        series["y"][series["x"].index(figures[name]["tpot_seconds"]["value"])]
        for name, series in charts["latency"].items()
        if "tpot_seconds" in figures.get(name, {})
    }
    assert len(tpot) == 2


def test_a_plan_is_drawn_whole_on_a_phone(tmp_path, plan):
    answer = seen(plan, tmp_path, width=360)
    assert answer["failed"] == []
    assert answer["drawn"] == answer["plots"] == 5
    assert answer["wide"] == 0


def test_a_check_that_was_saved(kvcalc, tmp_path, plan):
    kvcalc("check", tmp_path / "kvcalc.yaml", "-o", tmp_path / "check.json", "-q")
    assert kvcalc("report", tmp_path / "check.json", "-o", tmp_path / "check.html").code == 0
    page = Reader((tmp_path / "check.html").read_text())
    assert "broken" in page.words
    assert page.data == {}


def test_a_note_of_several_cases_is_said_once(kvcalc, tmp_path):
    (tmp_path / "kvcalc.yaml").write_text(
        "cases:\n  - {name: a, model: deepseek-v3}\n  - {name: b, model: deepseek-v3}\n"
    )
    kvcalc("check", tmp_path / "kvcalc.yaml", "-o", tmp_path / "check.json")
    assert kvcalc("report", tmp_path / "check.json", "-o", tmp_path / "check.html").code == 0
    text = Reader((tmp_path / "check.html").read_text()).text
    assert text.count("context 8,192 by default") == text.count("2 cases: context 8,192") == 1


# What is no saved result


def test_an_unknown_schema_names_those_that_are_taken(kvcalc, tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"schema": "kvcalc.size/9"}')
    answer = kvcalc("report", file)
    assert answer.code == 2
    assert "schema 'kvcalc.size/9' has no page" in answer.err
    assert all(schema.removeprefix("kvcalc.") in answer.err for schema in PAGES)


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '{"schema": 3}', "[" * 9999])
def test_what_is_no_document(kvcalc, tmp_path, content):
    file = tmp_path / "x.json"
    file.write_text(content)
    answer = kvcalc("report", file, "-o", tmp_path / "x.html")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert not (tmp_path / "x.html").exists()


def test_a_damaged_document_is_refused(kvcalc, tmp_path):
    file = tmp_path / "x.json"
    kvcalc(*ASKED["size"], "-o", file, "-q")
    document = json.loads(file.read_text())
    document["kv_cache"]["total_bytes"] = "much"
    file.write_text(json.dumps(document))
    answer = kvcalc("report", file, "-o", tmp_path / "x.html")
    assert answer.code == 2
    assert "is damaged" in answer.err
    assert "kv_cache.total_bytes" in answer.err


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet"])
@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe", b'{"a": 1}\n', b"3\n"])
def test_what_has_no_points(kvcalc, tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content)
    answer = kvcalc("report", file, "-o", tmp_path / "x.html")
    assert answer.code == 2
    assert "is no sweep" in answer.err


def test_a_page_that_exists_is_refused_before_any_work(kvcalc, tmp_path):
    (tmp_path / "x.html").write_text("mine")
    answer = kvcalc("report", tmp_path / "missing.json", "-o", tmp_path / "x.html")
    assert answer.code == 2
    assert "exists" in answer.err
    assert (tmp_path / "x.html").read_text() == "mine"


def test_a_simulation(made):
    document, page, _ = made("simulated")
    charts, runs = charts_of(page), document["runs"]
    names = [run["setting"]["name"] for run in runs]
    for key, name in {
        "token_states": "token states",
        "cached": "cached prefixes",
        "external": "external, free",
    }.items():
        assert charts["waste"][name]["y"] == [run["use"]["shares"][key] for run in runs]
    for place, run in enumerate(runs):
        assert charts[f"pool-{place}"]["held by requests"]["y"] == run["timeline"]["held"]
        assert charts[f"queue-{place}"]["waiting"]["y"] == run["timeline"]["waiting"]
        assert charts["ttft"][names[place]]["x"] == run["distribution"]["ttft"]
    curve = document["hit_curves"][0]
    assert charts["hits"][f"blocks of {curve['block_tokens']}"]["y"] == curve["hit_rates"]
    (search,) = document["goals"][0]["searches"]
    assert search["value"] == document["goals"][0]["largest_rate_per_second"]
    assert {search["value"], *(one["value"] for one in search["odd"])} & set(charts["rate-0"]["meets the limits"]["x"])
    assert search["beyond"]["value"] in charts["rate-0"]["breaks one"]["x"]
    for said in ("Where the pool goes", "Replicas", "Searches", *names):
        assert said in page.text


def test_a_simulation_in_steps_has_no_seconds(kvcalc, tmp_path):
    drawn = ("--isl", "100", "--osl", "20", "--requests", "20", "--kv-cache-memory", "1GiB", "--max-model-len", "512")
    for allocators in ("paged", "paged,max"):
        kvcalc("simulate", "llama-8b", *drawn, "--allocator", allocators, "-o", tmp_path / "s.json", "--force")
        kvcalc("report", tmp_path / "s.json", "-o", tmp_path / "s.html", "--force")
        text = (tmp_path / "s.html").read_text()
        assert "TTFT p99, steps" in text and "TPOT p99, steps" in text and "TTFT p99<" not in text
        assert "seed=20230916" in text and ", seed 20230916" not in text


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [("fit", ("request", "pp"), 0), ("fit", ("request", "tp"), 0), ("compare", ("cases",), [])],
)
def test_figures_that_do_not_go_together_are_damage(kvcalc, tmp_path, monkeypatch, name, path, value):
    """Every value is of its type, and no verb would write them together: no ranks, a comparison of nothing."""
    monkeypatch.chdir(tmp_path)
    kvcalc(*ASKED[name], "-o", "x.json", "-q")
    document = json.loads((tmp_path / "x.json").read_text())
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (tmp_path / "x.json").write_text(json.dumps(document))
    answer = kvcalc("report", "x.json")
    assert answer.code == 2
    assert answer.err.startswith("error: x.json is damaged: its figures do not go together\nhint: ")
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    ("column", "head", "cell"),
    [("step_seconds", "step_seconds", "inf"), ("tokens_per_second_per_gpu", "x", "1")],
)
def test_damaged_points_are_one_line(kvcalc, tmp_path, monkeypatch, column, head, cell):
    monkeypatch.chdir(tmp_path)
    kvcalc("sweep", "llama-8b", "--gpu", "h100-sxm", "--batch", "1..8", "-o", "x.csv", "-q")
    heads, *rows = [line.split(",") for line in (tmp_path / "x.csv").read_text().splitlines()]
    place = heads.index(column)
    heads[place] = head
    rows[-1][place] = cell
    (tmp_path / "x.csv").write_text("".join(",".join(row) + "\n" for row in (heads, *rows)))
    answer = kvcalc("report", "x.csv")
    assert (answer.code, answer.err.splitlines()[0]) == (2, "error: x.csv is damaged: its figures do not go together")
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("place", ["runs", "seconds", "rates"])
def test_figures_that_contradict_each_other_are_damage_too(kvcalc, tmp_path, place):
    file = tmp_path / "x.json"
    kvcalc(*ASKED["simulated"], "-o", file, "-q")
    document = json.loads(file.read_text())
    if place == "runs":
        document["runs"] = []
    elif place == "seconds":
        document["runs"][0]["timeline"]["held"].pop()
    else:
        document["hit_curves"] = [{**document["hit_curves"][0], "unlimited": 5.0}]
    file.write_text(json.dumps(document))
    answer = kvcalc("report", file, "-o", tmp_path / "x.html")
    assert (answer.code, answer.out) == (2, "")
    assert "is damaged" in answer.err
    assert not (tmp_path / "x.html").exists()


def test_a_value_far_below_zero_is_drawn_with_few_ticks():
    """Steps of an axis reach its longer side; by its upper one alone there would be 10**300 of them."""
    values = [1.0, -1e300]
    assert len(ticks(values, Axis("share", "fraction"))) <= 9
    assert len(ticks([-3.0, -1.0], Axis("share", "fraction"))) <= 9


def test_a_file_of_no_format_is_refused_before_anything_is_read(kvcalc, tmp_path):
    plan = tmp_path / "kvcalc.yaml"
    plan.write_text("cases:\n  - {name: a, model: llama-8b}\n")
    answer = kvcalc("report", plan, "-o", tmp_path / "x.xls")
    assert (answer.code, answer.out) == (2, "")
    assert ".xls names no format" in answer.err
