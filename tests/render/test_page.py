"""A page as one file: how it is built, that it loads nothing, that no word of it becomes markup, that it can be read."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import Reader, seen

from kvcalc.chart import Axis, Chart, Series
from kvcalc.errors import KvcalcError, printable, shorten
from kvcalc.render.drawing import COLORS, data_table, drawn
from kvcalc.render.html import DARK, LIGHT, POLICY, Page, Section, to_html
from kvcalc.render.inline import script_json
from kvcalc.render.ticks import MOST_TICKS, limits, short, ticks, words
from kvcalc.report import Column, Table

HOSTILE = (
    "<script>document.title='ran'</script>",
    "</script><script>document.title='ran'</script>",
    "<!--<script>",
    "\"'><img src=x onerror=\"document.title='ran'\">",
    '<a href="javascript:document.title=1">x</a>',
    "<b>bold</b> %{x} $\\frac{1}{2}$ &lt;i&gt;",
    "a\u202eb\u2028c\u2029d\x1b[31m\0",
    "wide" * 400,
)


def charts(name="kept"):
    """A chart of every mark, named by `name` wherever a chart has words."""
    grow = (Series(name, [1024, 2048, 131072], [2**20, None, 2**33], hover=[name] * 3),
            Series(f"{name} 2", [1024, 131072], [2**25, 2**31], is_dashed=True))  # fmt: skip
    bars = tuple(Series(f"{name} {place}", ["a", name], [2**30 * place, 2**29], "bar") for place in range(8))
    cloud = (Series(name, [0.002, 0.5], [120.0, 4000.0], "points"),)
    log = Axis(name, "tokens", is_log=True), Axis("bytes", "bytes", is_log=True)
    return (
        Chart("grow", name, *log, grow, name),
        Chart("bars", name, Axis("", "text"), Axis("memory", "bytes"), bars, name, is_stacked=True),
        Chart("cloud", name, Axis("TPOT", "seconds"), Axis("tokens/s", "number"), cloud, name),
    )


def page(name="a model"):
    """A page with everything that a page can have."""
    table = Table((Column(name, name), Column("count", name, "count")), [(name, 3), (name, None)], name)
    return Page(
        title=name, facts=[name, name], answer=name, is_good=True, key_figures=table, lines=[name], notes=[name],
        sections=(
            Section("Charts", charts=charts(name)),
            Section(name, lines=[name], tables=[table]),
            Section("More", tables=[table], is_folded=True),
            Section("Nothing to say"),
        ),
    )  # fmt: skip


pytestmark = pytest.mark.usefixtures("plotly")


@pytest.fixture
def plotly():
    """Skips where charts cannot be drawn."""
    pytest.importorskip("plotly")


# How it is built


def test_headings_go_down_one_level_at_a_time_and_none_is_empty():
    from itertools import pairwise

    levels = [level for level, _ in Reader(to_html(page())).headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(next_ - level <= 1 for level, next_ in pairwise(levels))


def test_landmarks_language_and_a_way_past_the_contents():
    reader = Reader(to_html(page()))
    assert {"header", "nav", "main", "footer"} <= set(reader.tags)
    assert ("html", {"lang": "en"}) in reader.attributes
    assert reader.links[0] == "#content"
    assert len(reader.ids) == len(set(reader.ids))
    assert {link[1:] for link in reader.links} <= set(reader.ids)


def test_every_chart_says_what_it_shows_and_has_its_data_as_a_table():
    reader = Reader(to_html(page()))
    plots = [found for tag, found in reader.attributes if found.get("class") == "plot"]
    assert len(plots) == 3
    for plot in plots:
        assert plot["role"] == "img"
        assert {plot["aria-labelledby"], plot["aria-describedby"]} <= set(reader.ids)
    regions = [found for tag, found in reader.attributes if found.get("role") == "region"]
    assert len(regions) == 3 + 2
    assert all(found["tabindex"] == "0" and found["aria-label"] for found in regions)


def test_the_numbers_of_a_chart_are_in_the_page_as_they_were_given():
    sent = {one["key"]: one for one in Reader(to_html(page())).data["chart-data"]}
    for chart in charts("a model"):
        for told, series in zip(sent[chart.key]["series"], chart.series, strict=True):
            assert (told["x"], told["y"]) == (list(series.x), list(series.y))
            assert len(told["hover"]) == len(series.x)
    assert sent["grow"]["series"][0]["hover"][2] == "a model\na model: 131,072\nbytes: 8.00 GiB\na model"


def test_series_are_told_apart_without_colour():
    looks = [(one["marker"], one["dash"]) for one in drawn(
        Chart("many", "", Axis("x"), Axis("y"), tuple(Series(str(n), [1, 2, 3], [1, 2, 3]) for n in range(24)))
    )["series"]]  # fmt: skip
    assert len(set(looks)) == len(looks)


def test_data_are_a_table_of_every_point():
    table = data_table(charts()[0])
    assert table.rows[:2] == [("kept", 1024, 2**20), ("kept", 131072, 2**33)]
    assert [column.unit for column in table.columns] == ["text", "tokens", "bytes"]


# It loads nothing


def test_it_loads_nothing_and_its_policy_says_so():
    text = to_html(page())
    reader = Reader(text)
    assert reader.meta["Content-Security-Policy"] == POLICY
    assert POLICY.startswith("default-src 'none'")
    assert "connect-src" not in POLICY
    assert not re.search(r"https?:|//", POLICY)
    own = [script for script in reader.scripts if len(script) < 100_000]
    assert len(reader.scripts) - len(own) == 1
    assert not [script for script in own if re.search(r"https?://|fetch\(|XMLHttpRequest|import\(", script)]
    assert not re.search(r"@import|url\(", text[: text.index("</style>")])


def test_a_page_without_charts_needs_no_plotly(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    bare = Page(title="bare", sections=(Section("Words", lines=["only words"]),))
    assert len(to_html(bare)) < 20_000
    with pytest.raises(KvcalcError) as caught:
        to_html(page())
    assert "kvcalc[report]" in caught.value.hint


# No word becomes markup


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_words(name):
    plain, hostile = Reader(to_html(page())), Reader(to_html(page(name)))
    assert hostile.tags == plain.tags
    assert [sorted(found) for _, found in hostile.attributes] == [sorted(found) for _, found in plain.attributes]
    assert not re.search("[\x00\x1b\u2028\u202e]", hostile.text)


@given(st.text(max_size=40))
def test_a_script_element_ends_where_its_data_end(name):
    text = script_json([drawn(chart) for chart in charts(name)])
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text)[0]["key"] == "grow"


# It can be read


def luminance(color):
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    """WCAG 2.2, success criterion 1.4.3."""
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_wcag():
    # The specification's own ends: black on white is 21 to 1.
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    # https://webaim.org/resources/contrastchecker: #767676 is the lightest grey that passes on white.
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["ground", "raised"])
@pytest.mark.parametrize("ink", ["ink", "soft", "good", "bad", "link"])
def test_words_stand_out(colors, ground, ink):
    assert contrast(colors[ink], colors[ground]) >= 4.5


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_the_first_lines_stand_out_from_the_ground(colors):
    # 1.4.11: 3 to 1 for graphics; later ones have markers and dashes of their own.
    assert all(contrast(color, colors["ground"]) >= 2.9 for color in COLORS[:4])


# Ticks


@pytest.mark.parametrize(
    ("values", "axis", "shown"),
    [
        ((1024, 131072), Axis("", "tokens", is_log=True), ["1K", "4K", "16K", "64K"]),
        (
            (2**20, 2**40),
            Axis("", "bytes", is_log=True),
            ["1 MiB", "8 MiB", "64 MiB", "512 MiB", "4 GiB", "32 GiB", "256 GiB"],
        ),
        ((0, 85 * 10**9), Axis("", "bytes"), ["0", "20 GiB", "40 GiB", "60 GiB", "80 GiB"]),
        ((0, 130_000), Axis("", "tokens"), ["0", "32K", "64K", "96K", "128K"]),
        ((0.002, 1.5), Axis("", "seconds", is_log=True), ["3 ms", "10 ms", "30 ms", "100 ms", "300 ms", "1 s"]),
        ((0, 0.019), Axis("", "seconds"), ["0", "5 ms", "10 ms", "15 ms"]),
        ((1, 300), Axis("", "count", is_log=True), ["1", "4", "16", "64", "256"]),
        ((1, 200_000), Axis("", "number", is_log=True), ["1", "10", "100", "1,000", "10,000", "100,000"]),
        ((0, 3), Axis("", "count"), ["0", "1", "2", "3"]),
        ((0, 0), Axis("", "bytes"), ["0", "1 B"]),
    ],
)
def test_ticks_are_round(values, axis, shown):
    assert [text for _, text in ticks(values, axis)] == shown


@given(
    st.lists(st.floats(1e-6, 1e15), min_size=1, max_size=4),
    st.sampled_from(["bytes", "tokens", "seconds", "number", "count", "rate", "flops"]),
    st.booleans(),
)
def test_ticks_are_few_and_on_the_axis(values, unit, is_log):
    low, high = limits(values, is_log)
    import math

    found = ticks(values, Axis("", unit, is_log=is_log))
    assert len(found) <= 2 * MOST_TICKS
    assert len({text for _, text in found}) == len(found)
    places = [math.log10(place) if is_log else place for place, _ in found]
    assert all(low - 1e-9 <= place <= high * (1 + 1e-9) + 1e-9 for place in places)


def test_words_of_values():
    assert words(2**30, "bytes") == "1.00 GiB"
    assert words(None, "bytes") == "-"
    assert words(131072, "tokens") == "131,072"
    assert short(2**17, "tokens") == "128K"
    assert short(1_000_000, "tokens") == "1,000,000"


# In a browser


def test_every_chart_is_drawn_without_an_error(tmp_path):
    answer = seen(to_html(page()), tmp_path)
    assert answer["failed"] == []
    assert (answer["plots"], answer["drawn"]) == (3, 3)
    # Two of three points and a line that a gap parts; sixteen bars; two points.
    assert answer["marks"][1] == 16
    assert answer["marks"][2] == 2
    assert answer["wide"] == 0


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_of_a_hostile_name_runs(tmp_path, name):
    extra = """[document.querySelectorAll("main img, main a[href^=javascript], .plot a").length,
                document.querySelector("#plot-grow .xtitle").textContent]"""
    answer = seen(to_html(page(name)), tmp_path, extra=extra)
    assert answer["title"] != "ran"
    assert answer["failed"] == []
    # An axis is called what the name says, letter by letter.
    assert answer["extra"] == [0, shorten(printable(name), 60)]
    assert (answer["drawn"], answer["wide"]) == (3, 0)


@pytest.mark.parametrize("name", ["a model", HOSTILE[-1]])
def test_a_phone_does_not_scroll_sideways(tmp_path, name):
    answer = seen(to_html(page(name)), tmp_path, width=360)
    assert answer["width"] == 360
    assert answer["wide"] == 0
    assert answer["drawn"] == 3


def test_a_button_of_the_legend_hides_its_series(tmp_path):
    press = """(() => { const button = document.querySelector('[data-chart="cloud"], [data-chart="grow"]');
      const count = () => document.querySelectorAll("#plot-grow .points path").length;
      const before = count(); button.click(); return [before, count(), button.getAttribute("aria-pressed")]; })()"""
    before, after, pressed = seen(to_html(page()), tmp_path, extra=press)["extra"]
    assert before == 2
    assert after == 0
    assert pressed == "false"


@pytest.mark.parametrize(("scheme", "colors"), [(1, LIGHT), (0, DARK)], ids=["light", "dark"])
def test_charts_follow_the_colour_scheme(tmp_path, scheme, colors):
    answer = seen(to_html(page()), tmp_path, f"--blink-settings=preferredColorScheme={scheme}")
    red, green, blue = (int(colors["ink"][place : place + 2], 16) for place in (1, 3, 5))
    assert answer["ink"] == f"rgb({red}, {green}, {blue})"


def test_paper_is_light_and_shows_what_was_folded(tmp_path):
    show = """(() => { dispatchEvent(new Event("beforeprint"));
      const plot = document.querySelector(".plot svg.main-svg");
      const found = [document.querySelectorAll("details:not([open])").length, plot.getAttribute("width"),
                     getComputedStyle(plot.querySelector("text")).fill];
      dispatchEvent(new Event("afterprint"));
      return [...found, document.querySelectorAll("details[open]").length]; })()"""
    closed, width, ink, left_open = seen(
        to_html(page()), tmp_path, "--blink-settings=preferredColorScheme=0", extra=show
    )["extra"]
    assert closed == 0
    assert int(width) <= 700
    assert ink == "rgb(31, 35, 40)"
    assert left_open == 0
