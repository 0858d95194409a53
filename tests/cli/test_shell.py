"""Help, completion in real shells, and terminals of every width."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.cli.app import VERBS, main
from kvcalc.cli.completion import complete_engine, complete_format, complete_timed_engine, complete_weights
from kvcalc.render.terminal import _print, _print_table, report_text
from kvcalc.report import Bar, Column, Report, Table

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("verb", [[], *([name] for name in VERBS)])
@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_help_is_never_cut(verb, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    assert main([*verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert "Usage: kvcalc" in out


def test_help_reads_like_a_page_of_contents(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    headings = [line[:-1] for line in re.findall(r"^\S.*:$", out, re.MULTILINE)]
    assert headings[: headings.index("Options")] == list(dict.fromkeys(heading for heading, _, _ in VERBS.values()))
    assert "What hardware carries" in out
    assert "Begin with" in out


def test_flags_stand_under_the_heading_of_their_group(capsys):
    main(["fit", "--help"])
    out = capsys.readouterr().out
    assert out.index("\nArguments:") < out.index("\nWorkload:") < out.index("\nCards:") < out.index("\nOptions:")
    assert out.index("--gpu-memory-utilization") > out.index("\nvLLM (")


def test_engines_and_releases_complete():
    assert complete_engine("v") == ["vllm"]
    assert complete_engine("vllm,sg") == ["vllm,sglang"]
    assert "vllm@0.26.0" in complete_engine("vllm@0.26")
    assert complete_engine("nothing@1") == []
    assert complete_timed_engine("gp") == ["gpt-fast"]


def test_weights_complete_with_recipes_and_caches_without():
    assert complete_weights("q4_") == ["q4_1", "q4_0", "q4_k_m"]
    assert complete_weights("fp8,q4_k") == ["fp8,q4_k_m"]
    assert complete_format("q4_k") == []


COMPLETED = {
    "bash": "source ~/.bash_completions/kvcalc.sh; COMP_WORDS=(kvcalc size llama-3.1-8); COMP_CWORD=2; _kvcalc_completion kvcalc; printf '%s\\n' \"${COMPREPLY[@]}\"",
    "fish": "complete -C 'kvcalc size llama-3.1-8'",
    "zsh": "_KVCALC_COMPLETE=complete_zsh _TYPER_COMPLETE_ARGS='kvcalc size llama-3.1-8' kvcalc",
}


@pytest.mark.parametrize("shell", COMPLETED)
def test_completion_is_installed_and_works_in_a_real_shell(shell, tmp_path):
    if shutil.which(shell) is None or not (BIN / "kvcalc").exists():
        pytest.skip(f"no {shell}, or kvcalc is not installed beside this Python")
    env = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    env.pop("XDG_CONFIG_HOME", None)
    subprocess.run(["kvcalc", "--install-completion", shell], env=env, check=True, capture_output=True)
    out = subprocess.run([shell, "-c", COMPLETED[shell]], env=env, check=True, capture_output=True, text=True).stdout
    assert "llama-3.1-8b" in out


words = st.text(alphabet="abcdefgh ", min_size=0, max_size=60)


@given(
    rows=st.lists(st.tuples(words, words, st.integers(0, 10**12)), min_size=1, max_size=4), width=st.integers(20, 140)
)
@settings(max_examples=200, deadline=None)
def test_a_table_loses_no_word_at_any_width(rows, width):
    import io

    from rich.console import Console

    out = io.StringIO()
    columns = (Column("a", "what"), Column("b", "why"), Column("c", "n", "count"))
    _print_table(Table(columns, rows), Console(file=out, width=width, force_terminal=True, no_color=True))
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "…" not in text
    letters = sorted(letter for row in rows for cell in row[:2] for letter in cell if letter != " ")
    shown = sorted(letter for letter in re.sub(r"\b(what|why|n)\b", "", text) if letter in "abcdefgh")
    assert shown == letters
    for *_, number in rows:
        assert f"{number:,}" in text


sentences = st.lists(st.text("abcd", min_size=4, max_size=10), min_size=8, max_size=20).map(" ".join)


@given(
    bars=st.lists(
        st.builds(
            Bar, label=words.filter(str.strip), bytes=st.integers(0, 10**12), detail=words, depth=st.integers(0, 2)
        ),
        max_size=3,
    ),
    lines=st.lists(st.tuples(st.sampled_from(["", "  "]), sentences), min_size=1, max_size=3),
    width=st.integers(20, 80),
)
@settings(max_examples=100, deadline=None)
def test_sentences_break_between_words_on_a_terminal_and_never_in_a_pipe(bars, lines, width):
    import io

    from rich.console import Console

    report = Report(document={}, title=("t",), tables=(), bars=tuple(bars), lines=tuple(map("".join, lines)))
    out = io.StringIO()
    _print(report, Console(file=out, width=width, force_terminal=True, no_color=True))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    for _, line in lines:
        assert " ".join(line.split()) in " ".join(shown.split())
    if not bars:
        assert all(len(line) <= width for line in shown.splitlines())
    assert all(f"  {line}".rstrip() in report_text(report).splitlines() for line in report.lines)


def test_what_goes_on_stands_further_in():
    import io

    from rich.console import Console

    out = io.StringIO()
    report = Report(document={}, title=("t",), tables=(), lines=("  one: two --four-five", "six"))
    _print(report, Console(file=out, width=20, force_terminal=True, no_color=True))
    assert out.getvalue().splitlines()[-3:] == ["    one: two", "      --four-five", "  six"]
