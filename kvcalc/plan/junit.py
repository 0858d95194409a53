"""A check as JUnit XML: a suite a plan, a test a limit of a case.

The form is the one that Jenkins, GitLab and others read: jenkinsci/xunit-plugin, resources/.../junit-10.xsd.
"""

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from kvcalc.plan.documents import CheckDocument, CheckedCaseDocument, VerdictDocument
from kvcalc.plan.sentences import (
    compared,
    error_sentence,
    fails,
    lock_sentence,
    moved_sentence,
    verdict_sentence,
)

Element = ElementTree.Element


def junit(document: CheckDocument) -> str:
    """The document as XML: a failure for what is broken, an error for a case that has no answer.

    A comparison with a baseline and with a lock are tests of their own.
    """
    tests = [*_of_cases(document), *_of_baseline(document), *_of_lock(document)]
    counts = {
        "tests": str(len(tests)),
        "failures": str(sum(test.find("failure") is not None for test in tests)),
        "errors": str(sum(test.find("error") is not None for test in tests)),
    }
    root = Element("testsuites", {"name": "kvcalc check", **counts})
    more = {"name": _xml(document["plan"]), **counts, "skipped": "0", "time": "0"}
    suite = ElementTree.SubElement(root, "testsuite", more)
    suite.extend(tests)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _of_cases(document: CheckDocument) -> Iterator[Element]:
    for case in document["cases"]:
        for verdict in case["verdicts"]:
            yield _of_verdict(case, verdict)
        if case["error"] is not None:
            place = f"{case['error']['file']}:{case['error']['line']}"
            test = _test(case["name"], "answer")
            yield _with(test, "error", "no answer", error_sentence(case), place)


def _of_verdict(case: CheckedCaseDocument, verdict: VerdictDocument) -> Element:
    test, sentence = _test(case["name"], verdict["limit"]), verdict_sentence(verdict)
    if not verdict["passed"]:
        place = f"{verdict['file']}:{verdict['line']}"
        return _with(test, "failure", verdict["limit"], sentence, place, verdict["rule"], verdict["change"] or "")
    ElementTree.SubElement(test, "system-out").text = _xml(sentence)
    return test


def _of_baseline(document: CheckDocument) -> Iterator[Element]:
    baseline = document["baseline"]
    for moved in compared(baseline) if baseline else ():
        test = _test(moved["case"], f"{moved['figure']} against the baseline")
        if baseline and fails(moved, baseline["fail_on"]):
            yield _with(test, "failure", "worse", moved_sentence(moved))
        else:
            ElementTree.SubElement(test, "system-out").text = _xml(f"{moved['change']}: {moved_sentence(moved)}")
            yield test


def _of_lock(document: CheckDocument) -> Iterator[Element]:
    lock = document["lock"]
    for entry in lock["moved"] if lock and not lock["passed"] else ():
        test = _test("lock", f"{entry['kind']} {entry['name']}")
        yield _with(test, "failure", "moved", lock_sentence(entry))


def _test(classname: str, name: str) -> Element:
    return Element("testcase", classname=_xml(classname), name=_xml(name), time="0")


def _with(test: Element, tag: str, kind: str, message: str, *lines: str) -> Element:
    found = ElementTree.SubElement(test, tag, type=_xml(kind), message=_xml(message))
    found.text = _xml("\n".join(filter(None, (message, *lines))))
    return test


def _xml(text: str) -> str:
    """Text without the characters that XML 1.0 forbids (https://www.w3.org/TR/xml/#charsets)."""
    return _FORBIDDEN.sub("\ufffd", text)


_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
