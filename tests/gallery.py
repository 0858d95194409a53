"""The documentation's pictures, made anew by the commands beside them: `python tests/gallery.py [NAME ...]`.

On a page of PAGES a picture stands below the ```sh block whose commands make it. One that is a PNG has a line before it,
`<!-- seen: FILE.html[#FRAGMENT] WIDTHxHEIGHT [dark] [at SELECTOR] -->`: what a browser shows of that page, scrolled to
SELECTOR. An SVG is the file of its name that a command wrote. Needs chromium, matplotlib, plotly and torch.
"""

import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

from browser import screenshot

from docs import _FILE, DOCS
from kvcalc.cli.app import main

PAGES = (DOCS / "gallery.md", DOCS / "sweep.md")
_PART = re.compile(
    r"^```sh\n(?P<commands>.*?)^```$|^<!-- seen: (?P<seen>.*?) -->$|^!\[(?P<says>.*?)\]\(pictures/(?P<picture>.*?)\)$",
    re.MULTILINE | re.DOTALL,
)
_LEAST_WINDOW = 500
"""Pixels: Chromium opens no narrower window, so that a phone's page stands in a frame."""


class Picture(NamedTuple):
    """One picture of a page: its name, its words for who cannot see it, the commands that make it, and how it is seen."""

    name: str
    says: str
    commands: tuple[str, ...]
    seen: str


def pictures(page: Path) -> Iterator[Picture]:
    """The pictures of a page, in its order."""
    commands: tuple[str, ...] = ()
    seen = ""
    for part in _PART.finditer(page.read_text()):
        if part["commands"]:
            commands = tuple(part["commands"].splitlines())
        elif part["seen"]:
            seen = part["seen"]
        else:
            yield Picture(part["picture"], part["says"], commands, seen if part["picture"].endswith(".png") else "")


def write_files(page: Path, folder: Path) -> None:
    """The files that the page shows, which its commands read."""
    for name, content in _FILE.findall(page.read_text()):
        (folder / name).write_text(content)


def take(picture: Picture, folder: Path) -> None:
    """Put the picture into docs/pictures, from what the commands left in `folder`."""
    to = DOCS / "pictures" / picture.name
    if picture.seen:
        _photograph(picture.seen, folder, to)
    else:
        to.write_text(minified((folder / picture.name).read_text()))


def _photograph(seen: str, folder: Path, to: Path) -> None:
    from PIL import Image  # comes with matplotlib, which the tests of pages do without

    address, size, *rest = seen.split()
    name, _, fragment = address.partition("#")
    width, height = map(int, size.split("x"))
    target = rest[rest.index("at") + 1] if "at" in rest else "html"
    page = (folder / name).read_text().replace("</body>", _SCROLL.replace("TARGET", target) + "</body>", 1)
    (folder / "seen.html").write_text(page)
    frame = _FRAME.format(fragment=fragment, width=width, height=height)
    dark = ["--blink-settings=preferredColorScheme=0"] if "dark" in rest else []
    screenshot(frame, folder, folder / "shot.png", (max(width, _LEAST_WINDOW), height), *dark)
    shot = Image.open(folder / "shot.png").convert("RGB").crop((0, 0, width, height))
    shot.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(to, optimize=True)


_SCROLL = """<script>
addEventListener("load", () => setTimeout(() => document.querySelector("TARGET").scrollIntoView(), 200));
</script>"""
_FRAME = (
    '<!doctype html><body style="margin:0"><iframe src="seen.html#{fragment}" '
    'style="border:0;display:block;width:{width}px;height:{height}px"></iframe>'
)


def minified(svg: str) -> str:
    """The picture without its metadata, comments and indents, its paths to a hundredth of a point."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"-?\d+\.\d{3,}", _rounded, " ".join(path[0].split())), svg)
    return re.sub(r">\s+<", "><", svg).strip() + "\n"


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def make(page: Path, names: set[str]) -> None:
    """Make the page's pictures, or those of these names."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write_files(page, Path(folder))
        done: set[str] = set()
        for picture in pictures(page):
            if names and picture.name not in names:
                continue
            for command in picture.commands:
                if command not in done and main(shlex.split(command)[1:]) != 0:
                    raise SystemExit(f"{page.name}: {command}")
                done.add(command)
            take(picture, Path(folder))


if __name__ == "__main__":
    for one in PAGES:
        make(one, set(sys.argv[1:]))
