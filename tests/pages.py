"""What tests of pages share: a parser that checks how a page is built, and a browser that says what it did."""

import html.parser
import json
import re
from pathlib import Path

from browser import run_browser

VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})


class Reader(html.parser.HTMLParser):
    """Tags, attributes, words, headings and scripts of a page; it must nest and name nothing outside of itself."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.words, self.headings = [], [], [], [], []
        self.scripts, self.data, self.links, self.meta = [], {}, [], {}
        self.attributes = []
        self.feed(page)
        assert self.open == [], self.open

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.attributes.append((tag, found))
        assert not [name for name in found if name.startswith("on")], found
        assert not {"src", "srcset", "action", "xlink:href", "data"} & found.keys(), found
        self.links += [found["href"]] if "href" in found else []
        self.ids += [found["id"]] if "id" in found else []
        if tag == "meta":
            self.meta[found.get("name") or found.get("http-equiv") or "charset"] = found.get("content")
        if tag not in VOID:
            self.open.append((tag, found))

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag, tag

    def handle_data(self, data):
        tag, attributes = self.open[-1] if self.open else ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.data[attributes.get("id", "")] = json.loads(data)
        elif tag == "script":
            self.scripts.append(data)
        elif tag != "style":
            self.words.append(data)
            if re.fullmatch("h[1-6]", tag):
                self.headings.append((int(tag[1]), data))

    @property
    def text(self) -> str:
        return " ".join(self.words)


PROBE = """<script>
window.addEventListener("error", (event) => { window.failed = (window.failed || []).concat(String(event.message)); });
document.addEventListener("securitypolicyviolation", (event) => {
  window.failed = (window.failed || []).concat(`policy: ${event.violatedDirective} ${event.blockedURI}`);
});
</script>"""
ANSWER = """<script>
window.addEventListener("load", () => setTimeout(() => {
  const plots = [...document.querySelectorAll(".plot")];
  const answer = JSON.stringify({
    failed: window.failed || [],
    title: document.title,
    plots: plots.length,
    drawn: plots.filter((one) => one.querySelector("svg.main-svg")).length,
    marks: plots.map((one) => one.querySelectorAll(".points path, .lines path, .point path").length),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    width: document.documentElement.clientWidth,
    ink: plots.length ? getComputedStyle(plots[0].querySelector("svg text")).fill : "",
    extra: EXTRA,
  });
  parent.postMessage(answer, "*");
}, 300));
</script>"""


FRAME = """<!doctype html><body style="margin:0"><script>
addEventListener("message", (event) => {
  const answer = document.createElement("template");
  answer.id = "answer";
  answer.setAttribute("data-json", event.data);
  document.body.append(answer);
});
</script><iframe src="seen.html" style="border:0;width:WIDTHpx;height:900px"></iframe>"""


def seen(page: str, folder: Path, *flags: str, extra: str = "null", width: int = 1280) -> dict[str, object]:
    """What a headless Chromium made of the page: errors, charts drawn, and how far it is wider than its window.

    A window of Chromium is at least 500 pixels wide, so the page stands in a frame of `width` pixels.
    """
    probed = page.replace("<head>", f"<head>{PROBE}", 1)
    probed = probed.replace("</body>", ANSWER.replace("EXTRA", extra) + "</body>", 1)
    folder.joinpath("seen.html").write_text(probed, encoding="utf-8")
    frame = FRAME.replace("WIDTH", str(width))
    size = ("--window-size=1400,1000", "--virtual-time-budget=8000")
    dom = run_browser(frame, folder, "", *size, *flags, "--dump-dom")
    found = re.search(r'<template id="answer" data-json="([^"]*)"', dom)
    assert found, dom[-2000:]
    answer: dict[str, object] = json.loads(html.unescape(found[1]))
    return answer
