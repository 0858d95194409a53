"""JUnit XML against the structure that Jenkins' own schema asks (jenkinsci/xunit-plugin, junit-10.xsd)."""

from xml.etree import ElementTree

import pytest
from check_documents import baseline, case, document, failing, moved, verdict
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.plan.junit import junit

# Element: its attributes, those that must be there, and its children (junit-10.xsd).
STRUCTURE = {
    "testsuites": ({"name", "time", "tests", "failures", "disabled", "errors"}, set(), {"testsuite"}),
    "testsuite": (
        {
            "name",
            "tests",
            "failures",
            "errors",
            "time",
            "disabled",
            "skipped",
            "timestamp",
            "hostname",
            "id",
            "package",
        },
        {"name", "tests"},
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name", "assertions", "time", "classname", "status"},
        {"name", "classname"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "failure": ({"type", "message"}, set(), set()),
    "error": ({"type", "message"}, set(), set()),
    "system-out": (set(), set(), set()),
}


def checked(text: str) -> ElementTree.Element:
    """The root, after every element was held against the structure and every count against what is there."""
    root = ElementTree.fromstring(text)  # noqa: S314 - our own
    assert root.tag == "testsuites"
    for element in root.iter():
        allowed, needed, children = STRUCTURE[element.tag]
        assert needed <= set(element.attrib) <= allowed
        assert {child.tag for child in element} <= children
    for element in (root, *root.iter("testsuite")):
        assert int(element.attrib["tests"]) == len(list(element.iter("testcase")))
        assert int(element.attrib["failures"]) == len(list(element.iter("failure")))
        assert int(element.attrib["errors"]) == len(list(element.iter("error")))
    return root


def test_a_suite_a_plan_and_a_test_a_limit():
    root = checked(junit(document(case("chat", verdict(), verdict("max_tpot", passed=False)), failing())))
    (suite,) = root
    assert suite.attrib["name"] == "kvcalc.yaml"
    assert [(test.attrib["classname"], test.attrib["name"]) for test in suite] == [
        ("chat", "max_kv_cache"),
        ("chat", "max_tpot"),
        ("lost", "answer"),
    ]
    assert [[child.tag for child in test] for test in suite] == [["system-out"], ["failure"], ["error"]]


def test_a_failure_says_the_figures_the_place_the_rule_and_what_would_pass():
    failure = checked(junit(document(case("chat", verdict(passed=False))))).find(".//failure")
    assert (
        failure.attrib["message"]
        == "2.00 GiB against max_kv_cache 1.00 GiB (-100.0%), exact; --kv-dtype fp8 would pass"
    )
    assert failure.text.split("\n")[1:] == ["kvcalc.yaml:7", "the bytes of all caches", "--kv-dtype fp8"]


def test_an_error_says_what_would_work():
    error = checked(junit(document(failing()))).find(".//error")
    assert error.text == "unknown model 'lama'; did you mean llama?\nkvcalc.yaml:9"


def test_the_baseline_fails_where_the_check_does_and_a_lock_only_where_asked():
    told = baseline(moved("worse", 100, 104), moved("worse", 100, 106), moved("undecided"), moved("better"))
    entry = {"kind": "gpu", "name": "h100", "locked": None, "now": "sha256:0"}
    tests = list(
        checked(junit(document(baseline=told, lock={"file": "l", "moved": [entry], "passed": False}))).iter("testcase")
    )
    tags = [[child.tag for child in test] for test in tests]
    assert tags == [["system-out"], ["failure"], ["system-out"], ["failure"]]
    quiet = checked(junit(document(lock={"file": "l", "moved": [entry], "passed": True})))
    assert list(quiet.iter("testcase")) == []


@pytest.mark.parametrize("letter", ["\x00", "\x1b", "\x0b", "\ud800", "\ufffe", "\uffff"])
def test_what_xml_forbids_is_replaced(letter):
    text = junit(document(case(f"a{letter}b", verdict(passed=False))))
    assert checked(text).find(".//testcase").attrib["classname"] == "a\ufffdb"


@given(st.text(), st.text(), st.text())
def test_any_text_makes_xml_that_parses(name, path, change):
    one = case(
        name,
        verdict(name, passed=False, file=path, rule=change, change=change),
        error=failing(name, path, change)["error"],
    )
    text = junit(document(one, plan=path, baseline=baseline(moved(name=name))))
    assert len(list(checked(text.encode().decode()).iter("testcase"))) == 3
    assert "\x00" not in text


@given(st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff")))
def test_a_name_comes_back_as_it_was(name):
    assert checked(junit(document(case(name, verdict())))).find(".//testcase").attrib["classname"] == name
