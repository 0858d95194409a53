"""Annotations against what GitHub's runner makes of them, and a summary that is nothing but text.

The runner splits the properties of a `::command name=value,...::message` at `,` and `=` and undoes the escapes as
`unescaped` does (actions/runner, src/Runner.Common/ActionCommand.cs, TryParseV2, UnescapeProperty, UnescapeData).
"""

import re

import pytest
from check_documents import baseline, case, document, failing, moved, verdict
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import printable
from kvcalc.plan.github import MOST_SUMMARY_BYTES, annotations, append_summary, escape_data, escape_property, summary

HOSTILE = [
    "%0A::error",
    "x\n::set-env name=A::b",
    "a\r\n::warning::b",
    "x,line=9::y",
    "a\u2028::error::b",
    "##[error]x",
]


def unescaped(text: str, pairs: tuple[str, ...] = ("%0D", "%0A")) -> str:
    """As the runner does it: one replacement after the other, the percent sign last."""
    for code in pairs:
        text = text.replace(code, chr(int(code[1:], 16)))
    return text.replace("%25", "%")


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """TryParseV2: the command up to the first blank, properties up to the next `::`, and the message."""
    assert line.startswith("::")
    head, _, message = line[2:].partition("::")
    command, _, properties = head.partition(" ")
    named = dict(item.split("=", 1) for item in properties.split(","))
    values = {name: unescaped(value, ("%0D", "%0A", "%3A", "%2C")) for name, value in named.items()}
    return command, values, unescaped(message)


def test_a_broken_limit_is_an_error_at_its_line_and_says_what_would_pass():
    (line,) = annotations(document(case("chat", verdict(passed=False)))).splitlines()
    command, properties, message = parsed(line)
    assert command == "error"
    assert properties == {"file": "kvcalc.yaml", "line": "7", "title": "chat: max_kv_cache"}
    assert message == "2.00 GiB against max_kv_cache 1.00 GiB (-100.0%), exact; --kv-dtype fp8 would pass"


def test_a_plan_that_passes_says_nothing():
    assert annotations(document(case("chat", verdict()))) == ""


def test_what_is_not_certain_is_a_warning_and_a_case_without_answer_an_error():
    lines = annotations(document(case("chat", verdict(certain=False)), failing())).splitlines()
    assert [parsed(line)[0] for line in lines] == ["error", "warning"]
    assert parsed(lines[0])[1]["line"] == "9"
    assert "unknown model 'lama'; did you mean llama?" in lines[0]


def test_of_eleven_errors_nine_are_shown_and_two_counted_the_broken_limits_first():
    cases = [failing(f"lost-{number}") for number in range(6)]
    cases += [case(f"wide-{number}", verdict(passed=False)) for number in range(5)]
    found = [parsed(line) for line in annotations(document(*cases)).splitlines()]
    assert [properties["title"].split("-")[0] for _, properties, _ in found] == ["wide"] * 5 + ["lost"] * 4 + [
        "kvcalc check: 2 more"
    ]
    assert found[-1][2] == "and 2 more: lost-4: no answer, lost-5: no answer"


def test_ten_errors_are_all_shown_and_levels_are_counted_apart():
    cases = [case(f"c{number}", verdict(passed=False), verdict("max_tpot", certain=False)) for number in range(10)]
    commands = [parsed(line)[0] for line in annotations(document(*cases)).splitlines()]
    assert commands == ["error"] * 10 + ["warning"] * 10
    assert "more" not in annotations(document(*cases))


def test_what_is_broken_for_certain_stands_before_what_may_be():
    text = annotations(
        document(case("may be", verdict(passed=False, certain=False)), case("is", verdict(passed=False)))
    )
    assert [parsed(line)[1]["title"] for line in text.splitlines()] == ["is: max_kv_cache", "may be: max_kv_cache"]


def test_a_figure_that_got_worse_is_an_error_beyond_the_share_and_a_notice_within():
    told = baseline(
        moved("worse", 100, 104, "small"),
        moved("worse", 100, 106, "large"),
        moved("undecided", name="unsure"),
        moved("better", 100, 50),
    )
    lines = annotations(document(case("large"), baseline=told)).splitlines()
    assert [(parsed(line)[0], parsed(line)[1]["title"]) for line in lines] == [
        ("error", "large: worse kv_cache"),
        ("warning", "unsure: undecided kv_cache"),
        ("notice", "small: worse kv_cache"),
    ]
    assert "line=4" in lines[0]
    assert "line=" not in lines[1]


@pytest.mark.parametrize(("passed", "level"), [(False, "error"), (True, "notice")])
def test_a_lock_that_moved_is_an_error_only_where_it_fails_the_check(passed, level):
    entry = {"kind": "engine", "name": "vllm@0.33.0", "locked": "sha256:" + "a" * 64, "now": None}
    found = annotations(document(lock={"file": "kvcalc.lock", "moved": [entry], "passed": passed}))
    assert parsed(found) == (
        level,
        {"file": "kvcalc.lock", "title": "lock: engine vllm@0.33.0"},
        "locked sha256:aaaaaaaaaaaa, now nothing\n",
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_one_line_with_its_own_title(name):
    text = annotations(document(case(name, verdict(passed=False, change=name)), failing(name, name, name)))
    lines = text.splitlines()
    assert len(lines) == 2
    for line in lines:
        command, properties, _ = parsed(line)
        assert command == "error"
        assert properties["title"].startswith(printable(name))
        assert set(properties) == {"file", "line", "title"}


@given(st.text())
def test_escapes_are_those_that_the_runner_undoes(text):
    assert unescaped(escape_data(text)) == text
    assert unescaped(escape_property(text), ("%0D", "%0A", "%3A", "%2C")) == text
    assert not set(escape_property(text)) & set(":,\r\n")


@given(st.text(), st.text(), st.text())
def test_any_text_makes_lines_that_are_commands(name, path, change):
    one = case(
        name,
        verdict(passed=False, file=path, change=change),
        verdict(name, certain=False),
        error=failing(name, path, change)["error"],
    )
    text = annotations(document(one, plan=path, baseline=baseline({**moved(name=name), "figure": name}), notes=[name]))
    text.encode()
    assert text.endswith("\n")
    assert len(text.splitlines()) == 4
    for line in text.splitlines():
        _, properties, _ = parsed(line)
        assert printable(name) in properties["title"]


def test_a_path_is_told_from_the_root_of_the_checkout(tmp_path, monkeypatch):
    (tmp_path / "plans").mkdir()
    monkeypatch.chdir(tmp_path / "plans")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    broken = document(
        case("chat", verdict(passed=False)), case("far", verdict(passed=False, file="/elsewhere/plan.yaml"))
    )
    files = [parsed(line)[1]["file"] for line in annotations(broken).splitlines()]
    assert files == ["plans/kvcalc.yaml", "/elsewhere/plan.yaml"]


def test_the_summary_shows_the_broken_first_and_how_much_is_left():
    text = summary(
        document(case("a", verdict()), case("b", verdict(passed=False)), case("c", verdict(certain=False)), failing())
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert text.startswith(
        "### kvcalc check: failed\n\nkvcalc.yaml: 4 cases, 3 limits, 1 broken, 1 without an answer; kvcalc 0.1.0\n"
    )
    assert [row.split(" | ")[0] for row in rows] == [
        "| case",
        "| b",
        "| c",
        "| a",
        "| case without an answer",
        "| lost",
    ]
    assert rows[1] == r"| b | max\_kv\_cache | 1.00 GiB | 2.00 GiB | -100.0% | exact | **broken** | --kv-dtype fp8 |"
    assert rows[2].split(" | ")[6] == "passed, not certain"


def test_the_summary_tells_of_the_baseline_the_lock_and_the_notes():
    told = baseline(
        moved("better", 100, 50),
        moved("same", 7, 7),
        newly_broken=[{"file": "k", "line": 1, "case": "chat", "limit": "must_fit"}],
        added_cases=["new"],
        removed_cases=["old"],
    )
    entry = {"kind": "kvcalc", "name": "version", "locked": "0.1.0", "now": "0.2.0"}
    text = summary(
        document(baseline=told, lock={"file": "kvcalc.lock", "moved": [entry], "passed": True}, notes=["mind <this>"])
    )
    assert "| chat | better | kv\\_cache: 100 B before, 50 B now (x0.500) |" in text
    assert "- passed before, broken now: chat must\\_fit\n- added: new\n- removed: old" in text
    assert "same" not in text
    assert "| kvcalc | version | locked 0.1.0, now 0.2.0 |" in text
    assert "> - mind &lt;this&gt;" in text


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", "a|b", "`x`", "![x](http://y)", "[x](y)", "**x**", "<img src=x>", "a\nb", "\\|"],
)
def test_a_name_in_the_summary_is_text_in_its_own_cell(name):
    text = summary(document(case(name, verdict(passed=False, change=name))))
    (row,) = [line for line in text.splitlines() if line.startswith("| ") and "broken" in line]
    assert len(re.split(r"(?<!\\)(?:\\\\)*\|", row)) == 10
    assert "<" not in row
    assert not re.search(r"(?<!\\)(?:\\\\)*[`\[\]]", row)


def test_a_summary_ends_at_a_whole_row_within_what_github_shows(tmp_path):
    path = tmp_path / "summary.md"
    path.write_text("x" * 1000)
    many = document(*(case("é" * 60 + str(number), verdict(passed=False)) for number in range(8000)))
    append_summary(many, path)
    assert MOST_SUMMARY_BYTES - 300 < path.stat().st_size <= MOST_SUMMARY_BYTES
    assert path.read_text().endswith("|\n\n*More rows than a summary holds: see the log.*\n")
    append_summary(many, path)
    assert path.stat().st_size <= MOST_SUMMARY_BYTES


def test_a_summary_is_added_to_what_is_there(tmp_path):
    path = tmp_path / "summary.md"
    append_summary(document(case("a", verdict())), path)
    append_summary(document(case("b", verdict())), path)
    assert path.read_text().count("### kvcalc check: passed") == 2
