"""`kvcalc check` as CI runs it: exit codes, and what goes to stdout, to stderr and to files."""

import json
from xml.etree import ElementTree

import pytest
from action_steps import commands

PLAN = """
defaults: {engine: vllm, gpu: h100-sxm, ctx: 8K}
limits: {must_fit: true}
cases:
  - {name: chat, model: llama-8b, batch: 4}
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvcalc.yaml").write_text(PLAN)
    return tmp_path


@pytest.fixture
def main_json(plan, kvcalc):
    assert kvcalc("check", "--format", "json", "-o", "main.json").code == 0
    return "main.json"


@pytest.mark.parametrize(("fail_on", "code"), [((), 1), (("--fail-on", "12%"), 1), (("--fail-on", "13%"), 0)])
def test_an_eighth_more_cache_fails_below_an_eighth(kvcalc, main_json, fail_on, code):
    """9,216 tokens are 12.5% more than 8,192; fewer sequences fit too, but by less: 1 / 1.125 is a drop of 11.1%."""
    answer = kvcalc("check", "--ctx", "9K", "--baseline", main_json, *fail_on, "--format", "json")
    assert answer.code == code
    changes = {one["figure"]: one["change"] for one in answer.json["baseline"]["moved"]}
    asked = ("bytes_per_token", "bytes_per_sequence", "max_sequences")
    assert [changes[name] for name in asked] == ["same", "worse", "worse"]
    assert answer.json["passed"] is (code == 0)


def test_less_is_better_and_passes(kvcalc, main_json):
    answer = kvcalc("check", "--kv-dtype", "fp8", "--baseline", main_json)
    assert answer.code == 0
    assert "better" in answer.out


def test_a_limit_that_broke_is_told_with_its_line(kvcalc, main_json):
    answer = kvcalc("check", "--batch", "400", "--baseline", main_json, "--fail-on", "1000%", "--format", "json")
    assert answer.code == 1
    (broken,) = answer.json["baseline"]["newly_broken"]
    assert (broken["case"], broken["limit"], broken["line"]) == ("chat", "must_fit", 3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"schema": "kvcalc.fit/1"}', "kvcalc.fit"),
        ('{"schema": "kvcalc.check/2"}', "kvcalc.check/2"),
        ("{", "cut short"),
    ],
)
def test_a_baseline_that_is_none_is_one_line_and_exit_2(kvcalc, plan, content, says):
    (plan / "main.json").write_text(content)
    answer = kvcalc("check", "--baseline", "main.json")
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err.splitlines()[0]
    assert len(answer.err.splitlines()) == 2


def test_a_lock_is_written_held_against_and_tells_what_moved(kvcalc, plan):
    missing = kvcalc("check", "--locked")
    assert (missing.code, missing.out) == (2, "")
    assert "there is no kvcalc.lock" in missing.err
    assert kvcalc("check").err == ""
    assert "Wrote kvcalc.lock" in kvcalc("check", "--update-lock").err
    assert kvcalc("check", "--locked").code == 0
    moved = kvcalc("check", "--locked", "--engine", "vllm@0.32", "--format", "json")
    assert moved.code == 1
    assert [(one["name"], one["locked"] is None) for one in moved.json["lock"]["moved"]] == [
        ("vllm@0.33.0", False),
        ("vllm@0.32.0", True),
    ]
    assert "--update-lock" in moved.err


def test_without_locked_a_lock_that_moved_is_a_note(kvcalc, plan):
    kvcalc("check", "--update-lock")
    answer = kvcalc("check", "--gpu", "h200-sxm")
    assert answer.code == 0
    assert "note: kvcalc.lock: 2 entries have moved" in answer.err
    assert kvcalc("check", "--gpu", "h200-sxm", "--format", "github").err.startswith("note: kvcalc.lock: 2 entries")


def test_another_release_of_kvcalc_has_moved(kvcalc, plan):
    kvcalc("check", "--update-lock")
    lock = plan / "kvcalc.lock"
    lock.write_text(lock.read_text().replace('"kvcalc": "', '"kvcalc": "0.0.'))
    answer = kvcalc("check", "--locked")
    assert answer.code == 1
    assert "kvcalc version: locked 0.0." in answer.out


def test_a_broken_lock_is_refused_by_locked_and_written_again_by_update(kvcalc, plan):
    (plan / "kvcalc.lock").write_text("{")
    assert kvcalc("check", "--locked").code == 2
    assert kvcalc("check", "--update-lock").code == 0
    assert kvcalc("check", "--locked").code == 0


def test_a_lock_is_one_of_every_case(kvcalc, plan):
    kvcalc("check", "--update-lock")
    before = (plan / "kvcalc.lock").read_text()
    (plan / "kvcalc.yaml").write_text(PLAN + "  - {name: lost, model: no-such-model}\n")
    answer = kvcalc("check", "--update-lock")
    assert answer.code == 2
    assert "kvcalc.lock is not written: lost has no answer" in answer.err
    assert (plan / "kvcalc.lock").read_text() == before
    answer = kvcalc("check", "--locked")
    assert answer.code == 2
    assert "kvcalc.lock is not compared: not every case has an answer" in answer.err


def test_in_github_a_table_is_followed_by_annotations_and_a_summary(kvcalc, plan, monkeypatch):
    (plan / "kvcalc.yaml").write_text(PLAN.replace("name: chat", 'name: "::error::owned"'))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(plan / "summary.md"))
    answer = kvcalc("check", "--batch", "400")
    assert answer.code == 1
    (command,) = commands(answer.out)
    assert command.startswith(
        "::error file=kvcalc.yaml,line=3,title=%3A%3Aerror%3A%3Aowned%3A must_fit::400 x 8,192 tokens"
    )
    assert "400 x 8,192 tokens" in answer.out.partition("::error file=")[0]
    assert (plan / "summary.md").read_text().startswith("### kvcalc check: failed")


@pytest.mark.parametrize("arguments", [("--format", "json"), ("-o", "check.txt")])
def test_in_github_an_answer_for_machines_or_a_file_is_what_it_always_is(kvcalc, plan, monkeypatch, arguments):
    expected = kvcalc("check", *arguments, "--force").out
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert kvcalc("check", *arguments, "--force").out == expected


def test_junit_goes_to_a_file_by_its_suffix(kvcalc, plan):
    assert kvcalc("check", "-o", "kvcalc.xml").code == 0
    (suite,) = ElementTree.parse(plan / "kvcalc.xml").getroot()  # noqa: S314 - our own
    assert [test.attrib["name"] for test in suite] == ["must_fit"]
    assert kvcalc("check", "-o", "kvcalc.xml").code == 2
    assert json.loads(kvcalc("check", "--format", "json").out)["passed"] is True


@pytest.mark.parametrize("name", ["##[error]owned", "x ##[set-output name=passed]true"])
@pytest.mark.parametrize(
    "case",
    [
        "{name: NAME, model: llama-8b, gpu: h100-sxm}",  # a note: its context is the default
        "{name: NAME}",
        "{name: a, model: llama-8b, NAME: 1}",
    ],
)
def test_no_name_is_a_command_on_stderr(kvcalc, plan, name, case):
    """The runner obeys `##[command]` anywhere in a line, of stderr too: actions/runner, ActionCommand.cs, TryParse."""
    (plan / "kvcalc.yaml").write_text(f"cases:\n  - {case.replace('NAME', json.dumps(name))}\n")
    answer = kvcalc("check", "--format", "json")
    assert name.replace("##[", "#_[") in answer.err
    assert "##[" not in answer.err


def test_long_names_leave_an_error_one_short_line(kvcalc, plan):
    long = "a" * 3000
    for cases in ([f"{{name: {long}}}"], [f"{{name: {long}, model: llama-8b}}"] * 2):
        (plan / "kvcalc.yaml").write_text(f"cases: [{', '.join(cases)}]\n")
        answer = kvcalc("check")
        assert answer.code == 2
        assert max(map(len, answer.err.splitlines())) < 200


@pytest.mark.parametrize("arguments", [(), ("--format", "github")])
@pytest.mark.parametrize("summary", [".", "/dev/full", "missing/summary.md", "a" * 300])
def test_verdicts_stand_where_a_summary_cannot_be_written(kvcalc, plan, monkeypatch, summary, arguments):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", summary)
    answer = kvcalc("check", "--batch", "400", *arguments)
    assert answer.code == 1
    assert [one.partition(" ")[0] for one in commands(answer.out)] == ["::error"]
    assert answer.err.startswith("note: the step has no summary: GITHUB_STEP_SUMMARY ")
    assert len(answer.err.splitlines()) == 1


def test_commands_are_obeyed_again_where_a_table_cannot_be_printed(kvcalc, plan, monkeypatch, capsys):
    """A `stop-commands` without its end would silence all that the step says after kvcalc."""

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setattr("kvcalc.cli.check.emit", fails)
    answer = kvcalc("check")
    assert answer.code == 2
    assert commands(answer.out + "::notice::behind\n") == ["::notice::behind"]
