"""A finished run as people read it: on a terminal, as CSV, as a page and as a picture."""

import copy
import csv
import io
import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import Reader
from sample import GEMM, LAYERS, OVERHEAD, READ, run_document

from kvcalc.errors import KvcalcError
from kvcalc.profiler import picture as pictures
from kvcalc.profiler.fit import decode_line, decode_points
from kvcalc.profiler.record import seal
from kvcalc.profiler.report import key_figures, profile_report
from kvcalc.render.terminal import report_text
from kvcalc.render.text import table_cells, to_csv, to_markdown
from kvcalc.report import Column, Table
from kvcalc.units import BYTE_RATES, FLOP_RATES, SECONDS, decimal, decimal_writer, parse_percent

HOSTILE = "<script>alert('x')</script> & \"q\" $\\frac$ \x1b[31m"

# Units


@pytest.mark.parametrize(
    ("value", "scales", "shown"),
    [
        (1.5, SECONDS, "1.500 s"),
        (0.0123, SECONDS, "12.30 ms"),
        (0.1234567, SECONDS, "123.5 ms"),
        (4.2e-5, SECONDS, "42.00 us"),
        (3e-9, SECONDS, "0.003 us"),
        (0.0, SECONDS, "0.000 s"),
        (-0.002, SECONDS, "-2.000 ms"),
        (4.8e12, BYTE_RATES, "4,800 GB/s"),
        (1.2e5, BYTE_RATES, "0.00012 GB/s"),
        (9.89e14, FLOP_RATES, "989.0 TFLOP/s"),
        (2.1e11, FLOP_RATES, "210.0 GFLOP/s"),
    ],
)
def test_one_figure_alone(value, scales, shown):
    assert decimal(value, scales) == shown


@given(st.lists(st.floats(1e-7, 1e4), min_size=1, max_size=8))
def test_a_column_has_one_unit_and_loses_nothing(values):
    cells = [decimal_writer(values, SECONDS)(value) for value in values]
    assert len({cell.split()[1] for cell in cells}) == 1
    scale = {"s": 1, "ms": 1e-3, "us": 1e-6}[cells[0].split()[1]]
    for cell, value in zip(cells, values, strict=True):
        assert float(cell.split()[0].replace(",", "")) * scale == pytest.approx(value, rel=0.01)


def test_cells_of_the_new_units():
    columns = [Column(unit, unit, unit) for unit in ("seconds", "rate", "flops", "fraction", "number")]
    rows = [(0.0123, 18.2e9, 2.1e11, 0.834, 54.321), (0.0015, 9.1e9, None, 0.0042, 1234.0)]
    assert table_cells(Table(tuple(columns), rows)) == [
        ["12.300 ms", "18.200 GB/s", "210.0 GFLOP/s", "0.83", "54.32"],
        ["1.500 ms", "9.100 GB/s", "-", "0.0042", "1,234.00"],
    ]


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), (" 2.5 % ", 0.025), ("0%", 0), ("1000%", 10)])
def test_percentages(text, share):
    assert parse_percent(text, "--fail-on") == pytest.approx(share)


@pytest.mark.parametrize("text", ["5", "0.05", "-5%", "5%%", "", "%", "1001%", "nan%", "9" * 60 + "%"])
def test_what_is_no_percentage(text):
    with pytest.raises(KvcalcError) as caught:
        parse_percent(text, "--fail-on")
    assert "5%" in caught.value.hint


# The line through the decode steps


def test_the_line_finds_what_the_sample_was_made_of():
    line = decode_line(run_document(noise=0.0))
    assert line.overhead_seconds == pytest.approx(LAYERS * OVERHEAD, rel=1e-6)
    assert line.bytes_per_second == pytest.approx(0.88 * READ, rel=1e-9)
    assert line.seconds(0.88 * READ) == pytest.approx(1 + LAYERS * OVERHEAD)


def test_no_line_where_there_is_none():
    assert decode_line(run_document(contexts=(1024,), batches=(1,))) is None
    run = run_document(contexts=(1024, 8192), batches=(1,))
    first, last = (point["decode"] for point in run["points"])
    last["median_seconds"] = first["median_seconds"] / 2
    assert decode_line(run) is None


# A terminal


def test_a_terminal_shows_what_was_measured():
    shown = report_text(profile_report(run_document()))
    first, _, verdict, *_ = shown.splitlines()
    assert first == "llama-3.1-8b   2 of 32 layers   Xeon Platinum 8481C   fp32, KV fp32   reference"
    assert verdict.strip() == "verdict: memory exact to the byte; time not judged"
    for words in (
        "reads 18.20 GB/s, copies 9.300 GB/s, fp32 GEMM 210.0 GFLOP/s",
        "positions: 8 B a sequence",
        "2,147,483,648 B  2,147,483,648 B    0 B",
        "Operations of a decode step at context 32,768, batch 4",
        "scaled_dot_product_attention",
    ):
        assert words in shown


def test_figures_are_those_of_the_run():
    run = run_document()
    step = run["points"][-1]["decode"]
    rows = list(csv.DictReader(io.StringIO(to_csv(profile_report(run)))))
    assert len(rows) == 6
    last = rows[-1]
    assert float(last["decode_median_seconds"]) == step["median_seconds"]
    assert float(last["decode_measured_to_predicted"]) == step["median_seconds"] / step["predicted_seconds"]
    assert int(last["decode_total_bytes_per_step"]) == step["read_bytes_per_step"] + step["weight_bytes"]
    # 32,768 tokens x 4 sequences x 2 layers x K and V x 8 heads x 128 x 4 B, and 8 B of position a sequence.
    assert int(last["measured_bytes"]) == 32768 * 4 * 2 * 2 * 8 * 128 * 4 + 4 * 8
    assert float(last["prefill_achieved_flops_per_second"]) / GEMM == pytest.approx(
        float(last["prefill_flops_fraction"])
    )
    assert last["stopped"] == ""


def test_a_wrong_prediction_is_exit_code_1_with_its_reason():
    run = run_document()
    run["points"][0]["components"][0]["measured_bytes"] += 5
    run["verdict"] = {"memory": "off", "time": "off", "tolerance": 0.3, "reasons": ["`kv` holds 5 B more"]}
    report = profile_report(run)
    assert report.exit_code == 1
    assert report.lines[:2] == (
        "verdict: memory off; time off by more than 30%",
        "  `kv` holds 5 B more",
    )
    assert "16,777,221 B    5 B" in report_text(report)
    assert profile_report(run_document()).exit_code == 0


def test_the_fixed_overhead_is_told_only_where_the_line_is_believable():
    def is_told(run):
        return any(line.startswith("fixed overhead") for line in profile_report(run).lines)

    run = run_document(noise=0.0)
    assert is_told(run)
    run["machine"]["read_bytes_per_second"] = 0.88 * READ / 1.01
    assert decode_line(run) is None
    assert not is_told(run)


@pytest.mark.parametrize(("sooner", "is_believed"), [(0, True), (0.5, True), (2, False)])
def test_no_line_where_no_bytes_would_take_less_than_no_time(sooner, is_believed):
    run = run_document(noise=0.0)
    for point in run["points"]:
        point["decode"]["median_seconds"] -= sooner * LAYERS * OVERHEAD
    assert (decode_line(run) is not None) == is_believed


@pytest.mark.parametrize(("context", "is_believed"), [(10_000, False), (22_530, True)])
def test_no_line_where_the_bytes_span_less_than_twice(context, is_believed):
    # 335,544,320 B of weights and 16,384 B a token: 1,024 tokens read 352,321,536 B, twice that at 22,528 tokens.
    assert (decode_line(run_document((1024, context), (1,), noise=0.0)) is not None) == is_believed


def test_no_line_is_drawn_that_is_not_believed():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    pictures._draw(figure, run_document((1024, 10_000), (1,), noise=0.0))
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    assert labels == ["measured (median)", "bytes / 18.20 GB/s, the measured peak"]


def test_doubts_and_notes_are_said_once():
    run = run_document()
    run["points"][0]["doubts"] = ["decode: 2 samples"]
    run["points"][1]["doubts"] = list(run["doubts"])
    assert profile_report(run).notes == (*run["doubts"], *run["notes"], "context 1,024, batch 1: decode: 2 samples")


def test_a_point_that_ended_early():
    run = run_document(contexts=(1024,), batches=(1,))
    stopped = {"reason": "out of memory", "reached": "prefill", "asked_bytes": 2**33, "available_bytes": 2**32}
    run["points"][0] |= {"decode": None, "ops": [], "stopped": stopped}
    run |= {"decode": None}
    shown = report_text(profile_report(run))
    assert "ended early at prefill, out of memory: asked for 8.00 GiB, 4.00 GiB there" in shown
    assert "Decode" not in shown


@pytest.mark.parametrize(
    ("reached", "words"), [("prefill", "interrupted during prefill"), ("nothing", "interrupted before anything ran")]
)
def test_a_point_that_was_interrupted(reached, words):
    run = run_document(contexts=(1024,), batches=(1,))
    stopped = {"reason": "interrupted", "reached": reached, "asked_bytes": 2**23, "available_bytes": 2**34}
    run["points"][0]["stopped"] = stopped
    shown = report_text(profile_report(run))
    assert f"context 1,024, batch 1 {words}" in shown
    assert "asked for" not in shown


def test_ranks_have_a_table():
    run = run_document()
    run["request"]["tp"] = 2
    rank = {"predicted_bytes": 2**20, "measured_bytes": 2**20, "weight_bytes": 2**30, "decode_seconds": 0.25}
    run["points"][-1] |= {"ranks": [{"rank": 0, **rank}, {"rank": 1, **rank, "measured_bytes": 2**20 + 7}]}
    run["points"][-1]["replication"] = 1.5
    report = profile_report(run)
    assert report.title[-1] == "rank 0 of 2"
    table = report.shown_tables[-2]
    assert table.title == "Ranks at context 32,768, batch 4; together 1.5 copies of the caches"
    assert table_cells(table)[1] == ["1", "1,048,576 B", "1,048,583 B", "1.00 GiB", "250.0 ms"]
    assert not any("rank" in words for words in profile_report(run_document()).title)


def test_memory_shows_formats_and_reads():
    run = run_document(contexts=(1024,), batches=(1,))
    run["request"]["kv_dtype"] = "auto"
    run["points"][0]["components"][0] |= {"format": "fp8", "counted_read_bytes_per_step": 12_345}
    report = profile_report(run)
    assert "fp32, KV fp8" in report.title
    held = report.shown_tables[0]
    assert [column.heading for column in held.columns[3:]] == [
        "format", "predicted", "measured", "error", "read a step", "counted",
    ]  # fmt: skip
    # 1,024 tokens x 2 layers x K and V x 8 heads x 128 x 4 B.
    assert table_cells(held)[0][-2:] == ["16,777,216 B", "12,345 B"]
    assert table_cells(held)[1][-2:] == ["-", "-"]


def test_one_sample_everywhere_keeps_the_columns():
    for table in profile_report(run_document(samples=1)).shown_tables[1:3]:
        places = [place for place, column in enumerate(table.columns) if column.heading in ("p10", "p90")]
        assert {row[place] for row in table_cells(table) for place in places} == {"-"}


def test_one_sample_has_no_spread():
    run = run_document()
    for what in ("prefill", "decode"):
        series = run["points"][0][what]
        series["samples_seconds"] = series["samples_seconds"][:1]
    for table in profile_report(run).shown_tables[1:3]:
        places = [place for place, column in enumerate(table.columns) if column.heading in ("p10", "p90")]
        assert len(places) == 2
        first, second, *_ = table_cells(table)
        assert [first[place] for place in places] == ["-", "-"]
        assert "-" not in [second[place] for place in places]


def test_specified_figures_carry_their_source():
    run = run_document()
    run["machine"] |= {"specified_bytes_per_second": 4.8e12, "specified_source": "H200: data sheet"}
    for point in run["points"]:
        point["decode"]["specified_fraction"] = 0.004
    shown = report_text(profile_report(run))
    assert "specified: 4,800 GB/s (H200: data sheet)" in shown
    assert "of specified" in shown


def served_run():
    times = {"median_seconds": 0.1, "p10_seconds": 0.09, "p90_seconds": 0.12, "samples_seconds": [0.1, 0.11]}
    served = {"url": "http://127.0.0.1:8000/v1", "served_model": "tiny", "ttft": times, "tpot": times}
    return run_document(
        points=[], components=[], prefill=None, decode=None, machine=None,
        served={**served, "tokens_per_second": 51.25, "cache": {"blocks": 320, "usage": None}},
    )  # fmt: skip


def test_a_server_has_a_report_too():
    shown = report_text(profile_report(served_run()))
    assert "tiny at http://127.0.0.1:8000/v1: 51.2 tokens/s" in shown
    assert "its cache: blocks 320" in shown
    assert "time to first token" in shown


@pytest.mark.parametrize("run", [served_run(), run_document(contexts=(1024,), batches=(1,)), run_document(points=[])])
def test_every_format_takes_every_run(run):
    report = profile_report(run)
    assert report_text(report)
    assert to_csv(report)
    assert to_markdown(report).startswith("**llama-3.1-8b**")
    assert key_figures(run).rows


# The command


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    """Write a run into the current folder and return its path: run_file(model={...})."""
    monkeypatch.chdir(tmp_path)

    def write(run=None, **changes):
        path = tmp_path / "run.json"
        path.write_text(json.dumps(run or run_document(**changes), indent=1))
        return path

    return write


def page_of(path):
    return Reader(path.read_text(encoding="utf-8"))


@pytest.fixture
def no_matplotlib(monkeypatch):
    """As on a machine where matplotlib is not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_a_page_tells_the_run(kvcalc, run_file):
    pytest.importorskip("plotly")
    answer = kvcalc("report", run_file())
    assert (answer.code, answer.out, answer.err) == (0, "", "Wrote run.html\n")
    page = page_of(run_file().with_suffix(".html"))
    for figure in ("15.88 GB/s", "156.4 ms", "2,147,483,648 B", "the machine was not quiet", "Xeon Platinum 8481C"):
        assert figure in page.text
    raw = run_document()["points"][0]["decode"]["samples_seconds"][0]
    assert f"{raw:.6g}" in page.text


def test_the_charts_of_a_page_are_the_numbers_of_the_run(kvcalc, run_file):
    pytest.importorskip("plotly")
    kvcalc("report", run_file())
    charts = {one["key"]: one for one in page_of(run_file().with_suffix(".html")).data["chart-data"]}
    assert list(charts) == ["measured", "decode", "roofline"]
    steps = [point["decode"] for point in run_document()["points"]]
    against = charts["measured"]["series"][0]
    assert against["x"] == [step["median_seconds"] for step in steps]
    assert against["y"] == [step["predicted_seconds"] for step in steps]
    assert charts["measured"]["series"][-1]["x"] == charts["measured"]["series"][-1]["y"]
    read = charts["decode"]["series"][0]
    assert read["x"] == [step["read_bytes_per_step"] + step["weight_bytes"] for step in steps]
    # The roof: bandwidth up to the ridge, then what the GEMM did.
    assert charts["roofline"]["series"][-1]["y"][1:] == [GEMM, GEMM]


def test_a_page_without_plotly_is_one_error(kvcalc, run_file, no_matplotlib):
    answer = kvcalc("report", run_file())
    assert (answer.code, answer.out) == (2, "")
    assert "plotly" in answer.err
    assert "pip install 'kvcalc[report]'" in answer.err
    assert not run_file().with_suffix(".html").exists()


def test_a_run_without_points_is_a_page_and_a_table(kvcalc, run_file):
    path = run_file(run_document(points=[]))
    answer = kvcalc("report", path)
    assert (answer.code, answer.err) == (0, "Wrote run.html\n")
    words = page_of(path.with_suffix(".html")).text
    assert "Environment and request" in words
    assert "Raw samples" not in words
    table = kvcalc("report", path, "--format", "table")
    assert table.code == 0
    assert "verdict: memory exact" in table.out


def test_a_picture_without_matplotlib_is_one_error(kvcalc, run_file, no_matplotlib):
    answer = kvcalc("report", run_file(), "-o", "x.svg")
    assert (answer.code, answer.out) == (2, "")
    assert "pip install 'kvcalc[report]'" in answer.err


def test_nothing_of_a_run_becomes_markup(kvcalc, run_file):
    pytest.importorskip("plotly")
    run = run_document(model={"name": HOSTILE, "source": HOSTILE}, doubts=[HOSTILE], notes=[HOSTILE])
    run["environment"] |= {"device_name": HOSTILE, "command": HOSTILE, "throttled": [HOSTILE]}
    run["verdict"]["reasons"] = [HOSTILE]
    for point in run["points"]:
        point["ops"][0] |= {"name": HOSTILE, "kernel": HOSTILE}
        point["components"][0]["name"] = HOSTILE
        point["rules"][0]["rule"] = HOSTILE
    assert kvcalc("report", run_file(seal(run))).code == 0
    page = page_of(run_file(seal(run)).with_suffix(".html"))
    assert not any("alert('x')" in script for script in page.scripts)
    assert "<script>alert('x')</script>" in page.text
    assert "\x1b" not in page.text


def test_a_page_is_not_overwritten_unless_forced(kvcalc, run_file):
    pytest.importorskip("plotly")
    path = run_file()
    assert kvcalc("report", path).code == 0
    again = kvcalc("report", path)
    assert again.code == 2
    assert "run.html exists" in again.err
    assert kvcalc("report", path, "--force").code == 0
    assert kvcalc("report", path, "-o", "other.htm").code == 0
    assert path.with_name("other.htm").read_bytes() == path.with_suffix(".html").read_bytes()


def test_report_prints_what_the_terminal_showed(kvcalc, run_file):
    run = run_document()
    path = run_file(run)
    table = kvcalc("report", path, "--format", "table")
    assert table.code == 0
    assert table.out == report_text(profile_report(run))
    assert kvcalc("report", path, "-o", "-").out == table.out
    assert kvcalc("report", path, "--format", "csv").out == to_csv(profile_report(run))
    assert kvcalc("report", path, "-o", "copy.md").code == 0
    assert path.with_name("copy.md").read_text() == to_markdown(profile_report(run))
    assert not path.with_suffix(".html").exists()


def test_a_run_printed_as_json_is_the_run_with_its_seal(kvcalc, run_file):
    path = run_file()
    assert kvcalc("report", path, "-o", "copy.json").code == 0
    copied = path.with_name("copy.json")
    assert json.loads(copied.read_text()) == run_document()
    assert kvcalc("report", copied, "--format", "json").json == run_document()


def test_a_suffix_that_names_nothing(kvcalc, run_file):
    answer = kvcalc("report", run_file(), "-o", "x.pdf")
    assert answer.code == 2
    assert ".html, .htm, .svg, .png, .json" in answer.err


def test_a_file_that_is_no_run(kvcalc, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    assert "names no schema" in kvcalc("report", path).err
    assert "is no run file" in kvcalc("report", path, "--format", "table").err


def test_report_loads_neither_torch_nor_matplotlib(run_file):
    path = run_file()
    code = (
        "import sys; from kvcalc.cli.app import main\n"
        f"assert main(['report', {str(path)!r}, '--format', 'json']) == 0\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(out.rpartition("LOADED")[2].split()) & {"torch", "matplotlib", "numpy", "pandas", "rich"} == set()


# The picture


def test_a_run_without_decode_steps_has_no_picture(kvcalc, run_file):
    pytest.importorskip("matplotlib")
    answer = kvcalc("report", run_file(served_run()), "-o", "x.png")
    assert answer.code == 2
    assert "nothing to draw" in answer.err


@pytest.mark.parametrize(("contexts", "batches"), [((1024,), (1,)), ((1024, 8192, 32768), (1, 4))])
def test_the_picture_is_drawn(kvcalc, run_file, contexts, batches):
    pytest.importorskip("matplotlib")
    path = run_file(contexts=contexts, batches=batches)
    assert kvcalc("report", path, "-o", "x.svg").code == 0
    assert ET.parse(path.with_name("x.svg")).getroot().tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314
    assert kvcalc("report", path, "-o", "x.png").code == 0
    assert path.with_name("x.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_picture_is_the_same_each_time():
    pytest.importorskip("matplotlib")
    run = run_document()
    assert pictures.picture(run, "svg") == pictures.picture(run, "svg")


def test_what_the_picture_shows():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    run = run_document(noise=0.0)
    figure = Figure(layout="constrained")
    pictures._draw(
        figure,
        run,
    )
    left, right = figure.axes
    dots, fitted, predicted = left.get_lines()
    assert [count * 2**30 for count in dots.get_xdata()] == pytest.approx([count for count, _ in decode_points(run)])
    assert fitted.get_label() == "84.00 us + bytes / 16.02 GB/s"
    assert predicted.get_label() == "bytes / 18.20 GB/s, the measured peak"
    labels = [text.get_text() for text in right.get_legend().get_texts()]
    assert labels[:4] == ["decode step", "prefill", "attention over kv", "projections"]
    roof = right.get_lines()[-1]
    # Bandwidth meets arithmetic at 210 GFLOP/s / 18.2 GB/s = 11.5 FLOP a byte.
    assert roof.get_xdata()[1] == pytest.approx(11.538, rel=1e-3)
    assert max(roof.get_ydata()) == GEMM
    for line in right.get_lines()[:-1]:
        for intensity, rate in zip(*line.get_data(), strict=True):
            assert rate <= min(GEMM, READ * intensity)


def test_many_operations_share_the_last_mark_and_idle_ones_have_none():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    run = run_document(contexts=(1024,), batches=(1,), machine=None)
    ops = run["points"][0]["ops"]
    ops += [{**copy.deepcopy(ops[0]), "name": f"op {place}"} for place in range(5)]
    ops.append({**ops[0], "name": "copy", "flops": 0})
    figure = Figure(layout="constrained")
    pictures._draw(figure, run)
    lines = figure.axes[1].get_lines()
    assert [line.get_label() for line in lines][-1] == "other operations"
    assert len(lines[-1].get_xdata()) == 5
