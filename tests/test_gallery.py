"""The gallery's pictures: every command beside them runs, and each is a picture of its type with something in it."""

import importlib.util
import shlex
import xml.etree.ElementTree as ET

import gallery
import pytest

import docs
from kvcalc.cli.app import main

SHOWN = [(page, picture) for page in gallery.PAGES for picture in gallery.pictures(page)]
EACH = pytest.mark.parametrize("picture", [one for _, one in SHOWN], ids=lambda one: one.name)
FOLDER = docs.DOCS / "pictures"


@pytest.mark.parametrize("page", gallery.PAGES, ids=lambda page: page.name)
def test_every_command_runs_and_leaves_what_the_pictures_show(page, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    gallery.write_files(page, tmp_path)
    shown = [one for one in gallery.pictures(page) if not needs_torch(one) or importlib.util.find_spec("torch")]
    assert shown
    for command in dict.fromkeys(command for picture in shown for command in picture.commands):
        program, *arguments = shlex.split(command)
        assert (program, main(arguments)) == ("kvcalc", 0), command
    for picture in shown:
        source = picture.seen.split()[0].partition("#")[0] if picture.seen else picture.name
        assert (tmp_path / source).stat().st_size > 1000, picture.name


def needs_torch(picture):
    return any(command.startswith("kvcalc profile ") for command in picture.commands)


@EACH
def test_a_picture_has_words_and_is_small(picture):
    assert len(picture.says.split()) >= 8
    assert picture.commands
    assert (FOLDER / picture.name).stat().st_size <= 150_000


@EACH
def test_a_picture_is_of_its_type_and_not_blank(picture):
    path = FOLDER / picture.name
    if path.suffix == ".svg":
        root = ET.fromstring(path.read_text())  # noqa: S314 - a file of this repository
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert sum(one.tag.endswith("}use") for one in root.iter()) > 20
        return
    image = pytest.importorskip("PIL.Image").open(path)
    assert image.format == "PNG"
    assert "x".join(map(str, image.size)) == picture.seen.split()[1]
    pixels = image.convert("RGB").getcolors(maxcolors=1 << 24)
    assert len(pixels) > 16
    assert max(count for count, _ in pixels) < 0.97 * image.width * image.height


def test_no_picture_is_left_over():
    assert {path.name for path in FOLDER.iterdir()} == {picture.name for _, picture in SHOWN}


def test_a_minified_picture_keeps_its_paths_and_their_scale():
    svg = '<?xml version="1.0"?>\n<!-- x -->\n<svg>\n <metadata>d</metadata>\n <path transform="scale(0.015625)" d="M 1.23456 2 \nL 3.00001 4"/>\n</svg>'
    assert (
        gallery.minified(svg)
        == '<?xml version="1.0"?><svg><path transform="scale(0.015625)" d="M 1.23 2 L 3 4"/></svg>\n'
    )
